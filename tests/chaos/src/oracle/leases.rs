//! Leases never overlap in effect: two attempts at one message, or at two of one thread, run at the same
//! time only when their sender was stopped, or clocks were apart by a lease.

use super::{Book, Findings};
use crate::clock::At;
use crate::history::Arrival;
use crate::schedule::{Fault, Place};
use serde::Serialize;
use std::collections::HashMap;

const OVERLAP: &str = "leases do not overlap in effect";

/// Clocks that are so far apart may disagree whether a lease is over: the shortest lease, less what an
/// attempt may have waited for its turn.
pub(super) const APART: i64 = 58_000;

/// The end of a connection is seen so late at most, in microseconds.
const SLACK: At = 750_000;

/// Around a stop, what was under way: the replica may have been about to send.
const AROUND: At = 6_000_000;

/// Counts of overlaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overlaps {
    /// Attempts at a message that its receiver had taken already.
    pub duplicates: usize,
    /// Attempts that overlapped because a sender was stopped.
    pub stopped: usize,
    /// Because clocks were apart.
    pub apart: usize,
}

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) -> Overlaps {
    let mut overlaps = Overlaps::default();
    let mut by_key: HashMap<(Place, &str), Vec<&Arrival>> = HashMap::new();
    let mut by_thread: HashMap<(Place, &str), Vec<&Arrival>> = HashMap::new();
    for arrival in &book.history.arrivals {
        by_key.entry((arrival.place, &arrival.dedupe_key)).or_default().push(arrival);
        by_thread.entry((arrival.place, &arrival.thread)).or_default().push(arrival);
    }
    for attempts in by_key.values() {
        let taken = attempts.iter().filter(|attempt| attempt.verdict.taken()).count();
        overlaps.duplicates += taken.saturating_sub(1);
    }
    for ((place, _), mut attempts) in by_thread {
        // A record of Kafka has no duration.
        if place == Place::Stream {
            continue;
        }
        attempts.sort_by_key(|attempt| attempt.span.begin);
        let mut latest: Option<&Arrival> = None;
        for attempt in attempts {
            if let Some(before) = latest.filter(|b| attempt.span.begin + SLACK < b.span.end) {
                judge(book, before, attempt, &mut overlaps, findings);
            }
            if latest.is_none_or(|before| before.span.end < attempt.span.end) {
                latest = Some(attempt);
            }
        }
    }
    overlaps
}

fn judge(
    book: &Book<'_>,
    one: &Arrival,
    two: &Arrival,
    overlaps: &mut Overlaps,
    findings: &mut Findings,
) {
    let (from, to) = (one.span.begin, one.span.end.max(two.span.end));
    let sent = |replica: usize| {
        [one, two].iter().any(|arrival| arrival.replica.is_none_or(|sender| sender == replica))
    };
    let stopped = book.history.faults.iter().any(|injected| {
        matches!(injected.fault, Fault::Stop { replica } if sent(replica))
            && injected.span.begin <= to
            && from.saturating_sub(AROUND) <= injected.span.end
    });
    if stopped {
        overlaps.stopped += 1;
    } else if book.skew.apart(from.saturating_sub(AROUND), to) >= APART {
        overlaps.apart += 1;
    } else {
        let what = format!(
            "{}: {} by {:?} from {} to {} µs and {} by {:?} from {} µs",
            one.place.name(),
            one.dedupe_key,
            one.replica,
            one.span.begin,
            one.span.end,
            two.dedupe_key,
            two.replica,
            two.span.begin,
        );
        let wait = book
            .stories
            .iter()
            .find(|(key, _)| key.thread == two.thread && key.question == two.question);
        findings.add(OVERLAP, two.span.begin, wait.map(|(key, _)| key), what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::super::judge;
    use super::*;
    use crate::history::{Injected, Span};

    fn twice(first: (At, At), second: (At, At)) -> Fixture {
        let mut fixture = Fixture::answered();
        let mut again = fixture.history.arrivals[0].clone();
        fixture.history.arrivals[0].span = Span { begin: first.0, end: first.1 };
        again.span = Span { begin: second.0, end: second.1 };
        again.replica = Some(1);
        fixture.history.arrivals.push(again);
        fixture
    }

    #[test]
    fn duplicates_one_after_the_other_are_counted_and_fine() {
        let fixture = twice((200_000, 210_000), (300_000, 310_000));
        fine(&fixture);
        assert_eq!(judge(&fixture.history).overlaps.duplicates, 1);
    }

    #[test]
    fn attempts_at_the_same_time_are_found_unless_a_sender_was_stopped() {
        let mut fixture = twice((200_000, 5_000_000), (3_000_000, 3_100_000));
        broken(&fixture, OVERLAP);
        let span = Span { begin: 250_000, end: 4_900_000 };
        fixture.history.faults.push(Injected { span, fault: Fault::Stop { replica: 0 } });
        fine(&fixture);
        assert_eq!(judge(&fixture.history).overlaps.stopped, 1);
    }

    #[test]
    fn or_clocks_were_a_lease_apart() {
        let mut fixture = twice((200_000, 5_000_000), (3_000_000, 3_100_000));
        let span = Span { begin: 250_000, end: 4_900_000 };
        let step = |millis| Injected { span, fault: Fault::Step { replica: 1, millis } };
        fixture.history.faults.push(step(20_000));
        broken(&fixture, OVERLAP);
        fixture.history.faults[0] = step(70_000);
        fine(&fixture);
        assert_eq!(judge(&fixture.history).overlaps.apart, 1);
    }
}
