//! What accepting is compared to: the same framework, the same JSON, the same number of threads in a
//! process of its own, and nothing else: no store, no checks, no announcement.

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

/// The hidden argument that makes this binary the bare server.
pub(crate) const ARGUMENT: &str = "serve-bare-handler";

async fn take(body: Bytes) -> Response {
    let Ok(envelope) = serde_json::from_slice::<serde_json::Value>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let reply = serde_json::json!({
        "status": "accepted",
        "thread_id": envelope["thread_id"],
        "question_id": envelope["question_id"],
        "generation": 1,
        "dedupe_key": format!("wait.created:{}", envelope["question_id"].as_str().unwrap_or("")),
        "duplicate": false,
    });
    (StatusCode::ACCEPTED, [(CONTENT_TYPE, "application/json")], reply.to_string()).into_response()
}

/// Serves until the standard input ends, so that it never outlives who started it.
pub(crate) async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let listener = listener.tap_io(|stream| {
        // Without it replies still arrive, only later.
        let _ = stream.set_nodelay(true);
    });
    let ended = async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    tokio::select! {
        served = axum::serve(listener, Router::new().route("/v1/waits", post(take))) => Ok(served?),
        () = ended => Ok(()),
    }
}

/// The bare handler, running.
pub(crate) struct Bare {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Bare {
    /// Starts it.
    pub(crate) async fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the bare handler")?;
        let output = child.stdout.take().context("the bare handler has no output")?;
        let line = BufReader::new(output).lines().next_line().await?;
        let address = line.as_deref().and_then(|line| line.parse().ok());
        Ok(Self { child, address: address.context("the bare handler did not start")? })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("cannot end the bare handler")
    }
}
