//! Reads what is announced to Kafka.

use crate::clock::Watch;
use crate::history::{Arrival, Recorder, Span, Verdict};
use crate::load::Bodies;
use crate::message::Members;
use crate::schedule::Place;
use anyhow::{Context, Result};
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// Partitions of the run's topic: a thread stays in one.
pub const PARTITIONS: i32 = 3;

/// Opens a consumer of the whole topic, which must be there.
///
/// # Errors
/// When the broker does not answer.
pub fn open(brokers: &str, topic: &str) -> Result<StreamConsumer> {
    let consumer: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "chaos")
        .set("enable.auto.commit", "false")
        .create()
        .context("a consumer of Kafka")?;
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    Ok(consumer)
}

/// Writes down what comes, for ever.
pub async fn follow(consumer: StreamConsumer, watch: Watch, recorder: Recorder, bodies: Bodies) {
    loop {
        // Errors are the client's own; it goes on by itself.
        let Ok(message) = consumer.recv().await else { continue };
        let at = watch.now();
        match read(&message, at, &bodies) {
            Some(arrival) => recorder.with(|h| h.arrivals.push(arrival)),
            None => recorder.mishap(at, "a record of Kafka cannot be read"),
        }
    }
}

fn read(message: &BorrowedMessage<'_>, at: u64, bodies: &Bodies) -> Option<Arrival> {
    let text = std::str::from_utf8(message.payload()?).ok()?;
    let members = Members::read(text)?;
    let header = |name: &str| {
        let headers = message.headers()?;
        let found = headers.iter().find(|h| h.key == name)?;
        std::str::from_utf8(found.value?).ok()
    };
    let event_id = members.text("event_id").unwrap_or_default();
    Some(Arrival {
        span: Span { begin: at, end: at },
        place: Place::Stream,
        replica: None,
        event: header("type")?.into(),
        dedupe_key: header("dedupe_key")?.into(),
        thread: members.text("thread_id")?.into(),
        question: members.text("question_id")?.into(),
        generation: Some(members.generation()),
        body: bodies.shared(&event_id, text),
        event_id: event_id.into(),
        answer: None,
        via: None,
        verdict: Verdict::Took,
        offset: Some((message.partition(), message.offset())),
    })
}
