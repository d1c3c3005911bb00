//! A question comes in, for the first time or again (contract, section 2, "Published again").

use crate::closing::{
    FreshIds, announce, close, deadline, default_answer, deliver, delivery_of, is_due,
};
use crate::envelope::Envelope;
use crate::field::Refusal;
use crate::model::{Destination, GivenAnswer, NewWait, Op, Wait, WaitRef};
use crate::rules::{Republished, Rules};
use answerback_contract::{Event, EventId, Generation, TenantId, Time, WaitState};

/// A question and where it came from.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Whose key or source it came by.
    pub tenant: TenantId,
    /// What was sent.
    pub envelope: Envelope,
    /// Its `event_id`, or one that was minted on arrival.
    pub event_id: EventId,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishOutcome {
    /// A new wait, or a new generation of one.
    New(Generation),
    /// Nothing new was asked.
    Duplicate(Generation),
}

/// Decides about a publish, given the newest wait of its thread and question id, whether its event
/// id was seen there before, and for where that wait's answer is queued already and not under way.
///
/// # Errors
/// Never for waits whose envelopes were let in.
pub fn decide(
    newest: Option<&Wait>,
    event_seen: bool,
    waiting: &[Destination],
    publish: &Publish,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<(PublishOutcome, Vec<Op>), Refusal> {
    let Some(stored) = newest else {
        return Ok(open(publish, Generation::FIRST, Vec::new(), rules, now, ids));
    };
    if event_seen {
        return Ok((PublishOutcome::Duplicate(stored.generation), Vec::new()));
    }
    let asked = Envelope::parse(stored.envelope.clone())?;
    let same = asked.same_question(&publish.envelope);
    let next = stored.generation.next();
    let remember = Op::Remember { wait: stored.id, event_id: publish.event_id.clone() };
    let take_over = Op::TakeOver { wait: stored.id, envelope: publish.envelope.text().clone() };
    // What the wait would be, had a sweep come by just now.
    let mut ops = Vec::new();
    let mut wait = stored.clone();
    if is_due(stored, now) {
        if same && rules.republished == Republished::Resend && asked.default().is_some() {
            // The default is sent once, to where the asker wants it now.
            wait.taken_over = Some(publish.envelope.text().clone());
            ops.push(take_over.clone());
        }
        ops.extend(deadline(&wait, rules, now, ids)?.unwrap_or_default());
        wait.state = WaitState::TimedOut;
        wait.answer = default_answer(&asked, now);
    }
    match (wait.state, &wait.answer, same) {
        (WaitState::Open | WaitState::Pending, _, true) => {
            ops.push(remember);
            ops.push(take_over);
            Ok((PublishOutcome::Duplicate(wait.generation), ops))
        }
        (WaitState::Open | WaitState::Pending, _, false) => {
            // The asker has moved on: what was asked before needs no answer any more.
            ops.extend(close(&wait, WaitState::Cancelled, None, rules, now, ids)?);
            Ok(open(publish, next, ops, rules, now, ids))
        }
        (WaitState::Completed | WaitState::TimedOut, Some(answer), true) => {
            match rules.republished {
                Republished::Ignore => {
                    ops.push(remember);
                    Ok((PublishOutcome::Duplicate(wait.generation), ops))
                }
                Republished::Resend if answer.is_valid(now) => {
                    ops.push(remember);
                    // The deadline that passed just now has its default on the way already.
                    if !is_due(stored, now) {
                        ops.push(take_over);
                        ops.extend(resend(&wait, &asked, publish, waiting, rules, now, ids)?);
                    }
                    Ok((PublishOutcome::Duplicate(wait.generation), ops))
                }
                Republished::Resend | Republished::AskAgain => {
                    Ok(open(publish, next, ops, rules, now, ids))
                }
            }
        }
        _ => Ok(open(publish, next, ops, rules, now, ids)),
    }
}

/// Sends the stored answer once more, to where the asker wants it now. Not when it still waits to
/// go there: then that delivery is the one, and takes the newest reply fields along. A host that
/// asks again and again while nothing gets through must not pile deliveries up.
fn resend(
    wait: &Wait,
    asked: &Envelope,
    publish: &Publish,
    waiting: &[Destination],
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<Vec<Op>, Refusal> {
    let resends = wait.resends.saturating_add(1);
    let moved = Wait { taken_over: Some(publish.envelope.text().clone()), ..wait.clone() };
    let at = WaitRef::Existing(wait.id);
    let (delivery, _) = deliver(&moved, asked, at, resends, rules, now, ids)?;
    if let Op::Send { send, .. } = &delivery
        && waiting.contains(&send.destination)
    {
        return Ok(Vec::new());
    }
    Ok(vec![Op::Resent { wait: wait.id, resends }, delivery])
}

/// Stores a new wait and announces it; one whose deadline is past is over at once.
fn open(
    publish: &Publish,
    generation: Generation,
    mut ops: Vec<Op>,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> (PublishOutcome, Vec<Op>) {
    let envelope = &publish.envelope;
    let past = envelope.expires_at().is_some_and(|at| at <= now);
    let answer: Option<GivenAnswer> = past.then(|| default_answer(envelope, now)).flatten();
    let (delivery, note) = match &answer {
        None => (None, None),
        Some(_) => {
            let (op, note) = delivery_of(
                &publish.tenant,
                envelope.thread_id(),
                envelope,
                envelope,
                WaitRef::Opened,
                0,
                rules,
                now,
                ids,
            );
            (Some(op), note)
        }
    };
    ops.push(Op::Open(NewWait {
        tenant: publish.tenant.clone(),
        thread_id: envelope.thread_id().clone(),
        question_id: envelope.question_id().clone(),
        generation,
        run_id: envelope.thread_id().as_str().into(),
        state: if past { WaitState::TimedOut } else { WaitState::Open },
        envelope: envelope.text().clone(),
        event_id: publish.event_id.clone(),
        created_at: now,
        expires_at: envelope.expires_at(),
        closed_at: past.then_some(now),
        answer,
        note,
    }));
    if past {
        // Announced to nobody, but it happened.
        for (event, event_id) in [(Event::Created, None), (Event::TimedOut, Some(ids()))] {
            ops.push(Op::Record { wait: WaitRef::Opened, event, event_id, at: now });
        }
    } else {
        announce(
            &mut ops,
            &publish.tenant,
            envelope,
            WaitRef::Opened,
            Event::Created,
            rules,
            now,
            ids,
        );
    }
    ops.extend(delivery);
    (PublishOutcome::New(generation), ops)
}

#[cfg(test)]
mod tests;
