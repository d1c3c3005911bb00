//! The only reader of time and of randomness.

use answerback_contract::{EventId, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ulid::Ulid;

/// Tells the time and gives chance: what no two runs share, but in a simulation.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Time;

    /// A number uniform over all of `u64`. The system's own, unless runs have to be
    /// repeatable.
    fn random(&self) -> u64 {
        random()
    }
}

/// The system's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that stands still until it is moved, for tests and simulations.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// Stands at `at`.
    #[must_use]
    pub fn new(at: Time) -> Self {
        Self(Arc::new(AtomicI64::new(at.millis())))
    }

    /// Moves on.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.0.fetch_add(by, Ordering::SeqCst);
    }

    /// Jumps, also back.
    pub fn set(&self, at: Time) {
        self.0.store(at.millis(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// A number uniform over all of `u64`, from the system.
#[must_use]
pub fn random() -> u64 {
    // Without the system's randomness the schedule only loses its jitter.
    getrandom::u64().unwrap_or(u64::MAX / 2)
}

/// A fresh ULID of this instant.
#[must_use]
pub fn fresh_ulid(now: Time) -> String {
    ulid(now, u128::from(random()) << 64 | u128::from(random()))
}

/// A fresh event id of this instant.
#[must_use]
pub fn fresh_event_id(clock: &dyn Clock) -> EventId {
    let random = u128::from(clock.random()) << 64 | u128::from(clock.random());
    match EventId::new(&ulid(clock.now(), random)) {
        Ok(id) => id,
        Err(_) => unreachable!("26 letters and digits are an id"),
    }
}

fn ulid(at: Time, random: u128) -> String {
    Ulid::from_parts(u64::try_from(at.millis()).unwrap_or(0), random).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_differ_and_carry_their_time() {
        let now = SystemClock.now();
        let (a, b) = (fresh_ulid(now), fresh_ulid(now));
        assert_ne!(a, b);
        let parsed = Ulid::from_string(&a).unwrap();
        assert_eq!(i64::try_from(parsed.timestamp_ms()).unwrap(), now.millis());
    }
}
