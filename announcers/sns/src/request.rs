//! A message as an entry of `PublishBatch`.
//!
//! Limits: API reference of `PublishBatch` as the SDK carries it, and Amazon SNS Developer Guide,
//! "Large message payloads".

use crate::attributes::{self, Attribute};
use answerback_aws::batch::Prepared;
use answerback_aws::text;
use answerback_contract::{Message, Outcome, Rejection};
use aws_sdk_sns::types::{MessageAttributeValue, PublishBatchRequestEntry};

/// The most entries of a batch.
pub(crate) const MAX_ENTRIES: usize = 10;

/// The most bytes of a message and of a batch, attributes counted: the default of a topic's
/// `MaximumMessageSize`.
pub(crate) const DEFAULT_MAX_BYTES: usize = 262_144;

/// The most that a topic's `MaximumMessageSize` can be.
pub(crate) const MOST_MAX_BYTES: usize = 1_048_576;

/// What decides how messages look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Whether the topic is a FIFO topic.
    pub(crate) fifo: bool,
    /// Which tags become attributes first where not all fit.
    pub(crate) attribute_priority: Vec<String>,
    /// The topic's `MaximumMessageSize`.
    pub(crate) max_bytes: usize,
}

/// Makes the entry; its id is still to be set.
pub(crate) fn entry(
    shape: &Shape,
    message: &Message,
) -> Result<Prepared<PublishBatchRequestEntry>, Outcome> {
    let payload = std::str::from_utf8(&message.payload)
        .map_err(|_| Outcome::refused("the payload is not UTF-8"))?;
    let body = text::json_body(payload);
    let attributes = attributes::of(message, &shape.attribute_priority)
        .map_err(|_| Outcome::refused("the envelope is not JSON"))?;
    let subject = message.event.name();
    let bytes = total(&body, subject, &attributes);
    if bytes > shape.max_bytes {
        return Err(Outcome::Rejected {
            rejection: Rejection::TooLarge,
            reason: format!(
                "{bytes} bytes with attributes; the topic takes {}: send less, set claim_check, or \
                 raise the topic's MaximumMessageSize and max_message_size",
                shape.max_bytes
            ),
        });
    }
    let mut entry =
        PublishBatchRequestEntry::builder().id("0").subject(subject).message(body.into_owned());
    for Attribute { name, data_type, value } in attributes {
        let value = MessageAttributeValue::builder()
            .data_type(data_type.name())
            .string_value(value)
            .build();
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

/// What a message counts: body, subject and attributes, as they are sent.
pub(crate) fn bytes_of(shape: &Shape, message: &Message) -> usize {
    let Ok(payload) = std::str::from_utf8(&message.payload) else {
        return message.payload.len();
    };
    let attributes = attributes::of(message, &shape.attribute_priority).unwrap_or_default();
    total(&text::json_body(payload), message.event.name(), &attributes)
}

/// AWS counts body and attributes; whether the subject counts it does not say, so it does here.
fn total(body: &str, subject: &str, attributes: &[Attribute]) -> usize {
    body.len() + subject.len() + attributes.iter().map(Attribute::bytes).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_aws::testing;
    use answerback_contract::json::Json;
    use answerback_contract::{Bytes, DedupeKey, Event};

    fn shape(fifo: bool) -> Shape {
        Shape { fifo, attribute_priority: Vec::new(), max_bytes: DEFAULT_MAX_BYTES }
    }

    fn small() -> Message {
        testing::message(r#"{"thread_id":"order 1","question_id":"q-1","tags":{"region":"eu"}}"#)
            .unwrap()
    }

    #[test]
    fn what_agent_wait_sent_is_sent_where_it_was_right() {
        let mut compared = 0;
        for (case, message) in testing::cases() {
            let Some(theirs) = case.get("sns") else { continue };
            let body = theirs.get("Message").and_then(|body| case.text(body)).unwrap();
            if body.len() > 250_000 {
                assert!(entry(&shape(false), &message).is_err(), "{}", case.name);
                continue;
            }
            let ours = entry(&shape(false), &message).unwrap().entry;
            assert_eq!(ours.message(), body, "{}", case.name);
            assert_eq!(ours.subject(), theirs.get("Subject").and_then(Json::as_str));
            assert_eq!(ours.message_group_id(), None);
            assert!(ours.message_attributes().unwrap().len() <= 10);
            compared += 1;
        }
        assert!(compared > 80, "{compared}");
    }

    #[test]
    fn a_fifo_topic_gets_group_and_deduplication_id() {
        let ours = entry(&shape(true), &small()).unwrap().entry;
        assert_eq!(ours.message_group_id(), Some(&*text::hashed("order 1")));
        assert_eq!(ours.message_deduplication_id(), Some("wait.created:q-1"));
    }

    #[test]
    fn every_event_is_its_own_subject_and_transition() {
        for event in Event::ALL {
            let mut message = small();
            message.event = event;
            message.dedupe_key = DedupeKey::of(event, &message.wait_key, 0);
            let ours = entry(&shape(false), &message).unwrap().entry;
            assert_eq!(ours.subject(), Some(event.name()));
            let attributes = ours.message_attributes().unwrap();
            assert_eq!(attributes["transition"].string_value(), Some(event.transition()));
            assert_eq!(attributes["region"].string_value(), Some("eu"));
        }
    }

    #[test]
    fn attributes_and_subject_count_against_the_topics_limit() {
        let mut message = small();
        // wait.created; transition String created; thread_id String order 1; region String eu
        let beside = 12 + (10 + 6 + 7) + (9 + 6 + 7) + (6 + 6 + 2);
        message.payload =
            Bytes::from(format!("\"{}\"", "x".repeat(DEFAULT_MAX_BYTES - beside - 2)));
        assert_eq!(entry(&shape(false), &message).unwrap().bytes, DEFAULT_MAX_BYTES);
        assert_eq!(bytes_of(&shape(false), &message), DEFAULT_MAX_BYTES);
        message.payload =
            Bytes::from(format!("\"{}\"", "x".repeat(DEFAULT_MAX_BYTES - beside - 1)));
        assert!(matches!(
            entry(&shape(false), &message).unwrap_err(),
            Outcome::Rejected { rejection: Rejection::TooLarge, .. }
        ));
        let large = Shape { max_bytes: MOST_MAX_BYTES, ..shape(false) };
        assert!(entry(&large, &message).is_ok());
    }

    #[test]
    fn noncharacters_are_escaped() {
        let mut message = small();
        message.payload = Bytes::from("{\"q\": \"\u{fffe}\"}".to_owned());
        let ours = entry(&shape(false), &message).unwrap().entry;
        assert_eq!(ours.message(), r#"{"q": "\ufffe"}"#);
    }
}
