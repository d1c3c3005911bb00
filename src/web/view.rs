//! What is kept, as the API shows it (contract, section 3). Envelopes and answers go out as their
//! own text: nothing is read into numbers and written again.

use crate::store::OutboxRow;
use answerback_contract::json::{self, JsonError, Quoted};
use answerback_contract::{DedupeKey, Event, Time};
use answerback_core::{Envelope, GivenAnswer, Refusal, Wait, message};
use std::fmt::{self, Display, Write as _};

/// A string, or `null`.
struct OrNull<T>(Option<T>);

impl Display for OrNull<&str> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(text) => Quoted(text).fmt(f),
            None => f.write_str("null"),
        }
    }
}

impl Display for OrNull<Time> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "\"{time}\""),
            None => f.write_str("null"),
        }
    }
}

/// What a publish is answered with.
pub(crate) fn accepted(accepted: &crate::intake::Accepted) -> String {
    let mut out = String::with_capacity(192);
    let _ = write!(
        out,
        "{{\"status\":\"accepted\",\"thread_id\":{},\"question_id\":{},\"generation\":{},\
         \"dedupe_key\":{},\"duplicate\":{}}}",
        Quoted(accepted.thread_id.as_str()),
        Quoted(accepted.question_id.as_str()),
        accepted.generation,
        Quoted(accepted.dedupe_key.as_str()),
        accepted.duplicate,
    );
    out
}

/// A wait with all that was sent for it; `rows` newest first, as a store lists them.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub(crate) fn wait(wait: &Wait, rows: &[OutboxRow]) -> Result<String, Refusal> {
    let envelope = Envelope::parse(wait.envelope.clone())?.announced(wait.generation)?;
    let envelope = JsonError::check_utf8(&envelope)?;
    let mut out = String::with_capacity(envelope.len() + 1_024);
    head(&mut out, wait, envelope);
    let announcements = rows.iter().rev().filter(|r| r.destination.is_announcer());
    list_into(&mut out, ",\"announcements\":[", announcements, |out, row| {
        let _ = write!(
            out,
            "{{\"id\":\"{}\",\"announcer\":{},\"event\":\"{}\",\"state\":\"{}\",\"attempts\":{},\
             \"next_attempt_at\":{},\"last_error\":{},\"delivered_at\":{}}}",
            row.id.0,
            Quoted(row.destination.label()),
            row.event,
            row.state.name(),
            row.attempts,
            OrNull(row.next_attempt_at),
            OrNull(row.last_error.as_deref()),
            OrNull(delivered_at(row)),
        );
    });
    out.push_str(",\"answer\":");
    match &wait.answer {
        None => out.push_str("null"),
        Some(given) => {
            let message = message::answer(wait, given)?;
            let _ = write!(out, "{{\"message\":{},", JsonError::check_utf8(&message)?);
            about_answer(&mut out, given);
        }
    }
    let deliveries = rows.iter().rev().filter(|r| !r.destination.is_announcer());
    list_into(&mut out, ",\"deliveries\":[", deliveries, |out, row| {
        let _ = write!(
            out,
            "{{\"id\":\"{}\",\"route\":{},\"state\":\"{}\",\"attempts\":{},\"last_error\":{},\"reason\":{}}}",
            row.id.0,
            Quoted(row.destination.label()),
            row.state.name(),
            row.attempts,
            OrNull(row.last_error.as_deref()),
            OrNull(row.reason.as_deref()),
        );
    });
    if let Some(note) = &wait.note {
        let _ = write!(out, ",\"note\":{}", Quoted(note));
    }
    out.push('}');
    Ok(out)
}

/// A wait in a list: without the question, what was sent, and the answer itself.
///
/// # Errors
/// Never for a wait whose envelope was let in.
pub(crate) fn list_item(out: &mut String, wait: &Wait) -> Result<(), Refusal> {
    let envelope = Envelope::parse(wait.envelope.clone())?.announced(wait.generation)?;
    let envelope = without_member(JsonError::check_utf8(&envelope)?, "question")?;
    head(out, wait, &envelope);
    out.push_str(",\"answer\":");
    match &wait.answer {
        None => out.push_str("null"),
        Some(given) => {
            out.push('{');
            about_answer(out, given);
        }
    }
    if let Some(note) = &wait.note {
        let _ = write!(out, ",\"note\":{}", Quoted(note));
    }
    out.push('}');
    Ok(())
}

fn head(out: &mut String, wait: &Wait, envelope: &str) {
    let _ = write!(
        out,
        "{{\"thread_id\":{},\"question_id\":{},\"generation\":{},\"dedupe_key\":{},\"run_id\":{},\
         \"state\":\"{}\",\"envelope\":{},\"created_at\":\"{}\",\"expires_at\":{},\"closed_at\":{}",
        Quoted(wait.thread_id.as_str()),
        Quoted(wait.question_id.as_str()),
        wait.generation,
        Quoted(DedupeKey::of(Event::Created, &wait.rest, 0).as_str()),
        Quoted(&wait.run_id),
        wait.state,
        envelope.trim_ascii(),
        wait.created_at,
        OrNull(wait.expires_at),
        OrNull(wait.closed_at),
    );
}

fn about_answer(out: &mut String, given: &GivenAnswer) {
    let _ = write!(
        out,
        "\"answered_at\":\"{}\",\"answered_by\":{},\"answered_via\":\"{}\"}}",
        given.answered_at,
        OrNull(given.answered_by.as_deref()),
        given.answered_via,
    );
}

/// An announcement or a delivery in a list of all.
pub(crate) fn outbox_item(out: &mut String, row: &OutboxRow) {
    let whereto = if row.destination.is_announcer() { "announcer" } else { "route" };
    let _ = write!(
        out,
        "{{\"id\":\"{}\",\"{whereto}\":{},\"thread_id\":{},\"question_id\":{},\"generation\":{},\
         \"event\":\"{}\",\"state\":\"{}\",\"attempts\":{},\"last_error\":{},\"reason\":{},\"at\":\"{}\"}}",
        row.id.0,
        Quoted(row.destination.label()),
        Quoted(row.thread_id.as_str()),
        Quoted(row.question_id.as_str()),
        row.generation,
        row.event,
        row.state.name(),
        row.attempts,
        OrNull(row.last_error.as_deref()),
        OrNull(row.reason.as_deref()),
        // Since when it stands as it stands.
        row.finished_at.unwrap_or(row.queued_at),
    );
}

/// What a list ends with: the number to go on before, where there is more.
pub(crate) fn end_of_list(next: Option<i64>) -> String {
    match next {
        Some(id) => format!("],\"next_cursor\":\"{id}\"}}"),
        None => "],\"next_cursor\":null}".to_owned(),
    }
}

fn delivered_at(row: &OutboxRow) -> Option<Time> {
    row.finished_at.filter(|_| row.state == answerback_core::OutboxState::Delivered)
}

fn list_into<'r>(
    out: &mut String,
    open: &str,
    rows: impl Iterator<Item = &'r OutboxRow>,
    write: impl Fn(&mut String, &OutboxRow),
) {
    out.push_str(open);
    for (at, row) in rows.enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, row);
    }
    out.push(']');
}

/// The object's text without one member, wherever its key stands. Everything else keeps its text,
/// but for the white space around what was cut out.
fn without_member(object: &str, key: &str) -> Result<String, JsonError> {
    let found = json::members(object)?;
    let start_of = |raw: &str| raw.as_ptr().addr() - object.as_ptr().addr();
    let open = object.find('{').map_or(0, |at| at + 1);
    let mut text = String::with_capacity(object.len());
    text.push_str(&object[..open]);
    // Between a value and the next key there is a comma and white space only.
    let mut from = open;
    let mut first = true;
    for member in &found {
        let end = start_of(member.raw) + member.raw.len();
        if member.key != key {
            let part = &object[from..end];
            if first {
                text.push_str(part.trim_ascii_start());
            } else {
                text.push(',');
                text.push_str(part);
            }
            first = false;
        }
        from = object[end..].find([',', '}']).map_or(object.len(), |at| end + at + 1);
    }
    text.push('}');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::{
        Bytes, DedupeRest, EventId, Generation, QuestionId, TenantId, ThreadId, Via, WaitState,
    };
    use answerback_core::{Destination, Name, OutboxId, OutboxState, WaitId};
    use serde_json::value::RawValue;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const ENVELOPE: &str = r#" {"type":"wait.created", "thread_id": "t\"1", "question_id":"q",
        "question": {"n": 12345678901234567890123, "d": 1.10}, "x": 1E400,
        "reply_with": {"thread_id":"t\"1","question_id":"q","answer":null} } "#;

    fn sample() -> Wait {
        Wait {
            id: WaitId(1),
            tenant: TenantId::default_tenant(),
            thread_id: ThreadId::new("t\"1").unwrap(),
            question_id: QuestionId::new("q").unwrap(),
            generation: Generation::FIRST,
            rest: DedupeRest::kept("q:2"),
            run_id: "t\"1".into(),
            state: WaitState::Completed,
            envelope: Bytes::from_static(ENVELOPE.as_bytes()),
            taken_over: None,
            event_id: EventId::new("e").unwrap(),
            created_at: Time::from_millis(0),
            expires_at: None,
            closed_at: Some(Time::from_millis(1_001)),
            answer: Some(GivenAnswer {
                value: Bytes::from_static(b"[1.50, 1e999]"),
                valid_until: None,
                answered_at: Time::from_millis(1_001),
                answered_by: Some("Zo\u{eb}".to_owned()),
                answered_via: Via::Api,
            }),
            resends: 0,
            note: None,
        }
    }

    fn row(id: i64, destination: Destination, state: OutboxState) -> OutboxRow {
        OutboxRow {
            id: OutboxId(id),
            wait: WaitId(1),
            destination,
            thread_id: ThreadId::new("t").unwrap(),
            question_id: QuestionId::new("q").unwrap(),
            generation: Generation::FIRST,
            event: Event::Created,
            event_id: None,
            state,
            attempts: 2,
            next_attempt_at: None,
            last_error: Some("HTTP 503".to_owned()),
            reason: None,
            queued_at: Time::from_millis(0),
            finished_at: Some(Time::from_millis(5)),
        }
    }

    /// Members as their own text.
    fn raw(text: &str) -> BTreeMap<String, Box<RawValue>> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn envelope_and_answer_stand_in_it_as_they_came() {
        let rows = [
            row(9, Destination::Pull, OutboxState::Queued),
            row(8, Destination::Announcer(Name::new("b")), OutboxState::Dead),
            row(7, Destination::Announcer(Name::new("a")), OutboxState::Delivered),
        ];
        let text = wait(&sample(), &rows).unwrap();
        let members = raw(&text);
        assert_eq!(members["envelope"].get(), ENVELOPE.trim());
        let answer = raw(members["answer"].get());
        assert_eq!(
            answer["message"].get(),
            r#"{"thread_id":"t\"1","question_id":"q","answer":[1.50, 1e999]}"#
        );
        let announcements: Value = serde_json::from_str(members["announcements"].get()).unwrap();
        assert_eq!(announcements[0]["id"], "7", "in the order they were queued");
        assert_eq!(announcements[0]["delivered_at"], "1970-01-01T00:00:00.005Z");
        assert_eq!(announcements[1]["delivered_at"], Value::Null, "dead is not delivered");
        let deliveries: Value = serde_json::from_str(members["deliveries"].get()).unwrap();
        assert_eq!(
            deliveries,
            json!([{"id": "9", "route": "pull", "state": "queued", "attempts": 2,
                    "last_error": "HTTP 503", "reason": null}])
        );
        assert_eq!(members["dedupe_key"].get(), "\"wait.created:q:2\"");
        let keys: Vec<&str> = members.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "announcements",
                "answer",
                "closed_at",
                "created_at",
                "dedupe_key",
                "deliveries",
                "envelope",
                "expires_at",
                "generation",
                "question_id",
                "run_id",
                "state",
                "thread_id",
            ]
        );
    }

    #[test]
    fn a_list_leaves_out_the_question_and_what_was_sent() {
        let mut text = String::new();
        list_item(&mut text, &sample()).unwrap();
        let members = raw(&text);
        assert!(!text.contains("12345678901234567890123"));
        assert!(text.contains("1E400"));
        assert!(!members.contains_key("announcements") && !members.contains_key("deliveries"));
        let answer: Value = serde_json::from_str(members["answer"].get()).unwrap();
        assert_eq!(
            answer,
            json!({"answered_at": "1970-01-01T00:00:01.001Z", "answered_by": "Zoë", "answered_via": "api"})
        );
    }

    #[test]
    fn a_later_generation_says_so_where_the_reply_is_copied_from() {
        let second = Wait { generation: Generation::FIRST.next(), ..sample() };
        let text = wait(&second, &[]).unwrap();
        let value: Value =
            serde_json::from_str(raw(raw(&text)["envelope"].get())["reply_with"].get()).unwrap();
        assert_eq!(value["generation"], 2);
    }

    #[test]
    fn cutting_a_member_out_leaves_the_rest_as_it_was() {
        let cut = |object| without_member(object, "q").unwrap();
        assert_eq!(cut(r#"{"a": 1.10, "q": {"q":"}"}, "b":[ 1 ]}"#), r#"{"a": 1.10, "b":[ 1 ]}"#);
        assert_eq!(cut(r#"{ "q" : 1 , "b":2 }"#), r#"{"b":2}"#);
        assert_eq!(cut(r#"{"a":1e400,"q":[1,2]}"#), r#"{"a":1e400}"#);
        assert_eq!(cut("{\"a\":1,\"\\u0071\":\",\",\"q\":2,\"b\":3}"), r#"{"a":1,"b":3}"#);
        assert_eq!(cut(r#"{"q":null}"#), "{}");
        assert_eq!(cut(r#"{"a": {"q":1}}"#), r#"{"a": {"q":1}}"#);
        assert_eq!(cut("{}"), "{}");
        assert!(without_member("[]", "q").is_err());
    }
}
