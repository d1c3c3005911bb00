//! The helpers against the real services, so that a failure of the daemon's tests is the daemon's.

use answerback_testkit::host::Host;
use answerback_testkit::moto::Moto;
use answerback_testkit::{Receiver, kafka, services};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use std::time::Duration;
use tempfile::TempDir;

#[tokio::test]
async fn records_come_back_with_key_and_headers() {
    let topic = kafka::fresh_topic("helpers");
    let brokers = services::kafka();
    kafka::create_topic(&brokers, &topic, 2).await;
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", &brokers).create().unwrap();
    for key in ["a", "b", "a"] {
        let headers =
            OwnedHeaders::new().insert(Header { key: "type", value: Some("wait.created") });
        let record = FutureRecord::to(&topic).key(key).payload("{}").headers(headers);
        producer.send(record, Duration::from_secs(30)).await.unwrap();
    }
    let records = kafka::records(&brokers, &topic, 3).await;
    assert_eq!(records.iter().filter(|r| r.key.as_deref() == Some("a")).count(), 2);
    assert!(
        records
            .iter()
            .all(|r| r.header("type") == "wait.created" && r.value.as_deref() == Some("{}"))
    );
}

#[tokio::test]
async fn the_emulator_makes_queues_topics_and_tables() {
    let moto = Moto::default();
    let name = kafka::fresh_topic("helpers");
    let queue = moto.create_queue(&format!("{name}.fifo")).await;
    moto.send(&queue, "hello", Some("group")).await;
    let taken = moto.receive(&queue, 1).await;
    assert_eq!(taken[0]["Body"], "hello");
    assert_eq!(taken[0]["Attributes"]["MessageGroupId"], "group");
    assert!(moto.receive_now(&queue).await.is_empty());

    let plain = moto.create_queue(&name).await;
    let topic = moto.create_topic(&name).await;
    assert!(topic.ends_with(&name));
    moto.subscribe(&topic, &plain, true).await;

    moto.create_table(&name).await;
    assert!(moto.items(&name).await.is_empty());
}

#[tokio::test]
async fn a_real_host_asks_by_webhook_and_resumes_by_an_answer() {
    let intake = Receiver::start().await;
    let state = TempDir::new().unwrap();
    let mut host = Host::start(&intake.url("/in"), Some("secret"), &state, &[]).await;
    let asked = host.until("announced").await;
    assert_eq!(asked["ok"], true);
    let request = intake.next().await;
    assert!(request.signed_as_agent_wait("secret"));
    let mut answer = request.json()["reply_with"].clone();
    answer["answer"] = json!({"action": "approve"});
    assert_eq!(host.api().post("/answers", &answer).await.expect(200).json()["status"], "resumed");
    let result = host.until("result").await;
    assert_eq!(
        (&result["body_runs"], &result["output"][0]),
        (&json!(1), &json!("refunded 41000 for order-4471"))
    );
    let again = host.api().post("/answers", &answer).await.expect(200).json();
    assert_eq!(again["status"], "duplicate-ignored");
}
