//! A stub of SQS, SNS and DynamoDB, for what no emulator does: AWS's own limits, and failures at will.
//!
//! Two modes. *Strict* keeps what it is sent and refuses what AWS refuses, with AWS's codes; each rule
//! stands beside the code that enforces it. *Fast* answers success with as little work as can be, and
//! counts: it is what a benchmark should not measure.

mod dynamodb;
mod expression;
mod fast;
mod faults;
mod item;
mod limits;
mod query;
mod sns;
mod sqs;

pub use fast::{Counts, FastAws};
pub use faults::{Fault, Service};
pub use sns::Published;
pub use sqs::SentMessage;

use crate::serve::{Cut, Incomer, Served, Server, anywhere, serve};
use crate::waiting::PATIENCE;
use bytes::Bytes;
use faults::Refusal;
use http::{HeaderMap, Response};
use http_body_util::Full;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The account in every ARN and queue URL.
pub const ACCOUNT: &str = "000000000000";

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which service.
    pub service: Service,
    /// Such as `SendMessageBatch`.
    pub operation: String,
    /// The body's bytes.
    pub body: Bytes,
    /// When its last byte was here.
    pub at: Instant,
}

type Rule = Arc<dyn Fn(&Call, usize) -> Option<Fault> + Send + Sync>;

struct Shared {
    world: Mutex<World>,
    rule: Mutex<Rule>,
    news: Notify,
}

#[derive(Default)]
struct World {
    endpoint: String,
    /// How far [`Aws::advance`] has moved the clock.
    ahead: Duration,
    calls: Vec<Call>,
    queues: BTreeMap<String, sqs::Queue>,
    topics: BTreeMap<String, sns::Topic>,
    tables: BTreeMap<String, dynamodb::Table>,
}

impl World {
    fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }
}

/// The strict stub; gone when dropped.
pub struct Aws {
    server: Server,
    shared: Arc<Shared>,
}

impl Aws {
    /// On a free loopback port.
    pub async fn strict() -> Self {
        let rule: Rule = Arc::new(|_, _| None);
        let shared = Arc::new(Shared {
            world: Mutex::default(),
            rule: Mutex::new(rule),
            news: Notify::new(),
        });
        let told = shared.clone();
        let server = serve(anywhere(), move |request| handle(told.clone(), request)).await;
        shared.world.lock().unwrap().endpoint = format!("http://{}", server.addr);
        Self { server, shared }
    }

    /// What goes into `endpoint_url`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    /// Creates a queue, first in first out when the name ends in `.fifo`, and gives its URL.
    pub fn create_queue(&self, name: &str) -> String {
        self.shared.world.lock().unwrap().queues.insert(name.to_owned(), sqs::Queue::new(name));
        format!("{}/{ACCOUNT}/{name}", self.endpoint())
    }

    /// Creates a topic, first in first out when the name ends in `.fifo`, and gives its ARN.
    pub fn create_topic(&self, name: &str) -> String {
        let arn = format!("arn:aws:sns:us-east-1:{ACCOUNT}:{name}");
        self.shared.world.lock().unwrap().topics.insert(arn.clone(), sns::Topic::new(name));
        arn
    }

    /// Creates a table with the string keys `pk` and `sk`.
    pub fn create_table(&self, name: &str) {
        let table = dynamodb::Table::default();
        self.shared.world.lock().unwrap().tables.insert(name.to_owned(), table);
    }

    /// From now on `rule` decides which calls fail, and how; it sees the call and how many came before.
    pub fn fail_with(&self, rule: impl Fn(&Call, usize) -> Option<Fault> + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap() = Arc::new(rule);
    }

    /// Moves the stub's clock, for the five minutes of deduplication.
    pub fn advance(&self, by: Duration) {
        self.shared.world.lock().unwrap().ahead += by;
    }

    /// Every call so far, failed ones too.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.world.lock().unwrap().calls.clone()
    }

    /// The messages that stand in a queue, by its name or URL.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<SentMessage> {
        let name = queue.rsplit('/').next().unwrap_or(queue);
        let world = self.shared.world.lock().unwrap();
        world.queues.get(name).map(|q| q.messages.clone()).unwrap_or_default()
    }

    /// How many messages a first-in-first-out queue has swallowed as duplicates.
    #[must_use]
    pub fn swallowed(&self, queue: &str) -> usize {
        let name = queue.rsplit('/').next().unwrap_or(queue);
        self.shared.world.lock().unwrap().queues.get(name).map_or(0, |q| q.window.swallowed)
    }

    /// What was published to a topic.
    #[must_use]
    pub fn published(&self, topic_arn: &str) -> Vec<Published> {
        let world = self.shared.world.lock().unwrap();
        world.topics.get(topic_arn).map(|t| t.published.clone()).unwrap_or_default()
    }

    /// The items of a table, as attribute values, by `pk` and `sk`.
    #[must_use]
    pub fn items(&self, table: &str) -> Vec<Value> {
        let world = self.shared.world.lock().unwrap();
        world.tables.get(table).map(dynamodb::Table::items).unwrap_or_default()
    }

    /// Waits until `look` finds something; it looks after every call.
    ///
    /// # Panics
    /// When it has not within [`PATIENCE`], naming `what` and the calls so far.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let found = timeout(PATIENCE, async {
            loop {
                let news = self.shared.news.notified();
                if let Some(found) = look(self) {
                    return found;
                }
                news.await;
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => {
                let calls: Vec<String> = self.calls().iter().map(|c| c.operation.clone()).collect();
                panic!("not within {PATIENCE:?}: {what}; calls so far: {calls:?}")
            }
        }
    }
}

async fn handle(shared: Arc<Shared>, request: Incomer) -> Served {
    let (service, operation) = match faults::addressed(&request.headers, &request.body) {
        Ok(found) => found,
        Err(why) => {
            let refusal = Refusal::sender("UnknownOperationException", why);
            return Ok(render(Service::Sqs, Err(refusal)));
        }
    };
    let call = Call { service, operation, body: request.body, at: Instant::now() };
    let rule = shared.rule.lock().unwrap().clone();
    let before = {
        let mut world = shared.world.lock().unwrap();
        world.calls.push(call.clone());
        world.calls.len() - 1
    };
    let fault = rule(&call, before);
    let result = match &fault {
        Some(Fault::Hang(gate)) => {
            shared.news.notify_waiters();
            gate.pass().await;
            act(&shared, &call, &request.headers, &[])
        }
        Some(Fault::Refuse(refusal)) => Err(refusal.clone()),
        Some(Fault::Entries(entries)) => act(&shared, &call, &request.headers, entries),
        Some(Fault::Cut) => Err(Refusal::internal()),
        Some(Fault::LoseAnswer) | None => act(&shared, &call, &request.headers, &[]),
    };
    shared.news.notify_waiters();
    match fault {
        Some(Fault::Cut | Fault::LoseAnswer) => Err(Cut),
        _ => Ok(render(service, result)),
    }
}

/// Entries of a batch that are to fail: place in the batch, code, whether the sender is to blame.
type Failing = [(usize, &'static str, bool)];

fn act(
    shared: &Shared,
    call: &Call,
    headers: &HeaderMap,
    failing: &Failing,
) -> Result<String, Refusal> {
    faults::signed(headers, call.service)?;
    let mut world = shared.world.lock().unwrap();
    match call.service {
        Service::Sqs => sqs::act(&mut world, &call.operation, &call.body, failing),
        Service::Sns => sns::act(&mut world, &call.operation, &call.body, failing),
        Service::DynamoDb => dynamodb::act(&mut world, &call.operation, &call.body),
    }
}

fn render(service: Service, result: Result<String, Refusal>) -> Response<Full<Bytes>> {
    let (status, body) = match result {
        Ok(body) => (200, body),
        Err(refusal) => (refusal.status, refusal.render(service)),
    };
    let kind = if service == Service::Sns { "text/xml" } else { "application/x-amz-json-1.0" };
    Response::builder()
        .status(status)
        .header("content-type", kind)
        .header("x-amzn-requestid", "stub")
        .body(Full::new(body.into()))
        .expect("a valid answer")
}

#[cfg(test)]
mod tests;
