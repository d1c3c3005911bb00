//! A real LangGraph host that asks through agent-wait: `tests/clients/host_langgraph.py`.

use crate::waiting::PATIENCE;
use crate::{Api, cases, services};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// A running host; killed when dropped.
#[derive(Debug)]
pub struct Host {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    api: Api,
}

impl Host {
    /// Starts one that announces to `intake`, signed with `secret`; `env` are the script's variables
    /// (`tests/clients/README.md`). Waits until it listens.
    pub async fn start(
        intake: &str,
        secret: Option<&str>,
        state: &TempDir,
        env: &[(&str, &str)],
    ) -> Self {
        Self::start_in(intake, secret, state.path(), env).await
    }

    /// The same with its state in any folder.
    pub async fn start_in(
        intake: &str,
        secret: Option<&str>,
        state: &Path,
        env: &[(&str, &str)],
    ) -> Self {
        let script = cases::root().join("tests/clients/host_langgraph.py");
        let mut command = Command::new(services::python());
        command.arg("-B").arg(script).env("INTAKE_URL", intake).env("HOST_STATE", state);
        command.env("NO_PROXY", "127.0.0.1").envs(env.iter().copied());
        if let Some(secret) = secret {
            command.env("INTAKE_SECRET", secret);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the host's interpreter");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut host = Self { _child: child, lines, api: Api::new("") };
        let listening = host.until("listening").await;
        host.api = Api::new(format!("http://127.0.0.1:{}", listening["port"]));
        host
    }

    /// Its own HTTP interface.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The next line that it prints.
    ///
    /// # Panics
    /// When it ends, or prints nothing within twice [`PATIENCE`] (its libraries load slowly).
    pub async fn event(&mut self) -> Value {
        let line =
            timeout(PATIENCE * 2, self.lines.next_line()).await.expect("a line from the host");
        let line = line.expect("a readable line").expect("a host that still runs");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("no JSON ({e}): {line}"))
    }

    /// The next line of this kind; those before it are passed over.
    ///
    /// # Panics
    /// When the host reports an error meanwhile, unless that is the kind.
    pub async fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event().await;
            if event["event"] == kind {
                return event;
            }
            assert!(event["event"] != "error", "the host reports {event}");
        }
    }
}
