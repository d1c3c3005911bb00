//! Per-thread order at ordered announcers.

use super::{Book, Findings, Story};
use crate::clock::At;
use crate::history::{Arrival, WaitKey};
use crate::schedule::{Fault, Place};
use crate::setup::LEASE;
use std::collections::BTreeMap;

const ORDER: &str = "a thread's announcements come in order";

/// Where something came: by its time, or by its place in a partition.
type Position = (i64, At);

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) {
    let mut threads: BTreeMap<&str, Vec<(&WaitKey, &Story<'_>)>> = BTreeMap::new();
    for (key, story) in &book.stories {
        threads.entry(&key.thread).or_default().push((key, story));
    }
    for waits in threads.values() {
        for place in &book.announcers {
            for (before, earlier) in waits {
                for (after, later) in waits {
                    let apart = earlier.acknowledged_at().zip(later.asked_at());
                    if before != after && apart.is_some_and(|(known, asked)| known <= asked) {
                        in_order(
                            book,
                            first_taken(earlier.at(*place, "wait.created")),
                            first(later.at(*place, "wait.created")),
                            (before, after),
                            findings,
                        );
                    }
                }
            }
        }
    }
    for (key, story) in &book.stories {
        for end in ["wait.answered", "wait.timed-out", "wait.cancelled"] {
            in_order(
                book,
                first_taken(story.at(Place::Life, "wait.created")),
                first(story.at(Place::Life, end)),
                (key, key),
                findings,
            );
        }
    }
}

fn position(arrival: &Arrival) -> Position {
    // A thread stays in one partition.
    (arrival.offset.map_or(0, |(_, offset)| offset), arrival.span.begin)
}

fn first<'a>(arrivals: impl Iterator<Item = &'a Arrival>) -> Option<&'a Arrival> {
    arrivals.min_by_key(|arrival| position(arrival))
}

fn first_taken<'a>(arrivals: impl Iterator<Item = &'a Arrival>) -> Option<&'a Arrival> {
    arrivals.filter(|a| a.verdict.taken()).min_by_key(|arrival| position(arrival))
}

/// The later message may not even be tried before the earlier one was taken. One that never was taken
/// was withdrawn: it holds nothing back.
fn in_order(
    book: &Book<'_>,
    earlier: Option<&Arrival>,
    later: Option<&Arrival>,
    (before, after): (&WaitKey, &WaitKey),
    findings: &mut Findings,
) {
    let (Some(earlier), Some(later)) = (earlier, later) else { return };
    if position(earlier) <= position(later) || late_sender(book, earlier, later) {
        return;
    }
    let what = format!(
        "{}: {} of generation {} at {} µs came after {} of {} {} at {} µs",
        earlier.place.name(),
        earlier.event,
        before.generation,
        earlier.span.begin,
        later.event,
        after.question,
        after.generation,
        later.span.begin,
    );
    findings.add(ORDER, later.span.begin, Some(before), what);
}

/// Whether the earlier message's sender may have lost its lease without knowing: it was stopped, or
/// clocks were apart by a lease. Its message was withdrawn meanwhile, and it sent it all the same.
fn late_sender(book: &Book<'_>, earlier: &Arrival, later: &Arrival) -> bool {
    let lease = u64::try_from(LEASE.as_micros()).unwrap_or(0);
    let from = later.span.begin.saturating_sub(lease);
    let stopped = book.history.faults.iter().any(|injected| {
        matches!(injected.fault, Fault::Stop { replica } if earlier.replica.is_none_or(|r| r == replica))
            && injected.span.begin <= earlier.span.begin
            && later.span.begin.saturating_sub(lease) <= injected.span.end
    });
    stopped || book.skew.apart(from, earlier.span.begin) >= super::leases::APART
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::*;
    use crate::history::{Injected, Span};

    /// Two waits of a thread, the second asked after the first was acknowledged.
    fn two(first_at: At, second_at: At) -> Fixture {
        let mut fixture = Fixture::named("q-1");
        let second = Fixture::named("q-2").later(1_000_000);
        fixture.append(second);
        for arrival in &mut fixture.history.arrivals {
            if arrival.place == Place::Hook {
                let at = if &*arrival.question == "q-1" { first_at } else { second_at };
                arrival.span = Span { begin: at, end: at + 10 };
            }
        }
        fixture
    }

    #[test]
    fn a_later_announcement_before_an_earlier_one_is_found() {
        fine(&two(1_500_000, 1_600_000));
        broken(&two(1_600_000, 1_500_000), ORDER);
    }

    #[test]
    fn a_sender_that_was_stopped_may_come_late() {
        let mut fixture = two(1_600_000, 1_500_000);
        let span = Span { begin: 1_400_000, end: 1_590_000 };
        fixture.history.faults.push(Injected { span, fault: Fault::Stop { replica: 0 } });
        fine(&fixture);
        fixture.history.faults[0].fault = Fault::Stop { replica: 2 };
        broken(&fixture, ORDER);
    }

    #[test]
    fn in_a_stream_the_offset_counts() {
        let mut fixture = two(1_500_000, 1_600_000);
        for arrival in &mut fixture.history.arrivals {
            if arrival.place == Place::Stream {
                arrival.offset = Some((0, if &*arrival.question == "q-1" { 8 } else { 7 }));
            }
        }
        broken(&fixture, ORDER);
    }

    #[test]
    fn an_end_that_is_told_before_the_beginning_is_found() {
        let mut fixture = Fixture::answered();
        for arrival in &mut fixture.history.arrivals {
            if arrival.place == Place::Life && &*arrival.event == "wait.answered" {
                arrival.span.begin = 1;
            }
        }
        broken(&fixture, ORDER);
    }
}
