//! What time it may have been for the replicas: deadlines are judged by their clocks, which were set.

use crate::clock::At;
use crate::history::{History, Span};
use crate::schedule::Fault;

/// Milliseconds that two readings of a right clock may differ by: rounding, and the harness's own.
const ERROR: i64 = 25;

/// The clocks of all replicas over the run.
#[derive(Clone, Debug)]
pub struct Skew {
    began_ms: i64,
    steps: Vec<(Span, usize, i64)>,
}

impl Skew {
    /// As the history's faults set them.
    #[must_use]
    pub fn new(history: &History) -> Self {
        let steps = history.faults.iter().filter_map(|injected| match injected.fault {
            Fault::Step { replica, millis } => Some((injected.span, replica, millis)),
            _ => None,
        });
        Self { began_ms: history.began_ms, steps: steps.collect() }
    }

    /// The true wall clock, in milliseconds since 1970.
    #[must_use]
    pub fn wall(&self, at: At) -> i64 {
        self.began_ms + i64::try_from(at / 1_000).unwrap_or(0)
    }

    /// The latest time that any replica's clock may have shown up to `at`.
    #[must_use]
    pub fn latest(&self, at: At) -> i64 {
        let shown = self.steps.iter().filter(|(span, _, _)| span.begin <= at);
        let furthest = shown.map(|(span, _, millis)| self.wall(at.min(span.end)) + millis).max();
        furthest.unwrap_or(i64::MIN).max(self.wall(at)) + ERROR
    }

    /// The earliest time that this replica's clock may have shown within `span`.
    #[must_use]
    pub fn earliest(&self, span: Span, replica: usize) -> i64 {
        let during = self.steps.iter().filter(|(step, whose, _)| {
            *whose == replica && step.begin <= span.end && span.begin <= step.end
        });
        let behind = during.map(|(_, _, millis)| *millis).min().unwrap_or(0).min(0);
        self.wall(span.begin) + behind - ERROR
    }

    /// How far apart two replicas' clocks may have been at some moment of a time, in milliseconds.
    #[must_use]
    pub fn apart(&self, from: At, to: At) -> i64 {
        let during = || {
            let within =
                self.steps.iter().filter(|(step, _, _)| step.begin <= to && from <= step.end);
            within.map(|(_, _, millis)| *millis)
        };
        during().max().unwrap_or(0).max(0) - during().min().unwrap_or(0).min(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Injected;

    fn skew() -> Skew {
        let step = |begin, end, replica, millis| Injected {
            span: Span { begin, end },
            fault: Fault::Step { replica, millis },
        };
        Skew::new(&History {
            began_ms: 1_000,
            faults: vec![step(2_000_000, 4_000_000, 0, 500), step(3_000_000, 5_000_000, 1, -700)],
            ..History::default()
        })
    }

    #[test]
    fn the_latest_time_is_remembered_after_a_clock_was_set_back() {
        let skew = skew();
        assert_eq!(skew.latest(1_000_000), 2_000 + ERROR);
        assert_eq!(skew.latest(2_000_000), 3_500 + ERROR);
        assert_eq!(skew.latest(4_200_000), 5_500 + ERROR);
        assert_eq!(skew.latest(9_000_000), 10_000 + ERROR);
    }

    #[test]
    fn the_earliest_time_is_a_replicas_own() {
        let skew = skew();
        let span = Span { begin: 4_500_000, end: 4_600_000 };
        assert_eq!(skew.earliest(span, 0), 5_500 - ERROR);
        assert_eq!(skew.earliest(span, 1), 4_800 - ERROR);
    }

    #[test]
    fn clocks_are_apart_by_both_offsets_where_they_overlap() {
        let skew = skew();
        assert_eq!(skew.apart(0, 1_000_000), 0);
        assert_eq!(skew.apart(3_500_000, 3_600_000), 1_200);
        assert_eq!(skew.apart(4_500_000, 4_600_000), 700);
    }
}
