//! Fresh stores, and short words for what tests say often.

use answerback::contract::{
    Bytes, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, Via, WaitState,
};
use answerback::core::matching::Matcher;
use answerback::core::{
    AnnouncerRule, Answer, AnswerRequest, Destination, Envelope, Leased, Name, OutboxState,
    Publish, RouteRule, Rules, Wait,
};
use answerback::store::postgres::{PostgresOptions, PostgresStore};
use answerback::store::sqlite::{Location, Mint, SqliteOptions, SqliteStore};
use answerback::store::{
    FeedEvent, FeedRequest, Found, LeaseRequest, OutboxFilter, OutboxRow, Place, Published,
    Settled, Settlement, Store, WaitFilter, WaitQuery,
};
use answerback_testkit::postgres::{self, Database};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// Makes stores of one kind.
pub(crate) struct Kit {
    kind: Kind,
    made: AtomicU64,
}

enum Kind {
    Memory,
    Files(TempDir),
    /// Databases, removed with the kit; through the proxy that gives each transaction another
    /// connection, or directly.
    Databases {
        made: Mutex<Vec<Database>>,
        pooled: bool,
    },
}

impl Kit {
    pub(crate) fn memory() -> Self {
        Self::of(Kind::Memory)
    }

    pub(crate) fn file() -> Self {
        Self::of(Kind::Files(TempDir::new().unwrap()))
    }

    pub(crate) fn postgres() -> Self {
        Self::of(Kind::Databases { made: Mutex::default(), pooled: false })
    }

    pub(crate) fn pgbouncer() -> Self {
        Self::of(Kind::Databases { made: Mutex::default(), pooled: true })
    }

    fn of(kind: Kind) -> Self {
        Self { kind, made: AtomicU64::new(0) }
    }

    /// An empty store.
    pub(crate) async fn fresh(&self, rules: Rules) -> Arc<dyn Store> {
        let n = self.made.fetch_add(1, Ordering::Relaxed);
        match &self.kind {
            Kind::Memory => Arc::new(open(Location::Memory, rules)),
            Kind::Files(directory) => {
                let location = Location::File(directory.path().join(format!("{n}.db")));
                Arc::new(open(location, rules))
            }
            Kind::Databases { made, pooled } => {
                let database = postgres::database().await;
                let url = match pooled {
                    true => database.pgbouncer_url(),
                    false => database.url().to_owned(),
                };
                made.lock().unwrap().push(database);
                open_postgres(&url, rules).await
            }
        }
    }
}

pub(crate) async fn open_postgres(url: &str, rules: Rules) -> Arc<dyn Store> {
    let options = PostgresOptions {
        url: url.into(),
        listen_url: None,
        rules: Arc::new(rules),
        mint: Arc::new(fresh_event_id),
    };
    Arc::new(PostgresStore::open(options).await.unwrap())
}

static IDS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn fresh_event_id() -> EventId {
    EventId::new(&format!("minted-{}", IDS.fetch_add(1, Ordering::Relaxed))).unwrap()
}

pub(crate) fn open(location: Location, rules: Rules) -> SqliteStore {
    open_with(location, rules, Arc::new(fresh_event_id))
}

pub(crate) fn open_with(location: Location, rules: Rules, mint: Mint) -> SqliteStore {
    SqliteStore::open(SqliteOptions { location, rules: Arc::new(rules), mint }).unwrap()
}

pub(crate) fn open_file(path: &Path, rules: Rules) -> SqliteStore {
    open(Location::File(path.to_owned()), rules)
}

/// An instant some seconds into the test.
pub(crate) fn at(seconds: i64) -> Time {
    Time::from_millis(1_800_000_000_000 + seconds * 1_000)
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn days(n: u64) -> Duration {
    secs(n * 86_400)
}

pub(crate) fn tenant() -> TenantId {
    TenantId::default_tenant()
}

pub(crate) fn thread(id: &str) -> ThreadId {
    ThreadId::new(id).unwrap()
}

pub(crate) fn question(id: &str) -> QuestionId {
    QuestionId::new(id).unwrap()
}

pub(crate) fn generation(n: u32) -> Generation {
    Generation::new(n).unwrap()
}

pub(crate) fn announcer(name: &str) -> Destination {
    Destination::Announcer(Name::new(name))
}

pub(crate) fn route(name: &str) -> Destination {
    Destination::Route(Name::new(name))
}

/// Rules with announcers of `wait.created` by these names; `!` before a name makes it ordered, `*`
/// after it tells it of every event.
pub(crate) fn announcing(names: &[&str]) -> Rules {
    let rule = |name: &&str| {
        let ordered = name.starts_with('!');
        let all = name.ends_with('*');
        AnnouncerRule {
            name: Name::new(name.trim_matches(['!', '*'])),
            tenant: tenant(),
            matcher: Matcher::default(),
            events: if all { Event::ALL.to_vec() } else { vec![Event::Created] },
            follows_state: false,
            ordered,
        }
    };
    Rules { announcers: names.iter().map(rule).collect(), ..Rules::default() }
}

/// The same with a route for all answers.
pub(crate) fn routed(names: &[&str], route: &str) -> Rules {
    let route = RouteRule {
        name: Name::new(route),
        tenant: tenant(),
        matcher: Matcher::default(),
        pull: false,
    };
    Rules { routes: vec![route], ..announcing(names) }
}

/// A question, to be built up.
#[derive(Clone)]
pub(crate) struct Ask {
    tenant: TenantId,
    thread: String,
    question_id: String,
    question: String,
    event_id: Option<String>,
    more: String,
}

pub(crate) fn ask(thread: &str, question_id: &str) -> Ask {
    Ask {
        tenant: tenant(),
        thread: thread.to_owned(),
        question_id: question_id.to_owned(),
        question: "\"sure?\"".to_owned(),
        event_id: None,
        more: String::new(),
    }
}

impl Ask {
    pub(crate) fn question(mut self, json: &str) -> Self {
        json.clone_into(&mut self.question);
        self
    }

    pub(crate) fn event(mut self, id: &str) -> Self {
        self.event_id = Some(id.to_owned());
        self
    }

    pub(crate) fn with(mut self, key: &str, json: &str) -> Self {
        self.more.push_str(&format!(",\"{key}\":{json}"));
        self
    }

    pub(crate) fn expires(self, at: Time) -> Self {
        self.with("expires_at", &format!("\"{at}\""))
    }

    pub(crate) fn of(mut self, tenant: &str) -> Self {
        self.tenant = TenantId::new(tenant).unwrap();
        self
    }

    pub(crate) fn publish(&self) -> Publish {
        let text = format!(
            "{{\"type\":\"wait.created\",\"thread_id\":{:?},\"question_id\":{:?},\"question\":{}{}}}",
            self.thread, self.question_id, self.question, self.more
        );
        let envelope = Envelope::parse(Bytes::from(text)).unwrap();
        let event_id = match &self.event_id {
            Some(id) => EventId::new(id).unwrap(),
            None => fresh_event_id(),
        };
        Publish { tenant: self.tenant.clone(), envelope, event_id }
    }

    pub(crate) async fn send(&self, store: &dyn Store, now: Time) -> Published {
        store.publish(vec![self.publish()], now).await.unwrap().remove(0)
    }
}

pub(crate) fn answer(thread_id: &str, question_id: &str, json: &str) -> AnswerRequest {
    AnswerRequest {
        tenant: tenant(),
        answer: Answer {
            thread_id: thread(thread_id),
            question_id: question(question_id),
            generation: Generation::FIRST,
            value: Bytes::from(json.to_owned()),
            valid_until: None,
            answered_by: None,
        },
        answered_by: Some("approvers".to_owned()),
        via: Via::Api,
    }
}

pub(crate) async fn lease(
    store: &dyn Store,
    to: &Destination,
    limit: usize,
    now: Time,
) -> Vec<Leased> {
    store.lease(lease_request(to, limit), now).await.unwrap().messages
}

pub(crate) fn lease_request(to: &Destination, limit: usize) -> LeaseRequest {
    LeaseRequest { destination: to.clone(), limit, bytes: 1 << 20, hold: secs(60) }
}

pub(crate) fn settled(message: &Leased, settled: Settled) -> Settlement {
    Settlement { id: message.id, lease: message.lease, settled }
}

pub(crate) fn delivered(message: &Leased) -> Settlement {
    settled(message, Settled::Delivered)
}

pub(crate) fn dead(message: &Leased) -> Settlement {
    settled(message, Settled::Dead { reason: "refused", error: "no thanks".to_owned() })
}

pub(crate) fn retry_at(message: &Leased, at: Time) -> Settlement {
    settled(message, Settled::RetryAt { at, error: "busy".to_owned() })
}

/// Everything in the outbox, oldest first.
pub(crate) async fn outbox(store: &dyn Store) -> Vec<OutboxRow> {
    let mut rows = Vec::new();
    for announcements in [true, false] {
        let filter = OutboxFilter::all(tenant(), announcements, 10_000);
        rows.extend(store.list_outbox(filter).await.unwrap().found);
    }
    rows.sort_by_key(|row| row.id);
    rows
}

/// The same in short.
pub(crate) async fn traffic(store: &dyn Store) -> Vec<(String, &'static str, OutboxState)> {
    let rows = outbox(store).await;
    rows.iter()
        .map(|row| (row.destination.label().to_owned(), row.event.transition(), row.state))
        .collect()
}

pub(crate) fn seen(
    label: &str,
    transition: &'static str,
    state: OutboxState,
) -> (String, &'static str, OutboxState) {
    (label.to_owned(), transition, state)
}

pub(crate) fn any_wait() -> WaitFilter {
    WaitFilter::all(tenant(), 10_000)
}

/// Every wait's question id, generation and state, oldest first.
pub(crate) async fn waits(store: &dyn Store) -> Vec<(String, u32, WaitState)> {
    let mut waits = store.list_waits(any_wait()).await.unwrap().found;
    waits.reverse();
    let short = |w: &Arc<Wait>| (w.question_id.as_str().to_owned(), w.generation.get(), w.state);
    waits.iter().map(short).collect()
}

/// The default tenant's events after a place, as many as asked for.
pub(crate) fn feed_request(thread_id: Option<&str>, after: Place, limit: usize) -> FeedRequest {
    FeedRequest {
        tenant: tenant(),
        thread_id: thread_id.map(thread),
        after,
        limit,
        bytes: 64 << 20,
    }
}

/// Every event there is, of a thread or of all, oldest first.
pub(crate) async fn feed(store: &dyn Store, thread_id: Option<&str>) -> Vec<FeedEvent> {
    let mut events = Vec::new();
    let mut after = Place::START;
    loop {
        let feed = store.feed(feed_request(thread_id, after, 1_000)).await.unwrap();
        events.extend(feed.events);
        after = feed.next;
        if !feed.more {
            return events;
        }
    }
}

/// The newest wait of a question.
pub(crate) async fn wait(store: &dyn Store, thread_id: &str, question_id: &str) -> Arc<Wait> {
    let query = WaitQuery {
        tenant: tenant(),
        question_id: question(question_id),
        thread_id: Some(thread(thread_id)),
        generation: None,
    };
    match store.find(query).await.unwrap() {
        Found::One(wait) => wait,
        other => panic!("{other:?}"),
    }
}
