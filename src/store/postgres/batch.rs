//! What is asked for at the same time is carried out together.
//!
//! While one batch is under way the next one gathers, so batches grow with the load by themselves.
//! Those who were just answered tend to come again at once, and are waited for a little: what a batch
//! costs is mostly what it costs once, and several daemons on one database have only so much between
//! them. Where there is little to do nothing waits: a batch is due as soon as it has as many as the one
//! before had and left behind, and that is soon nobody.

use super::connect::{Lent, Patience};
use super::fail::{Done, Fail};
use super::shared::Shared;
use crate::store::{StoreError, StoreResult};
use futures::FutureExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// At most so many jobs a transaction.
const MOST_JOBS: usize = 256;
/// At most about so many bytes a transaction.
const MOST_BYTES: usize = 4 << 20;
/// A batch waits for more for this part of the time that the one before it took,
const GATHER_PART: u32 = 2;
/// and no longer than this.
const GATHER_MOST: Duration = Duration::from_millis(20);
/// Jobs of a batch that failed for one of them which are tried one by one at the same time, aside of
/// the batches.
const MOST_APART: usize = 4;
/// Jobs that wait at the same time for what a silent daemon holds: few, since each keeps a connection.
const MOST_HELD: usize = 2;

/// One kind of work.
pub(super) trait Work: Send + Sync + 'static {
    /// What is asked for.
    type Job: Send + Sync + 'static;
    /// What came of it.
    type Reply: Send + 'static;

    /// How large a job is, about.
    fn bytes(job: &Self::Job) -> usize;

    /// Carries jobs out in one transaction, which it opens and commits. One reply a job, in order.
    fn carry_out(
        shared: &Shared,
        lent: &Lent,
        jobs: &[Self::Job],
    ) -> impl Future<Output = Done<Vec<Self::Reply>>> + Send;
}

type Waiting<W> = (<W as Work>::Job, oneshot::Sender<StoreResult<<W as Work>::Reply>>);

/// Takes jobs of one kind.
pub(super) struct Batcher<W: Work>(std::sync::RwLock<Option<mpsc::Sender<Waiting<W>>>>);

impl<W: Work> Batcher<W> {
    /// Starts carrying out what is asked for.
    pub(super) fn start(shared: &Arc<Shared>, tasks: &mut JoinSet<()>) -> Self {
        let (sender, receiver) = mpsc::channel(2 * MOST_JOBS);
        tasks.spawn(run::<W>(Arc::clone(shared), receiver));
        Self(std::sync::RwLock::new(Some(sender)))
    }

    /// Has a job carried out.
    pub(super) async fn call(&self, job: W::Job) -> StoreResult<W::Reply> {
        let sender = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let Some(sender) = sender else { return Err(closed()) };
        let (reply, answered) = oneshot::channel();
        sender.send((job, reply)).await.map_err(|_| closed())?;
        drop(sender);
        answered.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable("the operation failed inside; see the log".to_owned()))
        })
    }

    /// Takes no more.
    pub(super) fn close(&self) {
        drop(self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner).take());
    }
}

pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// Jobs that are carried out together.
struct Batch<W: Work> {
    jobs: Vec<W::Job>,
    replies: Vec<oneshot::Sender<StoreResult<W::Reply>>>,
    bytes: usize,
}

impl<W: Work> Default for Batch<W> {
    fn default() -> Self {
        Self { jobs: Vec::new(), replies: Vec::new(), bytes: 0 }
    }
}

impl<W: Work> Batch<W> {
    fn add(&mut self, (job, reply): Waiting<W>) {
        self.bytes += W::bytes(&job);
        self.jobs.push(job);
        self.replies.push(reply);
    }

    fn is_full(&self) -> bool {
        self.jobs.len() >= MOST_JOBS || self.bytes >= MOST_BYTES
    }
}

/// One batch at a time.
async fn run<W: Work>(shared: Arc<Shared>, mut receiver: mpsc::Receiver<Waiting<W>>) {
    let mut aside = Aside::new();
    // How many are to be expected, and until when they are waited for.
    let (mut expected, mut until) = (0, Instant::now());
    while let Some(first) = receiver.recv().await {
        let mut batch = Batch::<W>::default();
        batch.add(first);
        while batch.jobs.len() < expected && !batch.is_full() {
            let Ok(Some(next)) = tokio::time::timeout_at(until, receiver.recv()).await else {
                break;
            };
            batch.add(next);
        }
        while !batch.is_full() {
            let Ok(next) = receiver.try_recv() else { break };
            batch.add(next);
        }
        let started = Instant::now();
        let Batch { jobs, replies, .. } = batch;
        let done = jobs.len();
        // A job may wait for what a silent daemon holds: the batches go on meanwhile.
        for waiting in carry_out::<W>(&shared, Patience::Little, jobs, replies).await {
            aside.add::<W>(&shared, waiting);
        }
        aside.room().await;
        expected = done + receiver.len();
        until = Instant::now() + (started.elapsed() / GATHER_PART).min(GATHER_MOST);
    }
    aside.end().await;
}

/// Jobs that are carried out one by one, aside of the batches they came in. Most of a batch that could
/// not go on for one of its rows need nothing of that row: so first all are tried with little patience,
/// and only those that are held themselves wait for it, few at a time.
struct Aside {
    jobs: JoinSet<()>,
    all: Arc<Semaphore>,
    held: Arc<Semaphore>,
}

impl Aside {
    fn new() -> Self {
        let (all, held) = (Semaphore::new(MOST_APART), Semaphore::new(MOST_HELD));
        Self { jobs: JoinSet::new(), all: Arc::new(all), held: Arc::new(held) }
    }

    fn add<W: Work>(&mut self, shared: &Arc<Shared>, (job, reply): Waiting<W>) {
        let (shared, all, held) =
            (Arc::clone(shared), Arc::clone(&self.all), Arc::clone(&self.held));
        self.jobs.spawn(async move {
            let first = all.acquire().await;
            let left = carry_out::<W>(&shared, Patience::Little, vec![job], vec![reply]).await;
            drop(first);
            let _second = held.acquire().await;
            for (job, reply) in left {
                carry_out::<W>(&shared, Patience::Much, vec![job], vec![reply]).await;
            }
        });
    }

    /// Waits until the jobs of no more than one batch are left: what waits is bounded.
    async fn room(&mut self) {
        while self.jobs.try_join_next().is_some() {}
        while self.jobs.len() > MOST_JOBS {
            let _ = self.jobs.join_next().await;
        }
    }

    async fn end(&mut self) {
        while self.jobs.join_next().await.is_some() {}
    }
}

/// Carries a batch out and replies. Gives back the jobs of one that failed for the sake of one of
/// them, or that needs more patience: others shall not suffer for it.
async fn carry_out<W: Work>(
    shared: &Arc<Shared>,
    patience: Patience,
    jobs: Vec<W::Job>,
    replies: Vec<oneshot::Sender<StoreResult<W::Reply>>>,
) -> Vec<Waiting<W>> {
    let jobs = Arc::new(jobs);
    let fail = match attempt::<W>(shared, patience, &jobs).await {
        Ok(done) => {
            for (reply, done) in replies.into_iter().zip(done) {
                let _ = reply.send(Ok(done));
            }
            return Vec::new();
        }
        Err(fail) => fail,
    };
    let impatient = patience == Patience::Little && fail.is_held();
    if impatient || (jobs.len() > 1 && fail.concerns_one()) {
        // Nobody else has the jobs.
        let jobs = Arc::into_inner(jobs).unwrap_or_default();
        return jobs.into_iter().zip(replies).collect();
    }
    if let Fail::Corrupt(_) = &fail {
        tracing::error!(error = %fail.told(), "a transaction failed");
    } else {
        tracing::warn!(error = %fail.told(), "a transaction failed");
    }
    for reply in replies {
        let _ = reply.send(Err(fail.told()));
    }
    Vec::new()
}

async fn attempt<W: Work>(
    shared: &Arc<Shared>,
    patience: Patience,
    jobs: &Arc<Vec<W::Job>>,
) -> Done<Vec<W::Reply>> {
    let (all, asked) = (Arc::clone(shared), Arc::clone(jobs));
    shared
        .link
        .transaction_with(patience, move |lent| {
            let (shared, jobs) = (Arc::clone(&all), Arc::clone(&asked));
            async move { W::carry_out(&shared, lent, &jobs).await }.boxed()
        })
        .await
}
