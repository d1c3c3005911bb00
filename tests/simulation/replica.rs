//! A replica: what `daemon.rs` wires, without the web, on a store that all replicas share.

use crate::buses::Lanes;
use crate::clock::SimClock;
use crate::life::Life;
use crate::random::Random;
use crate::store::FaultyStore;
use crate::world::World;
use answerback::clock::Clock;
use answerback::dispatch::Dispatcher;
use answerback::intake::Intake;
use answerback::store::Store;
use answerback::store::sqlite::SqliteStore;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often replicas look for what others did when no hint comes.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(20);

/// A run of a replica, as its clients reach it.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) life: Arc<Life>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) intake: Intake,
    dispatcher: Dispatcher,
    stop: CancellationToken,
    background: Arc<tokio::sync::Mutex<JoinSet<()>>>,
}

pub(crate) struct Replica {
    pub(crate) index: usize,
    pub(crate) clock: Arc<SimClock>,
    world: Arc<World>,
    inner: Arc<SqliteStore>,
    hints: watch::Sender<u64>,
    running: Mutex<Option<Running>>,
    runs: Mutex<u32>,
}

impl Replica {
    pub(crate) fn new(index: usize, world: &Arc<World>, inner: &Arc<SqliteStore>) -> Self {
        let stream = 1_000 + u64::try_from(index).unwrap();
        let mut random = world.chance_of(stream);
        // Clocks of machines agree only so far.
        let off = i64::try_from(random.below(2_000)).unwrap() - 1_000;
        Self {
            index,
            clock: Arc::new(SimClock::new(world.began, off, random)),
            world: Arc::clone(world),
            inner: Arc::clone(inner),
            hints: watch::Sender::new(0),
            running: Mutex::new(None),
            runs: Mutex::new(0),
        }
    }

    pub(crate) fn running(&self) -> Option<Running> {
        self.running.lock().unwrap().clone()
    }

    /// Tells this replica that somebody committed something.
    pub(crate) fn hints(&self) -> watch::Sender<u64> {
        self.hints.clone()
    }

    /// Starts, again and again while the store fails.
    pub(crate) async fn start(&self) {
        while self.running().is_none() {
            let run = {
                let mut runs = self.runs.lock().unwrap();
                *runs += 1;
                *runs
            };
            let life = Arc::new(Life::new(self.index, run));
            self.world.note(format_args!("r{}.{run} starts", self.index));
            match self.try_start(Arc::clone(&life)).await {
                Ok(running) => *self.running.lock().unwrap() = Some(running),
                Err(_) => {
                    life.kill();
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    async fn try_start(&self, life: Arc<Life>) -> Result<Running, answerback::store::StoreError> {
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(
            Arc::clone(&self.inner),
            Arc::clone(&self.world),
            Arc::clone(&life),
            self.hints.subscribe(),
        ));
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let lanes = Lanes { world: Arc::clone(&self.world), life: Arc::clone(&life) };
        let configured = lanes.configured();
        let present = configured.iter().map(|lane| lane.destination.clone()).collect();
        store.retire(present, clock.now()).await?;
        let dispatcher =
            Dispatcher::start(Arc::clone(&store), Arc::clone(&clock), configured, Arc::new(lanes))
                .await?;
        let stop = CancellationToken::new();
        let mut background = JoinSet::new();
        let intake = Intake::start(&store, &clock, &dispatcher, &stop, &mut background);
        Ok(Running {
            life,
            store,
            clock: Arc::clone(&self.clock),
            intake,
            dispatcher,
            stop,
            background: Arc::new(tokio::sync::Mutex::new(background)),
        })
    }

    /// `kill -9`.
    pub(crate) fn kill(&self) {
        if let Some(running) = self.running.lock().unwrap().take() {
            self.world.note(format_args!("r{}.{} is killed", self.index, running.life.run));
            running.life.kill();
        }
    }

    /// Stops as at SIGTERM, within the grace, and then for good. Gives whether everything finished.
    pub(crate) async fn stop(&self, grace: Duration) -> bool {
        let Some(running) = self.running.lock().unwrap().take() else { return true };
        self.world.note(format_args!("r{}.{} stops", self.index, running.life.run));
        running.stop.cancel();
        let drained = running.dispatcher.drain(grace).await;
        let ended = tokio::time::timeout(grace, async {
            let mut background = running.background.lock().await;
            while background.join_next().await.is_some() {}
        })
        .await
        .is_ok();
        running.life.kill();
        drained && ended
    }

    /// Stands still for so long.
    pub(crate) fn freeze(&self, for_long: Duration) {
        if let Some(running) = self.running() {
            self.world.note(format_args!("r{} freezes for {for_long:?}", self.index));
            running.life.freeze(tokio::time::Instant::now() + for_long);
        }
    }

    pub(crate) fn step_clock(&self, random: &mut Random) {
        let millis = i64::try_from(random.between(0, 20_000)).unwrap() - 10_000;
        self.world.note(format_args!("r{}'s clock steps by {millis} ms", self.index));
        self.clock.step(millis);
    }
}
