//! What became of a record, from the client's error codes. Pure.

use answerback_contract::{Outcome, Rejection};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// What is to be done about a record that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Tell the daemon.
    Outcome(Outcome),
    /// The broker refused a whole batch as too large. Only a record that was alone in its batch is
    /// known to be too large itself.
    BatchTooLarge,
}

/// A record that the client did not even queue.
pub(crate) fn not_queued(error: &KafkaError) -> Outcome {
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize) => too_large(
            "key, value and headers are over message.max.bytes; raise that (and the topic's max.message.bytes), or set claim_check = true",
        ),
        Some(Code::QueueFull) => Outcome::retry("the client's queue is full"),
        _ => Outcome::retry(describe(error, None)),
    }
}

/// A record that the brokers did not acknowledge. `last_error` is what the client last complained
/// of: a timeout alone does not say why.
pub(crate) fn not_acknowledged(error: &KafkaError, last_error: Option<&str>) -> Failure {
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) => Failure::BatchTooLarge,
        Some(code @ (Code::InvalidRecord | Code::PolicyViolation)) => {
            Failure::Outcome(Outcome::refused(format!("the broker refused the record: {code}")))
        }
        _ => Failure::Outcome(Outcome::retry(describe(error, last_error))),
    }
}

/// A record that was alone in its batch and too large for the topic.
pub(crate) fn too_large_for_topic() -> Outcome {
    too_large(
        "the record is over the topic's max.message.bytes; raise that, or set max_bytes and claim_check = true",
    )
}

fn too_large(reason: &str) -> Outcome {
    Outcome::Rejected { rejection: Rejection::TooLarge, reason: reason.to_owned() }
}

fn describe(error: &KafkaError, last_error: Option<&str>) -> String {
    let what = match error.rdkafka_error_code() {
        Some(Code::MessageTimedOut) => "no acknowledgement in time".to_owned(),
        Some(code) => code.to_string(),
        None => "the client failed".to_owned(),
    };
    match last_error {
        Some(last) => format!("{what}; the client's last error: {last}"),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn produced(code: Code) -> KafkaError {
        KafkaError::MessageProduction(code)
    }

    #[test]
    fn only_the_record_s_own_faults_are_refusals() {
        for code in [
            Code::MessageTimedOut,
            Code::UnknownTopic,
            Code::UnknownTopicOrPartition,
            Code::UnknownPartition,
            Code::TopicAuthorizationFailed,
            Code::ClusterAuthorizationFailed,
            Code::SaslAuthenticationFailed,
            Code::NotEnoughReplicas,
            Code::NotEnoughReplicasAfterAppend,
            Code::NotLeaderForPartition,
            Code::AllBrokersDown,
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::Fatal,
            Code::OutOfOrderSequenceNumber,
            Code::InvalidTopic,
        ] {
            let failure = not_acknowledged(&produced(code), None);
            assert!(matches!(failure, Failure::Outcome(Outcome::Retry { .. })), "{code}");
            assert!(matches!(not_queued(&produced(code)), Outcome::Retry { .. }), "{code}");
        }
        assert!(matches!(
            not_acknowledged(&produced(Code::InvalidRecord), None),
            Failure::Outcome(Outcome::Rejected { rejection: Rejection::Refused, .. })
        ));
    }

    #[test]
    fn too_large_is_told_apart_by_who_says_so() {
        let too_large = produced(Code::MessageSizeTooLarge);
        assert_eq!(not_acknowledged(&too_large, None), Failure::BatchTooLarge);
        for outcome in [not_queued(&too_large), too_large_for_topic()] {
            assert!(matches!(outcome, Outcome::Rejected { rejection: Rejection::TooLarge, .. }));
        }
    }

    #[test]
    fn a_full_queue_is_a_retry_and_a_timeout_says_what_the_client_saw() {
        assert_eq!(
            not_queued(&produced(Code::QueueFull)),
            Outcome::retry("the client's queue is full")
        );
        let failure =
            not_acknowledged(&produced(Code::MessageTimedOut), Some("connection refused"));
        assert_eq!(
            failure,
            Failure::Outcome(Outcome::retry(
                "no acknowledgement in time; the client's last error: connection refused"
            ))
        );
    }
}
