//! Ends waits whose time is up, and answers that their hosts did not come for in time.
//!
//! One task sleeps until the earliest deadline. A publish with an earlier one wakes it. Nothing
//! depends on it being punctual: every decision about a wait looks at the deadline itself.

use crate::clock::Clock;
use crate::dispatch::Dispatcher;
use crate::intake::Watchers;
use crate::metrics::{DEADLINE_LAG, DELIVERIES};
use crate::store::{Others, Store};
use answerback_contract::Time;
use answerback_core::Destination;
use metrics::{counter, histogram};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Waits that one sweep ends in one transaction.
const SWEEP: usize = 500;

/// The longest sleep: a far deadline, or a clock that was set, is looked at again.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);

/// After a failed call of the store.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Tells the task of deadlines that it may not know. Cheap to clone.
#[derive(Clone)]
pub struct Deadlines(Arc<watch::Sender<Option<Time>>>);

impl Default for Deadlines {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Deadlines {
    /// There is a deadline at `at`.
    pub fn hint(&self, at: Time) {
        self.0.send_if_modified(|earliest| {
            let earlier = earliest.is_none_or(|known| at < known);
            if earlier {
                *earliest = Some(at);
            }
            earlier
        });
    }

    /// Remembers a deadline that the task knows itself, so that no later hint wakes it.
    fn know(&self, at: Time) {
        self.0.send_if_modified(|earliest| {
            *earliest = Some(earliest.map_or(at, |known| known.min(at)));
            false
        });
    }

    /// Ends waits as they fall due, until `stop` is cancelled.
    pub async fn run(
        self,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        dispatcher: Dispatcher,
        watchers: Watchers,
        stop: CancellationToken,
    ) {
        let lag = histogram!(DEADLINE_LAG);
        let mut hints = self.0.subscribe();
        let others = store.others();
        loop {
            // Hints up to here are in the store already; later ones wake the sleep below.
            hints.borrow_and_update();
            self.0.send_if_modified(|earliest| {
                *earliest = None;
                false
            });
            // Nobody hints at deadlines of waits that another daemon took in.
            let longest = others
                .as_ref()
                .map_or(LONGEST_SLEEP, |others| others.pause(clock.random()).min(LONGEST_SLEEP));
            let now = clock.now();
            let pause = match store.time_out(SWEEP, now).await {
                Ok(done) => {
                    for (wait, due) in &done.waits {
                        lag.record(due.until(now).as_secs_f64());
                        watchers.wake(*wait);
                    }
                    if !done.waits.is_empty() {
                        watchers.happened();
                    }
                    dispatcher.nudge(&done.queued);
                    if done.lapsed > 0 {
                        counter!(DELIVERIES, "route" => Destination::Pull.label(), "outcome" => "dead")
                            .increment(done.lapsed);
                    }
                    match done.next {
                        // It is due, but another daemon is about to do it.
                        Some(next) if next <= now && done.waits.is_empty() && done.lapsed == 0 => {
                            Others::HELD
                        }
                        Some(next) if next <= now => Duration::ZERO,
                        Some(next) => {
                            self.know(next);
                            clock.now().until(next).min(longest)
                        }
                        None => longest,
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "deadlines cannot be looked at");
                    STORE_PAUSE
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = hints.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
