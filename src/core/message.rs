//! What is sent: made from what is stored, so that a queue holds no copies.

use crate::envelope::Envelope;
use crate::field::Refusal;
use crate::model::{Destination, GivenAnswer, Leased, Name, OutboxId, Wait};
use answerback_contract::json::{self, Quoted};
use answerback_contract::{Bytes, DedupeKey, Event, EventId, Message, Time, WaitState};
use std::fmt::Write as _;
use std::sync::Arc;

/// The answer message for the host: `reply_with` as published, `answer` set, and `valid_until` when
/// there is one (contract, section 6).
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub fn answer(wait: &Wait, given: &GivenAnswer) -> Result<Bytes, Refusal> {
    let newest = wait.taken_over.as_ref().unwrap_or(&wait.envelope);
    let envelope = Envelope::parse(newest.clone())?;
    let value = json::JsonError::check_utf8(&given.value)?;
    let mut text = json::with_member(&envelope.reply_with(), "answer", value)?;
    if let Some(until) = given.valid_until {
        text = json::with_member(&text, "valid_until", &format!("\"{until}\""))?;
    }
    Ok(Bytes::from(text))
}

/// The message of a leased announcement or delivery.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub fn of(leased: &Leased, include_answer: bool) -> Result<Message, Refusal> {
    let wait = &*leased.wait;
    // Most messages are the envelope as it came: nothing has to be read out of it again.
    let untouched = wait.generation.is_first();
    let parsed = match (untouched, leased.event) {
        (true, Event::Created) => None,
        _ => Some(Envelope::parse(wait.envelope.clone())?),
    };
    let announced = match &parsed {
        Some(envelope) if !untouched => envelope.announced(wait.generation)?,
        _ => wait.envelope.clone(),
    };
    let event_id = leased.event_id.clone().unwrap_or_else(|| wait.event_id.clone());
    let (state, at) = state_at(leased);
    let payload = match (leased.event, &parsed, &wait.answer) {
        (Event::Created, _, _) | (_, None, _) => announced.clone(),
        (Event::Answered, _, Some(given)) if !leased.destination.is_announcer() => {
            answer(wait, given)?
        }
        (_, Some(envelope), _) => {
            Bytes::from(lifecycle(leased, envelope, event_id.as_str(), state, at, include_answer))
        }
    };
    let given = wait.answer.as_ref().filter(|_| state.is_over());
    Ok(Message {
        event: leased.event,
        event_id,
        thread_id: wait.thread_id.clone(),
        question_id: wait.question_id.clone(),
        generation: wait.generation,
        dedupe_key: DedupeKey::of(leased.event, &wait.rest, leased.repeat),
        wait_key: wait.rest.clone(),
        payload,
        envelope: announced,
        state,
        expires_at: wait.expires_at,
        at,
        answered_by: given.and_then(|g| g.answered_by.clone()),
        answered_via: given.map(|g| g.answered_via),
    })
}

/// What announcers are told of an event, without the answer; `event_id` is `None` for the envelope's
/// own.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub fn announced(
    wait: &Arc<Wait>,
    event: Event,
    event_id: Option<EventId>,
    at: Time,
) -> Result<Bytes, Refusal> {
    let leased = Leased {
        id: OutboxId(0),
        lease: 0,
        destination: Destination::Announcer(Name::new("")),
        event,
        repeat: 0,
        event_id,
        attempts: 0,
        queued_at: at,
        wait: Arc::clone(wait),
    };
    Ok(of(&leased, false)?.payload)
}

/// The state that the event brought about and when; the wait itself may have gone on since.
fn state_at(leased: &Leased) -> (WaitState, Time) {
    let wait = &*leased.wait;
    let closed_at = wait.closed_at.unwrap_or(leased.queued_at);
    match leased.event {
        Event::Created => (WaitState::Open, wait.created_at),
        Event::Reminder => (WaitState::Open, leased.queued_at),
        // A host is told "answered" of a default too; the state stays what it is.
        Event::Answered if wait.state == WaitState::TimedOut => (WaitState::TimedOut, closed_at),
        Event::Answered => (WaitState::Completed, closed_at),
        Event::TimedOut => (WaitState::TimedOut, closed_at),
        Event::Cancelled => (WaitState::Cancelled, closed_at),
    }
}

/// `{type,event_id,thread_id,question_id,generation,state,at,answered_by,answered_via,tags,source}`
/// (contract, section 4), and `answer` where the announcer asks for it.
fn lifecycle(
    leased: &Leased,
    envelope: &Envelope,
    event_id: &str,
    state: WaitState,
    at: Time,
    include_answer: bool,
) -> String {
    let wait = &*leased.wait;
    let given = wait.answer.as_ref().filter(|_| state.is_over());
    let or_null = |text: Option<&str>| text.map_or("null".to_owned(), |t| Quoted(t).to_string());
    let mut out = String::with_capacity(512);
    let _ = write!(
        out,
        "{{\"type\":\"{}\",\"event_id\":{},\"thread_id\":{},\"question_id\":{},\"generation\":{},\
         \"state\":\"{state}\",\"at\":\"{at}\",\"answered_by\":{},\"answered_via\":{},\"tags\":{},\"source\":{}",
        leased.event,
        Quoted(event_id),
        Quoted(wait.thread_id.as_str()),
        Quoted(wait.question_id.as_str()),
        wait.generation,
        or_null(given.and_then(|g| g.answered_by.as_deref())),
        or_null(given.map(|g| g.answered_via.name())),
        envelope.tags_text().unwrap_or("{}"),
        envelope.source().unwrap_or("null"),
    );
    if let (true, Some(given)) = (include_answer, given) {
        let _ = write!(out, ",\"answer\":{}", String::from_utf8_lossy(&given.value));
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests;
