//! What is still known of questions whose waits are all forgotten.

use answerback_contract::{DedupeRest, Generation, Time, WaitState};
use answerback_core::{Publish, Wait, WaitId};
use std::sync::Arc;

/// A question that was forgotten, as a wait that ended without an answer: so a redelivery is known
/// for one, and a new question gets the next generation, which no late answer to a forgotten one can
/// be taken for.
pub(super) fn wait(asked: &Publish, generation: Generation, choice: u32, now: Time) -> Wait {
    let (thread, question) = (asked.envelope.thread_id(), asked.envelope.question_id());
    Wait {
        id: WaitId(0),
        tenant: asked.tenant.clone(),
        thread_id: thread.clone(),
        question_id: question.clone(),
        generation,
        rest: DedupeRest::choice(question, choice),
        run_id: Arc::from(thread.as_str()),
        state: WaitState::Cancelled,
        envelope: asked.envelope.text().clone(),
        taken_over: None,
        event_id: asked.event_id.clone(),
        created_at: now,
        expires_at: None,
        closed_at: Some(now),
        answer: None,
        resends: 0,
        note: None,
    }
}
