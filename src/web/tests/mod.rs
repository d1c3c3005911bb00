//! The API in one process, over a real store, with a clock that is moved by hand. What does not
//! need that is tried on the real daemon, in `tests/it`.

mod answers;
mod asking;
mod entry;
mod events;
mod keyed;
mod lists;
mod serving;

use super::{ApiState, Auth, Front};
use crate::answers::Deadlines;
use crate::clock::{Clock, ManualClock};
use crate::config::{self, ApiKey, Scope, Scopes};
use crate::dispatch::{Dispatcher, LaneConfig, ReplyLanes};
use crate::intake::{Intake, Watchers};
use crate::store::sqlite::{Location, SqliteOptions, SqliteStore};
use crate::store::{LeaseRequest, Settled, Settlement, Store};
use answerback_contract::{Event, EventId, TenantId, Time};
use answerback_core::{AnnouncerRule, Destination, Name, Rules};
use axum::body::{Body, Bytes};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const KEY: &str = "admin-key-of-the-default-tenant";
const JSON: (&str, &str) = ("content-type", "application/json");

/// No envelope of these tests names a place for its answer.
struct NoReplies;

impl ReplyLanes for NoReplies {
    fn lane(&self, destination: &Destination) -> LaneConfig {
        panic!("a lane for {destination:?}")
    }
}

/// The API and what it stands on.
struct Bench {
    front: Front,
    clock: ManualClock,
    store: Arc<SqliteStore>,
    deadlines: Deadlines,
    dispatcher: Dispatcher,
    watchers: Watchers,
    drain: CancellationToken,
}

struct Got {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|v| v.to_str().unwrap()).unwrap_or_default()
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    #[track_caller]
    fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{}", self.text());
        self
    }
}

/// One key of every scope in the default tenant, one of another tenant.
fn keys() -> config::Auth {
    let key = |name: &str, secret: &str, scopes: &[Scope], tenant: &str| ApiKey {
        name: name.into(),
        secret: secret.into(),
        scopes: Scopes::of(scopes),
        tenant: TenantId::new(tenant).unwrap(),
    };
    config::Auth {
        keys: vec![
            key("ops", KEY, &[Scope::Admin], "default"),
            key("agents", "k-publish", &[Scope::Publish], "default"),
            key("people", "k-answer", &[Scope::Answer], "default"),
            key("eyes", "k-read", &[Scope::Read], "default"),
            key("others", "k-other", &[Scope::Admin], "other"),
        ],
        ..config::Auth::default()
    }
}

/// Two announcers that are told of everything in the default tenant.
fn rules() -> Rules {
    let announcer = |name: &str| AnnouncerRule {
        name: Name::new(name),
        tenant: TenantId::default_tenant(),
        matcher: answerback_core::matching::Matcher::default(),
        events: vec![Event::Created],
        follows_state: false,
        ordered: true,
    };
    Rules { announcers: vec![announcer("a"), announcer("b")], ..Rules::default() }
}

impl Bench {
    async fn new() -> Self {
        Self::with(keys(), rules()).await
    }

    async fn with(auth: config::Auth, rules: Rules) -> Self {
        let clock = ManualClock::new(Time::from_millis(1_800_000_000_000));
        Self::on(auth, rules, clock.clone(), Arc::new(clock)).await
    }

    async fn on(
        auth: config::Auth,
        rules: Rules,
        clock: ManualClock,
        read: Arc<dyn Clock>,
    ) -> Self {
        let rules = Arc::new(rules);
        let count = AtomicU64::new(0);
        let mint = move || EventId::new(&format!("e{}", count.fetch_add(1, Ordering::SeqCst)));
        let store = Arc::new(
            SqliteStore::open(SqliteOptions {
                location: Location::Memory,
                rules: Arc::clone(&rules),
                mint: Arc::new(move || mint().unwrap()),
            })
            .unwrap(),
        );
        let dispatcher =
            Dispatcher::start(store.clone(), Arc::clone(&read), Vec::new(), Arc::new(NoReplies))
                .await
                .unwrap();
        let (deadlines, watchers) = (Deadlines::default(), Watchers::default());
        let drain = CancellationToken::new();
        let front = Front::new(ApiState {
            store: store.clone(),
            intake: Intake::new(
                store.clone(),
                Arc::clone(&read),
                dispatcher.clone(),
                deadlines.clone(),
                watchers.clone(),
            ),
            clock: read,
            auth: Auth::new(&auth),
            rules,
            metrics: PrometheusBuilder::new().build_recorder().handle(),
            drain: drain.clone(),
        });
        Self { front, clock, store, deadlines, dispatcher, watchers, drain }
    }

    /// A request as it is, from this machine.
    async fn raw(&self, request: Request<Body>) -> Got {
        self.raw_from("127.0.0.1:40000", request).await
    }

    async fn raw_from(&self, peer: &str, request: Request<Body>) -> Got {
        let peer: SocketAddr = peer.parse().unwrap();
        let (parts, body) = self.front.handle(peer, request).await.into_parts();
        // A stream has no end: its body is let go unread.
        let is_stream = parts.headers.get("content-type").is_some_and(|v| v == "text/event-stream");
        let body = if is_stream { Body::empty() } else { body };
        let body = body.collect().await.unwrap().to_bytes();
        Got { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Got {
        self.raw(request(method, target, headers, body)).await
    }

    /// With the key that may do everything.
    async fn get(&self, target: &str) -> Got {
        self.send("GET", target, &[bearer(KEY)], Body::empty()).await
    }

    async fn delete(&self, target: &str) -> Got {
        self.send("DELETE", target, &[bearer(KEY)], Body::empty()).await
    }

    async fn post(&self, target: &str, body: impl Into<Body>) -> Got {
        self.send("POST", target, &[bearer(KEY), JSON], body).await
    }

    /// Asks a question with nothing special about it.
    async fn ask(&self, thread: &str, question: &str) -> Got {
        self.post("/v1/waits", envelope(thread, question, "")).await.expect(202)
    }

    /// Ends what is due, as the daemon's own task does.
    async fn sweep(&self) {
        let stop = CancellationToken::new();
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let (dispatcher, watchers) = (self.dispatcher.clone(), self.watchers.clone());
        let deadlines = self.deadlines.clone();
        let run = deadlines.run(store, Arc::new(clock), dispatcher, watchers, stop.clone());
        stop.cancel();
        run.await;
    }

    /// Lets all that is queued for an announcer die.
    async fn kill(&self, announcer: &str) {
        let now = self.clock.now();
        let request = LeaseRequest {
            destination: Destination::Announcer(Name::new(announcer)),
            limit: 100,
            bytes: usize::MAX,
            hold: Duration::from_secs(60),
        };
        let lease = self.store.lease(request, now).await.unwrap();
        assert!(!lease.messages.is_empty());
        let died = lease.messages.iter().map(|m| Settlement {
            id: m.id,
            lease: m.lease,
            settled: Settled::Dead { reason: "rejected", error: "HTTP 400".to_owned() },
        });
        self.store.settle(died.collect(), now).await.unwrap();
    }
}

fn bearer(key: &str) -> (&'static str, &str) {
    let text: &'static str = format!("Bearer {key}").leak();
    ("authorization", text)
}

fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(target)
        .header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, value.as_bytes());
    }
    request.body(body.into()).unwrap()
}

/// An envelope; `more` are further members, with a comma before each.
fn envelope(thread: &str, question: &str, more: &str) -> String {
    let quote = |text: &str| serde_json::to_string(text).unwrap();
    format!(
        "{{\"type\":\"wait.created\",\"thread_id\":{},\"question_id\":{},\"question\":{{\"n\":1.10}}{more}}}",
        quote(thread),
        quote(question)
    )
}

fn answer(thread: &str, question: &str, answer: &str) -> String {
    format!("{{\"thread_id\":\"{thread}\",\"question_id\":\"{question}\",\"answer\":{answer}}}")
}
