//! Sends messages to Amazon SQS: announcements to approvers, answers to hosts.
//!
//! * `config`: the keys of the configuration, pure;
//! * `request`: a message as an entry of `SendMessageBatch`, pure;
//! * `client`: the calls.
//!
//! FIFO queues get the thread as group and the dedupe key for deduplication; standard queues
//! neither. The order within a thread is kept by [`answerback_aws::batch`].

mod client;
mod config;
mod request;

pub use config::SqsKind;
