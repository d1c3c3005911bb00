//! One of every bus that a daemon announces to: queues, topics and a table in the AWS emulator, a
//! topic of the real Kafka, a webhook receiver, and the daemon's own log.

use crate::bed::{SECRET, fresh, keyed, webhook};
use answerback_testkit::daemon::Setup;
use answerback_testkit::kafka::{self, Record};
use answerback_testkit::moto::Moto;
use answerback_testkit::{Receiver, services};
use serde_json::Value;

/// The whole set, under names of its own.
pub(crate) struct Buses {
    pub(crate) moto: Moto,
    pub(crate) hook: Receiver,
    pub(crate) standard: String,
    pub(crate) fifo: String,
    topic: String,
    pub(crate) raw: String,
    pub(crate) wrapped: String,
    pub(crate) table: String,
    pub(crate) stream: String,
}

/// The names of the announcers, as [`Buses::setup`] has them.
pub(crate) const ANNOUNCERS: [&str; 7] =
    ["console", "everyone", "fifo", "hook", "standard", "stream", "table"];

impl Buses {
    pub(crate) async fn create() -> Self {
        let (moto, name) = (Moto::default(), fresh("it"));
        let topic = moto.create_topic(&name).await;
        let raw = moto.create_queue(&format!("{name}-raw")).await;
        let wrapped = moto.create_queue(&format!("{name}-wrapped")).await;
        moto.subscribe(&topic, &raw, true).await;
        moto.subscribe(&topic, &wrapped, false).await;
        moto.create_table(&name).await;
        kafka::create_topic(&services::kafka(), &name, 1).await;
        Self {
            hook: Receiver::start().await,
            standard: moto.create_queue(&name).await,
            fifo: moto.create_queue(&format!("{name}.fifo")).await,
            topic,
            raw,
            wrapped,
            table: name.clone(),
            stream: name,
            moto,
        }
    }

    /// A daemon that announces to all of them.
    pub(crate) fn setup(&self) -> Setup {
        let Self { standard, fifo, topic, table, stream, .. } = self;
        let endpoint = self.moto.endpoint();
        let aws = format!("endpoint_url = \"{endpoint}\"\nregion = \"us-east-1\"");
        let hook = webhook("hook", &self.hook.url("/hook"), "secret_env = \"AGENT_WAIT_SECRET\"");
        let brokers = services::kafka();
        keyed().aws_credentials().env("AGENT_WAIT_SECRET", SECRET).config(&format!(
            r#"
{hook}
[announcers.standard]
type = "sqs"
queue_url = "{standard}"
{aws}
[announcers.fifo]
type = "sqs"
queue_url = "{fifo}"
{aws}
[announcers.everyone]
type = "sns"
topic_arn = "{topic}"
{aws}
[announcers.table]
type = "dynamodb"
table = "{table}"
{aws}
[announcers.stream]
type = "kafka"
brokers = "{brokers}"
topic = "{stream}"
[announcers.console]
type = "log"
"#
        ))
    }

    /// The row with these keys.
    pub(crate) async fn row(&self, pk: &str, sk: &str) -> Option<Value> {
        let items = self.moto.items(&self.table).await;
        items.into_iter().find(|item| item["pk"]["S"] == pk && item["sk"]["S"] == sk)
    }

    /// The first records of the topic.
    pub(crate) async fn records(&self, count: usize) -> Vec<Record> {
        kafka::records(&services::kafka(), &self.stream, count).await
    }
}
