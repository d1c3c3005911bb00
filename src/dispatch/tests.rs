//! The lanes over a real store in memory and outlets that do as they are told.

use super::{Dispatcher, LaneConfig, LaneLimits, Outgoing, Outlet, ReplyLanes};
use crate::clock::{self, Clock, SystemClock};
use crate::store::sqlite::{Location, SqliteOptions, SqliteStore};
use crate::store::{OutboxFilter, OutboxRow, Retried, Retry, Store};
use answerback_contract::{
    Attempt, Bytes, Event, Limits, Message, Outcome, Rejection, TenantId, async_trait,
};
use answerback_core::breaker::Threshold;
use answerback_core::retry::Schedule;
use answerback_core::{
    AnnouncerRule, Destination, Envelope, Name, OutboxState, Publish, Rules, matching::Matcher,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Far beyond what any of these tests takes; only a hang meets it.
const PATIENCE: Duration = Duration::from_secs(20);

type Script = dyn Fn(&Message, u32) -> Outcome + Send + Sync;

/// Answers by a script and tells what it was sent.
struct Scripted {
    script: Box<Script>,
    seen: mpsc::Sender<(String, u32)>,
    batch: usize,
}

#[async_trait]
impl Outlet for Scripted {
    fn limits(&self) -> Limits {
        Limits { batch_messages: self.batch, batch_bytes: 1 << 20, message_bytes: 1 << 20 }
    }

    fn bytes_of(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn send(&self, batch: &[Outgoing], _attempt: Attempt) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for out in batch {
            let outcome = (self.script)(&out.message, out.leased.attempts);
            let seen = (out.message.question_id.to_string(), out.leased.attempts);
            self.seen.send(seen).await.unwrap();
            outcomes.push(outcome);
        }
        outcomes
    }
}

/// Never answers.
struct Hanging(mpsc::Sender<()>);

#[async_trait]
impl Outlet for Hanging {
    fn limits(&self) -> Limits {
        Limits { batch_messages: 1, batch_bytes: 1 << 20, message_bytes: 1 << 20 }
    }

    fn bytes_of(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn send(&self, _batch: &[Outgoing], _attempt: Attempt) -> Vec<Outcome> {
        self.0.send(()).await.unwrap();
        std::future::pending().await
    }
}

struct NoReplies;

impl ReplyLanes for NoReplies {
    fn lane(&self, destination: &Destination) -> LaneConfig {
        unreachable!("no test here queues for {destination:?}")
    }
}

fn rules(names: &[&str]) -> Arc<Rules> {
    let announcers = names.iter().map(|name| AnnouncerRule {
        name: Name::new(name),
        tenant: TenantId::default_tenant(),
        matcher: Matcher::default(),
        events: vec![Event::Created],
        follows_state: false,
        ordered: true,
    });
    Arc::new(Rules { announcers: announcers.collect(), ..Rules::default() })
}

fn store(names: &[&str]) -> Arc<dyn Store> {
    let mint = Arc::new(|| clock::fresh_event_id(&SystemClock));
    let options = SqliteOptions { location: Location::Memory, rules: rules(names), mint };
    Arc::new(SqliteStore::open(options).unwrap())
}

fn announcer(name: &str) -> Destination {
    Destination::Announcer(Name::new(name))
}

fn lane(name: &str, outlet: Arc<dyn Outlet>) -> LaneConfig {
    LaneConfig {
        destination: announcer(name),
        outlet,
        limits: LaneLimits {
            max_in_flight: 4,
            max_bytes: 2_048,
            attempt_timeout: Duration::from_secs(10),
        },
        schedule: Schedule {
            initial: Duration::from_millis(2),
            max: Duration::from_millis(10),
            max_age: Duration::from_secs(3_600),
        },
        breaker: Threshold {
            failures: 1_000,
            pause: Duration::from_millis(5),
            max_pause: Duration::from_millis(5),
        },
        include_answer: false,
    }
}

fn scripted(
    batch: usize,
    script: impl Fn(&Message, u32) -> Outcome + Send + Sync + 'static,
) -> (Arc<Scripted>, mpsc::Receiver<(String, u32)>) {
    let (seen, receiver) = mpsc::channel(10_000);
    (Arc::new(Scripted { script: Box::new(script), seen, batch }), receiver)
}

async fn start(store: &Arc<dyn Store>, lanes: Vec<LaneConfig>) -> Dispatcher {
    Dispatcher::start(Arc::clone(store), Arc::new(SystemClock), lanes, Arc::new(NoReplies))
        .await
        .unwrap()
}

async fn publish(store: &Arc<dyn Store>, dispatcher: Option<&Dispatcher>, asked: &[(&str, &str)]) {
    let batch = asked.iter().map(|(thread, question)| {
        let text = format!(
            r#"{{"type":"wait.created","thread_id":"{thread}","question_id":"{question}","question":1}}"#
        );
        let envelope = Envelope::parse(Bytes::from(text)).unwrap();
        let event_id = clock::fresh_event_id(&SystemClock);
        Publish { tenant: TenantId::default_tenant(), envelope, event_id }
    });
    let published = store.publish(batch.collect(), SystemClock.now()).await.unwrap();
    if let Some(dispatcher) = dispatcher {
        for one in published {
            dispatcher.nudge(&one.queued);
        }
    }
}

async fn seen<T>(receiver: &mut mpsc::Receiver<T>) -> T {
    tokio::time::timeout(PATIENCE, receiver.recv()).await.unwrap().unwrap()
}

/// Every announcement once all are in a final state, oldest first.
async fn finished(store: &Arc<dyn Store>) -> Vec<OutboxRow> {
    let filter = OutboxFilter::all(TenantId::default_tenant(), true, 10_000);
    let all_over = async {
        loop {
            let mut rows = store.list_outbox(filter.clone()).await.unwrap().found;
            if rows.iter().all(|row| row.state != OutboxState::Queued) {
                rows.reverse();
                return rows;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_over).await.unwrap()
}

#[tokio::test]
async fn what_was_queued_before_the_start_and_after_it_is_delivered_once() {
    let store = store(&["a"]);
    publish(&store, None, &[("t1", "q1"), ("t2", "q2")]).await;
    let (outlet, mut receiver) = scripted(10, |_, _| Outcome::Delivered);
    let dispatcher = start(&store, vec![lane("a", outlet)]).await;
    publish(&store, Some(&dispatcher), &[("t3", "q3")]).await;
    let rows = finished(&store).await;
    assert!(rows.iter().all(|row| row.state == OutboxState::Delivered && row.attempts == 1));
    assert!(dispatcher.drain(PATIENCE).await);
    let mut questions = Vec::new();
    while let Ok((question, _)) = receiver.try_recv() {
        questions.push(question);
    }
    questions.sort();
    assert_eq!(questions, ["q1", "q2", "q3"]);
}

#[tokio::test]
async fn a_failing_message_holds_back_its_own_thread_only_and_keeps_its_order() {
    let store = store(&["a"]);
    let (outlet, mut receiver) =
        scripted(1, |message, attempts| match (message.question_id.as_str(), attempts) {
            ("slow-1", 0..5) => Outcome::retry("not yet"),
            _ => Outcome::Delivered,
        });
    let dispatcher = start(&store, vec![lane("a", outlet)]).await;
    let asked = [
        ("slow", "slow-1"),
        ("slow", "slow-2"),
        ("slow", "slow-3"),
        ("other", "o-1"),
        ("other", "o-2"),
    ];
    publish(&store, Some(&dispatcher), &asked).await;
    let rows = finished(&store).await;
    assert!(rows.iter().all(|row| row.state == OutboxState::Delivered));
    assert_eq!(rows[0].attempts, 6);
    let mut order = Vec::new();
    while let Ok((question, _)) = receiver.try_recv() {
        order.push(question);
    }
    let of = |thread: &str| -> Vec<&str> {
        order.iter().map(String::as_str).filter(|q| q.starts_with(thread)).collect()
    };
    assert_eq!(
        of("slow"),
        ["slow-1"; 6].into_iter().chain(["slow-2", "slow-3"]).collect::<Vec<_>>()
    );
    assert_eq!(of("o-"), ["o-1", "o-2"]);
    drop(dispatcher);
}

#[tokio::test]
async fn a_hanging_destination_delays_no_other() {
    let store = store(&["dead", "alive"]);
    let (hung, mut hanging) = mpsc::channel(100);
    let (outlet, mut receiver) = scripted(1, |_, _| Outcome::Delivered);
    let lanes = vec![lane("dead", Arc::new(Hanging(hung))), lane("alive", outlet)];
    let dispatcher = start(&store, lanes).await;
    let questions: Vec<String> = (0..50).map(|n| format!("q{n}")).collect();
    let asked: Vec<(&str, &str)> = questions.iter().map(|q| (q.as_str(), q.as_str())).collect();
    publish(&store, Some(&dispatcher), &asked).await;
    for _ in 0..50 {
        seen(&mut receiver).await;
    }
    for _ in 0..4 {
        seen(&mut hanging).await;
    }
    assert!(hanging.try_recv().is_err(), "no more than max_in_flight are under way");
    assert!(!dispatcher.drain(Duration::from_millis(50)).await, "the hanging ones do not end");
}

#[tokio::test]
async fn what_still_hangs_when_the_grace_is_over_is_free_for_others_at_once() {
    let store = store(&["a"]);
    let (hung, mut hanging) = mpsc::channel(100);
    let dispatcher = start(&store, vec![lane("a", Arc::new(Hanging(hung)))]).await;
    publish(&store, Some(&dispatcher), &[("t", "q")]).await;
    seen(&mut hanging).await;
    assert!(!dispatcher.drain(Duration::from_millis(50)).await);

    let (outlet, mut receiver) = scripted(1, |_, _| Outcome::Delivered);
    let next = start(&store, vec![lane("a", outlet)]).await;
    seen(&mut receiver).await;
    assert!(next.drain(PATIENCE).await);
}

#[tokio::test]
async fn refused_and_too_large_messages_are_dead_and_an_operator_can_send_them_again() {
    let store = store(&["a"]);
    // A message that is sent again counts its attempts from 0.
    let refused = std::sync::atomic::AtomicBool::new(false);
    let (outlet, _receiver) = scripted(10, move |message, _| {
        if message.question_id.as_str() == "bad"
            && !refused.swap(true, std::sync::atomic::Ordering::SeqCst)
        {
            return Outcome::refused("no such thing");
        }
        Outcome::Delivered
    });
    let dispatcher = start(&store, vec![lane("a", outlet)]).await;
    let large = "x".repeat(2_000);
    publish(&store, Some(&dispatcher), &[("t", "bad"), (&large, &large), ("t", "good")]).await;
    let rows = finished(&store).await;
    assert_eq!(rows[0].reason.as_deref(), Some("refused"));
    assert_eq!(rows[1].reason.as_deref(), Some("too-large"));
    assert_eq!(rows[2].state, OutboxState::Delivered);
    let retried = store
        .retry(TenantId::default_tenant(), Retry::Announcement(rows[0].id), SystemClock.now())
        .await
        .unwrap();
    let Retried::Queued(1, destinations) = retried else { panic!("{retried:?}") };
    dispatcher.nudge(&destinations);
    let again = &finished(&store).await[0];
    assert_eq!(again.state, OutboxState::Delivered, "{again:?}");
}

#[tokio::test]
async fn an_open_breaker_lets_one_message_try_and_closes_when_it_passes() {
    let store = store(&["a"]);
    let up = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let switch = Arc::clone(&up);
    let (outlet, mut receiver) = scripted(1, move |_, _| {
        if switch.load(std::sync::atomic::Ordering::SeqCst) {
            Outcome::Delivered
        } else {
            Outcome::retry("down")
        }
    });
    let mut config = lane("a", outlet);
    config.limits.max_in_flight = 1;
    config.breaker.failures = 3;
    config.breaker.pause = Duration::from_millis(30);
    config.breaker.max_pause = Duration::from_millis(30);
    let dispatcher = start(&store, vec![config]).await;
    let questions: Vec<String> = (0..200).map(|n| format!("q{n}")).collect();
    let asked: Vec<(&str, &str)> = questions.iter().map(|q| (q.as_str(), q.as_str())).collect();
    let began = SystemClock.now();
    publish(&store, Some(&dispatcher), &asked).await;
    for _ in 0..6 {
        seen(&mut receiver).await;
    }
    let took = began.until(SystemClock.now());
    assert!(took >= Duration::from_millis(90), "three trials, a pause before each: {took:?}");
    up.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(finished(&store).await.iter().all(|row| row.state == OutboxState::Delivered));
}

#[tokio::test]
async fn a_destination_that_is_gone_pauses_until_it_is_woken() {
    let store = store(&["a"]);
    let first = std::sync::atomic::AtomicBool::new(true);
    let (outlet, mut receiver) = scripted(1, move |_, _| {
        if first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            Outcome::Rejected { rejection: Rejection::Gone, reason: "410".to_owned() }
        } else {
            Outcome::Delivered
        }
    });
    let mut config = lane("a", outlet);
    config.limits.max_in_flight = 1;
    let dispatcher = start(&store, vec![config]).await;
    publish(&store, Some(&dispatcher), &[("t1", "q1")]).await;
    seen(&mut receiver).await;
    assert_eq!(finished(&store).await[0].reason.as_deref(), Some("gone"));
    let paused = async {
        while store.paused().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, paused).await.unwrap();
    publish(&store, Some(&dispatcher), &[("t2", "q2")]).await;
    let what = Retry::Announcer(Name::new("a"));
    let retried = store.retry(TenantId::default_tenant(), what, SystemClock.now()).await.unwrap();
    assert!(matches!(retried, Retried::Queued(1, _)), "{retried:?}");
    assert!(receiver.try_recv().is_err(), "nothing is sent until the lane is woken");
    // The lane's own pause may be stored only now.
    store.set_paused(announcer("a"), true).await.unwrap();
    dispatcher.wake(&announcer("a"));
    let mut questions = [seen(&mut receiver).await.0, seen(&mut receiver).await.0];
    questions.sort();
    assert_eq!(questions, ["q1", "q2"]);
    assert!(store.paused().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_under_way_finishes_when_it_stops_and_the_rest_waits_for_the_next_start() {
    let store = store(&["a"]);
    let (began, mut begun) = mpsc::channel(100);
    let release = Arc::new(tokio::sync::Semaphore::new(0));

    struct Gated(mpsc::Sender<()>, Arc<tokio::sync::Semaphore>);

    #[async_trait]
    impl Outlet for Gated {
        fn limits(&self) -> Limits {
            Limits { batch_messages: 1, batch_bytes: 1 << 20, message_bytes: 1 << 20 }
        }

        fn bytes_of(&self, message: &Message) -> usize {
            message.payload.len()
        }

        async fn send(&self, batch: &[Outgoing], _attempt: Attempt) -> Vec<Outcome> {
            self.0.send(()).await.unwrap();
            self.1.acquire().await.unwrap().forget();
            vec![Outcome::Delivered; batch.len()]
        }
    }

    let outlet = Arc::new(Gated(began, Arc::clone(&release)));
    let dispatcher = start(&store, vec![lane("a", outlet)]).await;
    let questions: Vec<String> = (0..10).map(|n| format!("q{n}")).collect();
    let asked: Vec<(&str, &str)> = questions.iter().map(|q| (q.as_str(), q.as_str())).collect();
    publish(&store, Some(&dispatcher), &asked).await;
    for _ in 0..4 {
        seen(&mut begun).await;
    }
    let drained = tokio::spawn(async move { dispatcher.drain(PATIENCE).await });
    release.add_permits(100);
    assert!(drained.await.unwrap());
    let (outlet, mut receiver) = scripted(1, |_, _| Outcome::Delivered);
    let next = start(&store, vec![lane("a", outlet)]).await;
    let rows = finished(&store).await;
    assert!(rows.iter().all(|row| row.state == OutboxState::Delivered && row.attempts == 1));
    assert!(next.drain(PATIENCE).await);
    receiver.close();
    let mut later = 0;
    while receiver.recv().await.is_some() {
        later += 1;
    }
    assert!(later <= 6, "what was under way is not sent again: {later}");
}
