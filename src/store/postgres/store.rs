//! The trait, a line an operation.

use super::answer::{Answering, Cancelling};
use super::batch::Batcher;
use super::fail::Done;
use super::notify::Hints;
use super::open::{self, OpenError, PostgresOptions};
use super::publish::Publishing;
use super::settle::Settling;
use super::shared::Shared;
use super::{deadlines, feed, forgotten, lease, lists, operate, replies};
use crate::store::{
    Answered, Cancelled, Depth, Feed, FeedRequest, Found, KeptReply, Lease, LeaseRequest, Listed,
    Moved, Others, OutboxFilter, OutboxRow, Place, Published, Retention, Retried, Retry,
    Settlement, Store, StoreResult, TimedOut, WaitFilter, WaitQuery,
};
use answerback_contract::{TenantId, Time};
use answerback_core::{AnswerRequest, Destination, OutboxId, Publish, Wait, WaitId};
use async_trait::async_trait;
use futures::FutureExt as _;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// [`Store`] in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    publishing: Batcher<Publishing>,
    answering: Batcher<Answering>,
    cancelling: Batcher<Cancelling>,
    settling: Batcher<Settling>,
    hints: Hints,
    tasks: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects, brings the schema up to date, and starts what works in the background.
    ///
    /// # Errors
    /// [`OpenError`] says what is in the way and what to do about it.
    pub async fn open(options: PostgresOptions) -> Result<Self, OpenError> {
        let prepared = open::prepare(&options).await?;
        let shared = Arc::new(Shared::new(prepared.link, options.rules, options.mint));
        let mut tasks = JoinSet::new();
        let id = format!("{:016x}", crate::clock::random());
        let hints = Hints::start(prepared.listen, id, &mut tasks);
        Ok(Self {
            publishing: Batcher::start(&shared, &mut tasks),
            answering: Batcher::start(&shared, &mut tasks),
            cancelling: Batcher::start(&shared, &mut tasks),
            settling: Batcher::start(&shared, &mut tasks),
            shared,
            hints,
            tasks: Mutex::new(tasks),
        })
    }

    /// Others may want to know of what was committed.
    fn tell<T>(&self, (reply, events): (T, bool)) -> T {
        if events {
            self.hints.tell();
        }
        reply
    }
}

fn told<T>(done: Done<T>) -> StoreResult<T> {
    done.map_err(|fail| fail.told())
}

#[async_trait]
impl Store for PostgresStore {
    async fn publish(&self, batch: Vec<Publish>, now: Time) -> StoreResult<Vec<Published>> {
        Ok(self.tell(self.publishing.call((batch, now)).await?))
    }

    async fn answer(&self, request: AnswerRequest, now: Time) -> StoreResult<Answered> {
        Ok(self.tell(self.answering.call((request, now)).await?))
    }

    async fn cancel(&self, wait: WaitId, now: Time) -> StoreResult<Option<Cancelled>> {
        Ok(self.tell(self.cancelling.call((wait, now)).await?))
    }

    async fn time_out(&self, limit: usize, now: Time) -> StoreResult<TimedOut> {
        // What lapses is found by the number of the pull deliveries, which another daemon may have
        // given.
        told(self.shared.look_up(&Destination::Pull).await)?;
        let shared = Arc::clone(&self.shared);
        let ended = self.shared.link.transaction(move |lent| {
            let shared = Arc::clone(&shared);
            async move { deadlines::time_out(&shared, lent, limit, now).await }.boxed()
        });
        let ended = self.tell(told(ended.await)?);
        // Sweeps come by regularly: so a reader of the feed never finds much without a place.
        if let Err(fail) = feed::place(&self.shared).await {
            tracing::debug!(error = %fail.told(), "events have to wait for their places");
        }
        Ok(ended)
    }

    async fn lease(&self, request: LeaseRequest, now: Time) -> StoreResult<Lease> {
        let Some(id) = told(self.shared.look_up(&request.destination).await)? else {
            return Ok(Lease::default());
        };
        let request = Arc::new(request);
        let leased = self.shared.link.transaction(move |lent| {
            let request = Arc::clone(&request);
            async move { lease::lease(lent, id, &request, now).await }.boxed()
        });
        told(leased.await)
    }

    async fn settle(&self, batch: Vec<Settlement>, now: Time) -> StoreResult<Vec<Destination>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.settling.call((batch, now)).await
    }

    async fn pulled(&self, wait: WaitId, now: Time) -> StoreResult<bool> {
        told(operate::pulled(&self.shared, wait, now).await)
    }

    async fn find(&self, query: WaitQuery) -> StoreResult<Found> {
        told(lists::find(&self.shared, query).await)
    }

    async fn list_waits(&self, filter: WaitFilter) -> StoreResult<Listed<Arc<Wait>, WaitId>> {
        told(lists::waits(&self.shared, filter).await)
    }

    async fn list_outbox(&self, filter: OutboxFilter) -> StoreResult<Listed<OutboxRow, OutboxId>> {
        told(lists::outbox(&self.shared, filter).await)
    }

    async fn retry(&self, tenant: TenantId, what: Retry, now: Time) -> StoreResult<Retried> {
        told(operate::retry(&self.shared, tenant, what, now).await)
    }

    async fn destinations(&self) -> StoreResult<Vec<Destination>> {
        told(operate::destinations(&self.shared).await)
    }

    async fn retire(&self, present: Vec<Destination>, now: Time) -> StoreResult<u64> {
        told(operate::retire(&self.shared, present, now).await)
    }

    async fn depths(&self) -> StoreResult<Vec<Depth>> {
        told(operate::depths(&self.shared).await)
    }

    async fn set_paused(&self, destination: Destination, paused: bool) -> StoreResult<()> {
        told(operate::set_paused(&self.shared, destination, paused).await)
    }

    async fn paused(&self) -> StoreResult<Vec<Destination>> {
        told(operate::paused(&self.shared).await)
    }

    async fn next_deadline(&self) -> StoreResult<Option<Time>> {
        told(self.shared.link.read(|lent| deadlines::next_deadline(lent).boxed()).await)
    }

    async fn kept_reply(&self, scope: String, now: Time) -> StoreResult<Option<KeptReply>> {
        told(replies::kept(&self.shared, scope, now).await)
    }

    async fn keep_reply(&self, scope: String, reply: KeptReply, now: Time) -> StoreResult<()> {
        told(replies::keep(&self.shared, scope, reply, now).await)
    }

    async fn purge(&self, retention: Retention, limit: usize, now: Time) -> StoreResult<u64> {
        told(forgotten::purge(&self.shared, retention, limit, now).await)
    }

    async fn feed(&self, request: FeedRequest) -> StoreResult<Feed> {
        told(feed::feed(&self.shared, request).await)
    }

    async fn feed_end(&self) -> StoreResult<Place> {
        told(feed::end(&self.shared).await)
    }

    async fn moved(&self, after: Place, limit: usize) -> StoreResult<Moved> {
        told(feed::moved(&self.shared, after, limit).await)
    }

    fn others(&self) -> Option<Others> {
        Some(self.hints.others())
    }

    async fn probe(&self, now: Time) -> StoreResult<()> {
        told(replies::probe(&self.shared, now).await)
    }

    async fn close(&self) {
        self.publishing.close();
        self.answering.close();
        self.cancelling.close();
        self.settling.close();
        self.hints.close();
        let mut tasks = self.tasks.lock().await;
        while tasks.join_next().await.is_some() {}
        self.shared.link.close();
    }
}
