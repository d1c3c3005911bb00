//! What a lane sends through.

use answerback_contract::{Announcer, Attempt, Limits, Message, Outcome, Target};
use answerback_core::Leased;
use async_trait::async_trait;
use std::sync::Arc;

/// A message on its way, and what the store says of it.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// What is sent.
    pub message: Message,
    /// What it was made from.
    pub leased: Arc<Leased>,
}

/// Sends batches to one destination.
#[async_trait]
pub trait Outlet: Send + Sync + 'static {
    /// How much one call may carry.
    fn limits(&self) -> Limits;

    /// What a message counts against [`Limits::message_bytes`].
    fn bytes_of(&self, message: &Message) -> usize;

    /// Sends a batch: one outcome a message, in order.
    async fn send(&self, batch: &[Outgoing], attempt: Attempt) -> Vec<Outcome>;

    /// Lets go, after the last `send`.
    async fn close(&self) {}
}

/// An announcer or a route of the configuration.
pub struct AnnouncerOutlet {
    announcer: Arc<dyn Announcer>,
    target: Arc<dyn Target>,
}

impl AnnouncerOutlet {
    /// Sends through what `target` was connected into.
    #[must_use]
    pub fn new(announcer: Arc<dyn Announcer>, target: Arc<dyn Target>) -> Self {
        Self { announcer, target }
    }
}

#[async_trait]
impl Outlet for AnnouncerOutlet {
    fn limits(&self) -> Limits {
        self.target.limits()
    }

    fn bytes_of(&self, message: &Message) -> usize {
        self.target.bytes_of(message)
    }

    async fn send(&self, batch: &[Outgoing], attempt: Attempt) -> Vec<Outcome> {
        // Messages are shared texts: cloning copies no content.
        let messages: Vec<Message> = batch.iter().map(|out| out.message.clone()).collect();
        self.announcer.announce(&messages, attempt).await
    }

    async fn close(&self) {
        self.announcer.close().await;
    }
}
