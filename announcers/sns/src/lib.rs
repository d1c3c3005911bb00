//! Publishes announcements to an Amazon SNS topic.
//!
//! * `config`: the keys of the configuration, pure;
//! * `attributes`: what subscribers filter on, within SNS's rules, pure;
//! * `request`: a message as an entry of `PublishBatch`, pure;
//! * `client`: the calls.
//!
//! FIFO topics get the thread as group and the dedupe key for deduplication. The order within a
//! thread is kept by [`answerback_aws::batch`].

mod attributes;
mod client;
mod config;
mod request;

pub use config::SnsKind;
