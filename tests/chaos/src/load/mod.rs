//! What askers, approvers and hosts do meanwhile. Each request is written down with its times,
//! whatever comes of it.

mod answering;
mod asking;
mod client;
mod feed;
mod hosts;

pub use client::{Call, Client, escaped};

use crate::clock::Watch;
use crate::dice::Dice;
use crate::history::{Arrival, Recorder};
use crate::text::Text;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

/// Askers; each asks one question after the other.
const ASKERS: u64 = 16;
/// Approvers and hosts at work at the same time.
const AT_WORK: usize = 256;
/// Readers of the feed of events.
const READERS: usize = 2;

/// The texts that were published, by their event id: what comes back equal is kept once.
#[derive(Clone, Debug, Default)]
pub struct Bodies(Arc<Mutex<HashMap<Text, Text>>>);

impl Bodies {
    /// Remembers a text.
    pub fn keep(&self, event_id: &Text, body: &Text) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(event_id.clone(), body.clone());
    }

    /// A text as it came, shared with the published one when they are equal.
    #[must_use]
    pub fn shared(&self, event_id: &str, text: &str) -> Text {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(event_id) {
            Some(body) if **body == *text => body.clone(),
            _ => text.into(),
        }
    }
}

/// What everybody who makes load knows.
#[derive(Clone)]
pub struct World {
    /// Speaks to the replicas.
    pub client: Client,
    /// The run's time.
    pub watch: Watch,
    /// Where all is written down.
    pub recorder: Recorder,
    /// What was published.
    pub bodies: Bodies,
    /// The host that envelopes name.
    pub reply_to: Text,
    /// Seeds each one's dice.
    pub seed: u64,
    /// Questions a second, of all askers together.
    pub rate: u64,
    /// Turns true when nothing more is to be asked.
    pub over: watch::Receiver<bool>,
    /// Bounds what is at work.
    pub room: Arc<Semaphore>,
    /// Numbers what must be unlike anything else.
    pub numbers: Arc<AtomicU64>,
}

impl World {
    /// A number that nobody else gets.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn dice(&self, what: &str) -> Dice {
        Dice::new(self.seed, what)
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Room for so many at work.
    #[must_use]
    pub fn rooms() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(AT_WORK))
    }
}

/// The load of a run, while it goes on.
pub struct Load {
    askers: JoinSet<()>,
    others: JoinSet<()>,
    readers: JoinSet<()>,
    world: World,
}

impl Load {
    /// Begins; `news` is what approvers are told of.
    #[must_use]
    pub fn start(world: World, news: mpsc::Receiver<Arrival>, feed: bool) -> Self {
        let mut askers = JoinSet::new();
        for number in 0..ASKERS {
            askers.spawn(asking::ask(world.clone(), number));
        }
        let mut others = JoinSet::new();
        others.spawn(answering::approve(world.clone(), news));
        let mut readers = JoinSet::new();
        for number in 0..if feed { READERS } else { 0 } {
            readers.spawn(feed::read(world.clone(), number));
        }
        Self { askers, others, readers, world }
    }

    /// Waits for the askers, which end when the run is over, and for all that is at work.
    pub async fn finish(&mut self) {
        while self.askers.join_next().await.is_some() {}
        let all = u32::try_from(AT_WORK).unwrap_or(u32::MAX);
        // Whoever is at work holds room; with all of it nobody is.
        let _ = self.world.room.acquire_many(all).await;
    }

    /// Ends what would go on for ever.
    pub async fn stop(mut self) {
        self.others.shutdown().await;
        self.readers.shutdown().await;
    }
}
