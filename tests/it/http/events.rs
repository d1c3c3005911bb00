//! Those who follow what happens.

use super::*;
use answerback_testkit::PATIENCE;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

fn two_tenants() -> Setup {
    bare()
        .config(
            r#"
[auth]
keys = [
  { name = "ops", key_env = "OPS_KEY", scopes = ["admin"] },
  { name = "eyes", key_env = "EYES_KEY", scopes = ["read"] },
  { name = "agents", key_env = "AGENTS_KEY", scopes = ["publish", "answer"] },
  { name = "strangers", key_env = "STRANGERS_KEY", scopes = ["admin"], tenant = "strangers" },
]
"#,
        )
        .env("OPS_KEY", OPS)
        .env("EYES_KEY", "the-key-of-the-eyes")
        .env("AGENTS_KEY", "the-key-of-the-agents")
        .env("STRANGERS_KEY", "the-key-of-the-strangers")
        .key(OPS)
}

#[tokio::test]
async fn a_stream_goes_on_where_it_was_after_a_crash() {
    let daemon = keyed().start().await;
    let mut events = daemon.api().events("/v1/events", None).await;
    assert_eq!(events.headers["content-type"], "text/event-stream");
    events.begun().await;
    for question in ["q1", "q2", "q3"] {
        daemon.api().post("/v1/waits", &envelope("t", question)).await.expect(202);
    }
    let first = events.next().await;
    assert_eq!(first.in_short(), "q1 wait.created");
    assert_eq!(first.json(), envelope("t", "q1"));
    let daemon = daemon.restart().await;
    let mut resumed = daemon.api().events("/v1/events", Some(&first.id)).await;
    assert_eq!(resumed.in_short(2).await, ["q2 wait.created", "q3 wait.created"]);
    let last = resumed.last_id().to_owned();
    // What happens while nobody follows is not lost either.
    daemon.api().post("/v1/answers", &answer("t", "q2", json!({"secret": 1}))).await.expect(200);
    let daemon = daemon.restart().await;
    daemon.api().post("/v1/waits/q3/cancel", &json!({})).await.expect(200);
    let mut resumed = daemon.api().events("/v1/events", Some(&last)).await;
    let answered = resumed.next().await;
    assert_eq!(answered.in_short(), "q2 wait.answered");
    assert!(!answered.data.contains("secret"));
    assert_eq!(resumed.next().await.in_short(), "q3 wait.cancelled");
    // From the start, all of it in the same order.
    let mut all = daemon.api().events("/v1/events", Some("0")).await;
    assert_eq!(
        all.in_short(5).await,
        [
            "q1 wait.created",
            "q2 wait.created",
            "q3 wait.created",
            "q2 wait.answered",
            "q3 wait.cancelled"
        ]
    );
}

#[tokio::test]
async fn everybody_sees_the_same_order_while_many_publish_and_answer() {
    const WRITERS: usize = 8;
    const EACH: usize = 40;
    const THREADS: usize = 3;
    let daemon = keyed().start().await;
    let mut streams = Vec::new();
    for n in 0..4 {
        let mut events = daemon.api().events("/v1/events", None).await;
        events.begun().await;
        streams.push((n, events));
    }
    let mut threads = Vec::new();
    for n in 0..THREADS {
        let path = format!("/v1/events?thread_id=t{n}");
        let mut events = daemon.api().events(&path, None).await;
        events.begun().await;
        threads.push(events);
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let api = daemon.api().clone();
        writers.spawn(async move {
            for n in 0..EACH {
                let (thread, question) = (format!("t{}", n % THREADS), format!("q{writer}-{n}"));
                api.post("/v1/waits", &envelope(&thread, &question)).await.expect(202);
                api.post("/v1/answers", &answer(&thread, &question, json!(n))).await.expect(200);
            }
        });
    }
    let total = 2 * WRITERS * EACH;
    let mut readers = JoinSet::new();
    for (n, mut events) in streams {
        let api = daemon.api().clone();
        readers.spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < total {
                seen.push(events.next().await);
                // One leaves now and then, and goes on.
                if n == 0 && seen.len() % 50 == 0 {
                    let last = seen.last().map(|e: &answerback_testkit::Event| e.id.clone());
                    events = api.events("/v1/events", last.as_deref()).await;
                }
            }
            seen
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let all = readers.join_next().await.unwrap().unwrap();
    while let Some(seen) = readers.join_next().await {
        assert!(seen.unwrap() == all, "two streams differ");
    }
    let mut created = HashSet::new();
    let mut by_thread: HashMap<String, Vec<String>> = HashMap::new();
    for event in &all {
        let told = event.json();
        let question = told["question_id"].as_str().unwrap().to_owned();
        match event.event.as_str() {
            "wait.created" => assert!(created.insert(question), "{event:?} twice"),
            _ => assert!(created.remove(&question), "{event:?} before it was asked, or twice"),
        }
        let thread = told["thread_id"].as_str().unwrap().to_owned();
        by_thread.entry(thread).or_default().push(event.in_short());
    }
    assert!(created.is_empty());
    for (n, mut events) in threads.into_iter().enumerate() {
        let expected = &by_thread[&format!("t{n}")];
        assert_eq!(events.in_short(expected.len()).await, *expected);
    }
}

#[tokio::test]
async fn a_stop_ends_streams_at_once_and_they_go_on_after_it() {
    let mut daemon = keyed().start().await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut events = daemon.api().events("/v1/events", None).await;
        events.begun().await;
        streams.push(events);
    }
    daemon.api().post("/v1/waits", &envelope("t", "q1")).await.expect(202);
    for events in &mut streams {
        assert_eq!(events.in_short(1).await, ["q1 wait.created"]);
    }
    let begun = Instant::now();
    assert!(daemon.terminate().await.success());
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited for its streams");
    for events in &mut streams {
        assert_eq!(events.try_next().await, None);
    }
    let last = streams[0].last_id().to_owned();
    let daemon = daemon.restart().await;
    daemon.api().post("/v1/waits", &envelope("t", "q2")).await.expect(202);
    let mut resumed = daemon.api().events("/v1/events", Some(&last)).await;
    assert_eq!(resumed.in_short(1).await, ["q2 wait.created"]);
}

#[tokio::test]
async fn a_stream_is_for_readers_and_shows_no_other_tenant() {
    let daemon = two_tenants().start().await;
    let with = |key: &str| daemon.api().with_key(key);
    let (eyes, strangers) = (with("the-key-of-the-eyes"), with("the-key-of-the-strangers"));
    daemon.api().with_key("nobody").get("/v1/events").await.expect(401);
    let refused = with("the-key-of-the-agents").get("/v1/events").await.expect(403);
    assert_eq!(refused.json()["error"]["details"]["scope"], "read");
    let mut ours = eyes.events("/v1/events", None).await;
    let mut theirs = strangers.events("/v1/events", None).await;
    ours.begun().await;
    theirs.begun().await;
    for n in 0..20 {
        let api = if n % 2 == 0 { daemon.api() } else { &strangers };
        api.post("/v1/waits", &envelope("t", &format!("q{n}"))).await.expect(202);
    }
    let questions = async |events: &mut answerback_testkit::Events| events.in_short(10).await;
    let (ours, theirs) = tokio::join!(questions(&mut ours), questions(&mut theirs));
    let expected = |from: usize| (from..20).step_by(2).map(|n| format!("q{n} wait.created"));
    assert_eq!(ours, expected(0).collect::<Vec<_>>());
    assert_eq!(theirs, expected(1).collect::<Vec<_>>());
    // Not even with an id of the other one's.
    let mut all = strangers.events("/v1/events", Some("0")).await;
    assert_eq!(all.in_short(10).await, theirs);
}

#[tokio::test]
async fn two_replicas_tell_the_same_in_the_same_order() {
    const EACH: usize = 30;
    let database = answerback_testkit::postgres::database().await;
    let setup = keyed().store(database.url());
    let other = setup.replica();
    let daemons = [setup.start().await, other.start().await];
    let mut streams = Vec::new();
    for daemon in &daemons {
        let mut events = daemon.api().events("/v1/events", None).await;
        events.begun().await;
        streams.push(events);
    }
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let (here, there) = (&daemons[writer % 2], &daemons[(writer + 1) % 2]);
        let (here, there) = (here.api().clone(), there.api().clone());
        writers.spawn(async move {
            for n in 0..EACH {
                let question = format!("q{writer}-{n}");
                here.post("/v1/waits", &envelope("t", &question)).await.expect(202);
                there.post("/v1/answers", &answer("t", &question, json!(n))).await.expect(200);
            }
        });
    }
    let total = 2 * 4 * EACH;
    let mut seen = Vec::new();
    for events in &mut streams {
        let mut all = Vec::new();
        while all.len() < total {
            all.push(events.next().await);
        }
        seen.push(all);
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    assert!(seen[0] == seen[1], "the replicas differ");
    let created: HashSet<_> = seen[0].iter().filter(|e| e.event == "wait.created").collect();
    let ids: HashSet<_> = seen[0].iter().map(|e| &e.id).collect();
    assert_eq!((created.len(), ids.len()), (total / 2, total));
    // What one told is behind whoever goes on at the other.
    let half = &seen[0][total / 2 - 1];
    let mut rest = daemons[1].api().events("/v1/events", Some(&half.id)).await;
    for event in &seen[0][total / 2..] {
        assert_eq!(rest.next().await, *event);
    }
}

#[tokio::test]
async fn an_event_comes_as_soon_as_it_is_committed() {
    let daemon = keyed().start().await;
    let mut events = daemon.api().events("/v1/events", None).await;
    events.begun().await;
    for n in 0..5 {
        daemon.api().post("/v1/waits", &envelope("t", &format!("q{n}"))).await.expect(202);
        // Well before a heartbeat could bring it along.
        let event = timeout(PATIENCE.min(Duration::from_secs(8)), events.next()).await.unwrap();
        assert_eq!(event.in_short(), format!("q{n} wait.created"));
    }
    // Deadlines are events as well.
    let mut late = envelope("t", "late");
    late["expires_at"] = json!("2026-01-01T00:00:00Z");
    daemon.api().post("/v1/waits", &late).await.expect(202);
    assert_eq!(events.in_short(2).await, ["late wait.created", "late wait.timed-out"]);
}
