//! A replica's way to the store that all share: slow, failing, and forgetful of replies.
//!
//! Each call of the store within is run to its end without going back to the runtime, so that the
//! store's own thread has no part in what happens when. The delays before and after, which are the
//! simulation's, are what lets calls of many tasks come in between.

use crate::life::Life;
use crate::world::{Logged, State, World};
use answerback::contract::{TenantId, Time};
use answerback::core::{AnswerRequest, Destination, OutboxId, Publish, Wait, WaitId};
use answerback::store::sqlite::SqliteStore;
use answerback::store::{
    Answered, Cancelled, Depth, Feed, FeedRequest, Found, KeptReply, Lease, LeaseRequest, Listed,
    Moved, Others, OutboxFilter, OutboxRow, Place, Published, Retention, Retried, Retry, Settled,
    Settlement, Store, StoreError, StoreResult, TimedOut, WaitFilter, WaitQuery,
};
use async_trait::async_trait;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use tokio::sync::watch;

/// Wakes the thread that waits for the store's.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a call to its end here and now.
pub(crate) fn run_now<T>(call: impl Future<Output = T>) -> T {
    // Unconstrained: else tokio may make the call wait for a turn of the runtime, which never comes.
    let mut call = pin!(tokio::task::coop::unconstrained(call));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match call.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// What the simulation does to one call.
pub(crate) struct Trouble {
    pub(crate) before: Duration,
    pub(crate) after: Duration,
    /// Fails, and nothing has happened.
    pub(crate) fails: bool,
    /// Fails, and it has happened all the same.
    pub(crate) forgets: bool,
}

pub(crate) struct FaultyStore {
    inner: Arc<SqliteStore>,
    world: Arc<World>,
    life: Arc<Life>,
    hints: watch::Receiver<u64>,
}

impl FaultyStore {
    pub(crate) fn new(
        inner: Arc<SqliteStore>,
        world: Arc<World>,
        life: Arc<Life>,
        hints: watch::Receiver<u64>,
    ) -> Self {
        Self { inner, world, life, hints }
    }

    async fn around<T: Send>(
        &self,
        name: &'static str,
        call: impl Future<Output = StoreResult<T>> + Send,
        seen: impl FnOnce(&mut State, &T) + Send,
    ) -> StoreResult<T> {
        let trouble = self.world.trouble(&self.life, name);
        self.life.pass(trouble.before).await;
        if trouble.fails {
            return Err(StoreError::Unavailable("simulated: nothing has happened".to_owned()));
        }
        let done = run_now(call);
        {
            let mut state = self.world.state();
            match &done {
                Ok(done) => seen(&mut state, done),
                Err(error) => state.wrong(format!("{name}: the store itself fails: {error}")),
            }
        }
        self.life.pass(trouble.after).await;
        if trouble.forgets {
            return Err(StoreError::Unavailable("simulated: the reply is lost".to_owned()));
        }
        done
    }

    /// Settles, and makes sure that whoever has lost its lease changes nothing.
    async fn settle_checked(
        &self,
        batch: Vec<Settlement>,
        now: Time,
    ) -> StoreResult<Vec<Destination>> {
        let stale: Vec<(OutboxId, bool)> = {
            let state = self.world.state();
            let rightly = |s: &Settlement| state.ledger.holds(s.id, s.lease);
            // Outcomes of an older and of the present lease may come together.
            let lost = batch.iter().filter(|s| !batch.iter().any(|o| o.id == s.id && rightly(o)));
            lost.map(|s| (s.id, s.settled == Settled::Delivered)).collect()
        };
        let mut before = Vec::new();
        for (id, _) in &stale {
            before.push(self.row(*id).await?);
        }
        let done = self.inner.settle(batch, now).await?;
        for ((id, delivered), before) in stale.into_iter().zip(before) {
            let after = self.row(id).await?;
            let allowed = |(was, is): (&OutboxRow, &OutboxRow)| {
                let same = (was.state, was.attempts, was.next_attempt_at)
                    == (is.state, is.attempts, is.next_attempt_at);
                let late = answerback::core::OutboxState::Withdrawn == was.state && delivered;
                same || late
            };
            if !before.as_ref().zip(after.as_ref()).is_some_and(allowed) {
                self.world.state().wrong(format!(
                    "message {}: an outcome without a lease changed {before:?} into {after:?}",
                    id.0
                ));
            }
        }
        Ok(done)
    }

    async fn row(&self, id: OutboxId) -> StoreResult<Option<OutboxRow>> {
        let Some(wait) = self.world.state().ledger.wait_of(id) else { return Ok(None) };
        for announcements in [true, false] {
            let filter = OutboxFilter {
                tenant: TenantId::default_tenant(),
                announcements,
                state: None,
                label: None,
                wait: Some(wait),
                before: None,
                limit: 1_000,
            };
            let found = self.inner.list_outbox(filter).await?.found;
            if let Some(row) = found.into_iter().find(|row| row.id == id) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl Store for FaultyStore {
    async fn publish(&self, batch: Vec<Publish>, now: Time) -> StoreResult<Vec<Published>> {
        let asked = batch.clone();
        let call = self.inner.publish(batch, now);
        self.around("publish", call, move |state, done| {
            for (asked, done) in asked.into_iter().zip(done) {
                state.happened(Logged::Publish(asked, now, done.clone()));
            }
        })
        .await
    }

    async fn answer(&self, request: AnswerRequest, now: Time) -> StoreResult<Answered> {
        let call = self.inner.answer(request.clone(), now);
        self.around("answer", call, move |state, done| {
            state.happened(Logged::Answer(request, now, done.clone()));
        })
        .await
    }

    async fn cancel(&self, wait: WaitId, now: Time) -> StoreResult<Option<Cancelled>> {
        let call = self.inner.cancel(wait, now);
        self.around("cancel", call, move |state, done| {
            if let Some(done) = done {
                state.happened(Logged::Cancel(wait, now, done.outcome));
            }
        })
        .await
    }

    async fn time_out(&self, limit: usize, now: Time) -> StoreResult<TimedOut> {
        let call = self.inner.time_out(limit, now);
        self.around("time_out", call, move |state, done| {
            state.happened(Logged::TimeOut(now, done.waits.iter().map(|(id, _)| *id).collect()));
        })
        .await
    }

    async fn lease(&self, request: LeaseRequest, now: Time) -> StoreResult<Lease> {
        let (limit, until) = (request.limit, now.after(request.hold));
        let (kind, name) = request.destination.parts();
        let lane = format!("{kind} {name}");
        let call = self.inner.lease(request, now);
        self.around("lease", call, move |state, done| {
            state.trace.note(format_args!(
                "  {} for {lane}, next due {:?}",
                done.messages.len(),
                done.next_due
            ));
            if done.messages.len() > limit {
                state.wrong("a lease of more than was asked for".to_owned());
            }
            for message in &done.messages {
                state.granted(message, now, until);
            }
        })
        .await
    }

    async fn settle(&self, batch: Vec<Settlement>, now: Time) -> StoreResult<Vec<Destination>> {
        let call = self.settle_checked(batch.clone(), now);
        self.around("settle", call, move |state, _| {
            for settlement in &batch {
                state.settled(settlement);
            }
        })
        .await
    }

    async fn pulled(&self, wait: WaitId, now: Time) -> StoreResult<bool> {
        let call = self.inner.pulled(wait, now);
        self.around("pulled", call, move |state, _| {
            state.pulled.insert(wait);
        })
        .await
    }

    async fn find(&self, query: WaitQuery) -> StoreResult<Found> {
        self.around("find", self.inner.find(query), |_, _| {}).await
    }

    async fn list_waits(&self, filter: WaitFilter) -> StoreResult<Listed<Arc<Wait>, WaitId>> {
        self.around("list_waits", self.inner.list_waits(filter), |_, _| {}).await
    }

    async fn list_outbox(&self, filter: OutboxFilter) -> StoreResult<Listed<OutboxRow, OutboxId>> {
        self.around("list_outbox", self.inner.list_outbox(filter), |_, _| {}).await
    }

    async fn retry(&self, tenant: TenantId, what: Retry, now: Time) -> StoreResult<Retried> {
        let call = self.inner.retry(tenant, what.clone(), now);
        self.around("retry", call, move |state, done| state.retried(&what, done)).await
    }

    async fn destinations(&self) -> StoreResult<Vec<Destination>> {
        let call = async {
            // Their order means nothing, and would differ from run to run.
            let mut found = self.inner.destinations().await?;
            found.sort();
            Ok(found)
        };
        self.around("destinations", call, |_, _| {}).await
    }

    async fn retire(&self, present: Vec<Destination>, now: Time) -> StoreResult<u64> {
        self.around("retire", self.inner.retire(present, now), |_, _| {}).await
    }

    async fn depths(&self) -> StoreResult<Vec<Depth>> {
        self.around("depths", self.inner.depths(), |_, _| {}).await
    }

    async fn set_paused(&self, destination: Destination, paused: bool) -> StoreResult<()> {
        let call = self.inner.set_paused(destination, paused);
        self.around("set_paused", call, |_, ()| {}).await
    }

    async fn paused(&self) -> StoreResult<Vec<Destination>> {
        self.around("paused", self.inner.paused(), |_, _| {}).await
    }

    async fn next_deadline(&self) -> StoreResult<Option<Time>> {
        self.around("next_deadline", self.inner.next_deadline(), |_, _| {}).await
    }

    async fn kept_reply(&self, scope: String, now: Time) -> StoreResult<Option<KeptReply>> {
        self.around("kept_reply", self.inner.kept_reply(scope, now), |_, _| {}).await
    }

    async fn keep_reply(&self, scope: String, reply: KeptReply, now: Time) -> StoreResult<()> {
        self.around("keep_reply", self.inner.keep_reply(scope, reply, now), |_, ()| {}).await
    }

    async fn purge(&self, retention: Retention, limit: usize, now: Time) -> StoreResult<u64> {
        self.around("purge", self.inner.purge(retention, limit, now), |_, _| {}).await
    }

    async fn feed(&self, request: FeedRequest) -> StoreResult<Feed> {
        self.around("feed", self.inner.feed(request), |_, _| {}).await
    }

    async fn feed_end(&self) -> StoreResult<Place> {
        self.around("feed_end", self.inner.feed_end(), |_, _| {}).await
    }

    async fn moved(&self, after: Place, limit: usize) -> StoreResult<Moved> {
        self.around("moved", self.inner.moved(after, limit), |_, _| {}).await
    }

    fn others(&self) -> Option<Others> {
        (!self.world.plan.alone)
            .then(|| Others { look_every: crate::replica::LOOK_EVERY, hints: self.hints.clone() })
    }

    async fn probe(&self, now: Time) -> StoreResult<()> {
        self.around("probe", self.inner.probe(now), |_, ()| {}).await
    }

    async fn close(&self) {}
}
