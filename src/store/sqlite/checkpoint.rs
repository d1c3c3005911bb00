//! Moves what is in the write-ahead log into the database file, beside the writer, so that no
//! commit waits for it.

use rusqlite::Connection;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A log of more pages than this is started over, for which the writer has to pause a little.
const RESTART_AT_PAGES: i64 = 16_384;

/// The thread that moves.
pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Checkpointer {
    /// Starts it over a connection of its own.
    pub(super) fn start(conn: Connection) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&conn, &woken))?;
        Ok(Self { wake, thread })
    }

    /// There is enough to move.
    pub(super) fn wake(&self) {
        // Full means that it is awake already.
        let _ = self.wake.try_send(());
    }

    /// Waits until it has let go of the file: while it moves, nobody else can.
    pub(super) fn end(self) {
        drop(self.wake);
        // What it panicked of is left to whoever opens the file next.
        let _ = self.thread.join();
    }
}

/// Works each time it is woken, until nobody can wake it.
fn run(conn: &Connection, wake: &Receiver<()>) {
    while wake.recv().is_ok() {
        // Without effect while someone else checkpoints, or when the disk is full: later, then.
        let Ok(pages) = checkpoint(conn, "PRAGMA wal_checkpoint(PASSIVE)") else { continue };
        if pages > RESTART_AT_PAGES {
            // Most of it is moved already, so the rest is quick.
            let _ = checkpoint(conn, "PRAGMA wal_checkpoint(RESTART)");
        }
    }
}

fn checkpoint(conn: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    conn.query_row(pragma, [], |row| row.get(1))
}
