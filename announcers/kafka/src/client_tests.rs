//! The client against librdkafka's mock cluster, a broker within the process that fails on demand.

use super::*;
use crate::config::validate;
use crate::request::tests::message;
use answerback_contract::settings::testing::{MapSecrets, settings, text};
use answerback_contract::{Bytes, Purpose, Rejection, ThreadId, Time};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Error};

type Cluster = MockCluster<'static, DefaultProducerContext>;

pub(super) const ATTEMPT: Attempt = Attempt { now: Time::MIN, timeout: Duration::from_secs(20) };

fn target(brokers: &str, topic: &str, purpose: Purpose) -> KafkaTarget {
    let pairs = vec![("brokers", text(brokers)), ("topic", text(topic))];
    let mut settings = settings(pairs, MapSecrets::default());
    validate(purpose, &mut settings).map_err(|p| format!("{p:?}")).unwrap()
}

fn cluster() -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("waits", 4, 1).unwrap();
    cluster
}

async fn connect(brokers: &str, timeout: Duration) -> Arc<dyn Announcer> {
    connect_to(brokers, "waits", timeout).await
}

pub(super) async fn connect_to(
    brokers: &str,
    topic: &str,
    timeout: Duration,
) -> Arc<dyn Announcer> {
    let connecting = Connecting { name: "test".to_owned(), attempt_timeout: timeout };
    target(brokers, topic, Purpose::Announce).connect(&connecting).await.unwrap()
}

/// Key, value and headers of a record.
pub(super) type Record = (String, String, Vec<(String, String)>);

/// Everything in the topic, once `count` records are there.
pub(super) fn read(brokers: &str, topic: &str, count: usize) -> Vec<Record> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "test")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    for partition in 0..4 {
        list.add_partition_offset(topic, partition, rdkafka::Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut records = Vec::new();
    while records.len() < count {
        let record = consumer.poll(Duration::from_secs(20)).expect("a record").unwrap();
        let headers = record.headers().unwrap();
        let headers = headers.iter().map(|h| (h.key.to_owned(), text(h.value.unwrap())));
        let (key, value) = (record.key().unwrap(), record.payload().unwrap());
        records.push((text(key), text(value), headers.collect()));
    }
    records
}

#[tokio::test]
async fn a_record_carries_key_value_and_headers_and_counts_once_acknowledged() {
    let cluster = cluster();
    let brokers = cluster.bootstrap_servers();
    let announcer = connect(&brokers, ATTEMPT.timeout).await;
    let mut second = message(r#"{"question": 1.10,"tags":{"n":1e2}}"#);
    second.thread_id = ThreadId::new("Zoë/2").unwrap();
    let batch = [message(r#"{"tags":{"group":"fin"}}"#), second];
    assert_eq!(announcer.announce(&batch, ATTEMPT).await, vec![Outcome::Delivered; 2]);
    let mut records = spawn_blocking(move || read(&brokers, "waits", 2)).await.unwrap();
    records.sort();
    assert_eq!(records[0].0, "Zoë/2");
    assert_eq!(records[0].1, r#"{"question": 1.10,"tags":{"n":1e2}}"#);
    assert_eq!(records[0].2.last().unwrap(), &("n".to_owned(), "1e2".to_owned()));
    assert_eq!(records[1].0, "order-4471");
    let names: Vec<_> = records[1].2.iter().map(|(k, _)| k.as_str()).collect();
    assert_eq!(names, ["dedupe_key", "type", "thread_id", "group"]);
    announcer.close().await;
}

#[tokio::test]
async fn without_a_broker_it_is_a_retry_that_says_what_the_client_saw() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let brokers = listener.local_addr().unwrap().to_string();
    drop(listener);
    let short = Attempt { timeout: Duration::from_millis(700), ..ATTEMPT };
    let announcer = connect(&brokers, short.timeout).await;
    let outcomes = announcer.announce(&[message("{}"), message("{}")], short).await;
    for outcome in outcomes {
        let Outcome::Retry { reason, .. } = outcome else { panic!("{outcome:?}") };
        assert!(reason.starts_with("no acknowledgement in time"), "{reason}");
        assert!(reason.contains("refused"), "{reason}");
    }
    let problem = announcer.probe().await.unwrap_err().to_string();
    assert!(problem.contains("no broker of"), "{problem}");
}

#[tokio::test]
async fn a_broker_that_recovers_within_the_attempt_is_no_failure() {
    let cluster = cluster();
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            Error::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        ],
    );
    let announcer = connect(&cluster.bootstrap_servers(), ATTEMPT.timeout).await;
    assert_eq!(announcer.announce(&[message("{}")], ATTEMPT).await, [Outcome::Delivered]);
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_sent_one_by_one() {
    let cluster = cluster();
    cluster.request_errors(RDKafkaApiKey::Produce, &[Error::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    let brokers = cluster.bootstrap_servers();
    let announcer = connect(&brokers, ATTEMPT.timeout).await;
    let batch = [message("{}"), message("{}"), message("{}")];
    assert_eq!(announcer.announce(&batch, ATTEMPT).await, vec![Outcome::Delivered; 3]);
}

#[tokio::test]
async fn a_record_that_is_too_large_alone_is_refused() {
    let cluster = cluster();
    cluster
        .request_errors(RDKafkaApiKey::Produce, &[Error::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 2]);
    let announcer = connect(&cluster.bootstrap_servers(), ATTEMPT.timeout).await;
    let outcome = announcer.announce(&[message("{}")], ATTEMPT).await.remove(0);
    let Outcome::Rejected { rejection: Rejection::TooLarge, reason } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("max.message.bytes"), "{reason}");
}

#[tokio::test]
async fn headers_count_towards_the_size() {
    let cluster = cluster();
    let announcer = connect(&cluster.bootstrap_servers(), ATTEMPT.timeout).await;
    let tags = format!(r#"{{"tags":{{"t":"{}"}}}}"#, "x".repeat(600_000));
    let mut large = message(&tags);
    assert!(large.payload.len() < 1_000_000);
    let outcome = announcer.announce(std::slice::from_ref(&large), ATTEMPT).await.remove(0);
    assert!(
        matches!(outcome, Outcome::Rejected { rejection: Rejection::TooLarge, .. }),
        "{outcome:?}"
    );
    large.envelope = Bytes::from_static(b"{}");
    assert_eq!(announcer.announce(&[large], ATTEMPT).await, [Outcome::Delivered]);
}

#[tokio::test]
async fn a_producer_that_failed_for_good_is_replaced() {
    let cluster = cluster();
    let announcer = connect(&cluster.bootstrap_servers(), ATTEMPT.timeout).await;
    assert_eq!(announcer.announce(&[message("{}")], ATTEMPT).await, [Outcome::Delivered]);
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[Error::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    let outcome = announcer.announce(&[message("{}")], ATTEMPT).await.remove(0);
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
    assert_eq!(announcer.announce(&[message("{}")], ATTEMPT).await, [Outcome::Delivered]);
}

#[tokio::test]
async fn a_probe_finds_the_topic() {
    let cluster = cluster();
    let announcer = connect(&cluster.bootstrap_servers(), ATTEMPT.timeout).await;
    announcer.probe().await.unwrap();
}

#[test]
fn limits_leave_room_for_the_largest_record() {
    let limits = target("a:9092", "waits", Purpose::Announce).limits();
    assert_eq!(limits.message_bytes, 1_000_000);
    assert!(limits.batch_bytes >= limits.message_bytes);
    assert_eq!(
        target("a:9092,b:9093", "waits", Purpose::Answer).describe(),
        "waits at a:9092,b:9093"
    );
}
