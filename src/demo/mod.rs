//! `answerback demo`: the main job in one process, step by step on the terminal.
//!
//! A daemon on loopback with a fresh database, a little host that asks whether a refund may be
//! paid, and an approver's webhook receiver. The person answers with a printed `curl`, or `--auto`
//! answers for them. Everything goes through the real HTTP API and the real dispatch.

mod parts;
mod screen;

use crate::clock::{Clock, SystemClock, fresh_ulid};
use crate::config::Config;
use crate::daemon::Daemon;
use crate::registry::Registry;
use answerback_contract::settings::SecretStore;
use anyhow::Context as _;
use parts::{Arrival, Receiver};
use screen::Screen;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long `--auto` waits before it answers, so that a person can follow.
const THINKING: Duration = Duration::from_millis(700);

/// What the demo waits for at most where nobody has to act.
const PATIENCE: Duration = Duration::from_secs(30);

const THREAD: &str = "order-4471";

/// The demo's one secret, which signs what the webhook receiver and the host are sent.
struct DemoSecrets(String);

impl SecretStore for DemoSecrets {
    fn variable(&self, name: &str) -> Option<String> {
        (name == "DEMO_SECRET").then(|| self.0.clone())
    }

    fn file(&self, _path: &str) -> Result<String, std::io::Error> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

/// Runs the demo to its end.
///
/// # Errors
/// What went wrong on this machine, such as no free port.
pub async fn run(auto: bool) -> anyhow::Result<()> {
    let mut screen = Screen::start();
    let approver = Receiver::start().await.context("the approver's receiver cannot listen")?;
    let host = Receiver::start().await.context("the host cannot listen")?;
    let folder = tempfile_folder()?;
    let secret = fresh_ulid(SystemClock.now());
    let text = configuration(&folder.join("demo.db").display().to_string(), &approver, &host);
    let config = Config::load(
        &text,
        "demo.toml",
        &BTreeMap::new(),
        &Registry::with_built_in(),
        Arc::new(DemoSecrets(secret)),
    )
    .map_err(|problems| anyhow::anyhow!("the demo's configuration: {problems:?}"))?;
    let daemon = Daemon::start(&config, Arc::new(SystemClock)).await?;
    screen
        .step("started", &format!("daemon on http://{}, store {}", daemon.address(), config.store));
    let outcome = converse(&mut screen, daemon.address(), approver, host, auto).await;
    let stopped = daemon.stop().await;
    screen
        .step("stopped", if stopped { "drained, nothing under way" } else { "the grace ran out" });
    let _ = std::fs::remove_dir_all(&folder);
    outcome?;
    screen.summary();
    Ok(())
}

fn configuration(store: &str, approver: &Receiver, host: &Receiver) -> String {
    format!(
        r#"
[server]
listen = "127.0.0.1:0"
[store]
url = "sqlite:{store}"
[announcers.approvers]
type = "webhook"
url = "http://{}/hooks/waits"
secret_env = "DEMO_SECRET"
allow_private = ["127.0.0.0/8"]
[[routes]]
name = "refund-host"
type = "http"
url = "http://{}/answers"
secret_env = "DEMO_SECRET"
allow_private = ["127.0.0.0/8"]
"#,
        approver.address(),
        host.address()
    )
}

async fn converse(
    screen: &mut Screen,
    daemon: SocketAddr,
    mut approver: Receiver,
    mut host: Receiver,
    auto: bool,
) -> anyhow::Result<()> {
    let client = parts::Client::new(daemon)?;
    let question_id = fresh_ulid(SystemClock.now()).to_lowercase();
    screen.step("asked", "the host asks: issue_refund(order_id=\"order-4471\", amount=41000)?");

    let published = Instant::now();
    let (status, body) = client.post("/v1/waits", &envelope(&question_id)).await?;
    anyhow::ensure!(status == 202, "the question was not taken: {status} {body}");
    screen.measured("stored", published.elapsed(), "on disk before this reply: 202 accepted");

    let announced = arrival(&mut approver).await.context("no announcement arrived")?;
    let key = announced.header("x-agent-wait-dedupe-key");
    screen.measured(
        "announced",
        announced.at - published,
        &format!("webhook \"approvers\" has it, signed, dedupe key {key}"),
    );

    let approve = answer(&question_id, "approve");
    let answered = if auto {
        tokio::time::sleep(THINKING).await;
        let answered = Instant::now();
        let (status, body) = client.post("/v1/answers", &approve).await?;
        anyhow::ensure!(status == 200, "the answer was not taken: {status} {body}");
        screen.measured("answered", answered.elapsed(), "{\"action\":\"approve\"}: 200 accepted");
        Some(answered)
    } else {
        screen.invite(&daemon, &approve, &answer(&question_id, "reject"));
        None
    };

    let back = if auto { arrival(&mut host).await } else { host.next().await };
    let back = back.context("the answer did not come back to the host")?;
    let via = back.header("x-answerback-answered-via");
    match answered {
        Some(answered) => screen.measured(
            "routed back",
            back.at - answered,
            &format!("the host has it (via {via}): {}", back.body),
        ),
        None => {
            screen.step("answered", &format!("first answer taken (via {via})"));
            screen.step("routed back", &format!("the host has it: {}", back.body));
        }
    }

    let given = serde_json::from_str::<serde_json::Value>(&back.body)?;
    let other = if given["answer"]["action"] == "approve" { "reject" } else { "approve" };
    let (status, body) = client.post("/v1/answers", &answer(&question_id, other)).await?;
    anyhow::ensure!(status == 409, "a second, different answer was not refused: {status} {body}");
    screen.step("one answer", &format!("a different one now gets 409 wait-closed ({other})"));
    let same = serde_json::json!({
        "thread_id": THREAD, "question_id": question_id, "answer": given["answer"],
    });
    let (status, body) = client.post("/v1/answers", &same.to_string()).await?;
    anyhow::ensure!(status == 200, "the same answer again was refused: {status} {body}");
    screen.step("", "the same one again gets 200, and the host is not told twice");
    Ok(())
}

async fn arrival(receiver: &mut Receiver) -> Option<Arrival> {
    tokio::time::timeout(PATIENCE, receiver.next()).await.ok().flatten()
}

fn envelope(question_id: &str) -> String {
    serde_json::json!({
        "type": "wait.created",
        "event_id": fresh_ulid(SystemClock.now()),
        "thread_id": THREAD,
        "question_id": question_id,
        "question": {"function": "issue_refund", "args": {"order_id": THREAD, "amount": 41000}},
        "allowed_actions": ["approve", "reject"],
        "expires_at": null,
        "default": {"action": "reject", "reason": "no response"},
        "answer_ttl": "PT15M",
        "source": {"function": "issue_refund"},
        "reply_to": null,
        "reply_with": {"thread_id": THREAD, "question_id": question_id, "answer": null},
        "correlation": null,
        "tags": {"approver_group": "finance"},
    })
    .to_string()
}

fn answer(question_id: &str, action: &str) -> String {
    serde_json::json!({
        "thread_id": THREAD, "question_id": question_id, "answer": {"action": action},
    })
    .to_string()
}

/// A folder of this run's own under the system's temporary one.
fn tempfile_folder() -> anyhow::Result<std::path::PathBuf> {
    let name = format!("answerback-demo-{}", fresh_ulid(SystemClock.now()));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    Ok(folder)
}
