//! The client against a real broker, at `ANSWERBACK_TEST_KAFKA` (`scripts/services up`); without
//! one these tests say so and pass.

use super::tests::{ATTEMPT, connect_to, read};
use super::*;
use crate::request::tests::message;
use answerback_contract::{Bytes, Rejection};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

/// The broker, and a topic that no earlier run has used.
fn broker(topic: &str) -> Option<(String, String)> {
    let Ok(brokers) = std::env::var("ANSWERBACK_TEST_KAFKA") else {
        println!("skipped: ANSWERBACK_TEST_KAFKA names no broker; see scripts/services");
        return None;
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unique = format!("{}-{}", std::process::id(), listener.local_addr().unwrap().port());
    Some((brokers, format!("{topic}-{unique}")))
}

fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap()
}

async fn create(brokers: &str, topic: &str, max_message_bytes: &str) {
    let topic = NewTopic::new(topic, 4, TopicReplication::Fixed(1))
        .set("max.message.bytes", max_message_bytes);
    let created = admin(brokers).create_topics([&topic], &AdminOptions::new()).await.unwrap();
    assert!(created.iter().all(Result::is_ok), "{created:?}");
}

#[tokio::test]
async fn a_broker_keeps_what_was_announced_in_the_order_of_the_thread() {
    let Some((brokers, topic)) = broker("order") else { return };
    create(&brokers, &topic, "1048588").await;
    let announcer = connect_to(&brokers, &topic, ATTEMPT.timeout).await;
    announcer.probe().await.unwrap();
    let batch: Vec<_> = (0..2_000).map(|n| message(&format!(r#"{{"question":{n}}}"#))).collect();
    for part in batch.chunks(BATCH_MESSAGES) {
        let outcomes = announcer.announce(part, ATTEMPT).await;
        assert!(outcomes.iter().all(|o| *o == Outcome::Delivered), "{outcomes:?}");
    }
    announcer.close().await;
    let records = spawn_blocking(move || read(&brokers, &topic, 2_000)).await.unwrap();
    let values: Vec<_> = records.into_iter().map(|(_, value, _)| value).collect();
    let sent: Vec<_> =
        batch.iter().map(|m| String::from_utf8(m.payload.to_vec()).unwrap()).collect();
    assert_eq!(values, sent);
}

#[tokio::test]
async fn a_topic_that_takes_less_than_a_batch_gets_every_record_that_fits() {
    let Some((brokers, topic)) = broker("small") else { return };
    create(&brokers, &topic, "20000").await;
    let announcer = connect_to(&brokers, &topic, ATTEMPT.timeout).await;
    let mut batch = vec![message("{}"); 30];
    for m in &mut batch {
        m.payload = Bytes::from("x".repeat(3_000));
    }
    batch[7].payload = Bytes::from("x".repeat(30_000));
    let outcomes = announcer.announce(&batch, ATTEMPT).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        let too_large = matches!(outcome, Outcome::Rejected { rejection: Rejection::TooLarge, .. });
        assert_eq!(too_large, n == 7, "{n}: {outcome:?}");
        assert!(too_large || *outcome == Outcome::Delivered, "{n}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_probe_tells_of_a_missing_topic_and_does_not_make_it() {
    let Some((brokers, topic)) = broker("missing") else { return };
    let announcer = connect_to(&brokers, &topic, ATTEMPT.timeout).await;
    for _ in 0..2 {
        let problem = announcer.probe().await.unwrap_err().to_string();
        assert!(problem.contains("does not exist"), "{problem}");
    }
}

#[tokio::test]
async fn a_topic_that_the_broker_makes_by_itself_is_waited_for() {
    let Some((brokers, topic)) = broker("made") else { return };
    let announcer = connect_to(&brokers, &topic, ATTEMPT.timeout).await;
    assert_eq!(announcer.announce(&[message("{}")], ATTEMPT).await, [Outcome::Delivered]);
}
