//! SNS over the query protocol.

use super::faults::Refusal;
use super::limits::{self, Attribute, Window};
use super::query::{Form, escaped};
use super::{Failing, World};
use std::fmt::Write as _;

/// Bytes of a message with its attributes, and of a whole batch (256 KiB).
const BYTES: usize = 262_144;

/// A message of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// `Message`.
    pub message: String,
    /// `Subject`.
    pub subject: Option<String>,
    /// Name, type and value of each attribute, as sent.
    pub attributes: Vec<(String, String, String)>,
    /// `MessageGroupId`.
    pub group_id: Option<String>,
    /// `MessageDeduplicationId`.
    pub dedup_id: Option<String>,
}

impl Published {
    /// Type and value of an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<(&str, &str)> {
        let found = self.attributes.iter().find(|(n, _, _)| n == name);
        found.map(|(_, kind, value)| (kind.as_str(), value.as_str()))
    }
}

#[derive(Default)]
pub(super) struct Topic {
    fifo: bool,
    pub(super) published: Vec<Published>,
    window: Window,
}

impl Topic {
    pub(super) fn new(name: &str) -> Self {
        Self { fifo: name.ends_with(".fifo"), ..Self::default() }
    }
}

pub(super) fn act(
    world: &mut World,
    operation: &str,
    body: &[u8],
    failing: &Failing,
) -> Result<String, Refusal> {
    let form = Form::read(body);
    let arn = form.get("TopicArn").unwrap_or_default().to_owned();
    let now = world.now();
    let missing = || Refusal::sender("NotFound", "Topic does not exist").with_status(404);
    let topic = world.topics.get_mut(&arn).ok_or_else(missing)?;
    let result = match operation {
        "Publish" => {
            let message = message(&form, "");
            if size(&message) > BYTES {
                let what = "Invalid parameter: Message too long";
                return Err(Refusal::sender("InvalidParameter", what));
            }
            publish(topic, message, now)?;
            "<MessageId>stub</MessageId>".to_owned()
        }
        "PublishBatch" => batch(topic, &form, failing, now)?,
        "GetTopicAttributes" => format!(
            "<Attributes><entry><key>TopicArn</key><value>{arn}</value></entry>\
             <entry><key>FifoTopic</key><value>{}</value></entry></Attributes>",
            topic.fifo
        ),
        other => {
            return Err(Refusal::sender("InvalidAction", format!("the stub does not do {other}")));
        }
    };
    Ok(format!(
        "<{operation}Response xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><{operation}Result>{result}</{operation}Result>\
         <ResponseMetadata><RequestId>stub</RequestId></ResponseMetadata></{operation}Response>"
    ))
}

fn message(form: &Form, prefix: &str) -> Published {
    let field = |name: &str| form.get(&format!("{prefix}{name}")).map(ToOwned::to_owned);
    let list = format!("{prefix}MessageAttributes.entry");
    let attribute = |n: usize| -> Attribute {
        let part =
            |name: &str| form.get(&format!("{list}.{n}.{name}")).unwrap_or_default().to_owned();
        (part("Name"), part("Value.DataType"), part("Value.StringValue"))
    };
    Published {
        message: field("Message").unwrap_or_default(),
        subject: field("Subject"),
        attributes: (1..=form.members(&list)).map(attribute).collect(),
        group_id: field("MessageGroupId"),
        dedup_id: field("MessageDeduplicationId"),
    }
}

fn size(message: &Published) -> usize {
    limits::size(&message.message, &message.attributes)
}

fn batch(
    topic: &mut Topic,
    form: &Form,
    failing: &Failing,
    now: tokio::time::Instant,
) -> Result<String, Refusal> {
    const LIST: &str = "PublishBatchRequestEntries.member";
    let entries: Vec<(&str, Published)> = (1..=form.members(LIST))
        .map(|n| {
            let id = form.get(&format!("{LIST}.{n}.Id")).unwrap_or_default();
            (id, message(form, &format!("{LIST}.{n}.")))
        })
        .collect();
    limits::batch(entries.iter().map(|(id, _)| *id))?;
    if entries.iter().map(|(_, message)| size(message)).sum::<usize>() > BYTES {
        let what = "The length of all the messages put together is more than the limit.";
        return Err(Refusal::sender("BatchRequestTooLong", what));
    }
    let (mut successful, mut failed) = (String::new(), String::new());
    for (place, (id, message)) in entries.into_iter().enumerate() {
        let told = failing.iter().find(|(at, _, _)| *at == place);
        let sent = match told {
            Some((_, code, sender)) => Err((Refusal::sender(code, "told to fail"), *sender)),
            None => publish(topic, message, now).map_err(|refusal| (refusal, true)),
        };
        let id = escaped(id);
        let _ = match sent {
            Ok(()) => {
                write!(successful, "<member><Id>{id}</Id><MessageId>stub</MessageId></member>")
            }
            Err((refusal, sender)) => write!(
                failed,
                "<member><Id>{id}</Id><Code>{}</Code><Message>refused</Message><SenderFault>{sender}</SenderFault></member>",
                escaped(&refusal.code)
            ),
        };
    }
    Ok(format!("<Successful>{successful}</Successful><Failed>{failed}</Failed>"))
}

fn publish(
    topic: &mut Topic,
    message: Published,
    now: tokio::time::Instant,
) -> Result<(), Refusal> {
    let refused =
        |what: &str| Err(Refusal::sender("InvalidParameter", format!("Invalid parameter: {what}")));
    if message.message.is_empty() {
        return refused("Empty message");
    }
    limits::text("message", &message.message)?;
    // Up to 100 ASCII characters without controls, the first a letter, a digit or punctuation.
    if let Some(subject) = &message.subject {
        let legal = subject.bytes().all(|b| (b' '..=b'~').contains(&b));
        if !(1..=100).contains(&subject.len()) || !legal || subject.starts_with(' ') {
            return refused("Subject");
        }
    }
    limits::attributes(&message.attributes)?;
    limits::ordering(topic.fifo, message.group_id.as_deref(), message.dedup_id.as_deref())?;
    if message.dedup_id.as_deref().is_none_or(|id| topic.window.admit(id, now)) {
        topic.published.push(message);
    }
    Ok(())
}
