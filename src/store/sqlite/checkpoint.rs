//! Moves what is in the write-ahead log into the database file, beside the writer, so that no
//! commit waits for it.

use rusqlite::Connection;
use std::sync::mpsc::Receiver;

/// A log of more pages than this is started over, for which the writer has to pause a little.
const RESTART_AT_PAGES: i64 = 16_384;

/// Works each time it is woken, until nobody can wake it.
pub(super) fn run(conn: &Connection, wake: &Receiver<()>) {
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
