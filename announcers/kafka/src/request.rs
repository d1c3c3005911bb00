//! The headers of one record. Pure.

use answerback_contract::json::Json;
use answerback_contract::{Message, Purpose};
use rdkafka::message::{Header, OwnedHeaders};

/// Headers that no tag replaces; a tag of such a name is left out (it still is in the payload).
const OWN: [&str; 3] = ["dedupe_key", "type", "thread_id"];

/// Headers of an answer, with the same right.
const OWN_OF_ANSWERS: [&str; 2] = ["answered_by", "answered_via"];

/// The headers of a message: the daemon's own first, then the tags in their order.
///
/// A tag's string is sent as it is, numbers and booleans as their JSON text, arrays and objects as
/// JSON; null is no value and left out. Of a key that stands twice both are sent, so that the last
/// one counts, as in JSON.
pub(crate) fn headers(purpose: Purpose, message: &Message) -> OwnedHeaders {
    // An envelope that the core let in always reads; one that does not has no tags.
    let tags = message.tags().unwrap_or_default();
    let mut headers = OwnedHeaders::new_with_capacity(OWN.len() + 2 + tags.len());
    headers = add(headers, "dedupe_key", message.dedupe_key.as_str());
    headers = add(headers, "type", message.event.name());
    headers = add(headers, "thread_id", message.thread_id.as_str());
    if purpose == Purpose::Answer {
        if let Some(by) = &message.answered_by {
            headers = add(headers, "answered_by", by);
        }
        if let Some(via) = message.answered_via {
            headers = add(headers, "answered_via", via.name());
        }
    }
    for (name, value) in &tags {
        let name = &**name;
        let is_own =
            OWN.contains(&name) || (purpose == Purpose::Answer && OWN_OF_ANSWERS.contains(&name));
        headers = match value {
            _ if is_own => headers,
            Json::Null => headers,
            Json::String(text) => add(headers, name, text),
            Json::Number(text) => add(headers, name, text),
            Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
                add(headers, name, &value.to_string())
            }
        };
    }
    headers
}

fn add(headers: OwnedHeaders, key: &str, value: &str) -> OwnedHeaders {
    headers.insert(Header { key, value: Some(value) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use answerback_contract::{
        Bytes, DedupeKey, DedupeRest, Event, EventId, Generation, QuestionId, ThreadId, Time, Via,
        WaitState,
    };
    use rdkafka::message::Headers;

    /// A first announcement of this envelope.
    pub(crate) fn message(envelope: &str) -> Message {
        let envelope = Bytes::copy_from_slice(envelope.as_bytes());
        Message {
            event: Event::Created,
            event_id: EventId::new("01JAV3K2R8Q9WZ7M4X1YB6N0PD").unwrap(),
            thread_id: ThreadId::new("order-4471").unwrap(),
            question_id: QuestionId::new("q-1").unwrap(),
            generation: Generation::FIRST,
            dedupe_key: DedupeKey::of(Event::Created, &DedupeRest::kept("q-1"), 0),
            wait_key: DedupeRest::kept("q-1"),
            payload: envelope.clone(),
            envelope,
            state: WaitState::Open,
            expires_at: None,
            at: Time::from_millis(0),
            answered_by: None,
            answered_via: None,
        }
    }

    fn listed(headers: &OwnedHeaders) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        headers.iter().map(|h| (h.key.to_owned(), text(h.value.unwrap()))).collect()
    }

    fn built(purpose: Purpose, message: &Message) -> Vec<(String, String)> {
        listed(&headers(purpose, message))
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    const FIRST: [(&str, &str); 3] =
        [("dedupe_key", "wait.created:q-1"), ("type", "wait.created"), ("thread_id", "order-4471")];

    #[test]
    fn tags_follow_the_daemon_s_own_headers_exactly() {
        let message = message(
            r#"{"tags":{"group":"fin☃","n":9007199254740993,"d":1.10,"yes":true,"none":null,"empty":"","list":[1, "a"],"o":{"k": 1e400}}}"#,
        );
        let wanted = [
            ("group", "fin☃"),
            ("n", "9007199254740993"),
            ("d", "1.10"),
            ("yes", "true"),
            ("empty", ""),
            ("list", r#"[1,"a"]"#),
            ("o", r#"{"k":1e400}"#),
        ];
        let all: Vec<_> = FIRST.into_iter().chain(wanted).collect();
        assert_eq!(built(Purpose::Announce, &message), pairs(&all));
    }

    #[test]
    fn no_tag_replaces_the_daemon_s_own_headers() {
        let mut message = message(
            r#"{"tags":{"thread_id":"x","type":"x","dedupe_key":"x","answered_by":"tag"}}"#,
        );
        let announced = [FIRST.to_vec(), vec![("answered_by", "tag")]].concat();
        assert_eq!(built(Purpose::Announce, &message), pairs(&announced));
        message.answered_by = Some("Zoë".to_owned());
        message.answered_via = Some(Via::Link);
        let answered =
            [FIRST.to_vec(), vec![("answered_by", "Zoë"), ("answered_via", "link")]].concat();
        assert_eq!(built(Purpose::Answer, &message), pairs(&answered));
    }

    #[test]
    fn without_tags_there_are_the_daemon_s_own_headers_only() {
        for envelope in ["{}", r#"{"tags":null}"#, r#"{"tags":{}}"#] {
            assert_eq!(built(Purpose::Announce, &message(envelope)), pairs(&FIRST));
        }
    }
}
