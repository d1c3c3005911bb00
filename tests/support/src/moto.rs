//! Hands for the AWS emulator: queues, topics and tables, and what arrived in them.

use crate::waiting::eventually;
use crate::{Api, Reply, services};
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use url::form_urlencoded::Serializer;

/// The emulator that `scripts/services up` has started. Any test may make what it needs under a fresh name.
#[derive(Clone, Debug)]
pub struct Moto(Api);

impl Default for Moto {
    fn default() -> Self {
        Self(Api::new(services::aws()))
    }
}

impl Moto {
    /// What goes into `endpoint_url`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.0.url("")
    }

    /// Creates a queue, first in first out when the name ends in `.fifo`, and gives its URL.
    pub async fn create_queue(&self, name: &str) -> String {
        let mut attributes = json!({"VisibilityTimeout": "30"});
        if name.ends_with(".fifo") {
            attributes["FifoQueue"] = "true".into();
        }
        let made =
            self.sqs("CreateQueue", &json!({"QueueName": name, "Attributes": attributes})).await;
        made["QueueUrl"].as_str().expect("a queue's URL").to_owned()
    }

    /// Takes the next `count` messages out of a queue, in the order in which it gives them; waits for them.
    pub async fn receive(&self, queue_url: &str, count: usize) -> Vec<Value> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let next =
                eventually(&format!("message {} in {queue_url}", taken.len() + 1), || async {
                    let batch = self.receive_now(queue_url).await;
                    (!batch.is_empty()).then_some(batch)
                })
                .await;
            taken.extend(next);
        }
        taken
    }

    /// What a queue gives at once, up to ten messages, which are then deleted.
    pub async fn receive_now(&self, queue_url: &str) -> Vec<Value> {
        let asked = json!({
            "QueueUrl": queue_url, "MaxNumberOfMessages": 10,
            "AttributeNames": ["All"], "MessageAttributeNames": ["All"],
        });
        let answer = self.sqs("ReceiveMessage", &asked).await;
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        let entries: Vec<Value> = messages
            .iter()
            .enumerate()
            .map(|(n, m)| json!({"Id": n.to_string(), "ReceiptHandle": m["ReceiptHandle"]}))
            .collect();
        if !entries.is_empty() {
            let deleted = json!({"QueueUrl": queue_url, "Entries": entries});
            self.sqs("DeleteMessageBatch", &deleted).await;
        }
        messages
    }

    /// Puts a message into a queue, as an approver would.
    pub async fn send(&self, queue_url: &str, body: &str, group_id: Option<&str>) {
        let mut message = json!({"QueueUrl": queue_url, "MessageBody": body});
        if let Some(group) = group_id {
            message["MessageGroupId"] = group.into();
            message["MessageDeduplicationId"] = ulid::Ulid::generate().to_string().into();
        }
        self.sqs("SendMessage", &message).await;
    }

    /// Creates a topic and gives its ARN.
    pub async fn create_topic(&self, name: &str) -> String {
        let fifo = [("Attributes.entry.1.key", "FifoTopic"), ("Attributes.entry.1.value", "true")];
        let extra = if name.ends_with(".fifo") { &fifo[..] } else { &[] };
        let made = self.sns("CreateTopic", &[&[("Name", name)][..], extra].concat()).await;
        let text = made.text();
        let arn = text.split_once("<TopicArn>").and_then(|(_, rest)| rest.split_once('<'));
        arn.expect("a topic's ARN").0.to_owned()
    }

    /// Has a topic's messages copied into a queue; `raw` without SNS's wrapping.
    pub async fn subscribe(&self, topic_arn: &str, queue_url: &str, raw: bool) {
        let name = queue_url.rsplit('/').next().expect("a queue's name");
        let queue_arn = format!("arn:aws:sqs:us-east-1:123456789012:{name}");
        let raw = if raw { "true" } else { "false" };
        self.sns(
            "Subscribe",
            &[
                ("TopicArn", topic_arn),
                ("Protocol", "sqs"),
                ("Endpoint", &queue_arn),
                ("Attributes.entry.1.key", "RawMessageDelivery"),
                ("Attributes.entry.1.value", raw),
            ],
        )
        .await;
    }

    /// Creates a table with the keys `pk` and `sk`.
    pub async fn create_table(&self, name: &str) {
        let table = json!({
            "TableName": name, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [
                {"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
            "KeySchema": [
                {"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        });
        self.dynamodb("CreateTable", &table).await;
    }

    /// All items of a table, as attribute values.
    pub async fn items(&self, table: &str) -> Vec<Value> {
        let scan = json!({"TableName": table, "ConsistentRead": true});
        let answer = self.dynamodb("Scan", &scan).await;
        answer["Items"].as_array().cloned().unwrap_or_default()
    }

    async fn sqs(&self, operation: &str, body: &Value) -> Value {
        self.json("sqs", &format!("AmazonSQS.{operation}"), body).await
    }

    async fn dynamodb(&self, operation: &str, body: &Value) -> Value {
        self.json("dynamodb", &format!("DynamoDB_20120810.{operation}"), body).await
    }

    async fn json(&self, service: &str, target: &str, body: &Value) -> Value {
        let credential = credential(service);
        let headers = [
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", target),
            ("authorization", credential.as_str()),
        ];
        let body = Bytes::from(body.to_string());
        self.0.send(Method::POST, "/", &headers, body).await.expect(200).json()
    }

    async fn sns(&self, action: &str, fields: &[(&str, &str)]) -> Reply {
        let mut form = Serializer::new(String::new());
        form.append_pair("Action", action).append_pair("Version", "2010-03-31");
        form.extend_pairs(fields);
        let credential = credential("sns");
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", credential.as_str()),
        ];
        self.0.send(Method::POST, "/", &headers, form.finish().into()).await.expect(200)
    }
}

/// The emulator checks no signature, but learns from it which service is meant.
fn credential(service: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0"
    )
}
