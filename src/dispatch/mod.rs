//! Sends what is queued: one engine for announcements and for answers.
//!
//! Each destination has a *lane*: a task that leases due messages from the store, cuts them into
//! batches, sends each batch in a task of its own, and records what came of it. A lane holds no
//! more than its `max_in_flight` batches and [`lane::LEASE_BYTES`] of messages, whatever piles up
//! in the store. Lanes share nothing but the store, so a dead or slow destination delays no other.
//!
//! The store comes first, then a *nudge*: whoever queued something nudges its lane after the commit.
//! A nudge carries nothing; a lane that missed one finds the message in its next sweep. When
//! nothing is due a lane sleeps until the next retry falls due.

mod attempt;
mod batch;
mod lane;
mod outlet;
#[cfg(test)]
mod tests;

pub use lane::{LaneConfig, LaneLimits};
pub use outlet::{AnnouncerOutlet, Outgoing, Outlet};

use crate::clock::Clock;
use crate::store::{Others, Store, StoreResult};
use answerback_core::Destination;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long handing back may take at the end: the store may be what fails.
const HANDING_BACK: Duration = Duration::from_secs(2);

/// How often everything queued is looked through for destinations without a lane. Normal work does
/// not wait for it.
const SWEEP: Duration = Duration::from_secs(30);

/// At most so many lanes for places that envelopes name; the rest wait for the sweep after one of
/// them has gone idle.
const MAX_REPLY_LANES: usize = 1_024;

/// Makes the lane for a place that an envelope's `reply_to` names, when the first answer for it is
/// queued.
pub trait ReplyLanes: Send + Sync + 'static {
    /// The lane's configuration.
    fn lane(&self, destination: &Destination) -> LaneConfig;
}

/// What lanes share.
struct Shared {
    store: Arc<dyn Store>,
    /// Other daemons that send from the same store.
    others: Option<Others>,
    clock: Arc<dyn Clock>,
    reply_lanes: Arc<dyn ReplyLanes>,
    lanes: Mutex<HashMap<Destination, Arc<Handle>>>,
    stop: CancellationToken,
    /// What is under way is given up.
    cut_off: CancellationToken,
    tasks: TaskTracker,
    /// For the lanes' own use; breaks the circle of a lane that holds the dispatcher.
    myself: Weak<Shared>,
}

/// How others reach a lane.
struct Handle {
    nudged: Notify,
    /// Set by [`Dispatcher::wake`]: the destination is to be tried again though it was paused.
    woken: std::sync::atomic::AtomicBool,
}

/// All lanes.
#[derive(Clone)]
pub struct Dispatcher(Arc<Shared>);

impl Dispatcher {
    /// Starts a lane for every destination of the configuration, and for every other one that
    /// something is queued for.
    ///
    /// # Errors
    /// When the store does not say what is queued.
    pub async fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        lanes: Vec<LaneConfig>,
        reply_lanes: Arc<dyn ReplyLanes>,
    ) -> StoreResult<Self> {
        let others = store.others();
        let shared = Arc::new_cyclic(|myself| Shared {
            store,
            others,
            clock,
            reply_lanes,
            lanes: Mutex::new(HashMap::new()),
            stop: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            tasks: TaskTracker::new(),
            myself: myself.clone(),
        });
        let paused = shared.store.paused().await?;
        for config in lanes {
            let is_paused = paused.contains(&config.destination);
            shared.open_lane(config, is_paused);
        }
        let queued = shared.store.destinations().await?;
        let dispatcher = Self(shared);
        dispatcher.nudge(&queued);
        dispatcher.0.tasks.spawn(sweep(Arc::clone(&dispatcher.0)));
        Ok(dispatcher)
    }

    /// Tells lanes that something may be due.
    pub fn nudge(&self, destinations: &[Destination]) {
        self.0.nudge(destinations);
    }

    /// Tries a paused destination again.
    pub fn wake(&self, destination: &Destination) {
        let lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(destination) {
            lane.woken.store(true, std::sync::atomic::Ordering::SeqCst);
            lane.nudged.notify_one();
        }
    }

    /// Stops leasing, lets what is under way finish within `grace`, then gives up what still is and
    /// hands its leases back: other daemons should not have to wait until they run out. Gives whether
    /// everything finished.
    pub async fn drain(&self, grace: Duration) -> bool {
        self.0.stop.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(grace, self.0.tasks.wait()).await.is_ok() {
            return true;
        }
        self.0.cut_off.cancel();
        let _ = tokio::time::timeout(HANDING_BACK, self.0.tasks.wait()).await;
        false
    }
}

impl Shared {
    fn nudge(&self, destinations: &[Destination]) {
        if destinations.is_empty() || self.stop.is_cancelled() {
            return;
        }
        for destination in destinations {
            let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            let reply_lanes = lanes.len();
            if let Some(lane) = lanes.get(destination) {
                lane.nudged.notify_one();
                continue;
            }
            drop(lanes);
            // Configured destinations have had their lane since the start; pull needs none.
            if matches!(destination, Destination::ReplyTo(_)) && reply_lanes < MAX_REPLY_LANES {
                self.open_lane(self.reply_lanes.lane(destination), false);
            }
        }
    }

    fn open_lane(&self, config: LaneConfig, paused: bool) {
        let Some(shared) = self.myself.upgrade() else { return };
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.contains_key(&config.destination) {
            return;
        }
        let handle = Arc::new(Handle {
            nudged: Notify::new(),
            woken: std::sync::atomic::AtomicBool::new(false),
        });
        // A lane looks into the store as it starts.
        handle.nudged.notify_one();
        lanes.insert(config.destination.clone(), Arc::clone(&handle));
        drop(lanes);
        self.tasks.spawn(lane::Lane::new(shared, config, handle, paused).run());
    }

    /// Takes an idle lane out, unless it was nudged just now.
    fn close_lane(&self, destination: &Destination, handle: &Arc<Handle>) -> bool {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        // A pending nudge is consumed by polling it once: `notified()` is ready at once then.
        let mut pending = std::pin::pin!(handle.nudged.notified());
        if pending.as_mut().enable() {
            handle.nudged.notify_one();
            return false;
        }
        lanes.remove(destination);
        true
    }
}

/// Finds what has no lane: a nudge that was missed, a lane that could not be opened.
async fn sweep(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
        match shared.store.destinations().await {
            Ok(queued) => shared.nudge(&queued),
            Err(error) => tracing::warn!(%error, "the sweep cannot read what is queued"),
        }
    }
}
