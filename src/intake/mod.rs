//! What comes in, from whichever source: read, stored, and only then acknowledged and passed on.
//! Those who wait for it are woken: by this daemon's own commits, and by those of others (`follow.rs`).

mod follow;
mod inlet;
mod watchers;

pub use inlet::{Accept, SourceIdentity, SourceInlet};
pub use watchers::{Events, Watch, Watchers};

use crate::answers::Deadlines;
use crate::clock::{self, Clock};
use crate::dispatch::Dispatcher;
use crate::metrics::{ANSWERS, DUPLICATES, UNMATCHED_WAITS, WAITS_ACCEPTED};
use crate::store::{Cancelled, Retried, Retry, Store, StoreError};
use answerback_contract::{
    Bytes, DedupeKey, Event, Generation, QuestionId, TenantId, ThreadId, Via,
};
use answerback_core::{
    Answer, AnswerOutcome, AnswerRequest, CancelOutcome, Destination, Envelope, Publish,
    PublishOutcome, Refusal, WaitId,
};
use metrics::{Counter, counter};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Why a message was not taken. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// It is not what the contract says.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The store cannot take it now.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A question that is stored.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The conversation.
    pub thread_id: ThreadId,
    /// The question.
    pub question_id: QuestionId,
    /// Which question under that id.
    pub generation: Generation,
    /// What receivers deduplicate on.
    pub dedupe_key: DedupeKey,
    /// Whether nothing new was asked.
    pub duplicate: bool,
}

/// Takes messages in. Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    dispatcher: Dispatcher,
    deadlines: Deadlines,
    watchers: Watchers,
    accepted: Counter,
    duplicates: Counter,
    unmatched: Counter,
}

impl Intake {
    /// Takes messages into `store`, and starts what goes with that until `stop` is cancelled: ending
    /// waits when their time is up, and following what other daemons do with the same store.
    #[must_use]
    pub fn start(
        store: &Arc<dyn Store>,
        clock: &Arc<dyn Clock>,
        dispatcher: &Dispatcher,
        stop: &CancellationToken,
        background: &mut JoinSet<()>,
    ) -> Self {
        let (deadlines, watchers) = (Deadlines::default(), Watchers::default());
        let intake = Self::new(
            Arc::clone(store),
            Arc::clone(clock),
            dispatcher.clone(),
            deadlines.clone(),
            watchers.clone(),
        );
        background.spawn(deadlines.run(
            Arc::clone(store),
            Arc::clone(clock),
            dispatcher.clone(),
            watchers.clone(),
            stop.clone(),
        ));
        background.spawn(follow::follow(
            Arc::clone(store),
            Arc::clone(clock),
            watchers,
            stop.clone(),
        ));
        intake
    }

    /// Takes messages into `store`.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        dispatcher: Dispatcher,
        deadlines: Deadlines,
        watchers: Watchers,
    ) -> Self {
        Self {
            store,
            clock,
            dispatcher,
            deadlines,
            watchers,
            accepted: counter!(WAITS_ACCEPTED),
            duplicates: counter!(DUPLICATES),
            unmatched: counter!(UNMATCHED_WAITS),
        }
    }

    /// Takes an envelope in.
    ///
    /// # Errors
    /// [`IntakeError`]; nothing is stored then.
    pub async fn publish(&self, tenant: &TenantId, body: Bytes) -> Result<Accepted, IntakeError> {
        let envelope = Envelope::parse(body)?;
        let now = self.clock.now();
        let thread_id = envelope.thread_id().clone();
        let question_id = envelope.question_id().clone();
        let event_id =
            envelope.event_id().cloned().unwrap_or_else(|| clock::fresh_event_id(&*self.clock));
        let publish = Publish { tenant: tenant.clone(), envelope, event_id };
        let published = self.store.publish(vec![publish], now).await?;
        let Some(published) = published.into_iter().next() else {
            return Err(StoreError::Corrupt("a publish without a result".to_owned()).into());
        };
        self.dispatcher.nudge(&published.queued);
        for at in [published.expires_at, published.lapses_at].into_iter().flatten() {
            self.deadlines.hint(at);
        }
        if let Some(closed) = published.closed {
            self.watchers.wake(closed);
        }
        if published.closed.is_some() || matches!(published.outcome, PublishOutcome::New(_)) {
            self.watchers.happened();
        }
        if published.unmatched {
            self.unmatched.increment(1);
        }
        let (generation, duplicate) = match published.outcome {
            PublishOutcome::New(generation) => (generation, false),
            PublishOutcome::Duplicate(generation) => (generation, true),
        };
        if duplicate {
            self.duplicates.increment(1)
        } else {
            self.accepted.increment(1)
        }
        let dedupe_key = DedupeKey::of(Event::Created, &published.rest, 0);
        Ok(Accepted { thread_id, question_id, generation, dedupe_key, duplicate })
    }

    /// Takes an answer message in. `key` is the name of the key it came by.
    ///
    /// # Errors
    /// [`IntakeError`]; nothing is stored then.
    pub async fn answer(
        &self,
        tenant: &TenantId,
        key: Option<&str>,
        via: Via,
        body: &Bytes,
    ) -> Result<AnswerOutcome, IntakeError> {
        let answer = Answer::parse(body)?;
        let answered_by = match (&answer.answered_by, key) {
            (Some(claim), Some(key)) => Some(format!("{claim} (key: {key})")),
            (Some(claim), None) => Some(claim.clone()),
            (None, Some(key)) => Some(format!("key: {key}")),
            (None, None) => None,
        };
        let request = AnswerRequest { tenant: tenant.clone(), answer, answered_by, via };
        let answered = self.store.answer(request, self.clock.now()).await?;
        self.dispatcher.nudge(&answered.queued);
        if let Some(at) = answered.lapses_at {
            self.deadlines.hint(at);
        }
        if let Some(wait) = answered.wait {
            // Also when it came too late: then the deadline has ended the wait, perhaps just now.
            self.watchers.wake(wait);
            self.watchers.happened();
        }
        let result = match answered.outcome {
            AnswerOutcome::Accepted => "accepted",
            AnswerOutcome::AcceptedAgain => "accepted-again",
            AnswerOutcome::NotFound => "wait-not-found",
            AnswerOutcome::Closed { .. } => "wait-closed",
            AnswerOutcome::Expired => "answer-expired",
            AnswerOutcome::ActionNotAllowed => "action-not-allowed",
        };
        counter!(ANSWERS, "via" => via.name(), "result" => result).increment(1);
        Ok(answered.outcome)
    }

    /// Withdraws a wait; `None` when there is none.
    ///
    /// # Errors
    /// When the store cannot do it now.
    pub async fn cancel(&self, wait: WaitId) -> Result<Option<CancelOutcome>, StoreError> {
        let cancelled = self.store.cancel(wait, self.clock.now()).await?;
        Ok(cancelled.map(|Cancelled { outcome, queued }| {
            self.dispatcher.nudge(&queued);
            self.watchers.wake(wait);
            self.watchers.happened();
            outcome
        }))
    }

    /// Has dead messages sent again.
    ///
    /// # Errors
    /// When the store cannot do it now.
    pub async fn retry(&self, tenant: TenantId, what: Retry) -> Result<Retried, StoreError> {
        let woken = match &what {
            Retry::Announcer(name) => Some(Destination::Announcer(name.clone())),
            Retry::Announcement(_) | Retry::Delivery(_) => None,
        };
        let retried = self.store.retry(tenant, what, self.clock.now()).await?;
        if let Some(destination) = woken {
            self.dispatcher.wake(&destination);
        }
        if let Retried::Queued(_, destinations) = &retried {
            self.dispatcher.nudge(destinations);
        }
        Ok(retried)
    }

    /// Who waits for the end of waits, and who follows all events.
    #[must_use]
    pub fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}
