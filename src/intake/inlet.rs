//! Where sources hand in what they bring: told apart, stored, and only then acknowledged.

use super::{Intake, IntakeError};
use answerback_contract::{Incoming, Inlet, SourceHealth, Taken, TenantId, Via};
use answerback_core::Inbound;
use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

/// Which kinds of messages a source takes (`accept`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Questions.
    pub envelopes: bool,
    /// Answers.
    pub answers: bool,
    /// Work for the host.
    pub starts: bool,
}

impl Accept {
    /// All kinds.
    pub const ALL: Self = Self { envelopes: true, answers: true, starts: true };
}

/// Who brings the messages.
#[derive(Clone, Debug)]
pub struct SourceIdentity {
    /// Its name in the configuration.
    pub name: String,
    /// Whose messages they are.
    pub tenant: TenantId,
    /// What answers are marked with.
    pub via: Via,
    /// What it takes.
    pub accept: Accept,
}

/// One source's way in.
pub struct SourceInlet {
    intake: Intake,
    identity: SourceIdentity,
    stop: CancellationToken,
}

impl SourceInlet {
    /// A way in, until `stop`.
    #[must_use]
    pub fn new(intake: Intake, identity: SourceIdentity, stop: CancellationToken) -> Self {
        Self { intake, identity, stop }
    }

    async fn take_one(&self, message: &Incoming) -> Taken {
        let SourceIdentity { tenant, via, .. } = &self.identity;
        let taken = match Inbound::parse(&message.body) {
            Ok(Inbound::Envelope(_)) => {
                self.intake.publish(tenant, message.body.clone()).await.map(|_| ())
            }
            Ok(Inbound::Answer(_)) => {
                self.intake.answer(tenant, None, *via, &message.body).await.map(|_| ())
            }
            Ok(Inbound::Start(_)) => Ok(()),
            Err(refusal) => Err(refusal.into()),
        };
        match taken {
            Ok(()) | Err(IntakeError::Refused(_)) => Taken::Durable,
            Err(IntakeError::Store(_)) => Taken::Later,
        }
    }
}

#[async_trait]
impl Inlet for SourceInlet {
    async fn take(&self, batch: Vec<Incoming>) -> Vec<Taken> {
        let mut taken = Vec::with_capacity(batch.len());
        for message in &batch {
            taken.push(self.take_one(message).await);
        }
        taken
    }

    fn health(&self, _health: SourceHealth) {}

    async fn stopping(&self) {
        self.stop.cancelled().await;
    }
}
