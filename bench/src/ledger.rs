//! What was sent, accepted and received, and when: one cell a wait and event, so that every figure
//! is computed after the run from exact times, and every wait is accounted for.

use crate::clock::Stopwatch;
use crate::envelope::Number;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

const CHUNK: usize = 1 << 16;
const CHUNKS: usize = 1 << 8;

/// The most waits of one run.
pub(crate) const CAPACITY: Number = (CHUNK * CHUNKS) as Number;

/// A time for each wait, in microseconds; memory only for those that came so far.
pub(crate) struct Times(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl Times {
    fn new() -> Self {
        Self((0..CHUNKS).map(|_| OnceLock::new()).collect())
    }

    /// Notes a time; false when there was one, which then stays, or when there is no such wait.
    pub(crate) fn put(&self, number: Number, at: u32) -> bool {
        let number = number as usize;
        let Some(chunk) = self.0.get(number / CHUNK) else { return false };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| AtomicU32::new(0)).collect());
        // Zero says: none yet.
        chunk[number % CHUNK].compare_exchange(0, at.saturating_add(1), Relaxed, Relaxed).is_ok()
    }

    /// The time of a wait.
    pub(crate) fn get(&self, number: Number) -> Option<u32> {
        let number = number as usize;
        self.0.get(number / CHUNK)?.get()?[number % CHUNK].load(Relaxed).checked_sub(1)
    }
}

/// Where the word of what a destination received comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// A stub in this process, at the moment itself.
    Stub,
    /// A broker's own stamps, read after the run; in whole milliseconds.
    Broker,
    /// The daemon's log, read after the run; it says whether, not when.
    Log,
}

/// One place where announcements arrive.
pub(crate) struct Destination {
    /// The announcer's name in the configuration.
    pub(crate) name: &'static str,
    /// Who says what arrived.
    pub(crate) witness: Witness,
    /// When each wait was first received.
    pub(crate) arrivals: Times,
    received: AtomicU32,
    repeated: AtomicU64,
    invented: AtomicU64,
    altered: AtomicU64,
}

impl Destination {
    fn new(name: &'static str, witness: Witness) -> Self {
        Self {
            name,
            witness,
            arrivals: Times::new(),
            received: AtomicU32::new(0),
            repeated: AtomicU64::new(0),
            invented: AtomicU64::new(0),
            altered: AtomicU64::new(0),
        }
    }

    /// Notes an announcement; `None` is one whose ids are not of this run.
    pub(crate) fn arrived(&self, number: Option<Number>, at: u32) {
        match number {
            Some(number) if number < CAPACITY => {
                if self.arrivals.put(number, at) {
                    self.received.fetch_add(1, Relaxed);
                } else {
                    self.repeated.fetch_add(1, Relaxed);
                }
            }
            _ => {
                self.invented.fetch_add(1, Relaxed);
            }
        }
    }

    /// Notes that an announcement was not the envelope as published.
    pub(crate) fn altered(&self) {
        self.altered.fetch_add(1, Relaxed);
    }

    /// How many waits have arrived, each counted once.
    pub(crate) fn received(&self) -> u32 {
        self.received.load(Relaxed)
    }
}

/// All of one run.
pub(crate) struct Ledger {
    /// Zero of all times in here.
    pub(crate) clock: Stopwatch,
    /// When each request was sent; in an open loop, when it was due.
    pub(crate) sent: Times,
    /// When each wait's 202 had been read.
    pub(crate) accepted: Times,
    claimed: AtomicU32,
    accepted_count: AtomicU32,
    /// Where waits are announced to.
    pub(crate) destinations: Vec<Arc<Destination>>,
}

/// Whether a destination got what it should have.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Check {
    /// The announcer's name.
    pub(crate) destination: &'static str,
    /// Waits received, each counted once.
    pub(crate) received: u64,
    /// Accepted, but never received. Must be 0.
    pub(crate) missing: u64,
    /// Received, but never sent, or under another key. Must be 0.
    pub(crate) invented: u64,
    /// Received in another text than published. Must be 0.
    pub(crate) altered: u64,
    /// Received once more. Allowed, and after a crash or a timeout expected.
    pub(crate) repeated: u64,
}

impl Check {
    /// Whether nothing is wrong.
    pub(crate) fn holds(&self) -> bool {
        self.missing == 0 && self.invented == 0 && self.altered == 0
    }
}

impl Ledger {
    /// Empty, for these destinations.
    pub(crate) fn new(destinations: &[(&'static str, Witness)]) -> Self {
        let destination =
            |(name, witness): &(&'static str, Witness)| Arc::new(Destination::new(name, *witness));
        Self {
            clock: Stopwatch::start(),
            sent: Times::new(),
            accepted: Times::new(),
            claimed: AtomicU32::new(0),
            accepted_count: AtomicU32::new(0),
            destinations: destinations.iter().map(destination).collect(),
        }
    }

    /// The number of the next wait, `None` when `limit` are taken.
    pub(crate) fn claim(&self, limit: Number) -> Option<Number> {
        self.claimed.fetch_update(Relaxed, Relaxed, |n| (n < limit).then_some(n + 1)).ok()
    }

    /// How many waits were sent or are about to be.
    pub(crate) fn claimed(&self) -> Number {
        self.claimed.load(Relaxed)
    }

    /// Notes a 202.
    pub(crate) fn accept(&self, number: Number) {
        if self.accepted.put(number, self.clock.micros()) {
            self.accepted_count.fetch_add(1, Relaxed);
        }
    }

    /// How many waits were accepted.
    pub(crate) fn accepted(&self) -> u32 {
        self.accepted_count.load(Relaxed)
    }

    /// How many waits have arrived at every stub; those that were accepted, when there is none.
    pub(crate) fn received_everywhere(&self) -> u32 {
        let stubs = self.destinations.iter().filter(|d| d.witness == Witness::Stub);
        stubs.map(|d| d.received()).min().unwrap_or_else(|| self.accepted())
    }

    /// The destination of an announcer.
    pub(crate) fn destination(&self, name: &str) -> Option<Arc<Destination>> {
        self.destinations.iter().find(|d| d.name == name).cloned()
    }

    /// Holds what arrived against what was accepted.
    pub(crate) fn check(&self) -> Vec<Check> {
        self.destinations.iter().map(|destination| self.check_one(destination)).collect()
    }

    fn check_one(&self, destination: &Destination) -> Check {
        let (mut missing, mut known) = (0, 0);
        for number in 0..self.claimed() {
            let arrived = destination.arrivals.get(number).is_some();
            known += u64::from(arrived);
            missing += u64::from(!arrived && self.accepted.get(number).is_some());
        }
        let received = u64::from(destination.received());
        Check {
            destination: destination.name,
            received,
            missing,
            invented: destination.invented.load(Relaxed) + (received - known.min(received)),
            altered: destination.altered.load(Relaxed),
            repeated: destination.repeated.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_time_stays() {
        let times = Times::new();
        assert_eq!(times.get(70_000), None);
        assert!(times.put(70_000, 0));
        assert!(!times.put(70_000, 5));
        assert_eq!(times.get(70_000), Some(0));
        assert!(!times.put(CAPACITY, 1), "there is no such wait");
    }

    #[test]
    fn numbers_are_claimed_up_to_the_limit() {
        let ledger = Ledger::new(&[]);
        assert_eq!([ledger.claim(2), ledger.claim(2), ledger.claim(2)], [Some(0), Some(1), None]);
    }

    #[test]
    fn a_wait_that_was_accepted_but_not_received_is_missing() {
        let ledger = Ledger::new(&[("a", Witness::Stub), ("b", Witness::Stub)]);
        for number in 0..3 {
            ledger.claim(10).unwrap();
            ledger.sent.put(number, 1);
        }
        ledger.accept(0);
        ledger.accept(1);
        for number in [0, 1, 1] {
            ledger.destinations[0].arrived(Some(number), 9);
        }
        ledger.destinations[1].arrived(Some(0), 9);
        let checks = ledger.check();
        assert!(checks[0].holds() && checks[0].repeated == 1);
        assert_eq!(checks[1].missing, 1);
        assert_eq!(ledger.received_everywhere(), 1);
    }

    #[test]
    fn a_wait_without_a_202_may_arrive_and_one_never_sent_may_not() {
        let ledger = Ledger::new(&[("a", Witness::Stub)]);
        ledger.claim(10).unwrap();
        ledger.destinations[0].arrived(Some(0), 1);
        assert!(ledger.check()[0].holds());
        ledger.destinations[0].arrived(Some(5), 1);
        ledger.destinations[0].arrived(None, 1);
        assert_eq!(ledger.check()[0].invented, 2);
    }
}
