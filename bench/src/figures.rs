//! From a ledger to figures.

use crate::ledger::{Check, Destination, Ledger, Witness};
use crate::load::Faults;
use serde::Serialize;
use std::collections::BTreeMap;

/// Of a set of latencies, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    /// Half are not above it.
    pub(crate) p50: f64,
    /// 99 of 100 are not above it.
    pub(crate) p99: f64,
    /// None is above it.
    pub(crate) max: f64,
}

impl Quantiles {
    /// Exact ones, of microseconds; `None` of nothing.
    fn of(mut micros: Vec<u32>) -> Option<Self> {
        micros.sort_unstable();
        let last = micros.len().checked_sub(1)?;
        let at = |q: f64| {
            let rank = (q * micros.len() as f64).ceil() as usize;
            f64::from(micros[rank.saturating_sub(1).min(last)]) / 1000.0
        };
        Some(Self { p50: at(0.5), p99: at(0.99), max: at(1.0) })
    }
}

/// What one run measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// What was run.
    pub(crate) run: String,
    /// Waits accepted.
    pub(crate) accepted: u64,
    /// Accepted waits a second, from the first request to the last 202.
    pub(crate) accepted_per_second: f64,
    /// Waits a second that reached every destination, from the first request to the last receipt.
    pub(crate) announced_per_second: Option<f64>,
    /// From sending (in an open loop: from when it was due) to the 202, in ms.
    pub(crate) accept_ms: Option<Quantiles>,
    /// From the 202 to the receipt at the last destination, in ms; 0 when that came first.
    pub(crate) accept_to_received_ms: Option<Quantiles>,
    /// From sending to the receipt at the last destination, in ms.
    pub(crate) sent_to_received_ms: Option<Quantiles>,
    /// From the 202 to the receipt, for each destination.
    pub(crate) by_destination_ms: BTreeMap<&'static str, Quantiles>,
    /// The daemon's processor seconds, user and system, until all was announced and recorded.
    pub(crate) cpu_seconds: f64,
    /// The same for each 1,000 accepted waits.
    pub(crate) cpu_seconds_per_1000: f64,
    /// Of which by the names of its threads.
    pub(crate) cpu_seconds_per_1000_by_thread: BTreeMap<String, f64>,
    /// The daemon's largest resident memory, in MiB.
    pub(crate) peak_mib: f64,
    /// Requests without a 202.
    pub(crate) errors: u64,
    /// The same by status.
    pub(crate) refused: BTreeMap<u16, u64>,
    /// The first of them in words.
    pub(crate) first_error: Option<String>,
    /// What each destination got, held against what was accepted.
    pub(crate) checks: Vec<Check>,
    /// Whether the daemon's own queue ran empty, by its metrics.
    pub(crate) queue_empty: Option<bool>,
}

/// What the daemon's process used in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Processor seconds.
    pub(crate) cpu_seconds: f64,
    /// Largest resident memory.
    pub(crate) peak_kib: u64,
}

fn per_second(count: usize, from: u32, to: Option<u32>) -> f64 {
    to.map_or(0.0, |to| count as f64 / (f64::from(to.saturating_sub(from)).max(1.0) / 1e6))
}

impl Figures {
    /// Of a run that began at `began` microseconds.
    pub(crate) fn of(
        run: String,
        ledger: &Ledger,
        began: u32,
        faults: Faults,
        usage: Usage,
    ) -> Self {
        let mut accepts = Vec::new();
        let mut last_accept = None;
        for number in 0..ledger.claimed() {
            if let (Some(sent), Some(at)) = (ledger.sent.get(number), ledger.accepted.get(number)) {
                accepts.push(at.saturating_sub(sent));
                last_accept = last_accept.max(Some(at));
            }
        }
        let accepted = accepts.len();
        let timed: Vec<&Destination> = ledger
            .destinations
            .iter()
            .map(|d| &**d)
            .filter(|d| d.witness != Witness::Log)
            .collect();
        let received = Received::of(ledger, &timed);
        let announced = (!timed.is_empty())
            .then(|| per_second(received.since_accept.len(), began, received.last));
        let by_destination_ms = timed
            .iter()
            .filter_map(|one| {
                let quantiles = Quantiles::of(Received::of(ledger, &[one]).since_accept)?;
                Some((one.name, quantiles))
            })
            .collect();
        Self {
            run,
            accepted: accepted as u64,
            accepted_per_second: per_second(accepted, began, last_accept),
            announced_per_second: announced,
            accept_ms: Quantiles::of(accepts),
            accept_to_received_ms: Quantiles::of(received.since_accept),
            sent_to_received_ms: Quantiles::of(received.since_sent),
            by_destination_ms,
            cpu_seconds: usage.cpu_seconds,
            cpu_seconds_per_1000: usage.cpu_seconds * 1000.0 / (accepted as f64).max(1.0),
            cpu_seconds_per_1000_by_thread: BTreeMap::new(),
            peak_mib: usage.peak_kib as f64 / 1024.0,
            errors: faults.total(),
            refused: faults.refused,
            first_error: faults.first,
            checks: ledger.check(),
            queue_empty: None,
        }
    }

    /// Adds what each kind of thread has spent between two looks.
    pub(crate) fn note_threads(
        &mut self,
        before: &BTreeMap<String, f64>,
        after: BTreeMap<String, f64>,
    ) {
        let waits = (self.accepted as f64).max(1.0);
        for (name, seconds) in after {
            let spent = seconds - before.get(&name).copied().unwrap_or_default();
            if spent > 0.0 {
                self.cpu_seconds_per_1000_by_thread.insert(name, spent * 1000.0 / waits);
            }
        }
    }

    /// Whether every wait is where it belongs.
    pub(crate) fn holds(&self) -> bool {
        self.accepted > 0 && self.checks.iter().all(Check::holds)
    }
}

/// The waits that have reached all of some destinations.
struct Received {
    since_accept: Vec<u32>,
    since_sent: Vec<u32>,
    last: Option<u32>,
}

impl Received {
    fn of(ledger: &Ledger, destinations: &[&Destination]) -> Self {
        let mut all = Self { since_accept: Vec::new(), since_sent: Vec::new(), last: None };
        if destinations.is_empty() {
            return all;
        }
        for number in 0..ledger.claimed() {
            let Some(accepted) = ledger.accepted.get(number) else { continue };
            // `None` is less than any time, and then the wait is not yet everywhere.
            let everywhere = destinations
                .iter()
                .map(|d| d.arrivals.get(number))
                .try_fold(0, |latest: u32, at| Some(latest.max(at?)));
            let Some(at) = everywhere else { continue };
            all.since_accept.push(at.saturating_sub(accepted));
            all.since_sent.push(at.saturating_sub(ledger.sent.get(number).unwrap_or(accepted)));
            all.last = all.last.max(Some(at));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_ranks_of_the_sorted_times() {
        let quantiles = Quantiles::of((1..=100).rev().map(|ms| ms * 1000).collect()).unwrap();
        assert_eq!(quantiles, Quantiles { p50: 50.0, p99: 99.0, max: 100.0 });
        let one = Quantiles::of(vec![7000]).unwrap();
        assert_eq!(one, Quantiles { p50: 7.0, p99: 7.0, max: 7.0 });
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn a_wait_is_announced_when_its_last_destination_has_it() {
        let ledger = Ledger::new(&[("a", Witness::Stub), ("b", Witness::Broker)]);
        for number in 0..2 {
            ledger.claim(10).unwrap();
            ledger.sent.put(number, 0);
            ledger.accepted.put(number, 1_000);
            ledger.destinations[0].arrived(Some(number), 3_000);
        }
        ledger.destinations[1].arrived(Some(0), 500_000);
        let usage = Usage { cpu_seconds: 1.0, peak_kib: 2048 };
        let figures = Figures::of("x".to_owned(), &ledger, 0, Faults::default(), usage);
        assert_eq!(figures.accepted, 2);
        assert_eq!(figures.announced_per_second, Some(2.0), "one wait in half a second");
        assert_eq!(figures.accept_to_received_ms.unwrap().max, 499.0);
        assert_eq!(figures.sent_to_received_ms.unwrap().max, 500.0);
        assert_eq!(figures.by_destination_ms["a"].max, 2.0);
        assert_eq!(figures.cpu_seconds_per_1000, 500.0);
        assert_eq!(figures.peak_mib, 2.0);
        assert!(!figures.holds(), "one wait is missing at b");
    }

    #[test]
    fn without_a_timed_destination_nothing_is_said_of_announcing() {
        let ledger = Ledger::new(&[("log", Witness::Log)]);
        let usage = Usage { cpu_seconds: 0.0, peak_kib: 0 };
        let figures = Figures::of("x".to_owned(), &ledger, 0, Faults::default(), usage);
        assert_eq!(figures.announced_per_second, None);
        assert!(!figures.holds(), "a run without a single wait proves nothing");
    }
}
