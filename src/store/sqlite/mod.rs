//! The store in one SQLite file, for one daemon.
//!
//! * One thread writes ([`writer`]): it gathers what waits, carries it out in one transaction and
//!   answers after the commit is on disk. Reads go beside it over a few connections ([`readers`]).
//! * What is leased is known in memory only ([`lanes`]), since one process has the file, which a
//!   lock beside it ensures ([`open`]).
//! * Decisions are the core's; [`unit`] carries them out. [`waits`], [`outbox`], [`lease`],
//!   [`lists`], [`events`] and [`forgotten`] are the operations.
//!
//! Invariants of the file: of an order key at most one message is in state "due", and there is one
//! when any is queued; a dedupe key belongs to one wait of a tenant, dead or alive; ids are never
//! given twice.

mod checkpoint;
mod depths;
mod events;
mod fail;
mod forgotten;
mod lanes;
mod lease;
mod lists;
mod open;
mod outbox;
mod readers;
mod replies;
mod rows;
mod unit;
mod waits;
mod writer;

pub(super) use open::{FileLock, stopped};
pub use open::{Location, OpenError, bring_up_to_date};
pub use unit::Mint;

use super::destinations;
use super::walk::{MOST_LOOKED_AT, Page, Walked};
use super::{
    Answered, Cancelled, Depth, Feed, FeedRequest, Found, KeptReply, Lease, LeaseRequest, Listed,
    Moved, OutboxFilter, OutboxRow, Place, Published, Retention, Retried, Retry, Settlement, Store,
    StoreResult, TimedOut, WaitFilter, WaitQuery,
};
use answerback_contract::{TenantId, Time};
use answerback_core::{AnswerRequest, Destination, OutboxId, Publish, Rules, Wait, WaitId};
use async_trait::async_trait;
use checkpoint::Checkpointer;
use destinations::DestinationId;
use fail::{Done, Fail};
use readers::{Pool, Readers, closed};
use rusqlite::Connection;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::{mpsc, oneshot};
use unit::{Shared, Unit};
use writer::{Command, Writer};

/// What a store needs.
pub struct SqliteOptions {
    /// Where it is.
    pub location: Location,
    /// What decisions take from the configuration.
    pub rules: Arc<Rules>,
    /// Gives the ids of the events that the store brings about.
    pub mint: Mint,
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions").field("location", &self.location).finish_non_exhaustive()
    }
}

/// [`Store`] in a SQLite file or in memory.
pub struct SqliteStore {
    shared: Arc<Shared>,
    /// `None` once it is closed.
    commands: RwLock<Option<mpsc::Sender<Command>>>,
    lanes: Readers,
    readers: Readers,
    /// A lane leases one call at a time.
    turns: Mutex<HashMap<DestinationId, Arc<tokio::sync::Mutex<()>>>>,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<()>>>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the store, creating or upgrading it as needed. Blocks while it does.
    ///
    /// # Errors
    /// [`OpenError`] says what is in the way and what to do about it.
    pub fn open(options: SqliteOptions) -> Result<Self, OpenError> {
        let SqliteOptions { location, rules, mint } = options;
        let (commands, received) = mpsc::channel(writer::MOST_JOBS);
        let (ending, ended) = oneshot::channel();
        let (conn, lock, path) = match location {
            Location::Memory => (open::prepare_memory()?, None, None),
            Location::File(path) => {
                let lock = FileLock::take(&path)?;
                (open::prepare(&path)?, Some(lock), Some(path))
            }
        };
        let named = path.clone().unwrap_or_else(|| ":memory:".into());
        let refused = |error: rusqlite::Error| OpenError::sqlite(&named, &error);
        let shared = Arc::new(open::load(&conn, rules, mint).map_err(|fail| match fail {
            Fail::Sql(source) => refused(source),
            _ => OpenError::Foreign { path: named.clone() },
        })?);
        let checkpoint = match &path {
            None => None,
            Some(path) => {
                let conn = open::checkpointer(path).map_err(refused)?;
                Some(Checkpointer::start(conn).map_err(OpenError::Thread)?)
            }
        };
        let group = || match &path {
            None => Readers::ThroughWriter,
            Some(path) => Readers::Pool(Pool::new(path.clone())),
        };
        let (lanes, readers) = (group(), group());
        let reopen =
            path.map(|path| Box::new(move || open::writer(&path)) as Box<dyn Fn() -> _ + Send>);
        let writer = Writer {
            conn,
            reopen,
            shared: shared.clone(),
            checkpoint,
            rows_at_checkpoint: 0,
            bytes_since_checkpoint: 0,
            page_limit: None,
            failing: false,
        };
        std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || {
                writer.run(received);
                // Only now may another daemon have the file.
                drop(lock);
                let _ = ending.send(());
            })
            .map_err(OpenError::Thread)?;
        Ok(Self {
            shared,
            commands: RwLock::new(Some(commands)),
            lanes,
            readers,
            turns: Mutex::default(),
            ended: tokio::sync::Mutex::new(Some(ended)),
        })
    }

    /// Lets the file grow to so many pages (4 KiB each) from now on, and no further: what a full
    /// disk does, for trying out how all that depends on the store bears it.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn limit_pages(&self, pages: u32) -> StoreResult<()> {
        let (done, result) = oneshot::channel();
        let sent = self.sender()?.send(Command::LimitPages(pages, done)).await;
        sent.map_err(|_| closed())?;
        result.await.map_err(|_| closed())
    }

    /// Does to the file what a test cannot wait for the store to do.
    #[cfg(test)]
    pub(crate) async fn execute(&self, sql: &'static str) -> StoreResult<()> {
        self.write(0, move |unit| Ok(unit.conn.execute_batch(sql)?)).await
    }

    fn sender(&self) -> StoreResult<mpsc::Sender<Command>> {
        let commands = self.commands.read().unwrap_or_else(PoisonError::into_inner);
        commands.clone().ok_or_else(closed)
    }

    async fn write<T, F>(&self, bytes: usize, work: F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Unit<'_>) -> Done<T> + Send + 'static,
    {
        let (command, result) = writer::call(bytes, work);
        self.sender()?.send(command).await.map_err(|_| closed())?;
        result.await.unwrap_or_else(|_| Err(Fail::Panicked.told()))
    }

    async fn read<T, F>(&self, work: F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Done<T> + Send + 'static,
    {
        self.readers.read(self.sender()?, work).await
    }

    /// Reads a list on from before an id until `limit` is found or enough was looked at.
    async fn list<T, I, F>(
        &self,
        before: Option<i64>,
        limit: usize,
        id: fn(i64) -> I,
        read: F,
    ) -> StoreResult<Listed<T, I>>
    where
        T: Send + 'static,
        F: Fn(&Connection, &Shared, i64, usize) -> Done<Page<T>> + Send + Sync + 'static,
    {
        let read = Arc::new(read);
        let mut walked = Walked::start(before, limit);
        while let Some((from, left)) = walked.goes_on() {
            let (shared, read) = (self.shared.clone(), read.clone());
            walked.add(self.read(move |conn| read(conn, &shared, from, left)).await?);
        }
        Ok(walked.listed(id))
    }

    fn known(&self, destination: &Destination) -> Option<DestinationId> {
        self.shared.destinations().id(destination)
    }

    fn turn(&self, destination: DestinationId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(destination).or_default().clone()
    }

    /// Queues all dead messages of a destination again, a bounded number a transaction.
    async fn retry_all(
        &self,
        tenant: TenantId,
        destination: Destination,
        now: Time,
    ) -> StoreResult<Retried> {
        let Some(id) = self.known(&destination) else { return Ok(Retried::Queued(0, Vec::new())) };
        let (mut queued, mut after) = (0, Some(0));
        while let Some(from) = after {
            let tenant = tenant.clone();
            let (some, next) =
                self.write(0, move |unit| unit.retry_some(&tenant, id, from, now)).await?;
            queued += some;
            after = next;
        }
        self.set_paused(destination.clone(), false).await?;
        let woken = if queued > 0 { vec![destination] } else { Vec::new() };
        Ok(Retried::Queued(queued, woken))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn publish(&self, batch: Vec<Publish>, now: Time) -> StoreResult<Vec<Published>> {
        let bytes = batch.iter().map(|p| p.envelope.text().len()).sum();
        self.write(bytes, move |unit| batch.iter().map(|p| unit.publish(p, now)).collect()).await
    }

    async fn answer(&self, request: AnswerRequest, now: Time) -> StoreResult<Answered> {
        let bytes = request.answer.value.len();
        self.write(bytes, move |unit| unit.answer(&request, now)).await
    }

    async fn cancel(&self, wait: WaitId, now: Time) -> StoreResult<Option<Cancelled>> {
        self.write(0, move |unit| unit.cancel(wait, now)).await
    }

    async fn time_out(&self, limit: usize, now: Time) -> StoreResult<TimedOut> {
        self.write(0, move |unit| unit.time_out(limit, now)).await
    }

    async fn lease(&self, request: LeaseRequest, now: Time) -> StoreResult<Lease> {
        let writer = self.sender()?;
        let Some(id) = self.known(&request.destination) else { return Ok(Lease::default()) };
        let turn = self.turn(id).lock_owned().await;
        let shared = self.shared.clone();
        let work = move |conn: &Connection| {
            // Held until the read is over, even when whoever asked has gone.
            let _turn = turn;
            lease::lease(conn, &shared, id, &request, now)
        };
        self.lanes.read(writer, work).await
    }

    async fn settle(&self, batch: Vec<Settlement>, now: Time) -> StoreResult<Vec<Destination>> {
        self.write(0, move |unit| unit.settle(&batch, now)).await
    }

    async fn pulled(&self, wait: WaitId, now: Time) -> StoreResult<bool> {
        self.write(0, move |unit| unit.pulled(wait, now)).await
    }

    async fn find(&self, query: WaitQuery) -> StoreResult<Found> {
        self.read(move |conn| lists::find(conn, &query)).await
    }

    async fn list_waits(&self, filter: WaitFilter) -> StoreResult<Listed<Arc<Wait>, WaitId>> {
        let (before, limit) = (filter.before.map(|id| id.0), filter.limit);
        let read = move |conn: &Connection, shared: &Shared, from, left| {
            lists::waits(conn, shared, &filter, from, left)
        };
        self.list(before, limit, WaitId, read).await
    }

    async fn list_outbox(&self, filter: OutboxFilter) -> StoreResult<Listed<OutboxRow, OutboxId>> {
        let (before, limit) = (filter.before.map(|id| id.0), filter.limit);
        let read = move |conn: &Connection, shared: &Shared, from, left| {
            lists::outbox(conn, shared, &filter, from, left)
        };
        self.list(before, limit, OutboxId, read).await
    }

    async fn retry(&self, tenant: TenantId, what: Retry, now: Time) -> StoreResult<Retried> {
        let (id, announcement) = match what {
            Retry::Announcement(id) => (id, true),
            Retry::Delivery(id) => (id, false),
            Retry::Announcer(name) => {
                return self.retry_all(tenant, Destination::Announcer(name), now).await;
            }
        };
        self.write(0, move |unit| unit.retry_one(&tenant, id, announcement, now)).await
    }

    async fn destinations(&self) -> StoreResult<Vec<Destination>> {
        Ok(self.depths().await?.into_iter().map(|depth| depth.destination).collect())
    }

    async fn retire(&self, present: Vec<Destination>, now: Time) -> StoreResult<u64> {
        let gone: Vec<(DestinationId, &'static str)> = {
            let known = self.shared.destinations();
            let reason = |d: &Destination| match d {
                Destination::Announcer(_) => Some("announcer-removed"),
                Destination::Route(_) => Some("route-removed"),
                Destination::ReplyTo(_) | Destination::Pull => None,
            };
            let gone = known.iter().filter(|(_, d)| !present.contains(d));
            gone.filter_map(|(id, d)| reason(d).map(|reason| (id, reason))).collect()
        };
        let mut retired = 0;
        for (id, reason) in gone {
            while self.shared.depths().queued(id) > 0 {
                let some = self.write(0, move |unit| unit.retire_some(id, reason, now)).await?;
                if some == 0 {
                    break;
                }
                retired += some;
            }
        }
        Ok(retired)
    }

    async fn depths(&self) -> StoreResult<Vec<Depth>> {
        let known = self.shared.destinations();
        let depths = self.shared.depths();
        let named = depths.all().filter_map(|(id, queued, oldest)| {
            Some(Depth { destination: known.get(id)?.clone(), queued, oldest })
        });
        Ok(named.collect())
    }

    async fn set_paused(&self, destination: Destination, paused: bool) -> StoreResult<()> {
        self.write(0, move |unit| {
            let id = unit.intern(&destination)?;
            unit.pause(id, paused)
        })
        .await
    }

    async fn paused(&self) -> StoreResult<Vec<Destination>> {
        let paused = self.shared.lanes().paused();
        let known = self.shared.destinations();
        Ok(paused.into_iter().filter_map(|id| known.get(id).cloned()).collect())
    }

    async fn next_deadline(&self) -> StoreResult<Option<Time>> {
        self.read(waits::next_deadline).await
    }

    async fn kept_reply(&self, scope: String, now: Time) -> StoreResult<Option<KeptReply>> {
        self.read(move |conn| replies::kept(conn, &scope, now)).await
    }

    async fn keep_reply(&self, scope: String, reply: KeptReply, now: Time) -> StoreResult<()> {
        let bytes = reply.body.len();
        self.write(bytes, move |unit| replies::keep(unit, &scope, &reply, now)).await
    }

    async fn purge(&self, retention: Retention, limit: usize, now: Time) -> StoreResult<u64> {
        let pull = self.known(&Destination::Pull);
        let waits =
            self.read(move |conn| forgotten::candidates(conn, pull, retention, limit, now)).await?;
        let mut forgotten = 0;
        if !waits.is_empty() {
            forgotten = self.write(0, move |unit| unit.forget(&waits, now)).await?;
        }
        while self.write(0, move |unit| unit.forget_memories(retention, limit, now)).await? {}
        self.write(0, |unit| unit.give_back_pages()).await?;
        Ok(forgotten)
    }

    async fn feed(&self, request: FeedRequest) -> StoreResult<Feed> {
        let (limit, mut bytes) = (request.limit.max(1), request.bytes);
        let mut feed = Feed { events: Vec::new(), next: request.after, more: true };
        let request = Arc::new(request);
        let mut looked_at = 0;
        // Several short reads, so that others get their turn between two.
        while feed.more && feed.events.len() < limit && looked_at < MOST_LOOKED_AT {
            let (request, after) = (request.clone(), feed.next);
            let (left, any) = (limit - feed.events.len(), !feed.events.is_empty());
            let page = self
                .read(move |conn| events::feed(conn, &request, after, left, bytes, any))
                .await?;
            bytes = bytes.saturating_sub(page.bytes);
            looked_at += page.looked_at;
            feed.events.extend(page.events);
            (feed.next, feed.more) = (page.next, page.more);
            if page.full {
                break;
            }
        }
        Ok(feed)
    }

    async fn feed_end(&self) -> StoreResult<Place> {
        self.read(events::end).await
    }

    async fn moved(&self, after: Place, limit: usize) -> StoreResult<Moved> {
        self.read(move |conn| events::moved(conn, after, limit)).await
    }

    async fn probe(&self, now: Time) -> StoreResult<()> {
        self.write(0, move |unit| replies::probe(unit, now)).await
    }

    async fn close(&self) {
        // The writer ends when the last sender is gone.
        drop(self.commands.write().unwrap_or_else(PoisonError::into_inner).take());
        self.lanes.close().await;
        self.readers.close().await;
        if let Some(ended) = self.ended.lock().await.take() {
            let _ = ended.await;
        }
    }
}
