//! The three traits, and what passes between them and the daemon.

use crate::settings::{Problem, Settings};
use crate::{Message, Time};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

/// Why something is sent; the same bus treats its receiver's reply differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// An event of a wait, for approvers.
    Announce,
    /// An answer, for the host that waits.
    Answer,
}

/// One setting of a kind, for the reference page and for `check`.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The key within `[announcers.NAME]`.
    pub key: &'static str,
    /// Whether leaving it out is an error.
    pub required: bool,
    /// What it does, with unit, default and limit.
    pub help: &'static str,
}

/// A kind of destination, such as `sqs`: the factory of its targets.
pub trait Kind: Send + Sync + 'static {
    /// The value of `type` in the configuration.
    fn name(&self) -> &'static str;

    /// The settings that this kind takes beside the common ones.
    fn fields(&self) -> &'static [Field];

    /// Reads the settings into a target. Pure: no I/O beyond the secrets that `settings` already
    /// holds. Problems are collected in `settings`; a key that is not asked for here is refused.
    ///
    /// # Errors
    /// Everything that is wrong, each with its place and cure.
    fn validate(
        &self,
        purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>>;
}

/// What `validate` gives: everything known, nothing connected.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// How much one call may carry.
    fn limits(&self) -> Limits;

    /// What a message counts against [`Limits::message_bytes`]: its payload and, where the service
    /// counts them, its attributes.
    fn bytes_of(&self, message: &Message) -> usize {
        message.payload.len()
    }

    /// Where it sends to, without secrets, for logs and tables.
    fn describe(&self) -> String;

    /// Whether the destination keeps a row a wait and therefore gets every event of it, whatever
    /// `events` says.
    fn follows_state(&self) -> bool {
        false
    }

    /// Opens what sending needs. Must not fail because the service is away: that is a retry of the
    /// first message.
    ///
    /// # Errors
    /// Only what no retry mends, such as a certificate that cannot be read.
    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError>;
}

/// What a target may use while it connects.
#[derive(Clone, Debug)]
pub struct Connecting {
    /// The announcer's or route's name, for logs.
    pub name: String,
    /// The bound on one attempt.
    pub attempt_timeout: Duration,
}

/// Why a target cannot be connected; says what the operator can do.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct ConnectError {
    /// What failed and what would mend it.
    pub what: String,
    /// The cause.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// How much one call of [`Announcer::announce`] may carry. The service's own limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Messages a batch, at least 1.
    pub batch_messages: usize,
    /// Payload bytes a batch.
    pub batch_bytes: usize,
    /// Bytes a message ([`Target::bytes_of`]); larger ones are dead without an attempt.
    pub message_bytes: usize,
}

/// A connected sender.
#[async_trait]
pub trait Announcer: Send + Sync + 'static {
    /// Sends a batch within the limits its target stated, before the attempt's deadline.
    ///
    /// Returns one outcome a message, in the batch's order. Never retries by itself. Whatever is
    /// not known to have arrived is [`Outcome::Retry`].
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome>;

    /// Finds out, without sending anything, whether the destination is there and may be used.
    ///
    /// # Errors
    /// What is wrong and what would mend it.
    async fn probe(&self) -> Result<(), ConnectError>;

    /// Flushes and lets go. Called once, after the last `announce` has returned.
    async fn close(&self) {}
}

/// One call's bounds.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The daemon's clock as the attempt starts; announcers read no other.
    pub now: Time,
    /// How long the whole call may take.
    pub timeout: Duration,
}

/// What came of one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The destination has it.
    Delivered,
    /// It may not have it: send again.
    Retry {
        /// What happened, without secrets or content.
        reason: String,
        /// What the receiver asked for (`Retry-After`).
        after: Option<Duration>,
    },
    /// It will never take it.
    Rejected {
        /// What kind of refusal.
        rejection: Rejection,
        /// What happened, without secrets or content.
        reason: String,
    },
}

impl Outcome {
    /// A retry without a wish for the delay.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after: None }
    }

    /// A plain refusal.
    #[must_use]
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::Rejected { rejection: Rejection::Refused, reason: reason.into() }
    }
}

/// Why a destination will never take a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// It said so.
    Refused,
    /// The message is over its size limit.
    TooLarge,
    /// The destination itself is gone (HTTP 410): the announcer pauses until an operator wakes it.
    Gone,
    /// The host says that the wait is over on its side.
    HostClosed,
}

impl Rejection {
    /// The reason code that lists and metrics show.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::TooLarge => "too-large",
            Self::Gone => "gone",
            Self::HostClosed => "host-closed",
        }
    }
}
