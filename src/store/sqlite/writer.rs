//! The one writer: everything that waits is carried out in one transaction, made durable by one
//! fsync, and only then answered.
//!
//! Nothing is timed: while one commit is under way the next batch gathers, so the busier it is the
//! more share an fsync. What fails for all (a full disk) is answered to all, and the next batch
//! tries again; what fails for one is found by trying one by one, so that it harms no other.

use super::checkpoint::Checkpointer;
use super::fail::{Done, Fail};
use super::unit::{Shared, Unit};
use crate::store::{StoreError, StoreResult};
use rusqlite::Connection;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// At most so many pieces of work a transaction, and waiting for the writer.
pub(super) const MOST_JOBS: usize = 1_024;
/// A batch is closed once it has about so many bytes.
const MOST_BYTES: usize = 8 << 20;
/// After so many changed rows, or so many bytes, the checkpointer is woken. Often, because what it
/// moves goes to the same disk as the commits: a large move makes them wait, a small one hardly.
const CHECKPOINT_ROWS: u64 = 2_000;
const CHECKPOINT_BYTES: usize = 1 << 20;

/// A piece of work with someone who waits for it.
pub(super) trait Job: Send {
    /// Does it within the transaction. It may be asked twice, the first time rolled back.
    fn run(&mut self, unit: &mut Unit<'_>) -> Done<()>;
    /// Tells whoever waits: the commit is through, or nothing happened.
    fn answer(self: Box<Self>, outcome: Result<(), StoreError>);
    /// About how many bytes it writes.
    fn bytes(&self) -> usize;
}

struct Call<T, F> {
    work: F,
    done: Option<T>,
    reply: oneshot::Sender<StoreResult<T>>,
    bytes: usize,
}

impl<T, F> Job for Call<T, F>
where
    T: Send,
    F: FnMut(&mut Unit<'_>) -> Done<T> + Send,
{
    fn run(&mut self, unit: &mut Unit<'_>) -> Done<()> {
        self.done = None;
        self.done = Some((self.work)(unit)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { done, reply, .. } = *self;
        let result = outcome.and_then(|()| done.ok_or_else(|| Fail::Panicked.told()));
        // Whoever asked may have gone; the work is done all the same.
        let _ = reply.send(result);
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A look at the data through the writer's own connection, for stores that have no other.
pub(super) type Look = Box<dyn FnOnce(&Connection) + Send>;

pub(super) enum Command {
    Write(Box<dyn Job>),
    Look(Look),
    /// Limits the file to so many pages from now on: a full disk, without one.
    LimitPages(u32, oneshot::Sender<()>),
}

/// Makes a command of a piece of work, and the place where its result will be.
pub(super) fn call<T, F>(bytes: usize, work: F) -> (Command, oneshot::Receiver<StoreResult<T>>)
where
    T: Send + 'static,
    F: FnMut(&mut Unit<'_>) -> Done<T> + Send + 'static,
{
    let (reply, result) = oneshot::channel();
    (Command::Write(Box::new(Call { work, done: None, reply, bytes })), result)
}

/// Opens the connection anew; `None` for what lives in memory only.
pub(super) type Reopen = Option<Box<dyn Fn() -> rusqlite::Result<Connection> + Send>>;

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) reopen: Reopen,
    pub(super) shared: Arc<Shared>,
    /// Moves what is committed into the file; a store in memory has none.
    pub(super) checkpoint: Option<Checkpointer>,
    pub(super) rows_at_checkpoint: u64,
    pub(super) bytes_since_checkpoint: usize,
    pub(super) page_limit: Option<u32>,
    /// Whether the last commit failed: said once, not at each of the many that follow.
    pub(super) failing: bool,
}

impl Writer {
    /// Works until nobody can ask any more.
    pub(super) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(first) = commands.blocking_recv() {
            let mut jobs: Vec<Box<dyn Job>> = Vec::new();
            let mut looks: Vec<Look> = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(command) = next.take() {
                match command {
                    Command::Write(job) => {
                        bytes += job.bytes();
                        jobs.push(job);
                    }
                    Command::Look(look) => looks.push(look),
                    Command::LimitPages(pages, done) => {
                        self.limit_pages(pages);
                        let _ = done.send(());
                    }
                }
                if jobs.len() + looks.len() < MOST_JOBS && bytes < MOST_BYTES {
                    next = commands.try_recv().ok();
                }
            }
            if !jobs.is_empty() {
                self.batch(jobs);
                self.wake_checkpointer(bytes);
            }
            for look in looks {
                // A panic is the asker's alone: its channel closes and it is told.
                let _ = catch_unwind(AssertUnwindSafe(|| look(&self.conn)));
            }
        }
        if let Some(checkpointer) = self.checkpoint.take() {
            checkpointer.end();
        }
        if self.reopen.is_some() {
            let _ = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    fn limit_pages(&mut self, pages: u32) {
        self.page_limit = Some(pages);
        let _ = self.conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
    }

    fn batch(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        match self.attempt(&mut jobs) {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the store works again");
                }
                jobs.into_iter().for_each(|job| job.answer(Ok(())));
            }
            Err(fail) if jobs.len() == 1 || fail.concerns_all() => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(error = %fail.told(), "a commit failed");
                }
                jobs.into_iter().for_each(|job| job.answer(Err(fail.told())));
            }
            Err(_) => jobs.into_iter().for_each(|job| self.batch(vec![job])),
        }
    }

    fn attempt(&mut self, jobs: &mut [Box<dyn Job>]) -> Done<()> {
        let outcome =
            catch_unwind(AssertUnwindSafe(|| transaction(&self.conn, &self.shared, jobs)));
        let fail = match outcome {
            Ok(Ok(effects)) => {
                self.shared.apply(effects);
                return Ok(());
            }
            Ok(Err(fail)) => fail,
            Err(_) => Fail::Panicked,
        };
        if !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("ROLLBACK");
        }
        if (fail.spoils_connection() || !self.conn.is_autocommit())
            && let Some(reopen) = &self.reopen
        {
            match reopen() {
                Ok(fresh) => {
                    self.conn = fresh;
                    self.rows_at_checkpoint = 0;
                    if let Some(pages) = self.page_limit {
                        self.limit_pages(pages);
                    }
                }
                Err(error) => {
                    tracing::error!(error = %Fail::from(error).told(), "the store does not open");
                }
            }
        }
        Err(fail)
    }

    fn wake_checkpointer(&mut self, bytes: usize) {
        let Some(checkpointer) = &self.checkpoint else { return };
        let rows = self.conn.total_changes();
        self.bytes_since_checkpoint += bytes;
        if rows.saturating_sub(self.rows_at_checkpoint) >= CHECKPOINT_ROWS
            || self.bytes_since_checkpoint >= CHECKPOINT_BYTES
        {
            self.rows_at_checkpoint = rows;
            self.bytes_since_checkpoint = 0;
            checkpointer.wake();
        }
    }
}

fn transaction(
    conn: &Connection,
    shared: &Shared,
    jobs: &mut [Box<dyn Job>],
) -> Done<super::unit::Effects> {
    let mut unit = Unit::new(conn, shared);
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    for job in jobs {
        job.run(&mut unit)?;
    }
    conn.prepare_cached("COMMIT")?.execute([])?;
    Ok(unit.effects)
}
