//! How a wait ends: by an answer, by its deadline, by being withdrawn.

use crate::envelope::Envelope;
use crate::field::Refusal;
use crate::model::{GivenAnswer, Op, OrderKey, Send, Wait, WaitRef};
use crate::rules::Rules;
use answerback_contract::{Bytes, Event, EventId, TenantId, ThreadId, Time, Via, WaitState};

/// Gives a fresh [`EventId`] each time it is asked.
pub(crate) type FreshIds<'f> = &'f mut dyn FnMut() -> EventId;

/// What came of an attempt to withdraw a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CancelOutcome {
    /// It is withdrawn now.
    Cancelled,
    /// It ended before.
    Closed(WaitState),
}

/// Withdraws an open wait. One that is over, withdrawn or otherwise, is closed (contract, section 3);
/// who lost the first reply repeats the request under its `Idempotency-Key`.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub fn cancel(
    wait: &Wait,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<(CancelOutcome, Vec<Op>), Refusal> {
    if let Some(ops) = deadline(wait, rules, now, ids)? {
        return Ok((CancelOutcome::Closed(WaitState::TimedOut), ops));
    }
    match wait.state {
        WaitState::Open | WaitState::Pending => {
            let ops = close(wait, WaitState::Cancelled, None, rules, now, ids)?;
            Ok((CancelOutcome::Cancelled, ops))
        }
        other => Ok((CancelOutcome::Closed(other), Vec::new())),
    }
}

/// Whether an open wait's deadline is reached: at the very instant it is.
pub(crate) fn is_due(wait: &Wait, now: Time) -> bool {
    wait.state == WaitState::Open && wait.expires_at.is_some_and(|at| at <= now)
}

/// Times an open wait out, once its deadline is reached: `Some` with what to do, `None` while
/// nothing is due. Every decision asks this first, so that no late sweep lets a late answer in.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub fn deadline(
    wait: &Wait,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<Option<Vec<Op>>, Refusal> {
    if !is_due(wait, now) {
        return Ok(None);
    }
    let envelope = Envelope::parse(wait.envelope.clone())?;
    let answer = default_answer(&envelope, now);
    close(wait, WaitState::TimedOut, answer, rules, now, ids).map(Some)
}

/// The default as an answer, given now.
pub(crate) fn default_answer(envelope: &Envelope, now: Time) -> Option<GivenAnswer> {
    envelope.default().map(|value| GivenAnswer {
        value,
        valid_until: envelope.answer_ttl().map(|ttl| now.after(ttl)),
        answered_at: now,
        answered_by: None,
        answered_via: Via::Default,
    })
}

/// Ends an existing wait: tells the announcers that want to know and sends the answer on its way.
pub(crate) fn close(
    wait: &Wait,
    state: WaitState,
    answer: Option<GivenAnswer>,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<Vec<Op>, Refusal> {
    let envelope = Envelope::parse(wait.envelope.clone())?;
    let at = WaitRef::Existing(wait.id);
    let mut ops = Vec::with_capacity(2);
    let mut note = None;
    let delivery = match &answer {
        None => None,
        Some(_) => {
            let (op, why) = deliver(wait, &envelope, at, 0, rules, now, ids)?;
            note = why;
            Some(op)
        }
    };
    ops.push(Op::Close { wait: wait.id, state, at: now, answer, note });
    let event = match state {
        WaitState::Completed => Some(Event::Answered),
        WaitState::TimedOut => Some(Event::TimedOut),
        WaitState::Cancelled => Some(Event::Cancelled),
        WaitState::Pending | WaitState::Open | WaitState::Unused => None,
    };
    if let Some(event) = event {
        announce(&mut ops, &wait.tenant, &envelope, at, event, rules, now, ids);
    }
    ops.extend(delivery);
    Ok(ops)
}

/// Queues the answer for the host: the `repeat`th time.
pub(crate) fn deliver(
    wait: &Wait,
    envelope: &Envelope,
    at: WaitRef,
    repeat: u32,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<(Op, Option<String>), Refusal> {
    let newest = match &wait.taken_over {
        Some(text) => Envelope::parse(text.clone())?,
        None => envelope.clone(),
    };
    Ok(delivery_of(&wait.tenant, &wait.thread_id, envelope, &newest, at, repeat, rules, now, ids))
}

/// The same for a wait that may not be stored yet.
#[expect(clippy::too_many_arguments, reason = "plain data, all of it needed, named at the callers")]
pub(crate) fn delivery_of(
    tenant: &TenantId,
    thread: &ThreadId,
    envelope: &Envelope,
    reply_from: &Envelope,
    at: WaitRef,
    repeat: u32,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> (Op, Option<String>) {
    let (destination, note) = rules.route(tenant, envelope, reply_from);
    // Nobody drives a pull delivery, so it must not hold back the thread's other answers.
    let pulled = destination == crate::model::Destination::Pull;
    let order = (!pulled).then(|| OrderKey::answers(tenant, thread));
    let send =
        Send { destination, event: Event::Answered, repeat, event_id: Some(ids()), order, at: now };
    (Op::Send { wait: at, send }, note)
}

/// Records an event and queues it for every announcer that is told of it.
#[expect(clippy::too_many_arguments, reason = "plain data, all of it needed, named at the callers")]
pub(crate) fn announce(
    ops: &mut Vec<Op>,
    tenant: &TenantId,
    envelope: &Envelope,
    at: WaitRef,
    event: Event,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) {
    // One event, one id, whoever is told of it; the created event is the envelope's own.
    let event_id = (event != Event::Created).then(ids);
    ops.push(Op::Record { wait: at, event, event_id: event_id.clone(), at: now });
    for announcer in rules.announcers_for(tenant, envelope, event) {
        let order = announcer
            .ordered
            .then(|| OrderKey::announcements(&announcer.name, tenant, envelope.thread_id()));
        let send = Send {
            destination: crate::model::Destination::Announcer(announcer.name.clone()),
            event,
            repeat: 0,
            event_id: event_id.clone(),
            order,
            at: now,
        };
        ops.push(Op::Send { wait: at, send });
    }
}

/// The bytes that a decision may keep of an answer, shared with what came in.
pub(crate) fn cut(text: &Bytes, raw: &str) -> Bytes {
    text.slice_ref(raw.as_bytes())
}
