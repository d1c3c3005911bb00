//! Where messages come in from: queues, topics, pipes.
//!
//! The mirror image of an announcer: a [`SourceKind`] knows its settings, an [`Origin`] is all that is
//! known before anything is connected, and a [`Source`] takes messages from its service and hands them
//! to an [`Inlet`]. What a message means, and that it is kept before it is acknowledged, is the inlet's
//! work; how to acknowledge is the source's.

use crate::announcer::{ConnectError, Connecting, Field};
use crate::settings::{Problem, Settings};
use crate::{Bytes, Via};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

/// A message as its source got it.
#[derive(Clone, Default)]
pub struct Incoming {
    /// What was sent, exact.
    pub body: Bytes,
    /// What names this message at its source, the same whenever it comes again: the id of an SQS
    /// message, the place of a Kafka record. `None` where nothing does, as in a pipe.
    pub position: Option<String>,
    /// Messages of one group are applied in the order in which they came: an SQS message group, the
    /// key of a Kafka record. Those without one keep the order of their thread.
    pub group: Option<Bytes>,
    /// Headers or attributes that may say how the body is wrapped: names in lower case.
    pub headers: Vec<(String, String)>,
}

/// Shows no body: whatever is formatted may end up in a log line.
impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("position", &self.position)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// What follows from it is durable, be it that it is kept as rejected: acknowledge it.
    Durable,
    /// Nothing of it is: it must come again. So it is for all of its group that came after it.
    Later,
}

/// How a source does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceHealth {
    /// Its service answers.
    Healthy,
    /// It does not: why, without secrets or content. The source keeps trying.
    Degraded(String),
}

/// Takes what sources bring.
#[async_trait]
pub trait Inlet: Send + Sync + 'static {
    /// Takes a batch in: one result a message, in order. Returns once all that is `Durable` is on disk.
    async fn take(&self, batch: Vec<Incoming>) -> Vec<Taken>;

    /// Learns how the source does. Cheap, and may be told the same again.
    fn health(&self, health: SourceHealth);

    /// Returns when the daemon stops: take no more, finish what is under way, acknowledge, return.
    async fn stopping(&self);
}

/// A kind of source, such as `kafka`: the factory of its origins.
pub trait SourceKind: Send + Sync + 'static {
    /// The value of `type` in the configuration.
    fn name(&self) -> &'static str;

    /// The settings that this kind takes beside the common ones.
    fn fields(&self) -> &'static [Field];

    /// Reads the settings. Pure, as [`crate::Kind::validate`].
    ///
    /// # Errors
    /// Everything that is wrong, each with its place and cure.
    fn validate(&self, settings: &mut Settings) -> Result<Arc<dyn Origin>, Vec<Problem>>;
}

/// What `validate` gives: everything known, nothing connected.
#[async_trait]
pub trait Origin: Send + Sync + 'static {
    /// Where messages come from, without secrets, for logs and tables.
    fn describe(&self) -> String;

    /// What answers that came this way are marked with.
    fn via(&self) -> Via;

    /// Opens what taking needs. Must not fail because the service is away: that is a degraded source.
    ///
    /// # Errors
    /// Only what no retry mends.
    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Source>, ConnectError>;
}

/// A connected source.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Takes messages until the inlet says that the daemon stops, or until there can be no more, as at
    /// the end of a pipe. Acknowledges each only once the inlet has said [`Taken::Durable`].
    async fn run(&self, inlet: Arc<dyn Inlet>);

    /// Finds out, without taking anything, whether the service is there and may be used.
    ///
    /// # Errors
    /// What is wrong and what would mend it.
    async fn probe(&self) -> Result<(), ConnectError>;
}
