//! Messages for this crate's own tests.

use answerback_contract::{
    Bytes, DedupeKey, DedupeRest, Event, EventId, Generation, Message, QuestionId, ThreadId, Time,
    WaitState,
};

/// A first announcement with this payload.
pub(crate) fn message(payload: &'static [u8]) -> Message {
    Message {
        event: Event::Created,
        event_id: EventId::new("01JAV3K2R8Q9WZ7M4X1YB6N0PD").unwrap(),
        thread_id: ThreadId::new("order-4471").unwrap(),
        question_id: QuestionId::new("q-1").unwrap(),
        generation: Generation::FIRST,
        dedupe_key: DedupeKey::of(Event::Created, &DedupeRest::kept("q-1"), 0),
        wait_key: DedupeRest::kept("q-1"),
        payload: Bytes::from_static(payload),
        envelope: Bytes::from_static(payload),
        state: WaitState::Open,
        expires_at: None,
        at: Time::from_millis(0),
        answered_by: None,
        answered_via: None,
    }
}
