//! A message as an entry of `SendMessageBatch`.
//!
//! Limits: Amazon SQS Developer Guide, "Amazon SQS message quotas", and the API reference of
//! `SendMessageBatch` as the SDK carries it.

use answerback_aws::batch::Prepared;
use answerback_aws::text;
use answerback_contract::{Message, Outcome, Purpose, Rejection};
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};

/// The most entries of a batch.
pub(crate) const MAX_ENTRIES: usize = 10;

/// The most bytes of a message, and of all messages of a batch: 1 MiB, attributes counted.
pub(crate) const MAX_BYTES: usize = 1_048_576;

const STRING: &str = "String";

/// What decides how messages look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Whether the queue is a FIFO queue.
    pub(crate) fifo: bool,
    /// Announcements or answers.
    pub(crate) purpose: Purpose,
}

/// Makes the entry; its id is still to be set.
pub(crate) fn entry(
    shape: Shape,
    message: &Message,
) -> Result<Prepared<SendMessageBatchRequestEntry>, Outcome> {
    let payload = std::str::from_utf8(&message.payload)
        .map_err(|_| Outcome::refused("the payload is not UTF-8"))?;
    let body = text::json_body(payload);
    let attributes = attributes(shape.purpose, message);
    let bytes = body.len() + attribute_bytes(&attributes);
    if bytes > MAX_BYTES {
        return Err(Outcome::Rejected {
            rejection: Rejection::TooLarge,
            reason: format!(
                "{bytes} bytes with attributes; SQS takes {MAX_BYTES}: send less, or set \
                 claim_check"
            ),
        });
    }
    let mut entry = SendMessageBatchRequestEntry::builder().id("0").message_body(body.into_owned());
    for (name, value) in attributes {
        let value = MessageAttributeValue::builder().data_type(STRING).string_value(value).build();
        let value = value.map_err(|_| Outcome::refused("an attribute could not be built"))?;
        entry = entry.message_attributes(name, value);
    }
    if shape.fifo {
        entry = entry
            .message_group_id(text::fifo_id(message.thread_id.as_str()))
            .message_deduplication_id(text::fifo_id(message.dedupe_key.as_str()));
    }
    let entry = entry.build().map_err(|_| Outcome::refused("the entry could not be built"))?;
    Ok(Prepared { entry, bytes })
}

/// What a message counts: body and attributes, as they are sent.
pub(crate) fn bytes_of(shape: Shape, message: &Message) -> usize {
    let body = std::str::from_utf8(&message.payload)
        .map_or(message.payload.len(), |payload| text::json_body(payload).len());
    body + attribute_bytes(&attributes(shape.purpose, message))
}

/// Who answered and how, for answers (contract, section 6). SQS refuses empty values.
fn attributes(purpose: Purpose, message: &Message) -> Vec<(&'static str, String)> {
    if purpose != Purpose::Answer {
        return Vec::new();
    }
    let by = message.answered_by.as_deref().filter(|by| !by.is_empty());
    let by = by.map(|by| ("answered_by", text::attribute_value(by).into_owned()));
    let via = message.answered_via.map(|via| ("answered_via", via.name().to_owned()));
    by.into_iter().chain(via).collect()
}

/// Name, type and value of an attribute all count.
fn attribute_bytes(attributes: &[(&'static str, String)]) -> usize {
    attributes.iter().map(|(name, value)| name.len() + STRING.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_aws::testing;
    use answerback_contract::json::Json;
    use answerback_contract::{Bytes, Via};

    const FIFO: Shape = Shape { fifo: true, purpose: Purpose::Announce };
    const STANDARD: Shape = Shape { fifo: false, purpose: Purpose::Announce };
    const ROUTE: Shape = Shape { fifo: false, purpose: Purpose::Answer };

    fn of(envelope: &str) -> Message {
        testing::message(envelope).unwrap()
    }

    fn small() -> Message {
        of(r#"{"type":"wait.created","thread_id":"order-4471","question_id":"q-1","question":1}"#)
    }

    #[test]
    fn what_agent_wait_sent_is_sent_where_it_was_right() {
        let mut compared = 0;
        for (case, message) in testing::cases() {
            let Some(theirs) = case.get("sqs_fifo") else { continue };
            let ours = entry(FIFO, &message).unwrap().entry;
            let body = theirs.get("MessageBody").and_then(|body| case.text(body)).unwrap();
            assert_eq!(ours.message_body(), body, "{}", case.name);
            for (our_id, key) in [
                (ours.message_group_id(), "MessageGroupId"),
                (ours.message_deduplication_id(), "MessageDeduplicationId"),
            ] {
                let our_id = our_id.unwrap();
                assert!((1..=128).contains(&our_id.len()), "{}", case.name);
                assert!(our_id.bytes().all(|b| b.is_ascii_graphic()), "{}", case.name);
                // One host chose its own groups.
                let own_group = case.name.starts_with("209-") && key == "MessageGroupId";
                match theirs.get(key).and_then(Json::as_str).filter(|_| !own_group) {
                    Some(id) if id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic()) => {
                        assert_eq!(our_id, id, "{}", case.name);
                        compared += 1;
                    }
                    _ => {}
                }
            }
            assert!(ours.message_attributes().is_none());
        }
        assert!(compared > 150, "{compared}");
    }

    #[test]
    fn a_standard_queue_gets_neither_group_nor_deduplication_id() {
        let ours = entry(STANDARD, &small()).unwrap().entry;
        assert_eq!(ours.message_group_id(), None);
        assert_eq!(ours.message_deduplication_id(), None);
    }

    #[test]
    fn ids_that_sqs_refuses_are_hashed() {
        let long = format!(r#"{{"thread_id":"{}","question_id":"Zoë 1"}}"#, "x".repeat(129));
        let ours = entry(FIFO, &of(&long)).unwrap().entry;
        assert_eq!(ours.message_group_id(), Some(&*text::hashed(&"x".repeat(129))));
        assert_eq!(ours.message_deduplication_id(), Some(&*text::hashed("wait.created:Zoë 1")));
    }

    #[test]
    fn one_mebibyte_is_taken_and_one_byte_more_is_too_large() {
        let mut message = small();
        message.payload = Bytes::from(format!("\"{}\"", "x".repeat(MAX_BYTES - 2)));
        assert_eq!(entry(STANDARD, &message).unwrap().bytes, MAX_BYTES);
        message.payload = Bytes::from(format!("\"{}\"", "x".repeat(MAX_BYTES - 1)));
        let refused = entry(STANDARD, &message).unwrap_err();
        assert!(matches!(
            refused,
            Outcome::Rejected { rejection: Rejection::TooLarge, ref reason } if reason.contains("1048577")
        ));
    }

    #[test]
    fn escapes_and_attributes_count() {
        let mut message = small();
        message.answered_by = Some("ann".to_owned());
        message.answered_via = Some(Via::Api);
        let plain = message.payload.len();
        // answered_by String ann, answered_via String api
        let attributes = 11 + 6 + 3 + 12 + 6 + 3;
        assert_eq!(entry(ROUTE, &message).unwrap().bytes, plain + attributes);
        assert_eq!(bytes_of(ROUTE, &message), plain + attributes);
        assert_eq!(bytes_of(STANDARD, &message), plain);
        // Three bytes of UTF-8 become six of an escape.
        message.payload = Bytes::from("\"\u{ffff}\"".to_owned());
        assert_eq!(bytes_of(STANDARD, &message), 8);
        assert_eq!(entry(STANDARD, &message).unwrap().entry.message_body(), r#""\uffff""#);
    }

    #[test]
    fn an_answer_says_who_and_how_in_attributes_and_an_announcement_does_not() {
        let mut message = small();
        message.answered_by = Some("Ann\nB\u{ffff}".to_owned());
        message.answered_via = Some(Via::Link);
        let value = |shape, name: &str| {
            let entry = entry(shape, &message).unwrap().entry;
            let value = entry.message_attributes()?.get(name)?;
            assert_eq!(value.data_type(), "String");
            value.string_value().map(str::to_owned)
        };
        assert_eq!(value(ROUTE, "answered_by").as_deref(), Some("Ann_B_"));
        assert_eq!(value(ROUTE, "answered_via").as_deref(), Some("link"));
        assert_eq!(value(STANDARD, "answered_by"), None);
    }

    #[test]
    fn nobody_is_no_attribute() {
        let mut message = small();
        message.answered_by = Some(String::new());
        assert!(entry(ROUTE, &message).unwrap().entry.message_attributes().is_none());
    }
}
