//! What goes wrong around the daemon: dead receivers, a broker that comes back, signals, a second
//! daemon on the same file.

use crate::bed::{
    QUICK, all_of, answer, bare, envelope, fresh, http_route, settled, wait_path, webhook,
};
use answerback_testkit::{Answer, Daemon, Gate, Receiver, cases, eventually, kafka};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;

async fn publish(daemon: &Daemon, count: usize) {
    for n in 0..count {
        let wait = envelope(&format!("t{n}"), &format!("q{n}"));
        daemon.api().post("/v1/waits", &wait).await.expect(202);
    }
}

#[tokio::test]
async fn dead_and_hanging_announcers_delay_no_other_and_get_all_of_it_when_they_are_back() {
    const COUNT: usize = 150;
    let (alive, hanging) = (Receiver::start().await, Receiver::start().await);
    hanging.answer_with(|_, _| Answer::hang());
    let gone = answerback_testkit::daemon::free_address();
    let quick = format!("{QUICK}\ntimeout = \"2s\"");
    let daemon = bare()
        .config(&webhook("alive", &alive.url("/"), ""))
        .config(&webhook("gone", &format!("http://{gone}/"), QUICK))
        .config(&webhook("hanging", &hanging.url("/"), &quick))
        .config(&format!(
            "[announcers.nobroker]\ntype = \"kafka\"\nbrokers = \"{gone}\"\ntopic = \"x\"\n"
        ))
        .start()
        .await;
    publish(&daemon, COUNT).await;
    let mut seen = BTreeSet::new();
    for _ in 0..COUNT {
        seen.insert(alive.next().await.json()["question_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen.len(), COUNT);
    for announcer in ["gone", "hanging", "nobroker"] {
        let path = format!("/v1/announcements?state=queued&announcer={announcer}");
        assert_eq!(all_of(daemon.api(), &path).await.len(), COUNT, "{announcer}");
    }
    // Back again: everything, each once, in any order of threads.
    hanging.answer_with(|_, _| Answer::status(204));
    let back = Receiver::start_at(gone).await;
    let path = "/v1/announcements?state=queued&announcer=";
    for announcer in ["gone", "hanging"] {
        daemon
            .api()
            .until(&format!("{path}{announcer}"), |page| page["announcements"] == json!([]))
            .await;
    }
    let got: BTreeSet<_> =
        back.all().iter().map(|r| r.header("x-agent-wait-dedupe-key").to_owned()).collect();
    assert_eq!((got.len(), back.all().len()), (COUNT, COUNT));
}

#[tokio::test]
async fn a_receiver_that_asks_for_patience_gets_it_and_what_it_refuses_is_kept_for_an_operator() {
    let hook = Receiver::start().await;
    let asked = AtomicBool::new(false);
    hook.answer_with(move |request, _| match request.json()["question_id"].as_str().unwrap() {
        "q0" if !asked.swap(true, Ordering::SeqCst) => {
            Answer::status(429).header("retry-after", "1")
        }
        "q1" => Answer::status(422),
        _ => Answer::status(200),
    });
    let daemon = bare()
        .config(&webhook("hook", &hook.url("/"), QUICK.replace("100ms", "5s").as_str()))
        .start()
        .await;
    publish(&daemon, 2).await;
    settled(&daemon).await;
    let all = hook.all();
    let times: Vec<_> =
        all.iter().filter(|r| r.json()["question_id"] == "q0").map(|r| r.at).collect();
    assert_eq!(times.len(), 2);
    assert!(times[1] - times[0] >= Duration::from_secs(1), "{:?}", times[1] - times[0]);
    let dead = all_of(daemon.api(), "/v1/announcements?state=dead").await;
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0]["question_id"], &dead[0]["attempts"]), (&json!("q1"), &json!(1)));
    assert!(dead[0]["last_error"].as_str().unwrap().contains("422"), "{}", dead[0]);
    hook.answer_with(|_, _| Answer::status(200));
    let retry = format!("/v1/announcements/{}/retry", dead[0]["id"].as_str().unwrap());
    assert_eq!(daemon.api().post(&retry, &json!({})).await.expect(202).json()["retried"], 1);
    settled(&daemon).await;
    assert!(all_of(daemon.api(), "/v1/announcements?state=dead").await.is_empty());
}

#[tokio::test]
async fn sigterm_lets_what_is_under_way_finish_and_nothing_is_sent_twice() {
    let (hook, gate) = (Receiver::start().await, Gate::closed());
    let held = gate.clone();
    hook.answer_with(move |_, _| Answer::status(200).behind(&held));
    let mut daemon = bare().config(&webhook("hook", &hook.url("/"), "")).start().await;
    publish(&daemon, 3).await;
    for _ in 0..3 {
        hook.next().await;
    }
    let poll = tokio::spawn({
        let api = daemon.api().clone();
        async move { api.get("/v1/waits/q0/answer?wait=60s").await }
    });
    // The poll is under way once the daemon has read it; its own connection comes after ours.
    daemon.api().get("/readyz").await.expect(200);
    daemon.signal("TERM").await;
    // Whoever polls is let go, and new requests find nobody or are told that it stops.
    let polled = poll.await.unwrap();
    assert!([204, 503].contains(&polled.status), "{}", polled.status);
    let late = daemon
        .api()
        .try_send(
            http::Method::POST,
            "/v1/waits",
            &[("content-type", "application/json")],
            envelope("late", "late").to_string().into(),
        )
        .await;
    assert!(late.as_ref().is_err() || late.as_ref().is_ok_and(|r| r.status == 503), "{late:?}");
    gate.open();
    assert_eq!(daemon.exit().await.code(), Some(0));
    let daemon = daemon.restart().await;
    settled(&daemon).await;
    let delivered = all_of(daemon.api(), "/v1/announcements?state=delivered").await;
    assert_eq!(delivered.len(), 3);
    assert_eq!(hook.all().len(), 3, "nothing is sent twice");
}

#[tokio::test]
async fn when_the_grace_is_over_it_ends_all_the_same_and_the_rest_is_sent_after_the_next_start() {
    let hook = Receiver::start().await;
    hook.answer_with(|_, _| Answer::hang());
    let mut daemon = bare()
        .server("shutdown_grace = \"1s\"")
        .config(&webhook("hook", &hook.url("/"), "timeout = \"60s\""))
        .start()
        .await;
    publish(&daemon, 2).await;
    for _ in 0..2 {
        hook.next().await;
    }
    let asked = tokio::time::Instant::now();
    assert_eq!(daemon.terminate().await.code(), Some(0));
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    hook.answer_with(|_, _| Answer::status(200));
    let daemon = daemon.restart().await;
    settled(&daemon).await;
    let keys: Vec<_> =
        hook.all().iter().map(|r| r.header("x-agent-wait-dedupe-key").to_owned()).collect();
    assert_eq!(keys.len(), 4, "{keys:?}");
    assert_eq!(BTreeSet::from_iter(&keys[..2]), BTreeSet::from_iter(&keys[2..]), "the same keys");
}

#[tokio::test]
async fn a_second_daemon_on_the_same_file_is_refused_and_the_first_goes_on() {
    let first = bare().on_file().start().await;
    let second = bare().sharing(first.setup());
    let config = second.write_config();
    let output = second.command(&["serve", "--config", config.to_str().unwrap()]).output();
    let output = tokio::time::timeout(answerback_testkit::PATIENCE, output).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("answerback.db") && said.to_lowercase().contains("another"), "{said}");
    first.api().post("/v1/waits", &envelope("t", "q")).await.expect(202);
    // The lock ends with the process, however it ends.
    let first = first.restart().await;
    first.api().get("/v1/waits/q").await.expect(200);
}

#[tokio::test]
async fn answers_and_questions_survive_a_restart_with_another_configuration() {
    let (hook, host) = (Receiver::start().await, Receiver::start().await);
    hook.answer_with(|_, _| Answer::status(503));
    let daemon = bare().config(&webhook("old", &hook.url("/"), QUICK)).start().await;
    publish(&daemon, 2).await;
    hook.next().await;
    daemon.api().post("/v1/answers", &answer("t1", "q1", json!(7))).await.expect(200);
    let elsewhere = webhook("new", &hook.url("/new"), QUICK);
    let route = http_route("host", &host.url("/"), QUICK);
    let mut daemon = daemon;
    daemon.kill9().await;
    let next = bare().sharing(daemon.setup()).config(&elsewhere).config(&route).start().await;
    // The old announcer is gone: its work is dead, and said to be retryable once it is back.
    let dead = all_of(next.api(), "/v1/announcements?state=dead").await;
    assert!(dead.iter().any(|r| r["reason"] == "announcer-removed"), "{dead:?}");
    let id = dead.iter().find(|r| r["question_id"] == "q0").unwrap()["id"].as_str().unwrap();
    let retry = next.api().post(&format!("/v1/announcements/{id}/retry"), &json!({})).await;
    assert_eq!((retry.status, retry.code().as_str()), (409, "not-retryable"));
    // Queued for the host that would come for it: it still can.
    assert_eq!(next.api().get("/v1/waits/q1/answer").await.expect(200).json()["answer"], 7);
    next.api().post("/v1/answers", &answer("t0", "q0", json!(8))).await.expect(200);
    assert_eq!(host.next().await.json()["answer"], 8);
    let wait = next.api().get(&wait_path("t0", "q0")).await.expect(200).json();
    assert_eq!(wait["state"], "completed");
}

/// A broker of its own: the others' must not go down.
struct Broker {
    dir: TempDir,
    port: u16,
}

impl Broker {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), port: free_pair() }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn script(name: &str) -> PathBuf {
        cases::root().join("scripts").join(name)
    }

    async fn up(&self) {
        let mut command = Command::new(Self::script("kafka-up"));
        command.arg(self.dir.path()).arg(self.port.to_string());
        assert!(command.status().await.unwrap().success(), "the broker starts");
    }

    async fn down(&self) {
        let mut command = Command::new(Self::script("kafka-down"));
        assert!(command.arg(self.dir.path()).status().await.unwrap().success(), "the broker ends");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // A failing test must not leave it running.
        let _ =
            std::process::Command::new(Self::script("kafka-down")).arg(self.dir.path()).status();
    }
}

/// Two free ports in a row: a broker's and its controller's.
fn free_pair() -> u16 {
    let port = || answerback_testkit::daemon::free_address().port();
    std::iter::repeat_with(|| (port(), port()))
        .take(100)
        .find_map(|(first, second)| (second == first + 1).then_some(first))
        .expect("two free ports in a row")
}

#[tokio::test]
async fn a_broker_that_goes_down_and_comes_back_loses_nothing() {
    let broker = Broker::new();
    broker.up().await;
    let (topic, hook) = (fresh("down"), Receiver::start().await);
    kafka::create_topic(&broker.address(), &topic, 1).await;
    let daemon = bare()
        .config(&webhook("hook", &hook.url("/"), ""))
        .config(&format!(
            "[announcers.stream]\ntype = \"kafka\"\nbrokers = \"{}\"\ntopic = \"{topic}\"\ntimeout = \"3s\"\n{QUICK}\n",
            broker.address()
        ))
        .start()
        .await;
    publish(&daemon, 5).await;
    settled(&daemon).await;
    broker.down().await;
    for n in 5..25 {
        let wait = envelope(&format!("t{n}"), &format!("q{n}"));
        daemon.api().post("/v1/waits", &wait).await.expect(202);
    }
    for _ in 0..25 {
        hook.next().await;
    }
    // It has been tried in vain before the broker comes back.
    daemon
        .api()
        .until("/v1/announcements?announcer=stream&state=queued", |page| {
            let rows = page["announcements"].as_array().unwrap();
            rows.len() == 20 && rows.iter().any(|row| row["attempts"].as_u64() > Some(0))
        })
        .await;
    broker.up().await;
    eventually("everything is in the topic", || async {
        let page = daemon.api().get("/v1/announcements?announcer=stream&state=queued").await.json();
        (page["announcements"] == json!([])).then_some(())
    })
    .await;
    let records = kafka::records(&broker.address(), &topic, 25).await;
    let keys: BTreeSet<_> = records.iter().map(|r| r.header("dedupe_key").to_owned()).collect();
    assert_eq!(keys.len(), 25);
}
