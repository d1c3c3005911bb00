//! The stub that a benchmark runs against: success with as little work as can be, and counters.

use crate::serve::{Incomer, Served, Server, anywhere, serve};
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use serde::Deserialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Messages taken so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Messages to SQS.
    pub sqs: u64,
    /// Messages to SNS.
    pub sns: u64,
    /// Writes to DynamoDB.
    pub dynamodb: u64,
    /// HTTP requests, for how well they are batched.
    pub requests: u64,
}

#[derive(Default)]
struct Counters {
    sqs: AtomicU64,
    sns: AtomicU64,
    dynamodb: AtomicU64,
    requests: AtomicU64,
}

/// Takes everything; gone when dropped.
pub struct FastAws {
    server: Server,
    counters: Arc<Counters>,
}

impl FastAws {
    /// On a free loopback port.
    pub async fn start() -> Self {
        let counters = Arc::<Counters>::default();
        let told = counters.clone();
        let handler = move |request: Incomer| std::future::ready(take(&told, &request));
        Self { server: serve(anywhere(), handler).await, counters }
    }

    /// What goes into `endpoint_url`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    /// A queue of any name.
    #[must_use]
    pub fn queue_url(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.endpoint(), super::ACCOUNT)
    }

    /// A topic of any name.
    #[must_use]
    pub fn topic_arn(&self, name: &str) -> String {
        format!("arn:aws:sns:us-east-1:{}:{name}", super::ACCOUNT)
    }

    /// What has arrived.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            sqs: self.counters.sqs.load(Relaxed),
            sns: self.counters.sns.load(Relaxed),
            dynamodb: self.counters.dynamodb.load(Relaxed),
            requests: self.counters.requests.load(Relaxed),
        }
    }
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow, rename = "Entries")]
    entries: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow, rename = "Id")]
    id: Cow<'a, str>,
}

fn take(counters: &Counters, request: &Incomer) -> Served {
    counters.requests.fetch_add(1, Relaxed);
    let target = request.headers.get("x-amz-target").map(http::HeaderValue::as_bytes);
    let (kind, body) = match target {
        Some(b"AmazonSQS.SendMessageBatch") => ("json", sqs_batch(counters, &request.body)),
        Some(b"AmazonSQS.SendMessage") => {
            counters.sqs.fetch_add(1, Relaxed);
            ("json", Some(r#"{"MessageId":"m","MD5OfMessageBody":"0"}"#.to_owned()))
        }
        Some(target) if target.starts_with(b"AmazonSQS.") => (
            "json",
            Some(
                r#"{"Attributes":{"QueueArn":"arn:aws:sqs:us-east-1:000000000000:q"}}"#.to_owned(),
            ),
        ),
        Some(b"DynamoDB_20120810.DescribeTable") => {
            let keys = r#"[{"AttributeName":"pk","KeyType":"HASH"},{"AttributeName":"sk","KeyType":"RANGE"}]"#;
            ("json", Some(format!(r#"{{"Table":{{"TableStatus":"ACTIVE","KeySchema":{keys}}}}}"#)))
        }
        Some(_) => {
            counters.dynamodb.fetch_add(1, Relaxed);
            ("json", Some("{}".to_owned()))
        }
        None => ("xml", sns(counters, &request.body)),
    };
    let (status, body) = body.map_or((400, String::new()), |body| (200, body));
    let kind = if kind == "json" { "application/x-amz-json-1.0" } else { "text/xml" };
    let response = Response::builder().status(status).header("content-type", kind);
    Ok(response.body(Full::new(Bytes::from(body))).expect("a valid answer"))
}

fn sqs_batch(counters: &Counters, body: &[u8]) -> Option<String> {
    let batch: Batch<'_> = serde_json::from_slice(body).ok()?;
    counters.sqs.fetch_add(batch.entries.len() as u64, Relaxed);
    let mut answer = String::with_capacity(32 + batch.entries.len() * 64);
    answer.push_str(r#"{"Failed":[],"Successful":["#);
    for (n, entry) in batch.entries.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            answer,
            r#"{comma}{{"Id":"{}","MessageId":"m","MD5OfMessageBody":"0"}}"#,
            entry.id
        );
    }
    answer.push_str("]}");
    Some(answer)
}

/// Looks for the ids of the entries without reading the rest of the form.
fn sns(counters: &Counters, body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let action = text.split('&').find_map(|field| field.strip_prefix("Action="))?;
    let result = match action {
        "Publish" => {
            counters.sns.fetch_add(1, Relaxed);
            "<MessageId>m</MessageId>".to_owned()
        }
        "PublishBatch" => {
            let mut members = String::new();
            for field in text.split('&').filter(|f| f.starts_with("PublishBatchRequestEntries.")) {
                let Some((name, id)) = field.split_once('=') else { continue };
                if name.ends_with(".Id") {
                    counters.sns.fetch_add(1, Relaxed);
                    let _ =
                        write!(members, "<member><Id>{id}</Id><MessageId>m</MessageId></member>");
                }
            }
            format!("<Successful>{members}</Successful><Failed></Failed>")
        }
        _ => "<Attributes></Attributes>".to_owned(),
    };
    Some(format!(
        "<{action}Response xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><{action}Result>{result}</{action}Result>\
         <ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{action}Response>"
    ))
}
