//! Acknowledged implies announced; nothing is invented; what comes in goes out unchanged.

use super::{Book, Findings, Story};
use crate::history::{Arrival, FinalWait, Publish, Reply, WaitKey};
use crate::message::Members;
use crate::schedule::Place;
use std::collections::HashSet;

const LOST: &str = "acknowledged implies stored";
const UNTOLD: &str = "acknowledged implies announced";
const INVENTED: &str = "nothing is invented";
const CHANGED: &str = "the payload is intact";
const TWICE: &str = "a publish is applied once";
const REFUSED: &str = "a right publish is taken";

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) {
    if let Some(what) = &book.history.unsettled {
        findings.add(UNTOLD, u64::MAX, None, format!("not settled when all was well: {what}"));
    }
    for publish in &book.history.publishes {
        acknowledged(book, publish, findings);
    }
    for publishes in book.by_event.values() {
        applied_once(publishes, findings);
    }
    for (key, story) in &book.stories {
        if let Some(last) = story.last {
            stored(key, story, last, findings);
            for place in &book.announcers {
                announced(book, key, story, *place, findings);
            }
        }
        for arrival in &story.announced {
            genuine(book, key, story, arrival, findings);
        }
    }
    for stray in &book.strays {
        let what = format!("a delivery under {}, which is no wait's key", stray.dedupe_key);
        findings.add(INVENTED, stray.span.begin, None, what);
    }
}

fn acknowledged(book: &Book<'_>, publish: &Publish, findings: &mut Findings) {
    match &publish.reply {
        Reply::Unknown => {}
        Reply::Refused { status, code, .. } => {
            let what = format!("{} was refused: {status} {code}", publish.event_id);
            findings.add(REFUSED, publish.span.end, None, what);
        }
        Reply::Ok(accepted) => {
            let key = WaitKey {
                thread: publish.thread.clone(),
                question: publish.question.clone(),
                generation: accepted.generation,
            };
            let last = book.stories.get(&key).and_then(|story| story.last);
            match last {
                None => {
                    let what = format!("{} was acknowledged and is not there", publish.event_id);
                    findings.add(LOST, publish.span.end, Some(&key), what);
                }
                Some(last) if last.dedupe_key != accepted.dedupe_key => {
                    let what = format!(
                        "acknowledged as {}, stored as {}",
                        accepted.dedupe_key, last.dedupe_key
                    );
                    findings.add(LOST, publish.span.end, Some(&key), what);
                }
                Some(_) => {}
            }
        }
    }
}

/// Attempts of one publish: only one of them asked something new. Under an `Idempotency-Key` the
/// first reply comes again.
fn applied_once(publishes: &[&Publish], findings: &mut Findings) {
    let new = publishes.iter().filter(|publish| {
        !publish.keyed && matches!(&publish.reply, Reply::Ok(accepted) if !accepted.duplicate)
    });
    let new: Vec<_> = new.collect();
    if let [_, second, ..] = new.as_slice() {
        let what = format!("{} was acknowledged as new {} times", second.event_id, new.len());
        findings.add(TWICE, second.span.end, None, what);
    }
}

fn stored(key: &WaitKey, story: &Story<'_>, last: &FinalWait, findings: &mut Findings) {
    let asked = story
        .opened_by
        .iter()
        .any(|publish| publish.thread == key.thread && publish.question == key.question);
    if !asked {
        let what = format!("stored by {}, which nobody published", last.event_id);
        findings.add(INVENTED, u64::MAX, Some(key), what);
    }
}

fn announced(
    book: &Book<'_>,
    key: &WaitKey,
    story: &Story<'_>,
    place: Place,
    findings: &mut Findings,
) {
    let mut wrong = |what: String| {
        findings.add(
            UNTOLD,
            story.asked_at().unwrap_or(0),
            Some(key),
            format!("{}: {what}", place.name()),
        );
    };
    let mut rows = story.rows.iter().filter(|row| !row.delivery && *row.name == *place.name());
    let Some(row) = rows.clone().find(|row| &*row.event == "wait.created") else {
        // A wait that was over on arrival is not announced.
        let end = story.publishes.iter().map(|publish| publish.span.end).max().unwrap_or(0);
        let over = story.state() == "timed-out"
            && story.deadline().is_some_and(|at| book.skew.latest(end) >= at);
        if !over {
            wrong("there is no announcement".to_owned());
        }
        return;
    };
    let taken: HashSet<&str> = story
        .announced
        .iter()
        .filter(|a| a.place == place && a.verdict.taken())
        .map(|a| &*a.event)
        .collect();
    if rows.clone().filter(|other| other.event == row.event).count() > 1 {
        wrong("two announcements of one event".to_owned());
    }
    for row in rows.by_ref() {
        match &*row.state {
            "delivered" if !taken.contains(&*row.event) => {
                wrong(format!("{} counts as delivered and never came", row.event));
            }
            "delivered" => {}
            "withdrawn" if &*row.event == "wait.created" && story.state() != "open" => {}
            other => wrong(format!("{} is {other} at the end {}", row.event, row.reason)),
        }
    }
}

/// An announcement is of something that was published, and says what was published.
fn genuine(
    book: &Book<'_>,
    key: &WaitKey,
    story: &Story<'_>,
    arrival: &Arrival,
    findings: &mut Findings,
) {
    let at = arrival.span.begin;
    let place = arrival.place.name();
    if story.last.is_none_or(|last| {
        super::book::rest(&last.dedupe_key) != super::book::rest(&arrival.dedupe_key)
    }) {
        let what = format!("{place} got {}, which is not this wait's key", arrival.dedupe_key);
        findings.add(INVENTED, at, Some(key), what);
    }
    if &*arrival.event != "wait.created" {
        return;
    }
    let publish = book
        .by_event
        .get(&*arrival.event_id)
        .and_then(|all| all.iter().find(|p| p.thread == key.thread && p.question == key.question));
    let Some(publish) = publish else {
        let what = format!("{place} was told of {}, which nobody published", arrival.event_id);
        findings.add(INVENTED, at, Some(key), what);
        return;
    };
    if publish.span.begin > at {
        let what = format!("{place} was told of {} before it was published", arrival.event_id);
        findings.add(INVENTED, at, Some(key), what);
    }
    let intact = if key.generation == 1 {
        publish.body == arrival.body
    } else {
        carries(&arrival.body, &publish.body, key)
    };
    if !intact {
        findings.add(CHANGED, at, Some(key), format!("{place} got {}", arrival.body));
    }
}

/// A later generation is what was published, but for its `reply_with`.
fn carries(came: &str, published: &str, key: &WaitKey) -> bool {
    let (Some(came), Some(published)) = (Members::read(came), Members::read(published)) else {
        return false;
    };
    let reply_with = came.raw("reply_with").and_then(Members::read);
    came.without("reply_with") == published.without("reply_with")
        && reply_with.is_some_and(|members| {
            members.number("generation") == Some(key.generation)
                && members.text("thread_id").as_deref() == Some(&*key.thread)
                && members.text("question_id").as_deref() == Some(&*key.question)
        })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::*;
    use crate::history::Verdict;

    #[test]
    fn what_was_acknowledged_and_is_gone_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.waits.clear();
        broken(&fixture, LOST);
    }

    #[test]
    fn an_announcement_that_counts_as_delivered_and_never_came_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.arrivals.retain(|a| a.place != Place::Hook);
        broken(&fixture, UNTOLD);
    }

    #[test]
    fn an_announcement_that_was_only_refused_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.arrivals[0].verdict = Verdict::Refused(503);
        broken(&fixture, UNTOLD);
    }

    #[test]
    fn a_missing_announcement_is_found_unless_the_wait_was_over_on_arrival() {
        let mut fixture = Fixture::answered();
        fixture.history.rows.retain(|row| row.delivery || &*row.name != "hook");
        fixture.history.arrivals.retain(|a| a.place != Place::Hook);
        // Another wait's announcement shows that the announcer is there.
        let mut other = Fixture::named("q-2").history;
        fixture.history.rows.append(&mut other.rows);
        fixture.history.waits.append(&mut other.waits);
        fixture.history.publishes.append(&mut other.publishes);
        fixture.history.arrivals.append(&mut other.arrivals);
        fixture.history.answers.append(&mut other.answers);
        broken(&fixture, UNTOLD);
    }

    #[test]
    fn an_announcement_still_queued_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.rows[0].state = "queued".into();
        broken(&fixture, UNTOLD);
    }

    #[test]
    fn a_withdrawn_announcement_is_fine_once_the_wait_is_over() {
        let mut fixture = Fixture::answered();
        fixture.history.rows[0].state = "withdrawn".into();
        fixture.history.arrivals.retain(|a| a.place != Place::Hook);
        fine(&fixture);
    }

    #[test]
    fn an_invented_announcement_is_found() {
        let mut fixture = Fixture::answered();
        fixture.history.arrivals[0].event_id = "e-unknown".into();
        broken(&fixture, INVENTED);
    }

    #[test]
    fn a_changed_payload_is_found() {
        let mut fixture = Fixture::answered();
        let body = fixture.history.arrivals[0].body.replace("9007199254740993", "9007199254740992");
        fixture.history.arrivals[0].body = body.into();
        broken(&fixture, CHANGED);
    }

    #[test]
    fn a_publish_that_was_new_twice_is_found() {
        let mut fixture = Fixture::answered();
        let again = fixture.history.publishes[0].clone();
        fixture.history.publishes.push(again);
        broken(&fixture, TWICE);
        fixture.history.publishes.iter_mut().for_each(|p| p.keyed = true);
        fine(&fixture);
    }

    #[test]
    fn a_refused_publish_is_found() {
        let mut fixture = Fixture::answered();
        let mut refused = fixture.history.publishes[0].clone();
        refused.reply = Reply::Refused { status: 500, code: "internal".into(), state: None };
        fixture.history.publishes.push(refused);
        broken(&fixture, REFUSED);
    }
}
