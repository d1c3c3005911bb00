//! SQS over JSON 1.0.

use super::faults::Refusal;
use super::limits::{self, Attribute, Window};
use super::{ACCOUNT, Failing, World};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Bytes of a message with its attributes, and of a whole batch (1 MiB since August 2025).
const BYTES: usize = 1_048_576;

/// SQS answers each message with the MD5 of its body; nobody here checks it.
const MD5: &str = "00000000000000000000000000000000";

/// A message in a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SentMessage {
    /// The text.
    pub body: String,
    /// `MessageGroupId`.
    pub group_id: Option<String>,
    /// `MessageDeduplicationId`.
    pub dedup_id: Option<String>,
    /// Name, type and value of each attribute.
    pub attributes: Vec<(String, String, String)>,
}

#[derive(Default)]
pub(super) struct Queue {
    fifo: bool,
    pub(super) messages: Vec<SentMessage>,
    pub(super) window: Window,
}

impl Queue {
    pub(super) fn new(name: &str) -> Self {
        Self { fifo: name.ends_with(".fifo"), ..Self::default() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Batch {
    queue_url: String,
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Single {
    queue_url: String,
    #[serde(flatten)]
    entry: Entry,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default)]
    id: String,
    #[serde(default)]
    message_body: String,
    message_group_id: Option<String>,
    message_deduplication_id: Option<String>,
    #[serde(default)]
    message_attributes: BTreeMap<String, Value>,
}

impl Entry {
    fn attributes(&self) -> Vec<Attribute> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let one = |(name, value): (&String, &Value)| {
            (name.clone(), text(&value["DataType"]), text(&value["StringValue"]))
        };
        self.message_attributes.iter().map(one).collect()
    }

    fn size(&self) -> usize {
        limits::size(&self.message_body, &self.attributes())
    }
}

pub(super) fn act(
    world: &mut World,
    operation: &str,
    body: &[u8],
    failing: &Failing,
) -> Result<String, Refusal> {
    match operation {
        "SendMessage" => {
            let single: Single = read(body)?;
            let now = world.now();
            let queue = find(world, &single.queue_url)?;
            if single.entry.size() > BYTES {
                let what = "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.";
                return Err(Refusal::sender("InvalidParameterValue", what));
            }
            send(queue, single.entry, now)?;
            Ok(json!({"MessageId": "stub", "MD5OfMessageBody": MD5}).to_string())
        }
        "SendMessageBatch" => batch(world, read(body)?, failing),
        "GetQueueAttributes" => {
            let asked: Value = read(body)?;
            let url = asked["QueueUrl"].as_str().unwrap_or_default().to_owned();
            let fifo = find(world, &url)?.fifo;
            let name = url.rsplit('/').next().unwrap_or_default();
            let mut attributes =
                json!({"QueueArn": format!("arn:aws:sqs:us-east-1:{ACCOUNT}:{name}")});
            if fifo {
                attributes["FifoQueue"] = "true".into();
            }
            Ok(json!({"Attributes": attributes}).to_string())
        }
        other => {
            Err(Refusal::sender("UnsupportedOperation", format!("the stub does not do {other}")))
        }
    }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|e| Refusal::sender("SerializationException", e.to_string()))
}

fn find<'w>(world: &'w mut World, url: &str) -> Result<&'w mut Queue, Refusal> {
    let prefix = format!("{}/{ACCOUNT}/", world.endpoint);
    let queue = url.strip_prefix(&prefix).and_then(|name| world.queues.get_mut(name));
    queue.ok_or_else(|| Refusal::sender("QueueDoesNotExist", "The specified queue does not exist."))
}

fn batch(world: &mut World, batch: Batch, failing: &Failing) -> Result<String, Refusal> {
    let now = world.now();
    let queue = find(world, &batch.queue_url)?;
    limits::batch(batch.entries.iter().map(|e| e.id.as_str()))?;
    if batch.entries.iter().map(Entry::size).sum::<usize>() > BYTES {
        let what = "Batch requests cannot be longer than 1048576 bytes.";
        return Err(Refusal::sender("BatchRequestTooLong", what));
    }
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (place, entry) in batch.entries.into_iter().enumerate() {
        let id = entry.id.clone();
        let told = failing.iter().find(|(at, _, _)| *at == place);
        let sent = match told {
            Some((_, code, sender)) => Err((Refusal::sender(code, "told to fail"), *sender)),
            None => send(queue, entry, now).map_err(|refusal| (refusal, true)),
        };
        match sent {
            Ok(()) => {
                successful.push(json!({"Id": id, "MessageId": "stub", "MD5OfMessageBody": MD5}))
            }
            Err((refusal, sender)) => {
                failed.push(json!({"Id": id, "Code": refusal.code, "SenderFault": sender, "Message": "refused"}));
            }
        }
    }
    Ok(json!({"Successful": successful, "Failed": failed}).to_string())
}

fn send(queue: &mut Queue, entry: Entry, now: tokio::time::Instant) -> Result<(), Refusal> {
    if entry.message_body.is_empty() {
        let what = "The request must contain the parameter MessageBody.";
        return Err(Refusal::sender("MissingParameter", what));
    }
    limits::text("message body", &entry.message_body)?;
    let attributes = entry.attributes();
    limits::attributes(&attributes)?;
    let (group, dedup) = (entry.message_group_id, entry.message_deduplication_id);
    limits::ordering(queue.fifo, group.as_deref(), dedup.as_deref())?;
    if dedup.as_deref().is_none_or(|id| queue.window.admit(id, now)) {
        queue.messages.push(SentMessage {
            body: entry.message_body,
            group_id: group,
            dedup_id: dedup,
            attributes,
        });
    }
    Ok(())
}
