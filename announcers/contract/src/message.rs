//! What an announcer is given to send.

use crate::json::{self, Json, JsonError};
use crate::{
    DedupeKey, DedupeRest, Event, EventId, Generation, QuestionId, ThreadId, Time, Via, WaitState,
};
use bytes::Bytes;
use std::fmt;

/// One message for one destination. Cheap to clone: texts and bytes are shared.
#[derive(Clone)]
pub struct Message {
    /// What happened.
    pub event: Event,
    /// The id of this event, for logs; not for deduplication.
    pub event_id: EventId,
    /// The conversation.
    pub thread_id: ThreadId,
    /// The question.
    pub question_id: QuestionId,
    /// Which question under that id.
    pub generation: Generation,
    /// What the receiver deduplicates on.
    pub dedupe_key: DedupeKey,
    /// The wait's own rest of the key, which all its events share: for a row a wait. Reminders and
    /// answers sent again have a counter in `dedupe_key` that this lacks.
    pub wait_key: DedupeRest,
    /// The JSON text to send, exact. For [`Event::Created`] the envelope itself.
    pub payload: Bytes,
    /// The envelope's JSON text as it was announced, whatever the event.
    pub envelope: Bytes,
    /// Where the wait stands as of this event.
    pub state: WaitState,
    /// The deadline; `None` is never.
    pub expires_at: Option<Time>,
    /// When the event happened.
    pub at: Time,
    /// Who answered: what the sender claims, and the key's name.
    pub answered_by: Option<String>,
    /// How the answer came.
    pub answered_via: Option<Via>,
}

/// Shows no question and no answer: whatever is formatted may end up in a log line.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("event", &self.event)
            .field("event_id", &self.event_id)
            .field("dedupe_key", &self.dedupe_key)
            .field("thread_id", &self.thread_id)
            .field("generation", &self.generation)
            .field("state", &self.state)
            .field("at", &self.at)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl Message {
    /// The envelope's tags in their order; none when it has none.
    ///
    /// # Errors
    /// [`JsonError`] when the envelope is not what the core let in.
    pub fn tags(&self) -> Result<Vec<(std::borrow::Cow<'_, str>, Json<'_>)>, JsonError> {
        let text = std::str::from_utf8(&self.envelope).map_err(|_| JsonError::not_utf8())?;
        let Some(tags) = json::members(text)?.into_iter().find(|m| m.key == "tags") else {
            return Ok(Vec::new());
        };
        match json::parse(tags.raw)? {
            Json::Object(members) => Ok(members),
            _ => Ok(Vec::new()),
        }
    }
}
