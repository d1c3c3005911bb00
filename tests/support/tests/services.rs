//! The helpers against the real services, so that a failure of the daemon's tests is the daemon's.

use answerback_testkit::host::Host;
use answerback_testkit::moto::Moto;
use answerback_testkit::postgres::{self, Server, Stop};
use answerback_testkit::proxy::{Network, Proxy};
use answerback_testkit::{Receiver, kafka, services};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};
use tokio_postgres::NoTls;

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

#[tokio::test]
async fn a_database_is_fresh_and_goes_with_its_guard() {
    let (one, other) = (postgres::database().await, postgres::database().await);
    let client = one.connect().await;
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (7)").await.unwrap();
    let pooled = postgres::connect(&one.pgbouncer_url()).await;
    let row = pooled.query_typed("SELECT n FROM t", &[]).await.unwrap();
    assert_eq!(row[0].get::<_, i32>(0), 7, "pgbouncer leads to the same");
    assert!(other.connect().await.batch_execute("SELECT n FROM t").await.is_err());

    let url = one.url().to_owned();
    drop(one); // with two connections to it
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
}

#[tokio::test]
async fn a_server_of_ones_own_keeps_what_was_committed() {
    let mut server = Server::start().await;
    let url = server.database().await;
    let say = |statement: &'static str| {
        let url = url.url().to_owned();
        async move { postgres::connect(&url).await.batch_execute(statement).await.unwrap() }
    };
    say("CREATE TABLE t (n int PRIMARY KEY)").await;
    say("INSERT INTO t VALUES (1)").await;
    server.stop(Stop::Fast).await;
    assert!(tokio_postgres::connect(url.url(), NoTls).await.is_err());
    server.start_again().await;
    say("INSERT INTO t VALUES (2)").await;
    server.stop(Stop::Immediate).await;
    server.start_again().await;
    let open = postgres::connect(url.url()).await;
    open.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
    server.kill().await;
    server.start_again().await;
    assert!(open.batch_execute("SELECT 1").await.is_err(), "that session ended with the server");
    let rows = postgres::connect(url.url()).await.query_typed("SELECT n FROM t", &[]).await;
    assert_eq!(rows.unwrap().len(), 3);
}

#[tokio::test]
async fn a_network_can_be_cut_refusing_slow_and_silent() {
    let proxy = Proxy::start(postgres::shared_addr()).await;
    let url = proxy.lead(&services::postgres());
    let first = postgres::connect(&url).await;
    first.batch_execute("SELECT 1").await.unwrap();

    proxy.set(Network::Refusing);
    first.batch_execute("SELECT 1").await.expect("what is there stays");
    assert!(tokio_postgres::connect(&url, NoTls).await.is_err());
    proxy.set(Network::Fine);
    proxy.cut();
    assert!(first.batch_execute("SELECT 1").await.is_err());

    let second = postgres::connect(&url).await;
    let late = Duration::from_millis(60);
    proxy.set(Network::Slow(late));
    let asked = Instant::now();
    second.batch_execute("SELECT 1").await.unwrap();
    assert!(asked.elapsed() >= 2 * late, "there and back");

    proxy.set(Network::Silent);
    let mut asked = Box::pin(second.batch_execute("SELECT 1"));
    assert!(timeout(2 * late, &mut asked).await.is_err());
    proxy.set(Network::Fine);
    asked.await.expect("what was under way arrives");
    assert_eq!(proxy.taken(), 2);
}
