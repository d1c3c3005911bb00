//! Sends answers to the places that envelopes name, as far as the operator allows them.

use crate::dispatch::{LaneConfig, LaneLimits, Outgoing, Outlet, ReplyLanes};
use answerback_contract::{Attempt, Limits, Message, Outcome};
use answerback_core::breaker::Threshold;
use answerback_core::reply_to::{Allow, ReplyTo};
use answerback_core::retry::Schedule;
use answerback_core::{Destination, Envelope};
use async_trait::async_trait;
use std::sync::Arc;

/// Sends one answer to one place. Shared by all places.
#[async_trait]
pub trait ReplySender: Send + Sync + 'static {
    /// Sends; never retries by itself.
    async fn send(&self, place: &ReplyTo, message: &Message, attempt: Attempt) -> Outcome;
}

/// `[reply_to]` as the dispatch needs it.
#[derive(Clone)]
pub struct ReplyToSettings {
    /// Where answers may go.
    pub allow: Allow,
    /// How they go there.
    pub sender: Arc<dyn ReplySender>,
    /// The bounds, for each place by itself.
    pub limits: LaneLimits,
    /// When to send again.
    pub schedule: Schedule,
    /// When to stop asking a place.
    pub breaker: Threshold,
}

/// Bytes an answer: an answer of the largest size and what `reply_with` holds beside it.
pub const MAX_BYTES: usize = 4 << 20;

/// One place's outlet.
pub struct ReplyToOutlet(ReplyToSettings);

impl ReplyLanes for ReplyToSettings {
    fn lane(&self, destination: &Destination) -> LaneConfig {
        LaneConfig {
            destination: destination.clone(),
            outlet: Arc::new(ReplyToOutlet(self.clone())),
            limits: self.limits,
            schedule: self.schedule,
            breaker: self.breaker,
            include_answer: true,
        }
    }
}

impl ReplyToOutlet {
    /// The exact place: of several waits with one origin each may name its own path.
    fn place(&self, out: &Outgoing) -> Result<ReplyTo, String> {
        let wait = &out.leased.wait;
        let newest = wait.taken_over.as_ref().unwrap_or(&wait.envelope);
        let envelope = Envelope::parse(newest.clone()).map_err(|e| e.to_string())?;
        let raw = envelope.reply_to().ok_or("the envelope names no reply_to any more")?;
        let place = ReplyTo::read(raw)?;
        // The configuration may have changed since the answer was queued.
        self.0.allow.check(&place)?;
        Ok(place)
    }
}

#[async_trait]
impl Outlet for ReplyToOutlet {
    fn limits(&self) -> Limits {
        Limits { batch_messages: 1, batch_bytes: MAX_BYTES, message_bytes: MAX_BYTES }
    }

    fn bytes_of(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn send(&self, batch: &[Outgoing], attempt: Attempt) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for out in batch {
            outcomes.push(match self.place(out) {
                Ok(place) => self.0.sender.send(&place, &out.message, attempt).await,
                Err(why) => Outcome::refused(format!("reply_to is not used: {why}")),
            });
        }
        outcomes
    }
}
