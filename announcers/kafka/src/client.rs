//! The I/O: one idempotent producer an announcer, replaced when it fails for good.

use crate::config::KafkaTarget;
use crate::request::headers;
use crate::response::{Failure, not_acknowledged, not_queued, too_large_for_topic};
use answerback_contract::{
    Announcer, Attempt, ConnectError, Connecting, Limits, Message, Outcome, Target, async_trait,
};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

/// Messages a call. The client makes its own batches; more than this gains nothing.
const BATCH_MESSAGES: usize = 500;

/// Payload bytes a call: well below the client's queue of 64 MiB.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

#[async_trait]
impl Target for KafkaTarget {
    fn limits(&self) -> Limits {
        Limits {
            batch_messages: BATCH_MESSAGES,
            batch_bytes: BATCH_BYTES.max(self.message_bytes),
            message_bytes: self.message_bytes,
        }
    }

    fn describe(&self) -> String {
        format!("{} at {}", self.topic, self.brokers)
    }

    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        let announcer = KafkaAnnouncer {
            target: self.clone(),
            config: self.client_config(connecting.attempt_timeout),
            context: Context {
                announcer: connecting.name.as_str().into(),
                last_error: Arc::default(),
            },
            timeout: connecting.attempt_timeout,
            producer: Mutex::default(),
            alone: Mutex::default(),
        };
        // Opens no connection by itself, but reads certificates and keys.
        announcer.producer(Batching::Many).map_err(|e| ConnectError {
            what: "the Kafka client cannot be set up; see the cause and check properties"
                .to_owned(),
            source: Some(e.into()),
        })?;
        Ok(Arc::new(announcer))
    }
}

/// Takes the client's logs and errors.
#[derive(Clone)]
struct Context {
    announcer: Arc<str>,
    /// What the client last complained of, such as a refused connection; for the reason of a
    /// timeout. Names brokers and causes, never content or secrets.
    last_error: Arc<Mutex<Option<String>>>,
}

impl Context {
    fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_last_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let announcer = &*self.announcer;
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(announcer, facility, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(announcer, facility, "{message}");
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // "All brokers down" follows the error that says why, and would hide it.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.set_last_error(Some(reason.to_owned()));
        }
        tracing::debug!(announcer = &*self.announcer, %error, "{reason}");
    }
}

type Producer = Arc<FutureProducer<Context>>;

/// How records travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Batching {
    /// Many in a batch.
    Many,
    /// Each in its own: for those whose batch was too large.
    One,
}

struct KafkaAnnouncer {
    target: KafkaTarget,
    config: ClientConfig,
    context: Context,
    timeout: Duration,
    producer: Mutex<Option<Producer>>,
    /// Made when a broker first refuses a batch as too large.
    alone: Mutex<Option<Producer>>,
}

/// What came of one record: acknowledged, or why not.
type Sent = Result<(), Failure>;

#[async_trait]
impl Announcer for KafkaAnnouncer {
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
        let deadline = Instant::now() + attempt.timeout;
        let sent = self.send(Batching::Many, batch.iter(), deadline).await;
        // A topic may take less than the client's batches. Then a batch of small records fails as a
        // whole, and none of them must be blamed before it was refused alone.
        let suspects = batch.iter().zip(&sent);
        let suspects = suspects.filter(|(_, sent)| **sent == Err(Failure::BatchTooLarge));
        let suspects: Vec<&Message> = suspects.map(|(message, _)| message).collect();
        let mut again = Vec::new().into_iter();
        if !suspects.is_empty() {
            tracing::warn!(
                announcer = &*self.context.announcer,
                records = suspects.len(),
                "a batch was too large for the topic; its records are sent one by one. Set properties.\"batch.size\" to the topic's max.message.bytes"
            );
            again = self.send(Batching::One, suspects.into_iter(), deadline).await.into_iter();
        }
        let outcome = |sent| match sent {
            Ok(()) => Outcome::Delivered,
            Err(Failure::Outcome(outcome)) => outcome,
            Err(Failure::BatchTooLarge) => too_large_for_topic(),
        };
        sent.into_iter()
            .map(|sent| match sent {
                Err(Failure::BatchTooLarge) => outcome(again.next().unwrap_or(sent)),
                sent => outcome(sent),
            })
            .collect()
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        let (config, context) = (self.config.clone(), self.context.clone());
        let (target, timeout) = (self.target.clone(), self.timeout);
        let probed = spawn_blocking(move || ask_for_topic(config, context, &target, timeout));
        probed.await.unwrap_or_else(|e| {
            Err(ConnectError {
                what: "the probe was broken off".to_owned(),
                source: Some(e.into()),
            })
        })
    }

    async fn close(&self) {
        let timeout = self.timeout;
        for slot in [&self.producer, &self.alone] {
            let Some(producer) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() else {
                continue;
            };
            // Both block: nothing is in flight any more, but the client stops its threads.
            let closed = spawn_blocking(move || {
                let _ = producer.flush(timeout);
                drop(producer);
            });
            let _ = closed.await;
        }
    }
}

impl KafkaAnnouncer {
    fn slot(&self, batching: Batching) -> &Mutex<Option<Producer>> {
        match batching {
            Batching::Many => &self.producer,
            Batching::One => &self.alone,
        }
    }

    /// The producer, made anew when there is none.
    fn producer(&self, batching: Batching) -> Result<Producer, KafkaError> {
        let mut slot = self.slot(batching).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = &*slot {
            return Ok(Arc::clone(producer));
        }
        let mut config = self.config.clone();
        if batching == Batching::One {
            config.set("batch.num.messages", "1");
        }
        let producer = FutureProducer::from_config_and_context(&config, self.context.clone())?;
        Ok(Arc::clone(slot.insert(Arc::new(producer))))
    }

    /// Queues everything, then awaits each acknowledgement.
    async fn send(
        &self,
        batching: Batching,
        messages: impl ExactSizeIterator<Item = &Message> + Send,
        deadline: Instant,
    ) -> Vec<Sent> {
        let producer = match self.producer(batching) {
            Ok(producer) => producer,
            Err(_) => {
                let outcome = Outcome::retry("the Kafka client cannot be set up");
                return messages.map(|_| Err(Failure::Outcome(outcome.clone()))).collect();
            }
        };
        let queued: Vec<_> = messages.map(|message| self.queue(&producer, message)).collect();
        let mut sent = Vec::with_capacity(queued.len());
        for queued in queued {
            sent.push(match queued {
                Ok(acknowledgement) => self.acknowledged(acknowledgement, deadline).await,
                Err(outcome) => Err(Failure::Outcome(outcome)),
            });
        }
        if sent.iter().any(Result::is_ok) {
            self.context.set_last_error(None);
        }
        if sent.iter().any(Result::is_err) {
            self.replace_if_dead(batching, producer);
        }
        sent
    }

    fn queue(&self, producer: &Producer, message: &Message) -> Result<DeliveryFuture, Outcome> {
        let record = FutureRecord::to(&self.target.topic)
            .key(message.thread_id.as_str())
            .payload(&message.payload[..])
            .headers(headers(self.target.purpose, message));
        producer.send_result(record).map_err(|(error, _)| not_queued(&error))
    }

    async fn acknowledged(&self, acknowledgement: DeliveryFuture, deadline: Instant) -> Sent {
        match timeout_at(deadline, acknowledgement).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err((error, _)))) => {
                Err(not_acknowledged(&error, self.context.last_error().as_deref()))
            }
            // The client was replaced, or it is slower than the attempt: not known to have arrived.
            Ok(Err(_)) => Err(Failure::Outcome(Outcome::retry("the client was closed"))),
            Err(_) => {
                let timed_out = KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut);
                Err(not_acknowledged(&timed_out, self.context.last_error().as_deref()))
            }
        }
    }

    /// An idempotent producer that lost track of its sequence refuses everything from then on: the
    /// next attempt gets a fresh one.
    fn replace_if_dead(&self, batching: Batching, producer: Producer) {
        let Some((code, _)) = producer.client().fatal_error() else { return };
        let mut slot = self.slot(batching).lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, &producer)) {
            return;
        }
        tracing::warn!(announcer = &*self.context.announcer, %code, "the Kafka client failed for good and is replaced");
        let dead = slot.take();
        drop(slot);
        // Letting go of a client waits for its threads.
        spawn_blocking(move || drop((dead, producer)));
    }
}

/// Asks the brokers for the topic, without making it.
fn ask_for_topic(
    mut config: ClientConfig,
    context: Context,
    target: &KafkaTarget,
    timeout: Duration,
) -> Result<(), ConnectError> {
    config.set("allow.auto.create.topics", "false");
    let failed = |what: String, source: Option<KafkaError>| ConnectError {
        what,
        source: source.map(Into::into),
    };
    let KafkaTarget { brokers, topic, .. } = target;
    let client = FutureProducer::<Context>::from_config_and_context(&config, context.clone())
        .map_err(|e| {
            failed("the Kafka client cannot be set up; check properties".to_owned(), Some(e))
        })?;
    let metadata = client.client().fetch_metadata(Some(topic), timeout).map_err(|e| {
        let why = context.last_error().map_or_else(String::new, |last| format!(" ({last})"));
        failed(
            format!("no broker of {brokers} answers{why}; check brokers and security.protocol"),
            Some(e),
        )
    })?;
    let error = metadata.topics().iter().find_map(|t| t.error()).map(RDKafkaErrorCode::from);
    let has_partitions = metadata.topics().iter().any(|t| !t.partitions().is_empty());
    match error {
        None if has_partitions => Ok(()),
        None | Some(RDKafkaErrorCode::UnknownTopicOrPartition) => {
            Err(failed(format!("the topic {topic} does not exist at {brokers}; create it"), None))
        }
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => Err(failed(
            format!("the topic {topic} may not be used; grant Describe and Write on it"),
            None,
        )),
        Some(code) => Err(failed(format!("the topic {topic} cannot be used: {code}"), None)),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "broker_tests.rs"]
mod broker_tests;
