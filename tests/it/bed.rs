//! What the tests here share: how to set a daemon up, and what to ask it.

use answerback::clock::{Clock, SystemClock};
use answerback::contract::Time;
use answerback_testkit::daemon::Setup;
use answerback_testkit::{Api, Daemon, PATIENCE, Reply, eventually_within, kafka};
use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::time::Duration;

/// The key of the API, with every scope.
pub(crate) const KEY: &str = "the-operators-key-in-tests";

/// What publishers sign with; also agent-wait's own in the captures.
pub(crate) const SECRET: &str = answerback_testkit::cases::SECRET;

/// The real binary, with nothing configured.
pub(crate) fn bare() -> Setup {
    Setup::new(env!("CARGO_BIN_EXE_answerback"))
}

/// With one key, one secret of publishers, and log lines as JSON.
pub(crate) fn keyed() -> Setup {
    bare()
        .config(
            r#"
[auth]
keys = [{ name = "ops", key_env = "OPS_KEY", scopes = ["admin"] }]
webhook_secrets = [{ name = "agent-wait", secret_env = "AGENT_WAIT_SECRET" }]
[telemetry]
log_format = "json"
"#,
        )
        .env("OPS_KEY", KEY)
        .env("AGENT_WAIT_SECRET", SECRET)
        .key(KEY)
}

/// A webhook announcer; `more` are further lines of its table.
pub(crate) fn webhook(name: &str, url: &str, more: &str) -> String {
    format!(
        "[announcers.{name}]\ntype = \"webhook\"\nurl = \"{url}\"\nallow_private = [\"127.0.0.0/8\"]\n{more}\n"
    )
}

/// A route by HTTP; `more` are further lines of its table.
pub(crate) fn http_route(name: &str, url: &str, more: &str) -> String {
    format!(
        "[[routes]]\nname = \"{name}\"\ntype = \"http\"\nurl = \"{url}\"\nallow_private = [\"127.0.0.0/8\"]\n{more}\n"
    )
}

/// Retries that do not keep a test waiting.
pub(crate) const QUICK: &str = r#"retry = { initial = "20ms", max = "100ms" }
breaker = { failures = 1000, pause = "50ms", max_pause = "50ms" }"#;

/// A name that no other test has.
pub(crate) fn fresh(prefix: &str) -> String {
    kafka::fresh_topic(prefix)
}

/// An envelope with the least that is needed.
pub(crate) fn envelope(thread_id: &str, question_id: &str) -> Value {
    json!({
        "type": "wait.created", "thread_id": thread_id, "question_id": question_id,
        "question": {"function": "issue_refund", "args": {"order_id": thread_id, "amount": 41000}},
    })
}

/// The same with its own publish id.
pub(crate) fn published(thread_id: &str, question_id: &str, event_id: &str) -> Value {
    let mut envelope = envelope(thread_id, question_id);
    envelope["event_id"] = event_id.into();
    envelope
}

/// An answer message.
pub(crate) fn answer(thread_id: &str, question_id: &str, answer: Value) -> Value {
    json!({"thread_id": thread_id, "question_id": question_id, "answer": answer})
}

/// Where the API has one wait.
pub(crate) fn wait_path(thread_id: &str, question_id: &str) -> String {
    format!("/v1/waits/{}?thread_id={}", escaped(question_id), escaped(thread_id))
}

/// As one segment of a path or one value of a query.
pub(crate) fn escaped(id: &str) -> String {
    utf8_percent_encode(id, NON_ALPHANUMERIC).to_string()
}

/// Now, by the clock that the daemon goes by.
pub(crate) fn now() -> Time {
    SystemClock.now()
}

/// So long from now, as an envelope has it.
pub(crate) fn later(by: Duration) -> String {
    now().after(by).to_string()
}

/// Posts exactly these bytes with those headers.
pub(crate) async fn post_raw(
    api: &Api,
    path: &str,
    headers: &[(String, String)],
    body: impl Into<Bytes>,
) -> Reply {
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    api.send(Method::POST, path, &headers, body.into()).await
}

/// Waits until no announcement and no delivery but those that hosts come for is queued.
pub(crate) async fn settled(daemon: &Daemon) {
    for list in ["announcements", "deliveries"] {
        daemon
            .api()
            .until(&format!("/v1/{list}?state=queued&limit=500"), |page| {
                page[list].as_array().is_some_and(|rows| rows.iter().all(|r| r["route"] == "pull"))
            })
            .await;
    }
}

/// The same after a daemon was killed, whose leases the store may keep until they run out: a minute
/// after the timeout of what they were for.
pub(crate) async fn settled_after_a_kill(daemon: &Daemon, timeout: Duration) {
    let patience = PATIENCE + timeout + Duration::from_secs(60);
    eventually_within(patience, "nothing is queued any more", || async {
        for list in ["announcements", "deliveries"] {
            let path = format!("/v1/{list}?state=queued&limit=500");
            let page = daemon.api().get(&path).await.expect(200).json();
            if !page[list].as_array()?.iter().all(|row| row["route"] == "pull") {
                return None;
            }
        }
        Some(())
    })
    .await;
}

/// Every row of a list, page by page, such as `/v1/announcements?state=dead`.
pub(crate) async fn all_of(api: &Api, path: &str) -> Vec<Value> {
    let plural = path.trim_start_matches("/v1/").split('?').next().expect("a path").to_owned();
    let sign = if path.contains('?') { '&' } else { '?' };
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = api.get(&format!("{path}{sign}limit=500{cursor}")).await.expect(200).json();
        all.extend(page[plural.as_str()].as_array().expect("a list").iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", escaped(next)),
            None => return all,
        }
    }
}
