//! Follows what other daemons do with a shared store, for those who wait at this one.
//!
//! While anybody waits, the feed is read on at every hint, and every so often without one, since
//! hints may be lost. While nobody does, nothing is read.

use super::Watchers;
use crate::clock::Clock;
use crate::store::{Moved, Others, Place, Store, StoreResult};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

/// Events that one look asks for.
const STEP: usize = 1_000;
/// Hints may come with every commit; one look finds what many of them hint at.
const SPACING: Duration = Duration::from_millis(10);
/// So long after the last one went the follower stays where it is. Who is woken is gone for a moment,
/// and may be back at once.
const LINGER: Duration = Duration::from_secs(10);
/// After a failed call of the store.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Wakes those who wait at this daemon for what others do, until `stop` is cancelled. Returns at once
/// when the store is this daemon's alone.
pub(super) async fn follow(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    watchers: Watchers,
    stop: CancellationToken,
) {
    let Some(others) = store.others() else { return };
    let follower = Follower { events: store, others, clock, watchers, linger: LINGER };
    stop.run_until_cancelled(follower.run()).await;
}

/// What of a store is followed.
#[async_trait]
trait Events: Send + Sync {
    async fn end(&self) -> StoreResult<Place>;
    async fn moved(&self, after: Place) -> StoreResult<Moved>;
}

#[async_trait]
impl Events for Arc<dyn Store> {
    async fn end(&self) -> StoreResult<Place> {
        self.feed_end().await
    }

    async fn moved(&self, after: Place) -> StoreResult<Moved> {
        Store::moved(&**self, after, STEP).await
    }
}

struct Follower<E> {
    events: E,
    others: Others,
    clock: Arc<dyn Clock>,
    watchers: Watchers,
    linger: Duration,
}

impl<E: Events> Follower<E> {
    async fn run(mut self) {
        loop {
            self.watchers.attended().await;
            self.attend().await;
        }
    }

    /// Follows for as long as anybody waits.
    async fn attend(&mut self) {
        let mut place = self.start().await;
        let (mut looked_at, mut attended_at) = (Instant::now(), Instant::now());
        loop {
            if self.watchers.anybody() {
                attended_at = Instant::now();
            } else if attended_at.elapsed() >= self.linger {
                return;
            }
            self.hint().await;
            sleep_until(looked_at + SPACING).await;
            // Without anybody there is nothing to read for; the place stays good.
            if self.watchers.anybody() {
                looked_at = Instant::now();
                place = self.look(place).await;
            }
        }
    }

    /// Where to start from. Whoever came before this was read may have looked at its wait before
    /// something happened to it, so all of them look once more.
    async fn start(&mut self) -> Place {
        loop {
            match self.events.end().await {
                Ok(place) => {
                    self.watchers.wake_all();
                    return place;
                }
                Err(error) => {
                    tracing::warn!(%error, "the events of other daemons cannot be followed yet");
                    sleep(STORE_PAUSE).await;
                }
            }
        }
    }

    /// Returns at a hint, or when it is time to look without one.
    async fn hint(&mut self) {
        let pause = self.others.pause(self.clock.random());
        let hints = &mut self.others.hints;
        let hinted = async {
            if hints.changed().await.is_err() {
                // Nobody is left to give hints.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = hinted => {}
            () = sleep(pause) => {}
        }
    }

    /// Wakes those that something happened for after `place`; gives how far it got.
    async fn look(&mut self, mut place: Place) -> Place {
        loop {
            let moved = match self.events.moved(place).await {
                Ok(moved) => moved,
                Err(error) => {
                    tracing::warn!(%error, "the events of other daemons cannot be read now");
                    sleep(STORE_PAUSE).await;
                    return place;
                }
            };
            let any = !moved.waits.is_empty();
            for wait in moved.waits {
                self.watchers.wake(wait);
            }
            if any {
                self.watchers.happened();
            }
            place = moved.next;
            if !moved.more {
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests;
