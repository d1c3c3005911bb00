//! Deadlines: on time, many at once, far away, long past, and racing against an answer.

use crate::bed::{all_of, answer, bare, envelope, http_route, later, now, settled, wait_path};
use answerback::contract::Time;
use answerback_testkit::{Daemon, PATIENCE, Receiver, eventually};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::timeout;

/// From one RFC 3339 time to another.
pub(crate) fn millis_between(from: &str, to: &str) -> i64 {
    let millis = |text: &str| Time::parse(text).unwrap().unwrap().millis();
    millis(to) - millis(from)
}

fn due(thread_id: &str, question_id: &str, expires_at: &str, default: Value) -> Value {
    let mut envelope = envelope(thread_id, question_id);
    envelope["expires_at"] = json!(expires_at);
    envelope["default"] = default;
    envelope
}

/// A daemon with a thousand waits that are due at once, soon; with the deadline. The more time to
/// publish them, the slower this machine.
async fn a_thousand_due(host: &Receiver) -> (Daemon, String) {
    for seconds in [6, 15, 40] {
        let route = http_route("host", &host.url("/"), "max_in_flight = 64");
        let daemon = bare().config(&route).start().await;
        let at = later(Duration::from_secs(seconds));
        let posts = (0..1_000).map(|n| {
            let (api, at) = (daemon.api().clone(), at.clone());
            async move {
                let wait = due(&format!("t{n}"), &format!("q{n}"), &at, json!({"n": n}));
                api.post("/v1/waits", &wait).await.expect(202);
            }
        });
        let publishing = stream::iter(posts).for_each_concurrent(32, |post| post);
        let in_time = Duration::from_secs(seconds).saturating_sub(Duration::from_millis(500));
        if timeout(in_time, publishing).await.is_ok() && host.all().is_empty() {
            return (daemon, at);
        }
        assert!(host.all().is_empty(), "before its time");
    }
    panic!("this machine cannot publish a thousand waits in 40 s");
}

#[tokio::test]
async fn a_thousand_that_fall_due_at_once_are_all_answered_within_a_second() {
    // Whatever else runs on this machine may make it late once or twice, but not each time.
    for attempt in 1..=3 {
        let latest = end_a_thousand().await;
        eprintln!("1,000 due at once: the last ended {latest} ms after the deadline");
        if latest <= 1_000 {
            return;
        }
        assert!(attempt < 3, "{latest} ms");
    }
}

/// How many milliseconds after their deadline the last of a thousand waits ended.
async fn end_a_thousand() -> i64 {
    let host = Receiver::start().await;
    let (daemon, at) = a_thousand_due(&host).await;
    for _ in 0..1_000 {
        // The first comes with the deadline.
        let request = host.recv(PATIENCE * 3).await.expect("an answer");
        assert_eq!(request.header("x-answerback-answered-via"), "default");
    }
    let mut latest = 0;
    for wait in all_of(daemon.api(), "/v1/waits?state=timed-out").await {
        let lag = millis_between(&at, wait["closed_at"].as_str().unwrap());
        assert!(lag >= 0, "{lag} ms: before its time");
        latest = latest.max(lag);
    }
    settled(&daemon).await;
    let answers: HashMap<String, Value> = host
        .all()
        .iter()
        .map(|r| (r.json()["question_id"].as_str().unwrap().to_owned(), r.json()["answer"].clone()))
        .collect();
    assert_eq!((answers.len(), host.all().len()), (1_000, 1_000), "each once");
    for n in 0..1_000 {
        assert_eq!(answers[&format!("q{n}")], json!({"n": n}));
    }
    latest
}

#[tokio::test]
async fn a_nearer_deadline_is_met_although_a_farther_one_was_known_first() {
    let host = Receiver::start().await;
    let daemon = bare().config(&http_route("host", &host.url("/"), "")).start().await;
    for (n, seconds) in [3_600, 60, 2, 1].into_iter().enumerate() {
        let at = later(Duration::from_secs(seconds));
        let wait = due("t", &format!("q{n}"), &at, json!(n));
        daemon.api().post("/v1/waits", &wait).await.expect(202);
    }
    for question in ["q3", "q2"] {
        let sent = host.next().await;
        assert_eq!(sent.json()["question_id"], question);
        let wait = daemon.api().get(&wait_path("t", question)).await.expect(200).json();
        let lag = millis_between(
            wait["expires_at"].as_str().unwrap(),
            wait["closed_at"].as_str().unwrap(),
        );
        assert!((0..=1_000).contains(&lag), "{lag} ms");
    }
}

#[tokio::test]
async fn without_a_default_nothing_is_sent_and_whoever_polls_is_told() {
    let host = Receiver::start().await;
    let daemon = bare().config(&http_route("host", &host.url("/"), "")).start().await;
    let at = later(Duration::from_millis(700));
    daemon.api().post("/v1/waits", &due("t", "q", &at, Value::Null)).await.expect(202);
    let polled = daemon.api().get("/v1/waits/q/answer?wait=30s").await.expect(410);
    assert_eq!(polled.code(), "wait-closed");
    assert_eq!(polled.json()["error"]["details"]["state"], "timed-out");
    let wait = daemon.api().get("/v1/waits/q").await.expect(200).json();
    assert_eq!((&wait["answer"], &wait["deliveries"]), (&Value::Null, &json!([])));
    let late = daemon.api().post("/v1/answers", &answer("t", "q", json!(1))).await.expect(409);
    assert_eq!(late.code(), "wait-closed");
    assert!(host.all().is_empty());
}

#[tokio::test]
async fn far_deadlines_are_kept_and_past_ones_end_at_once() {
    let (hook, host) = (Receiver::start().await, Receiver::start().await);
    let daemon = bare()
        .config(&crate::bed::webhook("hook", &hook.url("/"), ""))
        .config(&http_route("host", &host.url("/"), ""))
        .start()
        .await;
    let api = daemon.api();
    let far = [
        ("9999-12-31T23:59:59Z", json!("9999-12-31T23:59:59.000Z")),
        ("10000-01-01T00:00:00Z", Value::Null),
        ("9999-12-31T23:59:59.999999999+00:00", json!("9999-12-31T23:59:59.999Z")),
        ("292277026596-12-04T15:30:07Z", Value::Null),
    ];
    for (n, (at, shown)) in far.iter().enumerate() {
        let wait = due("far", &format!("far{n}"), at, json!(n));
        api.post("/v1/waits", &wait).await.expect(202);
        let wait = api.get(&format!("/v1/waits/far{n}")).await.expect(200).json();
        assert_eq!((&wait["state"], &wait["expires_at"]), (&json!("open"), shown), "{at}");
        assert_eq!(wait["envelope"]["expires_at"], *at);
        assert_eq!(hook.next().await.json()["expires_at"], *at);
    }
    // After them the near ones are still on time.
    let near = due("near", "near", &later(Duration::from_millis(300)), json!("now"));
    api.post("/v1/waits", &near).await.expect(202);
    assert_eq!(host.next().await.json()["answer"], "now");
    hook.next().await;

    for (n, at) in ["1969-01-01T00:01:00Z", "0001-01-01T00:00:00Z", "2001-09-09T01:47:40+02:00"]
        .into_iter()
        .enumerate()
    {
        let wait = due("past", &format!("past{n}"), at, json!(n));
        let reply = api.post("/v1/waits", &wait).await.expect(202).json();
        assert_eq!(reply["duplicate"], false);
        let sent = host.next().await;
        assert_eq!(sent.json()["answer"], n, "{at}");
        assert_eq!(sent.header("x-answerback-answered-via"), "default");
        let wait = api.get(&format!("/v1/waits/past{n}")).await.expect(200).json();
        assert_eq!((&wait["state"], &wait["announcements"]), (&json!("timed-out"), &json!([])));
    }
    settled(&daemon).await;
    assert_eq!((hook.all().len(), host.all().len()), (5, 4));
}

#[tokio::test]
async fn of_an_answer_and_the_deadline_exactly_one_wins() {
    const RACES: usize = 120;
    let host = Receiver::start().await;
    let daemon = bare().config(&http_route("host", &host.url("/"), "")).start().await;
    let base = now().after(Duration::from_secs(3));
    let mut races = tokio::task::JoinSet::new();
    for n in 0..RACES {
        let api = daemon.api().clone();
        // Deadlines 5 ms apart, answers aimed at them from just before to just after.
        let at = base.after(Duration::from_millis(5 * n as u64));
        races.spawn(async move {
            let (thread, question) = (format!("t{n}"), format!("q{n}"));
            let wait = due(&thread, &question, &at.to_string(), json!("default"));
            api.post("/v1/waits", &wait).await.expect(202);
            let aim = now().until(at) + Duration::from_millis(n as u64 % 25);
            // The race is about time, so that time is what is waited for here.
            tokio::time::sleep(aim.saturating_sub(Duration::from_millis(20))).await;
            let reply = api.post("/v1/answers", &answer(&thread, &question, json!("person"))).await;
            (n, reply.status)
        });
    }
    let mut won: HashMap<String, &str> = HashMap::new();
    let mut by_person = 0;
    while let Some(race) = races.join_next().await {
        let (n, status) = race.unwrap();
        assert!(status == 200 || status == 409, "{status}");
        by_person += usize::from(status == 200);
        won.insert(format!("q{n}"), if status == 200 { "person" } else { "default" });
    }
    eventually("every race is over", || async { (host.all().len() >= RACES).then_some(()) }).await;
    settled(&daemon).await;
    assert_eq!(host.all().len(), RACES, "one answer each");
    for sent in host.all() {
        let body = sent.json();
        let question = body["question_id"].as_str().unwrap();
        assert_eq!(body["answer"], won[question], "{question}");
    }
    eprintln!("{RACES} races: {by_person} won by the person");
}
