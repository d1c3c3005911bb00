//! `kill -9` and SIGTERM under load, again and again: what was acknowledged is there, was
//! announced and answered, and nothing is applied twice; after SIGTERM nothing is even sent twice.
//!
//! Publishers ask without pause and ask again (same `event_id`) when the connection broke. Approvers
//! answer what the webhook receiver is told, sometimes two of them with different answers at once.
//! Receiver and host refuse every tenth message, so that retries are under way at each kill.

use crate::bed::{
    QUICK, all_of, answer, bare, http_route, published, settled_after_a_kill, webhook,
};
use answerback_testkit::receiver::Received;
use answerback_testkit::{Answer, Api, Daemon, PATIENCE, Receiver};
use http::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PUBLISHERS: u64 = 6;
const APPROVERS: u64 = 4;

/// Of an attempt. Not long: what a killed daemon had leased may stay so for this and a minute.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What the clients know.
#[derive(Default)]
struct Ledger {
    /// Every question that was ever sent, by its id, with its body.
    asked: HashMap<String, String>,
    /// Those that were acknowledged.
    acknowledged: BTreeSet<String>,
    /// The answers that were acknowledged, by question; more than one content is a fault.
    answered: BTreeMap<String, BTreeSet<String>>,
    /// Every answer that was ever tried.
    tried: HashMap<String, BTreeSet<String>>,
    faults: Vec<String>,
    redelivered: usize,
    refused: usize,
}

/// A daemon that is killed and comes back, as its clients see it.
#[derive(Clone)]
struct World {
    ledger: Arc<Mutex<Ledger>>,
    up: watch::Receiver<bool>,
    over: watch::Receiver<bool>,
    acks: Arc<watch::Sender<usize>>,
    url: String,
}

impl World {
    fn with<T>(&self, look: impl FnOnce(&mut Ledger) -> T) -> T {
        look(&mut self.ledger.lock().unwrap())
    }

    fn acked(&self) {
        self.acks.send_modify(|count| *count += 1);
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Posts once the daemon runs; `None` when the connection broke or the daemon was busy.
    async fn post(&mut self, api: &Api, path: &str, body: &str) -> Option<(u16, String)> {
        let _ = self.up.wait_for(|up| *up).await;
        let json = [("content-type", "application/json")];
        let reply = api.try_send(Method::POST, path, &json, body.to_owned().into()).await.ok()?;
        (reply.status != 503).then(|| (reply.status, reply.code()))
    }
}

async fn publisher(mut world: World, number: u64) {
    let api = Api::new(&world.url);
    for n in 0_u64.. {
        if world.is_over() {
            return;
        }
        // Few threads, so that their order matters to the announcer.
        let (thread, id) = (format!("t{number}-{}", n % 3), format!("q{number}-{n}"));
        let mut wait = published(&thread, &id, &format!("event-{id}"));
        wait["question"]["args"]["note"] = json!("x".repeat(usize::try_from(n % 7 * 100).unwrap()));
        let body = wait.to_string();
        world.with(|l| l.asked.insert(id.clone(), body.clone()));
        // Some callers give up after a broken connection; most ask again.
        for attempt in 0_u64..50 {
            match world.post(&api, "/v1/waits", &body).await {
                Some((202 | 200, _)) => {
                    world.with(|l| {
                        l.acknowledged.insert(id.clone());
                        l.redelivered += usize::from(attempt > 0);
                    });
                    world.acked();
                    break;
                }
                Some(other) => {
                    world.with(|l| l.faults.push(format!("publish {id}: {other:?}")));
                    break;
                }
                None if (n + attempt) % 4 == 3 => break,
                None => tokio::task::yield_now().await,
            }
        }
    }
}

async fn approver(
    mut world: World,
    number: u64,
    questions: Arc<tokio::sync::Mutex<mpsc::Receiver<Received>>>,
) {
    let (one, two) = (Api::new(&world.url), Api::new(&world.url));
    for n in 0_u64.. {
        let Some(question) = questions.lock().await.recv().await else { return };
        // Some questions stay open.
        if n % 5 == 4 {
            continue;
        }
        let asked = question.json();
        let (thread, id) =
            (asked["thread_id"].as_str().unwrap(), asked["question_id"].as_str().unwrap());
        let content = |who: &str| json!({"action": "approve", "by": format!("{who}-{number}-{n}")});
        if n % 3 == 0 {
            let mut rival = world.clone();
            let a = give(&mut world, &one, thread, id, content("a"));
            let b = give(&mut rival, &two, thread, id, content("b"));
            tokio::join!(a, b);
        } else {
            give(&mut world, &one, thread, id, content("a")).await;
        }
    }
}

/// Gives an answer until somebody says yes or no to it.
async fn give(world: &mut World, api: &Api, thread: &str, id: &str, content: Value) {
    let body = answer(thread, id, content.clone()).to_string();
    let content = content.to_string();
    world.with(|l| l.tried.entry(id.to_owned()).or_default().insert(content.clone()));
    for _ in 0..50 {
        match world.post(api, "/v1/answers", &body).await {
            Some((200, _)) => {
                world.with(|l| l.answered.entry(id.to_owned()).or_default().insert(content));
                world.acked();
                return;
            }
            Some((409, code)) if code == "wait-closed" => {
                world.with(|l| l.refused += 1);
                return;
            }
            Some(other) => {
                world.with(|l| l.faults.push(format!("answer {id}: {other:?}")));
                return;
            }
            None => tokio::task::yield_now().await,
        }
    }
}

fn is_refused(before: usize) -> bool {
    before % 10 == 9
}

fn refuses_every_tenth(_: &Received, before: usize) -> Answer {
    Answer::status(if is_refused(before) { 503 } else { 200 })
}

/// 0 to `below`, from a seed that is printed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a whole number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_under_load_nothing_acknowledged_is_lost_and_nothing_is_applied_twice() {
    let rounds = number_from("ANSWERBACK_CRASH_ROUNDS").unwrap_or(15);
    storm(rounds, End::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_under_load_nothing_acknowledged_is_lost_and_nothing_is_sent_twice() {
    storm(4, End::Stopped).await;
}

/// How the daemon's lives end.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    /// `kill -9`.
    Killed,
    /// SIGTERM, and the time to finish.
    Stopped,
}

async fn storm(rounds: u64, end: End) {
    let seed = number_from("ANSWERBACK_CRASH_SEED")
        .unwrap_or_else(|| u64::try_from(crate::bed::now().millis()).unwrap());
    let mut dice = Dice(seed | 1);
    let hook = Arc::new(Receiver::start().await);
    let host = Receiver::start().await;
    hook.answer_with(refuses_every_tenth);
    host.answer_with(refuses_every_tenth);
    let quick = format!("{QUICK}\ntimeout = \"{}s\"", TIMEOUT.as_secs());
    let mut daemon = bare()
        .config(&webhook("hook", &hook.url("/"), &quick))
        .config(&http_route("host", &host.url("/"), &quick))
        .start()
        .await;

    let (up, is_up) = watch::channel(true);
    let (over, is_over) = watch::channel(false);
    let (acks, mut acked) = watch::channel(0_usize);
    let world = World {
        ledger: Arc::default(),
        up: is_up,
        over: is_over,
        acks: Arc::new(acks),
        url: daemon.url(""),
    };
    let (ask, questions) = mpsc::channel(10_000);
    let questions = Arc::new(tokio::sync::Mutex::new(questions));
    let mut clients = JoinSet::new();
    for number in 0..PUBLISHERS {
        clients.spawn(publisher(world.clone(), number));
    }
    for number in 0..APPROVERS {
        clients.spawn(approver(world.clone(), number, Arc::clone(&questions)));
    }
    let teller = tokio::spawn({
        let hook = Arc::clone(&hook);
        async move {
            loop {
                let question = hook.next().await;
                if ask.send(question).await.is_err() {
                    return;
                }
            }
        }
    });

    for _ in 0..rounds {
        // Somewhere in the middle of the work: after so many more acknowledgements.
        let target = *acked.borrow_and_update() + 1 + usize::try_from(dice.roll(150)).unwrap();
        let enough = acked.wait_for(|count| *count >= target);
        timeout(PATIENCE, enough).await.expect("the load goes on after a restart").unwrap();
        if end == End::Stopped {
            daemon.signal("TERM").await;
            up.send_replace(false);
            assert_eq!(daemon.exit().await.code(), Some(0));
        }
        up.send_replace(false);
        // Killed unless it has ended, started again on the same file, ready.
        daemon = daemon.restart().await;
        up.send_replace(true);
    }
    over.send_replace(true);
    teller.abort();
    let _ = teller.await;
    // The approvers end when nobody tells them of questions any more.
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    settled_after_a_kill(&daemon, TIMEOUT).await;

    let faults = world.with(|ledger| std::mem::take(&mut ledger.faults));
    assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    let waits = all_of(daemon.api(), "/v1/waits").await;
    let counts = world.with(|ledger| judge(ledger, &waits, &hook.all(), &host.all(), seed));
    let stored = stored_answers(&daemon, &waits).await;
    world.with(|ledger| judge_answers(ledger, &stored, &host.all(), seed));
    if end == End::Stopped {
        taken_once(&hook.all(), seed);
        taken_once(&host.all(), seed);
    }
    eprintln!("{rounds} times {end:?}, seed {seed}: {counts}");
    // What was ended in the middle was not only idling.
    assert!(world.with(|l| l.acknowledged.len() as u64 >= rounds), "too little load");
}

/// Every message was taken once: what was refused may come again, the rest may not.
fn taken_once(received: &[Received], seed: u64) {
    let mut taken = BTreeSet::new();
    for (before, request) in received.iter().enumerate() {
        let key = request.header("x-agent-wait-dedupe-key");
        assert!(is_refused(before) || taken.insert(key), "seed {seed}: {key} was sent twice");
    }
}

/// Waits against what the publishers and the receivers know.
fn judge(
    ledger: &Ledger,
    waits: &[Value],
    announced: &[Received],
    delivered: &[Received],
    seed: u64,
) -> String {
    let present: BTreeSet<String> =
        waits.iter().map(|w| w["question_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(present.len(), waits.len(), "seed {seed}: one generation each");
    let lost: Vec<_> = ledger.acknowledged.difference(&present).collect();
    assert!(lost.is_empty(), "seed {seed}: acknowledged and lost: {lost:?}");
    assert!(present.iter().all(|id| ledger.asked.contains_key(id)), "seed {seed}: invented");
    let mut heard: HashMap<String, usize> = HashMap::new();
    for request in announced {
        let id = request.json()["question_id"].as_str().unwrap().to_owned();
        assert_eq!(request.header("x-agent-wait-dedupe-key"), format!("wait.created:{id}"));
        assert_eq!(request.text(), ledger.asked[&id], "seed {seed}: changed on its way");
        *heard.entry(id).or_default() += 1;
    }
    let silent: Vec<_> = present.iter().filter(|id| !heard.contains_key(*id)).collect();
    assert!(silent.is_empty(), "seed {seed}: never announced: {silent:?}");
    format!(
        "{} waits acknowledged of {} asked ({} by asking again), {} stored, {} announcements received; \
         {} answers acknowledged, {} refused as closed, {} deliveries received",
        ledger.acknowledged.len(),
        ledger.asked.len(),
        ledger.redelivered,
        present.len(),
        announced.len(),
        ledger.answered.len(),
        ledger.refused,
        delivered.len(),
    )
}

async fn stored_answers(daemon: &Daemon, waits: &[Value]) -> BTreeMap<String, Value> {
    let mut stored = BTreeMap::new();
    for wait in waits {
        let id = wait["question_id"].as_str().unwrap().to_owned();
        if wait["state"] == "completed" {
            let wait = daemon.api().get(&format!("/v1/waits/{id}")).await.expect(200).json();
            assert_eq!(wait["deliveries"].as_array().unwrap().len(), 1, "{wait}");
            assert_eq!(wait["deliveries"][0]["state"], "delivered", "{wait}");
            stored.insert(id, wait["answer"]["message"].clone());
        }
    }
    stored
}

/// Answers against what the approvers and the host know.
fn judge_answers(
    ledger: &Ledger,
    stored: &BTreeMap<String, Value>,
    delivered: &[Received],
    seed: u64,
) {
    for (id, contents) in &ledger.answered {
        assert_eq!(contents.len(), 1, "seed {seed}: two answers accepted for {id}: {contents:?}");
        let message = stored.get(id);
        let message = message.unwrap_or_else(|| panic!("seed {seed}: {id} lost its answer"));
        assert!(contents.contains(&message["answer"].to_string()), "seed {seed}: {id}: {message}");
    }
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for request in delivered {
        let body = request.json();
        let id = body["question_id"].as_str().unwrap().to_owned();
        assert_eq!(request.header("x-agent-wait-dedupe-key"), format!("wait.answered:{id}"));
        assert_eq!(Some(&body), stored.get(&id), "seed {seed}: not the winning answer");
        assert!(ledger.tried[&id].contains(&body["answer"].to_string()), "seed {seed}: invented");
        taken.insert(id);
    }
    assert!(stored.keys().all(|id| taken.contains(id)), "seed {seed}: the host was not told");
}
