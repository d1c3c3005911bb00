//! The demo's other side: receivers that take whatever is posted to them, and a small client.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What a receiver was sent.
pub(super) struct Arrival {
    /// When it was there.
    pub(super) at: Instant,
    /// The body's text.
    pub(super) body: String,
    headers: HeaderMap,
}

impl Arrival {
    /// A header's text; empty when it is not there.
    pub(super) fn header(&self, name: &str) -> String {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    }
}

/// Takes every POST with a 200.
pub(super) struct Receiver {
    address: SocketAddr,
    arrivals: mpsc::Receiver<Arrival>,
}

impl Receiver {
    pub(super) async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (sender, arrivals) = mpsc::channel(16);
        let app = axum::Router::new().fallback(axum::routing::post(take)).with_state(sender);
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { address, arrivals })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn next(&mut self) -> Option<Arrival> {
        self.arrivals.recv().await
    }
}

async fn take(
    State(sender): State<mpsc::Sender<Arrival>>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let arrival = Arrival { at: Instant::now(), body, headers };
    match sender.send(arrival).await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Posts JSON to the daemon.
pub(super) struct Client {
    client: reqwest::Client,
    base: String,
}

impl Client {
    pub(super) fn new(daemon: SocketAddr) -> anyhow::Result<Self> {
        // reqwest wants a TLS provider though this is plain HTTP; one may be there already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { client, base: format!("http://{daemon}") })
    }

    pub(super) async fn post(&self, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
        let response = self
            .client
            .post(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .body(body.to_owned())
            .send()
            .await?;
        Ok((response.status().as_u16(), response.text().await?))
    }
}
