//! What stands in a topic of the real broker.

use crate::waiting::PATIENCE;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::time::timeout;

/// One record as it stands in the topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its key as text.
    pub key: Option<String>,
    /// Its value as text.
    pub value: Option<String>,
    /// Its headers in order.
    pub headers: Vec<(String, String)>,
    /// Where.
    pub partition: i32,
    /// Its place in the partition.
    pub offset: i64,
}

impl Record {
    /// The first header of that name; empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }
}

/// A topic name that no other test has.
#[must_use]
pub fn fresh_topic(prefix: &str) -> String {
    format!("{prefix}-{}", ulid::Ulid::generate().to_string().to_lowercase())
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

/// Creates a topic and waits until the broker has it.
///
/// # Panics
/// When the broker refuses.
pub async fn create_topic(brokers: &str, topic: &str, partitions: i32) {
    let admin: AdminClient<DefaultClientContext> = config(brokers).create().expect("a client");
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    for result in admin.create_topics(&[new], &options).await.expect("an answering broker") {
        result.expect("a topic");
    }
}

/// The first `count` records of a topic, in order within each partition; waits for them.
///
/// # Panics
/// When there are fewer within [`PATIENCE`].
pub async fn records(brokers: &str, topic: &str, count: usize) -> Vec<Record> {
    let consumer: StreamConsumer = config(brokers)
        .set("group.id", "unused")
        .set("enable.auto.commit", "false")
        .set("allow.auto.create.topics", "true")
        .create()
        .expect("a consumer");
    let partitions = {
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).expect("an answering broker");
        metadata.topics().first().map_or(1, |t| t.partitions().len().max(1))
    };
    let mut all = TopicPartitionList::new();
    for partition in 0..i32::try_from(partitions).expect("few partitions") {
        all.add_partition_offset(topic, partition, Offset::Beginning).expect("a valid offset");
    }
    consumer.assign(&all).expect("an assignment");
    let mut found = Vec::new();
    while found.len() < count {
        let message = timeout(PATIENCE, consumer.recv()).await.unwrap_or_else(|_| {
            panic!("{topic} has only {} records of {count}: {found:?}", found.len())
        });
        found.push(record(&message.expect("a readable record")));
    }
    found
}

fn record(message: &rdkafka::message::BorrowedMessage<'_>) -> Record {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let headers = message.headers().map(|headers| {
        headers.iter().map(|h| (h.key.to_owned(), h.value.map(text).unwrap_or_default())).collect()
    });
    Record {
        key: message.key().map(text),
        value: message.payload().map(text),
        headers: headers.unwrap_or_default(),
        partition: message.partition(),
        offset: message.offset(),
    }
}
