//! agent-wait and LangGraph, unchanged but for the URL: asks through the daemon and resumes by the
//! answer that the daemon routes back.

use crate::bed::{QUICK, SECRET, http_route, keyed, wait_path, webhook};
use answerback_testkit::daemon::Setup;
use answerback_testkit::host::Host;
use answerback_testkit::{Daemon, Receiver};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tempfile::TempDir;

/// A daemon that announces to a receiver.
async fn daemon(hook: &Receiver, more: impl FnOnce(Setup) -> Setup) -> Daemon {
    more(keyed().config(&webhook("approvers", &hook.url("/waits"), ""))).start().await
}

/// Answers go to whatever loopback address an envelope names.
fn by_reply_to(setup: Setup) -> Setup {
    setup.config(&format!(
        "[reply_to]\nallow = [\"http://127.0.0.1:*\"]\nallow_private = [\"127.0.0.0/8\"]\nsecret_env = \"OPS_KEY\"\n{QUICK}\n"
    ))
}

/// The announced question's `reply_with`, filled in.
async fn answered(hook: &Receiver, daemon: &Daemon, answer: Value) -> Value {
    let request = hook.next().await;
    assert_eq!(request.header("x-agent-wait-event"), "wait.created");
    let mut message = request.json()["reply_with"].clone();
    message["answer"] = answer;
    daemon.api().post("/v1/answers", &message).await.expect(200);
    message
}

async fn delivery(daemon: &Daemon, message: &Value) -> Value {
    let path =
        wait_path(message["thread_id"].as_str().unwrap(), message["question_id"].as_str().unwrap());
    let wait = daemon
        .api()
        .until(&path, |wait| {
            wait["deliveries"].as_array().is_some_and(|d| d[0]["state"] == "delivered")
        })
        .await;
    wait["deliveries"][0].clone()
}

#[tokio::test]
async fn it_asks_and_resumes_by_its_own_reply_to_and_duplicates_run_nothing_twice() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    let daemon = daemon(&hook, by_reply_to).await;
    let mut host = Host::start(&daemon.url("/v1/waits"), Some(SECRET), &state, &[]).await;
    assert_eq!(host.until("announced").await["ok"], true);
    let message = answered(&hook, &daemon, json!({"action": "approve"})).await;
    let resumed = host.until("resumed").await;
    assert_eq!(resumed["answer"], json!({"action": "approve"}));
    let headers = resumed["headers"].as_object().unwrap();
    let header = |name: &str| {
        let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.and_then(|(_, v)| v.as_str()).unwrap_or_default().to_owned()
    };
    assert_eq!(header("x-agent-wait-event"), "wait.answered");
    assert_eq!(header("x-answerback-answered-via"), "api");
    assert!(header("x-answerback-answered-by").contains("ops"));
    let result = host.until("result").await;
    assert_eq!(
        (&result["body_runs"], &result["output"][0]),
        (&json!(1), &json!("refunded 41000 for order-4471"))
    );
    assert_eq!(delivery(&daemon, &message).await["route"], "reply_to");

    // The same answer again, another one, and the question published again: nothing runs twice.
    daemon.api().post("/v1/answers", &message).await.expect(200);
    let mut other = message.clone();
    other["answer"] = json!({"action": "reject"});
    let refused = daemon.api().post("/v1/answers", &other).await.expect(409);
    assert_eq!(refused.code(), "wait-closed");
    host.api().post("/answers", &message).await.expect(200);
    let duplicate = host.until("duplicate-ignored").await;
    assert_eq!((&duplicate["same"], &duplicate["body_runs"]), (&json!(true), &json!(1)));
    let state = host.api().get("/state").await.expect(200).json();
    assert_eq!(state["order-4471"]["body_runs"], 1);
    assert_eq!(hook.all().len(), 1, "announced once");
}

#[tokio::test]
async fn a_question_published_again_is_one_wait_and_a_configured_route_takes_its_answer() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    let host_addr = answerback_testkit::daemon::free_address();
    let route = http_route(
        "refund-host",
        &format!("http://{host_addr}/answers"),
        "secret_env = \"OPS_KEY\"\nmatch = { source_function = \"issue_refund\", thread_prefix = \"order-\" }",
    );
    let daemon = daemon(&hook, |setup| setup.config(&route)).await;
    let mut host = host_on(host_addr, &daemon, &state, &[]).await;
    host.until("announced").await;
    host.api().post("/republish", &json!({"thread_id": "order-4471"})).await.expect(200);
    assert_eq!(host.until("announced").await["ok"], true);
    let waits = daemon.api().get("/v1/waits").await.expect(200).json();
    assert_eq!(waits["waits"].as_array().unwrap().len(), 1);
    let message = answered(&hook, &daemon, json!({"action": "approve"})).await;
    assert_eq!(host.until("result").await["body_runs"], 1);
    assert_eq!(delivery(&daemon, &message).await["route"], "refund-host");
    // Published again after its answer: the stored answer is sent again, and the host knows it.
    assert_eq!(hook.all().len(), 1, "announced once");
    let state = host.api().get("/state").await.expect(200).json();
    assert_eq!(state["order-4471"]["answered"].as_object().unwrap().len(), 1);
}

async fn host_on(addr: SocketAddr, daemon: &Daemon, state: &TempDir, env: &[(&str, &str)]) -> Host {
    let port = addr.port().to_string();
    let mut all = vec![("HOST_PORT", port.as_str())];
    all.extend(env);
    Host::start(&daemon.url("/v1/waits"), Some(SECRET), state, &all).await
}

#[tokio::test]
async fn a_host_without_a_route_pulls_its_answer() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    // `reply_to` is not allowed, so that the answer is kept.
    let daemon = daemon(&hook, |setup| setup).await;
    let mut host = Host::start(&daemon.url("/v1/waits"), Some(SECRET), &state, &[]).await;
    let asked = host.until("announced").await;
    let question = asked["question_ids"][0].as_str().unwrap().to_owned();
    let path = format!("/v1/waits/{question}/answer");
    daemon.api().get(&path).await.expect(204);
    let poll = tokio::spawn({
        let (api, path) = (daemon.api().clone(), format!("{path}?wait=30s"));
        async move { api.get(&path).await }
    });
    let message = answered(&hook, &daemon, json!({"action": "approve", "note": 1.10})).await;
    let pulled = poll.await.unwrap().expect(200);
    assert_eq!(pulled.json(), message);
    host.api().post_text("/answers", pulled.body.clone()).await.expect(200);
    assert_eq!(host.until("result").await["body_runs"], 1);
    daemon.api().delete(&path).await.expect(204);
    daemon.api().delete(&path).await.expect(204);
    daemon.api().get(&path).await.expect(410);
    assert_eq!(delivery(&daemon, &message).await["route"], "pull");
}

#[tokio::test]
async fn a_failing_host_gets_the_same_answer_until_it_takes_it() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    let daemon = daemon(&hook, by_reply_to).await;
    let fail = [("HOST_FAIL_FIRST", "3")];
    let mut host = Host::start(&daemon.url("/v1/waits"), Some(SECRET), &state, &fail).await;
    let message = answered(&hook, &daemon, json!({"action": "approve"})).await;
    for _ in 0..3 {
        assert_eq!(host.until("error").await["reason"], "told-to-fail");
    }
    assert_eq!(host.until("resumed").await["answer"], message["answer"]);
    assert_eq!(host.until("result").await["body_runs"], 1);
    assert_eq!(delivery(&daemon, &message).await["attempts"], 4);
}

#[tokio::test]
async fn the_default_goes_out_when_the_time_is_up() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    let daemon = daemon(&hook, by_reply_to).await;
    let env = [("HOST_TIMEOUT", "2"), ("HOST_DEFAULT", r#"{"action":"approve","by":"time"}"#)];
    let mut host = Host::start(&daemon.url("/v1/waits"), Some(SECRET), &state, &env).await;
    let asked = hook.next().await.json();
    let due = asked["expires_at"].as_str().unwrap().to_owned();
    let resumed = host.until("resumed").await;
    assert_eq!(resumed["answer"], json!({"action": "approve", "by": "time"}));
    let wait = daemon
        .api()
        .get(&format!("/v1/waits/{}", asked["question_id"].as_str().unwrap()))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&wait["state"], &wait["answer"]["answered_via"]),
        (&json!("timed-out"), &json!("default"))
    );
    let lag = crate::deadlines::millis_between(&due, wait["closed_at"].as_str().unwrap());
    assert!((0..1_000).contains(&lag), "{lag} ms after the deadline");
    assert_eq!(host.until("result").await["body_runs"], 1);
    // An approver who comes too late is told so.
    let mut late = asked["reply_with"].clone();
    late["answer"] = json!({"action": "reject"});
    let refused = daemon.api().post("/v1/answers", &late).await.expect(409);
    assert_eq!(refused.json()["error"]["details"]["state"], "timed-out");
}

#[tokio::test]
async fn a_host_that_was_killed_and_started_again_gets_its_answer() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    let daemon = daemon(&hook, by_reply_to).await;
    let addr = answerback_testkit::daemon::free_address();
    let mut host = host_on(addr, &daemon, &state, &[]).await;
    host.until("announced").await;
    drop(host);
    let message = answered(&hook, &daemon, json!({"action": "approve"})).await;
    let path = wait_path("order-4471", message["question_id"].as_str().unwrap());
    daemon
        .api()
        .until(&path, |wait| wait["deliveries"][0]["attempts"].as_u64().is_some_and(|n| n > 0))
        .await;
    let mut host = host_on(addr, &daemon, &state, &[("HOST_START", "0")]).await;
    assert_eq!(host.until("result").await["body_runs"], 1);
    delivery(&daemon, &message).await;
}

#[tokio::test]
async fn parallel_questions_of_many_threads_each_get_their_own_answer() {
    let (hook, state) = (Receiver::start().await, TempDir::new().unwrap());
    let daemon = daemon(&hook, by_reply_to).await;
    let env = [("HOST_START", "3"), ("HOST_QUESTIONS", "2")];
    let mut host = Host::start(&daemon.url("/v1/waits"), Some(SECRET), &state, &env).await;
    for _ in 0..6 {
        answered(&hook, &daemon, json!({"action": "approve"})).await;
    }
    let mut results = Vec::new();
    while results.len() < 3 {
        let result = host.until("result").await;
        assert_eq!(result["body_runs"], 2, "{result}");
        results.push(result["thread_id"].as_str().unwrap().to_owned());
    }
    results.sort();
    assert_eq!(results, ["order-4471", "order-4471-1", "order-4471-2"]);
}
