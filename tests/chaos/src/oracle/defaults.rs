//! Deadlines: a default goes out once in effect, never before its time, and no answer comes after.

use super::book::{once, rest};
use super::{Book, Findings, Story};
use crate::history::{Reply, WaitKey};
use std::collections::BTreeSet;

const ONCE: &str = "a default goes out once in effect";
const EARLY: &str = "a deadline is not early";
const LATE: &str = "no answer is accepted after the deadline";
const OPEN: &str = "a deadline is kept";

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) {
    for (key, story) in &book.stories {
        once_in_effect(key, story, findings);
        let Some(deadline) = story.deadline() else { continue };
        let early = story
            .delivered
            .iter()
            .filter(|arrival| arrival.via.as_deref() == Some("default"))
            .chain(story.announced.iter().filter(|arrival| &*arrival.event == "wait.timed-out"))
            .find(|arrival| book.skew.latest(arrival.span.begin) < deadline);
        if let Some(arrival) = early {
            let clocks = book.skew.latest(arrival.span.begin);
            let what = format!(
                "{} was told {} when no clock had shown more than {clocks}; the deadline is {deadline}",
                arrival.place.name(),
                arrival.event
            );
            findings.add(EARLY, arrival.span.begin, Some(key), what);
        }
        // The first acceptance: the same answer is accepted again at any time.
        let accepted = story.answers.iter().filter(|a| matches!(a.reply, Reply::Ok(())));
        if let Some(first) = accepted.min_by_key(|answer| answer.span.end) {
            let tried = story.answers.iter().filter(|a| a.value == first.value);
            let earliest = tried.map(|a| book.skew.earliest(a.span, a.replica)).min();
            if earliest.is_some_and(|at| at >= deadline) {
                let what = format!("accepted at {earliest:?} or later; the deadline is {deadline}");
                findings.add(LATE, first.span.end, Some(key), what);
            }
        }
        let end = book.history.publishes.iter().map(|p| p.span.end).max().unwrap_or(0);
        if story.state() == "open" && book.skew.wall(end) > deadline + 60_000 {
            findings.add(OPEN, end, Some(key), format!("still open; the deadline is {deadline}"));
        }
        if story.state() == "timed-out" {
            let has = story.last.is_some_and(|last| last.via.is_some());
            if has != story.default_text().is_some() {
                let what = format!("timed out with a default: {has}");
                findings.add(ONCE, 0, Some(key), what);
            }
        }
    }
}

/// All deliveries of a wait's answer are under one key; other keys only say that somebody asked for it
/// again.
fn once_in_effect(key: &WaitKey, story: &Story<'_>, findings: &mut Findings) {
    let keys: BTreeSet<&str> = story.delivered.iter().map(|a| &*a.dedupe_key).collect();
    let bases: BTreeSet<&str> = keys.iter().map(|k| once(rest(k))).collect();
    let again = story.publishes.iter().map(|p| &*p.event_id).collect::<BTreeSet<_>>().len();
    // The first publish asked; each further one may have asked to be told again.
    if bases.len() > 1 || keys.len() > again.max(1) {
        let at = story.delivered.last().map_or(0, |arrival| arrival.span.begin);
        let what = format!("told under {keys:?}, published {again} times");
        findings.add(ONCE, at, Some(key), what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::*;
    use crate::history::{Injected, Span};
    use crate::schedule::Fault;

    #[test]
    fn a_default_before_its_deadline_is_found_unless_a_clock_was_set() {
        let mut fixture = Fixture::defaulted();
        fine(&fixture);
        for arrival in &mut fixture.history.arrivals {
            if arrival.via.is_some() {
                arrival.span = Span { begin: 800_000, end: 810_000 };
            }
        }
        broken(&fixture, EARLY);
        fixture.history.faults.push(Injected {
            span: Span { begin: 700_000, end: 750_000 },
            fault: Fault::Step { replica: 1, millis: 5_000 },
        });
        fine(&fixture);
    }

    #[test]
    fn a_default_under_two_keys_is_found() {
        let mut fixture = Fixture::defaulted();
        let mut again = fixture.delivery().clone();
        again.dedupe_key = format!("{}:r1", again.dedupe_key).into();
        fixture.history.arrivals.push(again);
        broken(&fixture, ONCE);
        // Somebody asked again.
        let mut asked = fixture.history.publishes[0].clone();
        asked.event_id = "e-again".into();
        if let Reply::Ok(accepted) = &mut asked.reply {
            accepted.duplicate = true;
        }
        fixture.history.publishes.push(asked);
        fine(&fixture);
    }

    #[test]
    fn an_answer_after_the_deadline_is_found_unless_its_replica_was_behind() {
        let mut fixture = Fixture::answered();
        fixture.history.publishes[0].deadline = Some(1_000_100);
        broken(&fixture, LATE);
        fixture.history.faults.push(Injected {
            span: Span { begin: 400_000, end: 800_000 },
            fault: Fault::Step { replica: 1, millis: -60_000 },
        });
        fine(&fixture);
    }

    #[test]
    fn a_wait_that_outlives_its_deadline_is_found() {
        let mut fixture = Fixture::named("q-1");
        fixture.leave_open();
        fixture.history.publishes[0].deadline = Some(1_000_000);
        fixture.history.publishes[0].span.end = 100_000_000;
        broken(&fixture, OPEN);
    }
}
