//! What must hold once a run has come to rest.

use crate::buses::{Arrival, rules};
use crate::load::{Told, tenant};
use crate::replay::{Replay, Sent};
use crate::store::run_now;
use crate::world::{State, World};
use answerback::contract::{DedupeKey, Event, Time, WaitState};
use answerback::core::{AnswerOutcome, CancelOutcome, Destination, OutboxId, OutboxState, Wait};
use answerback::store::sqlite::SqliteStore;
use answerback::store::{FeedRequest, OutboxFilter, OutboxRow, Place, Store, WaitFilter};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All that the store holds, by number.
pub(crate) struct Rest {
    pub(crate) waits: BTreeMap<i64, Arc<Wait>>,
    pub(crate) rows: BTreeMap<OutboxId, OutboxRow>,
    feed: Vec<(i64, Event, Time)>,
    depths: BTreeMap<Destination, u64>,
}

impl Rest {
    pub(crate) fn of(store: &SqliteStore) -> Self {
        let filter = WaitFilter::all(tenant(), 100_000);
        let waits = run_now(store.list_waits(filter)).unwrap().found;
        let mut rows = BTreeMap::new();
        for announcements in [true, false] {
            let filter = OutboxFilter::all(tenant(), announcements, 100_000);
            let found = run_now(store.list_outbox(filter)).unwrap().found;
            rows.extend(found.into_iter().map(|row| (row.id, row)));
        }
        let request = FeedRequest {
            tenant: tenant(),
            thread_id: None,
            after: Place::START,
            limit: 100_000,
            bytes: usize::MAX,
        };
        let feed = run_now(store.feed(request)).unwrap().events;
        let depths = run_now(store.depths()).unwrap();
        Self {
            waits: waits.into_iter().map(|wait| (wait.id.0, wait)).collect(),
            rows,
            feed: feed.into_iter().map(|e| (e.wait.id.0, e.event, e.at)).collect(),
            depths: depths.into_iter().map(|d| (d.destination, d.queued)).collect(),
        }
    }
}

/// Compares what there is with what there must be. `now` is what the slowest clock shows.
pub(crate) fn judge(world: &World, rest: &Rest, told: &[Told], now: Time) -> Vec<String> {
    let state = world.state();
    let mut wrong = Vec::new();
    replayed(world, &state, rest, &mut wrong);
    for row in rest.rows.values() {
        let wait = &rest.waits[&row.wait.0];
        if let Err(why) = finished(&state, row, wait, now) {
            wrong.push(format!(
                "message {} ({} to {} of wait {}) is {} {}: {why}",
                row.id.0,
                row.event,
                row.destination.label(),
                row.wait.0,
                row.state.name(),
                row.reason.as_deref().unwrap_or_default(),
            ));
        }
    }
    for arrival in &state.buses.arrivals {
        if let Err(why) = invented(rest, arrival) {
            wrong.push(format!("message {} arrived: {why}", arrival.id.0));
        }
    }
    once(&state, &mut wrong);
    in_order(&state, &mut wrong);
    for told in told {
        if let Err(why) = kept(rest, told) {
            wrong.push(why);
        }
    }
    let mut queued: BTreeMap<Destination, u64> = BTreeMap::new();
    for row in rest.rows.values().filter(|row| row.state == OutboxState::Queued) {
        *queued.entry(row.destination.clone()).or_default() += 1;
    }
    let depths: BTreeMap<_, _> = rest.depths.iter().filter(|(_, n)| **n > 0).collect();
    if depths != queued.iter().collect() {
        wrong.push(format!("depths {depths:?}, but queued {queued:?}"));
    }
    wrong
}

/// The store holds what its operations lead to, no more and no less.
fn replayed(world: &World, state: &State, rest: &Rest, wrong: &mut Vec<String>) {
    let Replay { waits, sent, feed, wrong: differences, .. } =
        Replay::of(rules(&world.plan), &state.log);
    wrong.extend(differences);
    for wait in &waits {
        let Some(kept) = rest.waits.get(&wait.id.0) else {
            wrong.push(format!("wait {} is lost", wait.id.0));
            continue;
        };
        let both = [wait, kept].map(|w| {
            let answer = w.answer.as_ref().map(|a| (a.value.clone(), a.valid_until));
            (w.state, w.closed_at, w.generation, w.rest.clone(), answer, w.taken_over.clone())
        });
        if both[0] != both[1] {
            wrong.push(format!("wait {}: {:?}, but stored is {:?}", wait.id.0, both[0], both[1]));
        }
    }
    if waits.len() != rest.waits.len() {
        wrong.push(format!("{} waits, but stored are {}", waits.len(), rest.waits.len()));
    }
    let mut must: Vec<Sent> = sent;
    let mut is: Vec<Sent> = rest
        .rows
        .values()
        .map(|row| (row.wait.0, row.destination.clone(), row.event.transition()))
        .collect();
    must.sort();
    is.sort();
    if must != is {
        let missing: Vec<_> = must.iter().filter(|m| !is.contains(m)).collect();
        let extra: Vec<_> = is.iter().filter(|m| !must.contains(m)).collect();
        wrong.push(format!(
            "{} messages follow, {} are there; missing {missing:?}, invented {extra:?}",
            must.len(),
            is.len()
        ));
    }
    if feed != rest.feed {
        wrong.push(format!("the feed is {:?}, not {feed:?}", rest.feed));
    }
}

/// A message ended, and for a reason.
fn finished(state: &State, row: &OutboxRow, wait: &Wait, now: Time) -> Result<(), &'static str> {
    let pulled = row.destination == Destination::Pull;
    let because = |code| state.buses.refused.get(&row.id).is_some_and(|why| why.contains(code));
    let valid_until = wait.answer.as_ref().and_then(|answer| answer.valid_until);
    let holds = match (row.state, row.reason.as_deref()) {
        (OutboxState::Queued, _) => pulled && valid_until.is_none_or(|until| now < until),
        (OutboxState::Delivered, _) if pulled => state.pulled.contains(&row.wait),
        (OutboxState::Delivered, _) => state.buses.confirmed.contains(&row.id),
        (OutboxState::Withdrawn, _) => row.event.ends_with_the_wait() && wait.state.is_over(),
        (OutboxState::Dead, Some(code @ ("refused" | "gone" | "host-closed"))) => because(code),
        (OutboxState::Dead, Some("max-age")) => !pulled,
        (OutboxState::Dead, Some("answer-expired")) => valid_until.is_some(),
        (OutboxState::Dead, _) => false,
    };
    if holds { Ok(()) } else { Err("there is no reason for that") }
}

/// What arrived is what was asked or answered.
fn invented(rest: &Rest, arrival: &Arrival) -> Result<(), String> {
    let row = rest.rows.get(&arrival.id).ok_or("there is no such message")?;
    let wait = rest.waits.get(&arrival.wait.0).ok_or("there is no such wait")?;
    if (&row.destination, row.event, row.wait)
        != (&arrival.destination, arrival.event, arrival.wait)
    {
        return Err("it is another message than the one of that number".to_owned());
    }
    if arrival.dedupe_key != DedupeKey::of(arrival.event, &wait.rest, arrival.repeat) {
        return Err(format!("its dedupe key is {:?}", arrival.dedupe_key));
    }
    if arrival.event == Event::Created
        && arrival.generation.is_first()
        && arrival.payload != wait.envelope
    {
        return Err("its text is not what was published".to_owned());
    }
    if !arrival.destination.is_announcer() {
        let given = wait.answer.as_ref().ok_or("there is no answer")?;
        let value = format!("\"answer\": {}", String::from_utf8_lossy(&given.value));
        if !String::from_utf8_lossy(&arrival.payload).contains(&value) {
            return Err(format!("{:?} is not the answer {value}", arrival.payload));
        }
    }
    Ok(())
}

/// What tells of one thing is one message, however often it arrives: so its receiver may forget
/// the second.
fn once(state: &State, wrong: &mut Vec<String>) {
    let mut messages = BTreeMap::new();
    for arrival in &state.buses.arrivals {
        let key = (&arrival.destination, arrival.dedupe_key.as_str());
        let first = *messages.entry(key).or_insert(arrival.id);
        if first != arrival.id {
            wrong.push(format!("messages {} and {} are {key:?}", first.0, arrival.id.0));
        }
    }
}

/// Messages of one line arrive first in the order in which they were queued, but for those that were
/// dead in between or whose lease ran out while they were under way.
fn in_order(state: &State, wrong: &mut Vec<String>) {
    let mut newest: Vec<(&crate::ledger::Line, OutboxId)> = Vec::new();
    let mut arrived = std::collections::BTreeSet::new();
    for arrival in &state.buses.arrivals {
        let Some(line) = &arrival.line else { continue };
        if !arrived.insert(arrival.id) {
            continue;
        }
        let excused = state.revived_all
            || state.revived.contains(&arrival.id)
            || state.ledger.lapsed.contains(&arrival.id);
        match newest.iter_mut().find(|(of, _)| *of == line) {
            None => newest.push((line, arrival.id)),
            Some((_, last)) if *last < arrival.id => *last = arrival.id,
            Some(_) if excused => {}
            Some((_, last)) => {
                wrong.push(format!("message {} arrives after {}", arrival.id.0, last.0));
            }
        }
    }
}

/// What clients were told is so.
fn kept(rest: &Rest, told: &Told) -> Result<(), String> {
    let of = |thread: &str, question: &str, generation: u64| {
        rest.waits.values().find(|w| {
            w.thread_id.as_str() == thread
                && w.question_id.as_str() == question
                && u64::from(w.generation.get()) == generation
        })
    };
    match told {
        Told::Accepted { thread, question, generation, key } => {
            let wait = of(thread, question, u64::from(generation.get()))
                .ok_or_else(|| format!("{thread} {question} was acknowledged and is not there"))?;
            if DedupeKey::of(Event::Created, &wait.rest, 0) != *key {
                return Err(format!("{thread} {question} was acknowledged under another key"));
            }
        }
        Told::Answered { thread, question, generation, value, outcome } => {
            let wait = of(thread, question, *generation);
            let answer = wait.and_then(|w| w.answer.as_ref());
            let is_it = answer.is_some_and(|a| a.value == value.to_string().as_bytes());
            let state = wait.map(|w| w.state);
            let holds = match outcome {
                AnswerOutcome::Accepted | AnswerOutcome::AcceptedAgain => {
                    is_it && state == Some(WaitState::Completed)
                }
                AnswerOutcome::Closed { state: told, .. } => state == Some(*told),
                AnswerOutcome::NotFound => true,
                AnswerOutcome::Expired | AnswerOutcome::ActionNotAllowed => false,
            };
            if !holds {
                return Err(format!(
                    "the answer {value} to {thread} {question} {generation} was told {outcome:?}, \
                     and the wait is {state:?}"
                ));
            }
        }
        Told::Cancelled { wait, outcome } => {
            let state = rest.waits.get(&wait.0).map(|w| w.state);
            let told = match outcome {
                CancelOutcome::Cancelled => WaitState::Cancelled,
                CancelOutcome::Closed(state) => *state,
            };
            if state != Some(told) {
                return Err(format!("wait {} was told {told}, and is {state:?}", wait.0));
            }
        }
    }
    Ok(())
}
