//! A webhook receiver that records what comes and answers as told.

use crate::serve::{Cut, Incomer, Served, Server, anywhere, serve};
use crate::waiting::{Gate, PATIENCE};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Method, Response};
use http_body_util::Full;
use serde_json::Value;
use sha2::Sha256;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub body: Bytes,
    /// When its last byte was here.
    pub at: Instant,
}

impl Received {
    /// One header as text; empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// Whether `X-Agent-Wait-Signature` is agent-wait's own signature of the body under `secret`.
    #[must_use]
    pub fn signed_as_agent_wait(&self, secret: &str) -> bool {
        let mac = mac(secret.as_bytes(), &[&self.body]);
        self.header("x-agent-wait-signature") == format!("sha256={}", hex::encode(mac))
    }

    /// Whether one of the signatures in `webhook-signature` is right under `secret`, by the rules of
    /// Standard Webhooks; a `whsec_` secret is decoded.
    #[must_use]
    pub fn signed_as_standard_webhook(&self, secret: &str) -> bool {
        let key = match secret.strip_prefix("whsec_") {
            Some(encoded) => STANDARD.decode(encoded).expect("base64 after whsec_"),
            None => secret.as_bytes().to_vec(),
        };
        let (id, time) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        let mac = mac(&key, &[id.as_bytes(), b".", time.as_bytes(), b".", &self.body]);
        let wanted = format!("v1,{}", STANDARD.encode(mac));
        self.header("webhook-signature").split(' ').any(|one| one == wanted)
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// agent-wait's signature of a body, as the value of its header.
#[must_use]
pub fn agent_wait_signature(secret: &str, body: &[u8]) -> String {
    format!("sha256={}", hex::encode(mac(secret.as_bytes(), &[body])))
}

/// What the receiver does with a request.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    gate: Option<Gate>,
    cut: bool,
}

impl Answer {
    /// This status, without a body.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), gate: None, cut: false }
    }

    /// Closes the connection after the request was read.
    #[must_use]
    pub fn cut() -> Self {
        Self { cut: true, ..Self::status(200) }
    }

    /// Never answers; the connection stays.
    #[must_use]
    pub fn hang() -> Self {
        Self::status(200).behind(&Gate::closed())
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Only once the gate is open.
    #[must_use]
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    async fn give(self) -> Served {
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
        if self.cut {
            return Err(Cut);
        }
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        Ok(response.body(Full::new(self.body)).expect("a valid answer"))
    }
}

type Rule = Arc<dyn Fn(&Received, usize) -> Answer + Send + Sync>;

struct Shared {
    rule: Mutex<Rule>,
    log: Mutex<Log>,
    news: Notify,
}

#[derive(Default)]
struct Log {
    all: Vec<Received>,
    taken: usize,
}

/// Listens on loopback until it is dropped.
pub struct Receiver {
    server: Server,
    shared: Arc<Shared>,
}

impl Receiver {
    /// On a free port; answers 200 until told otherwise.
    pub async fn start() -> Self {
        Self::start_at(anywhere()).await
    }

    /// On this address: for one that comes back.
    pub async fn start_at(addr: SocketAddr) -> Self {
        let rule: Rule = Arc::new(|_, _| Answer::status(200));
        let shared =
            Arc::new(Shared { rule: Mutex::new(rule), log: Mutex::default(), news: Notify::new() });
        let told = shared.clone();
        let server = serve(addr, move |request| take(told.clone(), request)).await;
        Self { server, shared }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr
    }

    /// Its URL with `path`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.addr)
    }

    /// From now on answers by `rule`, which sees the request and how many came before it.
    pub fn answer_with(&self, rule: impl Fn(&Received, usize) -> Answer + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap() = Arc::new(rule);
    }

    /// The next request, if it comes in time.
    pub async fn recv(&self, within: Duration) -> Option<Received> {
        timeout(within, async {
            loop {
                let news = self.shared.news.notified();
                if let Some(next) = self.take_next() {
                    return next;
                }
                news.await;
            }
        })
        .await
        .ok()
    }

    /// The next request.
    ///
    /// # Panics
    /// When none comes within [`PATIENCE`].
    pub async fn next(&self) -> Received {
        self.recv(PATIENCE).await.expect("a request")
    }

    /// Everything that ever came, taken or not.
    #[must_use]
    pub fn all(&self) -> Vec<Received> {
        self.shared.log.lock().unwrap().all.clone()
    }

    fn take_next(&self) -> Option<Received> {
        let mut log = self.shared.log.lock().unwrap();
        let next = log.all.get(log.taken).cloned()?;
        log.taken += 1;
        Some(next)
    }
}

async fn take(shared: Arc<Shared>, request: Incomer) -> Served {
    let received = Received {
        method: request.method,
        target: request.uri.to_string(),
        headers: request.headers,
        body: request.body,
        at: Instant::now(),
    };
    let rule = shared.rule.lock().unwrap().clone();
    let before = {
        let mut log = shared.log.lock().unwrap();
        log.all.push(received.clone());
        log.all.len() - 1
    };
    shared.news.notify_waiters();
    rule(&received, before).give().await
}

/// A receiver for the benchmark: calls `seen` with headers and body of every request and answers 200.
pub struct FastReceiver(Server);

impl FastReceiver {
    /// On a free port.
    pub async fn start(seen: impl Fn(&HeaderMap, &Bytes) + Send + Sync + 'static) -> Self {
        let seen = Arc::new(seen);
        let handler = move |request: Incomer| {
            seen(&request.headers, &request.body);
            std::future::ready(Ok(Response::new(Full::new(Bytes::new()))))
        };
        Self(serve(anywhere(), handler).await)
    }

    /// Its URL with `path`.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.0.addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Api;

    #[tokio::test]
    async fn requests_are_recorded_in_order_and_answered_by_the_rule() {
        let receiver = Receiver::start().await;
        receiver.answer_with(|request, before| {
            assert_eq!(request.method, Method::POST);
            Answer::status(if before == 0 { 503 } else { 204 }).header("retry-after", "1")
        });
        let api = Api::new(receiver.url(""));
        let first = api.post_text("/a?b", "1").await;
        assert_eq!((first.status, first.header("retry-after")), (503, "1"));
        assert_eq!(api.post_text("/c", "2").await.status, 204);
        let (one, two) = (receiver.next().await, receiver.next().await);
        assert_eq!((one.target.as_str(), one.text()), ("/a?b", "1"));
        assert_eq!((two.target.as_str(), two.text()), ("/c", "2"));
        assert!(receiver.recv(Duration::from_millis(10)).await.is_none());
    }

    #[tokio::test]
    async fn a_gate_holds_the_answer_and_a_cut_gives_none() {
        let receiver = Receiver::start().await;
        let gate = Gate::closed();
        let held = gate.clone();
        receiver.answer_with(move |request, _| {
            if request.target == "/cut" { Answer::cut() } else { Answer::status(200).behind(&held) }
        });
        let api = Api::new(receiver.url(""));
        let waiting = tokio::spawn({
            let api = api.clone();
            async move { api.get("/held").await.status }
        });
        receiver.next().await;
        assert!(!waiting.is_finished());
        gate.open();
        assert_eq!(waiting.await.unwrap(), 200);
        assert!(api.try_send(Method::GET, "/cut", &[], Bytes::new()).await.is_err());
    }

    #[test]
    fn the_signature_checks_can_fail() {
        let body = Bytes::from_static(b"{}");
        let mut headers = HeaderMap::new();
        let at = [("webhook-id", "m"), ("webhook-timestamp", "1")];
        for (name, value) in at {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("x-agent-wait-signature", agent_wait_signature("s", &body).parse().unwrap());
        let standard = format!("v1,wrong v1,{}", STANDARD.encode(mac(b"abc", &[b"m.1.{}"])));
        headers.insert("webhook-signature", standard.parse().unwrap());
        let received = Received {
            method: Method::POST,
            target: "/".to_owned(),
            headers,
            body,
            at: Instant::now(),
        };
        assert!(received.signed_as_agent_wait("s") && !received.signed_as_agent_wait("t"));
        assert!(received.signed_as_standard_webhook("whsec_YWJj"));
        assert!(received.signed_as_standard_webhook("abc"));
        assert!(!received.signed_as_standard_webhook("YWJj"));
    }
}
