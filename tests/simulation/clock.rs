//! A replica's clock: the simulated time, off by what the simulation has done to it.

use crate::random::Random;
use answerback::clock::Clock;
use answerback::contract::Time;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::time::Instant;

/// What the clocks show at the beginning, give or take their error.
pub(crate) const EPOCH: i64 = 1_800_000_000_000;

pub(crate) struct SimClock {
    began: Instant,
    off: AtomicI64,
    random: Mutex<Random>,
}

impl SimClock {
    pub(crate) fn new(began: Instant, off: i64, random: Random) -> Self {
        Self { began, off: AtomicI64::new(off), random: Mutex::new(random) }
    }

    /// Jumps, forward or back.
    pub(crate) fn step(&self, millis: i64) {
        self.off.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        let passed = i64::try_from(self.began.elapsed().as_millis()).unwrap();
        Time::from_millis(EPOCH + passed + self.off.load(Ordering::SeqCst))
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap().next()
    }
}
