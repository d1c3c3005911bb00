//! The real clients of the services against the stubs.

use super::*;
use crate::envelope::Template;
use crate::ledger::Witness;
use crate::wire::Client;
use aws_credential_types::Credentials;
use aws_sdk_dynamodb::types::{AttributeValue, BatchStatementRequest};
use aws_sdk_sns::types::{MessageAttributeValue, PublishBatchRequestEntry};
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;

struct One {
    ledger: Ledger,
    receivers: Receivers,
}

impl One {
    fn start(of: fn(Arc<Destination>) -> Receiver) -> Self {
        let ledger = Ledger::new(&[("one", Witness::Stub)]);
        for _ in 0..10 {
            ledger.claim(10).unwrap();
        }
        let receiver = of(ledger.destination("one").unwrap());
        let receivers = Receivers::start(vec![receiver], &ledger).unwrap();
        Self { ledger, receivers }
    }

    fn url(&self) -> String {
        format!("http://{}", self.receivers.addresses()[0])
    }

    fn assert_received(&self, numbers: &[u32]) {
        let destination = &self.ledger.destinations[0];
        let got: Vec<_> = (0..10).filter(|n| destination.arrivals.get(*n).is_some()).collect();
        assert_eq!(got, numbers);
        let check = self.ledger.check().remove(0);
        assert!(check.holds() && check.repeated == 0, "{check:?}");
    }
}

fn envelope(number: u32) -> String {
    String::from_utf8(Template::envelope().of(number).to_vec()).unwrap()
}

fn question_id(number: u32) -> String {
    format!("5be9c4a1e7d2f03b8a6c94{number:010}")
}

fn credentials() -> Credentials {
    Credentials::new("a", "b", None, None, "test")
}

macro_rules! client {
    ($sdk:ident, $url:expr) => {
        $sdk::Client::from_conf(
            $sdk::Config::builder()
                .behavior_version($sdk::config::BehaviorVersion::latest())
                .region($sdk::config::Region::new("us-east-1"))
                .credentials_provider(credentials())
                .endpoint_url($url)
                .http_client(aws_smithy_http_client::Builder::new().build_http())
                .build(),
        )
    };
}

#[tokio::test]
async fn sqs_names_every_message_of_a_batch_and_notes_its_wait() {
    let one = One::start(Receiver::Sqs);
    let client = client!(aws_sdk_sqs, one.url());
    let mut batch = client.send_message_batch().queue_url(format!("{}/0/waits", one.url()));
    for number in 0..3 {
        let entry = SendMessageBatchRequestEntry::builder()
            .id(format!("m{number}"))
            .message_body(envelope(number))
            .message_deduplication_id(format!("wait.created:{}", question_id(number)));
        batch = batch.entries(entry.build().unwrap());
    }
    let sent = batch.send().await.unwrap();
    let ids: Vec<_> = sent.successful().iter().map(|entry| entry.id()).collect();
    assert_eq!((ids, sent.failed().len()), (vec!["m0", "m1", "m2"], 0));
    let single = client.send_message().queue_url(format!("{}/0/waits", one.url()));
    single.message_body(envelope(7)).send().await.unwrap();
    one.assert_received(&[0, 1, 2, 7]);
}

#[tokio::test]
async fn sns_names_every_message_of_a_batch_and_notes_its_wait() {
    let one = One::start(Receiver::Sns);
    let client = client!(aws_sdk_sns, one.url());
    let topic = "arn:aws:sns:us-east-1:000000000000:waits";
    let mut batch = client.publish_batch().topic_arn(topic);
    for number in 0..3 {
        let thread = MessageAttributeValue::builder()
            .data_type("String")
            .string_value(format!("order-{number:010}"))
            .build()
            .unwrap();
        let entry = PublishBatchRequestEntry::builder()
            .id(format!("m{number}"))
            .subject("wait.created")
            .message_attributes("thread_id", thread)
            .message(envelope(number));
        batch = batch.publish_batch_request_entries(entry.build().unwrap());
    }
    let sent = batch.send().await.unwrap();
    let ids: Vec<_> = sent.successful().iter().filter_map(|entry| entry.id()).collect();
    assert_eq!((ids, sent.failed().len()), (vec!["m0", "m1", "m2"], 0));
    let single = client.publish().topic_arn(topic).message(envelope(7)).send().await.unwrap();
    assert!(single.message_id().is_some());
    one.assert_received(&[0, 1, 2, 7]);
}

#[tokio::test]
async fn dynamodb_takes_every_way_to_write_an_item() {
    let one = One::start(Receiver::DynamoDb);
    let client = client!(aws_sdk_dynamodb, one.url());
    let text = AttributeValue::S;
    let key = |number| text(format!("WAIT#{}", question_id(number)));
    let put = client.put_item().table_name("waits");
    put.item("sk", key(0)).item("envelope", text(envelope(0))).send().await.unwrap();
    client.update_item().table_name("waits").key("sk", key(1)).send().await.unwrap();
    let mut batch = client.batch_execute_statement();
    for number in 2..5 {
        let statement = BatchStatementRequest::builder()
            .statement("INSERT INTO waits VALUE {'sk': ?, 'envelope': ?}")
            .parameters(key(number))
            .parameters(text(envelope(number)));
        batch = batch.statements(statement.build().unwrap());
    }
    assert_eq!(batch.send().await.unwrap().responses().len(), 3);
    let table = client.describe_table().table_name("waits").send().await.unwrap();
    assert_eq!(table.table().unwrap().key_schema().len(), 2);
    one.assert_received(&[0, 1, 2, 3, 4]);
}

async fn post(one: &One, key: &str, body: &str) -> u16 {
    let length = body.len();
    let request = format!(
        "POST /waits HTTP/1.1\r\nhost: x\r\nX-Agent-Wait-Dedupe-Key: {key}\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut client = Client::connect(one.receivers.addresses()[0]).await.unwrap();
    client.exchange(request.as_bytes()).await.unwrap().status
}

#[tokio::test]
async fn a_webhook_holds_the_body_against_what_was_published() {
    let one = One::start(Receiver::Webhook);
    let key = |number| format!("wait.created:{}", question_id(number));
    assert_eq!(post(&one, &key(3), &envelope(3)).await, 200);
    one.assert_received(&[3]);
    post(&one, &key(3), &envelope(3)).await;
    post(&one, &key(4), &envelope(4).replace("41000", "41001")).await;
    post(&one, &format!("{}:2", key(5)), &envelope(5)).await;
    let check = one.ledger.check().remove(0);
    assert_eq!((check.repeated, check.altered, check.invented), (1, 1, 1));
}

#[tokio::test]
async fn requests_in_one_packet_are_answered_one_by_one() {
    let one = One::start(|_| Receiver::Accepting);
    let mut stream = tokio::net::TcpStream::connect(one.receivers.addresses()[0]).await.unwrap();
    let request = Template::request("x", "/v1/waits").of(1).to_vec();
    let twice = [&request[..], &request[..]].concat();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &twice).await.unwrap();
    let mut got = Vec::new();
    while got.windows(12).filter(|w| w == b"HTTP/1.1 202").count() < 2 {
        assert!(tokio::io::AsyncReadExt::read_buf(&mut stream, &mut got).await.unwrap() > 0);
    }
}
