//! The answer: one wins.

use crate::closing::{FreshIds, close, cut, deadline};
use crate::envelope::Envelope;
use crate::field::{Fields, Refusal, check_size};
use crate::model::{GivenAnswer, Op, Wait};
use crate::rules::Rules;
use answerback_contract::json::{self, Json, JsonError};
use answerback_contract::{
    Bytes, Generation, QuestionId, TenantId, ThreadId, Time, Via, WaitState,
};

/// An answer message (contract, section 2).
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// Which conversation.
    pub thread_id: ThreadId,
    /// Which question.
    pub question_id: QuestionId,
    /// Which question under that id; the first when the message names none.
    pub generation: Generation,
    /// The answer's JSON text, exact.
    pub value: Bytes,
    /// Its own expiry.
    pub valid_until: Option<Time>,
    /// Who the sender says answered.
    pub answered_by: Option<String>,
}

impl Answer {
    /// Reads and checks an answer message.
    ///
    /// # Errors
    /// [`Refusal`] names the field and says what would be right.
    pub fn parse(bytes: &Bytes) -> Result<Self, Refusal> {
        check_size("answer", bytes)?;
        let text = JsonError::check_utf8(bytes)?;
        let fields = Fields::read(text)?;
        let generation = match fields.value("generation")? {
            None => Generation::FIRST,
            Some(Json::Number(n)) => n
                .bytes()
                .all(|b| b.is_ascii_digit())
                // One beyond all that can be is simply of no wait.
                .then(|| n.parse().unwrap_or(u32::MAX))
                .and_then(Generation::new)
                .ok_or_else(|| Refusal::new("generation", "must be a whole number from 1 up"))?,
            Some(other) => {
                let found = other.type_name();
                return Err(Refusal::new(
                    "generation",
                    format!("is {found}, but must be a whole number from 1 up"),
                ));
            }
        };
        let answered_by = match fields.value("answered_by")? {
            None => None,
            Some(Json::String(who)) if who.len() <= 1_000 => Some(who.into_owned()),
            Some(Json::String(_)) => {
                return Err(Refusal::new("answered_by", "is longer than 1,000 bytes"));
            }
            Some(other) => {
                return Err(Refusal::new(
                    "answered_by",
                    format!("is {}, but must be a string or null", other.type_name()),
                ));
            }
        };
        Ok(Self {
            thread_id: fields.id("thread_id", ThreadId::new)?,
            question_id: fields.id("question_id", QuestionId::new)?,
            generation,
            value: cut(bytes, fields.required("answer")?),
            valid_until: fields.time("valid_until")?,
            answered_by,
        })
    }
}

/// An answer and where it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnswerRequest {
    /// Whose key or source it came by.
    pub tenant: TenantId,
    /// What was sent.
    pub answer: Answer,
    /// What the sender claims, and the key's name: kept with the answer.
    pub answered_by: Option<String>,
    /// How it came.
    pub via: Via,
}

/// What came of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerOutcome {
    /// It is the answer.
    Accepted,
    /// It already was the answer.
    AcceptedAgain,
    /// There is no such wait.
    NotFound,
    /// The wait is over, with another answer or none.
    Closed {
        /// How it ended.
        state: WaitState,
        /// Which generation was meant.
        generation: Generation,
    },
    /// The answer's own `valid_until` is past.
    Expired,
    /// Its `action` is not among the question's, and the configuration enforces them.
    ActionNotAllowed,
}

/// Decides about an answer to a wait of the right generation, if there is one.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub fn decide(
    wait: Option<&Wait>,
    request: &AnswerRequest,
    rules: &Rules,
    now: Time,
    ids: FreshIds<'_>,
) -> Result<(AnswerOutcome, Vec<Op>), Refusal> {
    let nothing = |outcome| Ok((outcome, Vec::new()));
    let Some(wait) = wait else { return nothing(AnswerOutcome::NotFound) };
    let closed = |state| AnswerOutcome::Closed { state, generation: wait.generation };
    if let Some(ops) = deadline(wait, rules, now, ids)? {
        return Ok((closed(WaitState::TimedOut), ops));
    }
    let answer = &request.answer;
    if wait.state != WaitState::Open {
        // A timed-out wait's default is nobody's answer: whoever answers late must learn that.
        let same = wait.state == WaitState::Completed
            && wait.answer.as_ref().is_some_and(|given| same_value(&given.value, &answer.value));
        return nothing(if same { AnswerOutcome::AcceptedAgain } else { closed(wait.state) });
    }
    if answer.valid_until.is_some_and(|until| until <= now) {
        return nothing(AnswerOutcome::Expired);
    }
    let envelope = Envelope::parse(wait.envelope.clone())?;
    if rules.enforce_allowed_actions && !action_allowed(&envelope, &answer.value) {
        return nothing(AnswerOutcome::ActionNotAllowed);
    }
    let by_ttl = envelope.answer_ttl().map(|ttl| now.after(ttl));
    let given = GivenAnswer {
        value: answer.value.clone(),
        valid_until: match (answer.valid_until, by_ttl) {
            (Some(own), Some(ttl)) => Some(own.min(ttl)),
            (own, ttl) => own.or(ttl),
        },
        answered_at: now,
        answered_by: request.answered_by.clone(),
        answered_via: request.via,
    };
    let ops = close(wait, WaitState::Completed, Some(given), rules, now, ids)?;
    Ok((AnswerOutcome::Accepted, ops))
}

/// Whether two answers are equal JSON values.
#[must_use]
pub fn same_value(a: &[u8], b: &[u8]) -> bool {
    if a == b {
        return true;
    }
    let parse = |bytes| std::str::from_utf8(bytes).ok().and_then(|text| json::parse(text).ok());
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => json::same_value(&a, &b),
        _ => false,
    }
}

/// Whether the answer's `action`, when it has one, is among the allowed ones, when the question
/// names any. Of whatever type: an action that is no string must not slip through.
fn action_allowed(envelope: &Envelope, answer: &[u8]) -> bool {
    let text = std::str::from_utf8(answer).unwrap_or_default();
    let Ok(Json::Object(members)) = json::parse(text) else { return true };
    let Some(Json::Array(allowed)) = envelope.allowed_actions_value() else { return true };
    // Where the key stands twice, readers differ in which they take.
    members
        .iter()
        .filter(|(key, _)| key == "action")
        .all(|(_, action)| allowed.iter().any(|a| json::same_value(a, action)))
}

#[cfg(test)]
mod tests;
