//! The `wait.created` document: read field by field, kept byte by byte.

use crate::field::{Fields, Refusal, check_size, id_text};
use answerback_contract::json::{self, Json, JsonError};
use answerback_contract::{Bytes, EventId, Generation, QuestionId, ThreadId, Time, duration};
use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

/// A question as an agent published it (contract, section 2). The text stays as it came; what is
/// read out of it are the fields that the daemon acts on.
#[derive(Clone, PartialEq, Eq)]
pub struct Envelope {
    text: Bytes,
    thread_id: ThreadId,
    question_id: QuestionId,
    event_id: Option<EventId>,
    expires_at: Option<Time>,
    answer_ttl: Option<Duration>,
    question: Range<usize>,
    default: Option<Range<usize>>,
    source: Option<Range<usize>>,
    allowed_actions: Option<Range<usize>>,
    tags: Option<Range<usize>>,
    reply_to: Option<Range<usize>>,
    reply_with: Option<Range<usize>>,
}

impl Envelope {
    /// Reads and checks an envelope.
    ///
    /// # Errors
    /// [`Refusal`] names the field and says what would be right.
    pub fn parse(bytes: Bytes) -> Result<Self, Refusal> {
        check_size("envelope", &bytes)?;
        let text = JsonError::check_utf8(&bytes)?;
        let fields = Fields::read(text)?;
        match fields.value("type")? {
            Some(Json::String(kind)) if kind == "wait.created" => {}
            Some(Json::String(_)) => {
                return Err(Refusal::new("type", "must be \"wait.created\""));
            }
            Some(other) => {
                return Err(Refusal::new(
                    "type",
                    format!("is {}, but must be \"wait.created\"", other.type_name()),
                ));
            }
            None => {
                return Err(Refusal::new(
                    "type",
                    "is missing or null; it must be \"wait.created\"",
                ));
            }
        }
        let thread_id = fields.id("thread_id", ThreadId::new)?;
        let question_id = fields.id("question_id", QuestionId::new)?;
        let range = |raw: &str| {
            let start = raw.as_ptr().addr() - text.as_ptr().addr();
            start..start + raw.len()
        };
        let question = range(fields.required("question")?);
        // Of a type that no id has it is carried, not used.
        let event_id = fields
            .value("event_id")?
            .and_then(|value| id_text(&value).map(EventId::new))
            .transpose()
            .map_err(|bad| Refusal::new("event_id", bad.to_string()))?;
        for (key, wanted) in
            [("tags", "an object"), ("reply_to", "an object"), ("reply_with", "an object")]
        {
            if let Some(raw) = fields.given(key)
                && !raw.starts_with('{')
            {
                let found = json::parse(raw)?;
                return Err(Refusal::new(
                    key,
                    format!("is {}, but must be {wanted} or null", found.type_name()),
                ));
            }
        }
        if let Some(raw) = fields.given("reply_with") {
            check_reply_with(raw, &thread_id, &question_id)?;
        }
        let given = |key| fields.given(key).map(range);
        let envelope = Self {
            thread_id,
            question_id,
            event_id,
            expires_at: fields.time("expires_at")?,
            answer_ttl: answer_ttl(&fields)?,
            question,
            default: given("default"),
            source: given("source"),
            allowed_actions: given("allowed_actions"),
            tags: given("tags"),
            reply_to: given("reply_to"),
            reply_with: given("reply_with"),
            text: bytes.clone(),
        };
        Ok(envelope)
    }

    fn slice(&self, range: &Range<usize>) -> &str {
        // The whole text was checked to be UTF-8, and ranges come from slices of it.
        std::str::from_utf8(&self.text[range.clone()]).unwrap_or_default()
    }

    /// The text as it came.
    #[must_use]
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The conversation.
    #[must_use]
    pub fn thread_id(&self) -> &ThreadId {
        &self.thread_id
    }

    /// The question's id.
    #[must_use]
    pub fn question_id(&self) -> &QuestionId {
        &self.question_id
    }

    /// The publish's id; `None` when it has to be minted.
    #[must_use]
    pub fn event_id(&self) -> Option<&EventId> {
        self.event_id.as_ref()
    }

    /// The question's JSON text.
    #[must_use]
    pub fn question(&self) -> &str {
        self.slice(&self.question)
    }

    /// The deadline; `None` is never.
    #[must_use]
    pub fn expires_at(&self) -> Option<Time> {
        self.expires_at
    }

    /// The default's JSON text; `None` when there is none, which `null` says too.
    #[must_use]
    pub fn default(&self) -> Option<Bytes> {
        self.default.as_ref().map(|range| self.text.slice(range.clone()))
    }

    /// How long an answer stays usable.
    #[must_use]
    pub fn answer_ttl(&self) -> Option<Duration> {
        self.answer_ttl
    }

    /// `source.function`, when it is a string.
    #[must_use]
    pub fn source_function(&self) -> Option<String> {
        let source = json::parse(self.slice(self.source.as_ref()?)).ok()?;
        source.get("function").and_then(Json::as_str).map(str::to_owned)
    }

    /// The `source` object's JSON text.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.source.as_ref().map(|range| self.slice(range))
    }

    /// `allowed_actions`, of whatever type it is.
    pub(crate) fn allowed_actions_value(&self) -> Option<Json<'_>> {
        json::parse(self.slice(self.allowed_actions.as_ref()?)).ok()
    }

    /// The allowed actions that are strings; `None` when the envelope has no such array.
    #[must_use]
    pub fn allowed_actions(&self) -> Option<Vec<String>> {
        match self.allowed_actions_value()? {
            Json::Array(items) => {
                Some(items.iter().filter_map(Json::as_str).map(str::to_owned).collect())
            }
            _ => None,
        }
    }

    /// The tags in their order.
    #[must_use]
    pub fn tags(&self) -> Vec<(Cow<'_, str>, Json<'_>)> {
        match self.tags.as_ref().map(|range| json::parse(self.slice(range))) {
            Some(Ok(Json::Object(members))) => members,
            _ => Vec::new(),
        }
    }

    /// The tags' JSON text.
    #[must_use]
    pub fn tags_text(&self) -> Option<&str> {
        self.tags.as_ref().map(|range| self.slice(range))
    }

    /// The `reply_to` object's JSON text.
    #[must_use]
    pub fn reply_to(&self) -> Option<&str> {
        self.reply_to.as_ref().map(|range| self.slice(range))
    }

    /// The `reply_with` object's JSON text, as published; else built from the ids as they were
    /// written.
    #[must_use]
    pub fn reply_with(&self) -> Cow<'_, str> {
        match &self.reply_with {
            Some(range) => Cow::Borrowed(self.slice(range)),
            None => {
                let text = std::str::from_utf8(&self.text).unwrap_or_default();
                let raw = |key| {
                    Fields::read(text).ok().and_then(|fields| fields.raw(key)).unwrap_or("null")
                };
                Cow::Owned(format!(
                    "{{\"thread_id\": {}, \"question_id\": {}, \"answer\": null}}",
                    raw("thread_id"),
                    raw("question_id")
                ))
            }
        }
    }

    /// The text to announce: the envelope's own for the first generation, which agent-wait knows;
    /// later ones also carry `generation` within `reply_with`.
    ///
    /// # Errors
    /// Never for an envelope that [`Self::parse`] took.
    pub fn announced(&self, generation: Generation) -> Result<Bytes, JsonError> {
        if generation.is_first() {
            return Ok(self.text.clone());
        }
        let text = JsonError::check_utf8(&self.text)?;
        let with = json::with_member(&self.reply_with(), "generation", &generation.to_string())?;
        Ok(Bytes::from(json::with_member(text, "reply_with", &with)?))
    }

    /// Whether two envelopes ask the same question: equal JSON values.
    #[must_use]
    pub fn same_question(&self, other: &Self) -> bool {
        let (a, b) = (self.question(), other.question());
        a == b
            || match (json::parse(a), json::parse(b)) {
                (Ok(a), Ok(b)) => json::same_value(&a, &b),
                _ => false,
            }
    }
}

/// `reply_with` may only name the ids of its own envelope, and, if any, the generation that an
/// answer without one is for: whoever copies it as it is must be understood. Where a key stands
/// twice each must be the right one: readers differ in which they take.
fn check_reply_with(raw: &str, thread: &ThreadId, question: &QuestionId) -> Result<(), Refusal> {
    for member in json::members(raw)? {
        let own = match &*member.key {
            "thread_id" => thread.as_str(),
            "question_id" => question.as_str(),
            "generation" => {
                if member.raw != "1" {
                    return Err(Refusal::new(
                        "reply_with",
                        "has a generation other than 1, so that no copy of it could answer; take it out: later generations get theirs when they are announced",
                    ));
                }
                continue;
            }
            _ => continue,
        };
        if id_text(&json::parse(member.raw)?) != Some(own) {
            return Err(Refusal::new(
                "reply_with",
                format!("names another {} than the envelope; copy the envelope's own", member.key),
            ));
        }
    }
    Ok(())
}

fn answer_ttl(fields: &Fields<'_>) -> Result<Option<Duration>, Refusal> {
    let parsed = match fields.value("answer_ttl")? {
        None => return Ok(None),
        Some(Json::String(text)) => duration::parse_iso(&text),
        Some(Json::Number(number)) => duration::parse_seconds(number),
        Some(other) => {
            return Err(Refusal::new(
                "answer_ttl",
                format!(
                    "is {}, but must be an ISO 8601 duration such as \"PT15M\", a number of seconds or null",
                    other.type_name()
                ),
            ));
        }
    };
    match parsed {
        Ok(ttl) => Ok(Some(ttl)),
        // Longer than can be counted is as good as for ever.
        Err(duration::BadDuration::TooLong) => Ok(None),
        Err(bad) => Err(Refusal::new("answer_ttl", bad.to_string())),
    }
}

#[cfg(test)]
mod tests;
