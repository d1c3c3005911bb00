//! The feed of events: each reader is told everything once, in the same order, without a gap.

use super::{Book, Findings};
use crate::history::{Fed, WaitKey};
use std::collections::{BTreeMap, HashMap};

const ONCE: &str = "the feed tells each event once";
const ORDER: &str = "the feed keeps one order";
const GAP: &str = "the feed has no gap";

/// The event that tells of a state.
fn end_of(state: &str) -> Option<&'static str> {
    match state {
        "completed" => Some("wait.answered"),
        "timed-out" => Some("wait.timed-out"),
        "cancelled" => Some("wait.cancelled"),
        _ => None,
    }
}

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) {
    let mut readers: BTreeMap<usize, Vec<&Fed>> = BTreeMap::new();
    for fed in &book.history.fed {
        readers.entry(fed.reader).or_default().push(fed);
    }
    for (reader, told) in &readers {
        let mut seen: HashMap<(&WaitKey, &str), usize> = HashMap::new();
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (at, fed) in told.iter().enumerate() {
            let again = seen.insert((&fed.wait, &fed.event), at).is_some()
                || ids.insert(&fed.id, at).is_some();
            if again {
                let what = format!("reader {reader} was told {} again, as {}", fed.event, fed.id);
                findings.add(ONCE, fed.at, Some(&fed.wait), what);
            }
            let begun = seen.contains_key(&(&fed.wait, "wait.created"));
            if &*fed.event != "wait.created" && !begun {
                let what =
                    format!("reader {reader} was told {} and not of its creation", fed.event);
                findings.add(ORDER, fed.at, Some(&fed.wait), what);
            }
        }
        if book.history.feed_ended {
            complete(book, *reader, &seen, findings);
        }
    }
    let mut lineages = readers.iter();
    if let Some((first, told)) = lineages.next() {
        let places: HashMap<&str, usize> =
            told.iter().enumerate().map(|(at, fed)| (&*fed.id, at)).collect();
        for (reader, others) in lineages {
            one_order(&places, *first, *reader, others, findings);
        }
    }
}

/// Everything that is stored was told.
fn complete(
    book: &Book<'_>,
    reader: usize,
    seen: &HashMap<(&WaitKey, &str), usize>,
    findings: &mut Findings,
) {
    for (key, story) in &book.stories {
        if story.last.is_none() {
            continue;
        }
        for event in ["wait.created"].into_iter().chain(end_of(story.state())) {
            if !seen.contains_key(&(key, event)) {
                let what = format!("reader {reader} was never told {event}");
                findings.add(GAP, story.asked_at().unwrap_or(0), Some(key), what);
            }
        }
        for event in ["wait.answered", "wait.timed-out", "wait.cancelled"] {
            if Some(event) != end_of(story.state()) && seen.contains_key(&(key, event)) {
                let what = format!("reader {reader} was told {event}; it is {}", story.state());
                findings.add(GAP, story.asked_at().unwrap_or(0), Some(key), what);
            }
        }
    }
}

fn one_order(
    places: &HashMap<&str, usize>,
    first: usize,
    reader: usize,
    told: &[&Fed],
    findings: &mut Findings,
) {
    let mut before = 0;
    for fed in told {
        let Some(place) = places.get(&*fed.id) else { continue };
        if *place < before {
            let what =
                format!("readers {first} and {reader} were told {} at different places", fed.id);
            findings.add(ORDER, fed.at, Some(&fed.wait), what);
        }
        before = before.max(*place);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::*;

    #[test]
    fn a_feed_that_tells_all_once_is_fine() {
        fine(&Fixture::fed());
    }

    #[test]
    fn a_gap_is_found() {
        let mut fixture = Fixture::fed();
        fixture.history.fed.remove(1);
        broken(&fixture, GAP);
    }

    #[test]
    fn an_event_that_is_told_twice_is_found() {
        let mut fixture = Fixture::fed();
        let again = fixture.history.fed[0].clone();
        fixture.history.fed.push(again);
        broken(&fixture, ONCE);
    }

    #[test]
    fn an_end_before_the_beginning_is_found() {
        let mut fixture = Fixture::fed();
        fixture.history.fed.swap(0, 1);
        broken(&fixture, ORDER);
    }

    #[test]
    fn two_readers_with_two_orders_are_found() {
        let mut fixture = Fixture::fed();
        fixture.append(Fixture::named("q-2"));
        fixture.history.fed[1].id = "5".into();
        let mut first = fixture.history.fed[0].clone();
        first.wait.question = "q-2".into();
        first.id = "9".into();
        let mut others: Vec<_> = fixture.history.fed.clone();
        others.insert(0, first.clone());
        others.iter_mut().for_each(|fed| fed.reader = 1);
        fixture.history.fed.push(first);
        fixture.history.fed.extend(others);
        broken(&fixture, ORDER);
    }
}
