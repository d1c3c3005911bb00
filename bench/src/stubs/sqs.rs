//! SQS, in AWS's JSON protocol: the messages of a batch are named and numbered as the service does.

use super::{Answer, reply_json};
use crate::envelope::first_number;
use crate::ledger::Destination;
use crate::wire::{Request, reply};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

pub(super) struct Sqs(pub(super) Arc<Destination>);

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(rename = "Entries", borrow)]
    entries: Vec<Entry<'a>>,
}

/// The text stays as it came: it is only looked through for its id.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(rename = "Id", borrow)]
    id: Cow<'a, str>,
    #[serde(rename = "MessageBody", borrow)]
    body: &'a RawValue,
}

/// What no client checks: it says so in AWS's own form.
const SUMS: &str = r#""MD5OfMessageBody":"00000000000000000000000000000000","MessageId":"00000000-0000-0000-0000-000000000000""#;

impl Answer for Sqs {
    fn answer(&mut self, request: &Request<'_>, at: u32, out: &mut Vec<u8>) {
        match request.header("x-amz-target") {
            Some(b"AmazonSQS.SendMessageBatch") => self.batch(request.body, at, out),
            Some(b"AmazonSQS.SendMessage") => {
                self.0.arrived(first_number(request.body), at);
                reply_json(out, format!("{{{SUMS}}}").as_bytes());
            }
            Some(b"AmazonSQS.GetQueueAttributes") => {
                reply_json(
                    out,
                    br#"{"Attributes":{"QueueArn":"arn:aws:sqs:us-east-1:000000000000:waits"}}"#,
                );
            }
            _ => refuse(out),
        }
    }
}

impl Sqs {
    fn batch(&self, body: &[u8], at: u32, out: &mut Vec<u8>) {
        let Ok(batch) = serde_json::from_slice::<Batch<'_>>(body) else { return refuse(out) };
        let mut text = String::from(r#"{"Failed":[],"Successful":["#);
        for (place, entry) in batch.entries.iter().enumerate() {
            self.0.arrived(first_number(entry.body.get().as_bytes()), at);
            let separator = if place == 0 { "" } else { "," };
            text.push_str(separator);
            text.push_str(r#"{"Id":""#);
            text.push_str(&entry.id);
            text.push_str("\",");
            text.push_str(SUMS);
            text.push('}');
        }
        text.push_str("]}");
        reply_json(out, text.as_bytes());
    }
}

fn refuse(out: &mut Vec<u8>) {
    let body = br#"{"__type":"com.amazonaws.sqs#UnsupportedOperation","message":"not here"}"#;
    reply(out, "400 Bad Request", "application/x-amz-json-1.0", body);
}
