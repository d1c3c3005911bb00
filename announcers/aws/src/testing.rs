//! For the tests of announcers to AWS: messages made from what agent-wait really sent.
#![expect(clippy::unwrap_used, reason = "only tests call this, and must fail on a broken case")]

use answerback_contract::json::{self, Json};
use answerback_contract::{
    Bytes, DedupeKey, DedupeRest, Event, EventId, Generation, Message, QuestionId, ThreadId, Time,
    WaitState,
};
use std::path::Path;

/// One capture of `tests/cases/envelopes`.
#[derive(Debug)]
pub struct Case {
    /// The file's name.
    pub name: String,
    /// The envelope's exact text.
    pub envelope: &'static str,
    /// The whole file.
    pub file: Json<'static>,
}

impl Case {
    /// A member of the file, `sns` for one; `None` when it is not there or null.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Json<'static>> {
        self.file.get(key).filter(|value| **value != Json::Null)
    }

    /// A text of the file; `@envelope_raw` stands for the envelope's.
    #[must_use]
    pub fn text<'a>(&'a self, value: &'a Json<'static>) -> Option<&'a str> {
        match value.as_str() {
            Some("@envelope_raw") => Some(self.envelope),
            other => other,
        }
    }
}

/// All captures of an envelope that is JSON and that the daemon takes.
///
/// # Panics
/// When the folder or a file is broken.
#[must_use]
pub fn cases() -> Vec<(Case, Message)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/envelopes");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text: &'static str = std::fs::read_to_string(&path).unwrap().leak();
        let file = json::parse(text).unwrap();
        let Some(envelope) = file.get("envelope_raw").and_then(Json::as_str) else { continue };
        let envelope: &'static str = envelope.to_owned().leak();
        if let Some(message) = message(envelope) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.push((Case { name, envelope, file }, message));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    found
}

/// The announcement of a fresh wait; `None` when the daemon would refuse the envelope.
#[must_use]
pub fn message(envelope: &str) -> Option<Message> {
    let parsed = json::parse(envelope).ok()?;
    let id = |key| match parsed.get(key)? {
        Json::String(text) => Some(text.to_string()),
        Json::Number(digits) => Some((*digits).to_owned()),
        _ => None,
    };
    let question_id = QuestionId::new(&id("question_id")?).ok()?;
    let rest = DedupeRest::choice(&question_id, 1);
    let bytes = Bytes::copy_from_slice(envelope.as_bytes());
    Some(Message {
        event: Event::Created,
        event_id: EventId::new(&id("event_id").unwrap_or_else(|| "event".to_owned())).ok()?,
        thread_id: ThreadId::new(&id("thread_id")?).ok()?,
        question_id,
        generation: Generation::FIRST,
        dedupe_key: DedupeKey::of(Event::Created, &rest, 0),
        wait_key: rest,
        payload: bytes.clone(),
        envelope: bytes,
        state: WaitState::Open,
        expires_at: parsed
            .get("expires_at")
            .and_then(Json::as_str)
            .and_then(|text| Time::parse(text).ok().flatten()),
        at: Time::from_millis(1_796_000_000_123),
        answered_by: None,
        answered_via: None,
    })
}
