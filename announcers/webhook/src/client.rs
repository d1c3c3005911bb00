//! The I/O: pooled HTTP/1.1 connections, one attempt at a time bounded in time and bytes.

use crate::config::{HttpTarget, parse_url};
use crate::guard::AddressGuard;
use crate::request::{Signing, fixed_headers, headers};
use crate::resolver::{GuardedResolver, ResolveError};
use crate::signature::{BadSecret, SigningKey};
use crate::{response, tls};
use answerback_contract::{
    Announcer, Attempt, Bytes, ConnectError, Connecting, Limits, Message, Outcome, Purpose,
    SecretString, Target, async_trait,
};
use futures::future::join_all;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Method, Request, Response, redirect};
use rustls::pki_types::ServerName;
use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

/// Payload bytes a message. HTTP sets no limit; this one is far above the largest envelope and
/// keeps memory bounded.
const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// What is read of a response's body before the connection is given up. Nothing of it is used: it
/// is read so that the connection can carry the next message.
const BODY_BYTES: usize = 64 * 1024;

/// How long a body is read once the status is known: the outcome stands, only the connection is at
/// stake.
const BODY_TIME: Duration = Duration::from_millis(500);

/// Below the five seconds after which many servers (Node, uvicorn, Apache) close an idle
/// connection, so that a message rarely meets one that is being closed.
const IDLE: Duration = Duration::from_secs(4);

const USER_AGENT: &str = concat!("answerback/", env!("CARGO_PKG_VERSION"));

/// The connections of one announcer, or of all `reply_to` URLs.
struct Connections {
    resolver: GuardedResolver,
    connect_timeout: Duration,
    plain: OnceLock<Client>,
    tls: OnceLock<Client>,
}

impl Connections {
    fn new(guard: AddressGuard, connect_timeout: Duration) -> Self {
        Self {
            resolver: GuardedResolver::new(guard),
            connect_timeout,
            plain: OnceLock::new(),
            tls: OnceLock::new(),
        }
    }

    /// The client for a URL's scheme. Only one that meets an `https` URL needs the system's roots.
    fn client(&self, url: &Url) -> Result<&Client, ConnectError> {
        let is_tls = url.scheme() == "https";
        let slot = if is_tls { &self.tls } else { &self.plain };
        if let Some(client) = slot.get() {
            return Ok(client);
        }
        let tls = if is_tls { tls::trusting_the_system() } else { tls::trusting_nobody() };
        let tls = tls.map_err(|e| no_roots(e.into()))?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            // As agent-wait sends them, for receivers that compare names to the letter.
            .http1_title_case_headers()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .user_agent(USER_AGENT)
            .dns_resolver(Arc::new(self.resolver.clone()))
            .connect_timeout(self.connect_timeout)
            .pool_idle_timeout(IDLE)
            .build()
            .map_err(|e| no_roots(e.into()))?;
        Ok(slot.get_or_init(|| client))
    }
}

fn no_roots(source: Box<dyn Error + Send + Sync>) -> ConnectError {
    ConnectError {
        what: "TLS cannot be set up; install the system's CA certificates (package ca-certificates) or point SSL_CERT_FILE at a bundle".to_owned(),
        source: Some(source),
    }
}

#[async_trait]
impl Target for HttpTarget {
    fn limits(&self) -> Limits {
        Limits { batch_messages: 1, batch_bytes: MESSAGE_BYTES, message_bytes: MESSAGE_BYTES }
    }

    fn describe(&self) -> String {
        self.origin()
    }

    async fn connect(&self, connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        let connections = Connections::new(self.guard.clone(), connecting.attempt_timeout);
        connections.client(&self.url)?;
        let timeout = connecting.attempt_timeout;
        Ok(Arc::new(HttpAnnouncer { target: self.clone(), connections, timeout }))
    }
}

/// Posts every message to one URL.
struct HttpAnnouncer {
    target: HttpTarget,
    connections: Connections,
    timeout: Duration,
}

#[async_trait]
impl Announcer for HttpAnnouncer {
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
        let client = match self.connections.client(&self.target.url) {
            Ok(client) => client,
            Err(e) => return batch.iter().map(|_| Outcome::retry(e.to_string())).collect(),
        };
        let post = |message| {
            let HttpTarget { url, purpose, fixed, signing, .. } = &self.target;
            let headers = headers(fixed, signing, *purpose, message, attempt.now);
            send(client, url.clone(), headers, message.payload.clone(), *purpose, attempt)
        };
        match batch {
            [message] => vec![post(message).await],
            batch => join_all(batch.iter().map(post)).await,
        }
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        let shaken = shake_hands(&self.connections.resolver, &self.target.url);
        match timeout(self.timeout, shaken).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError {
                what: format!(
                    "{} does not answer within {:?}; check host, port and firewall",
                    self.target.origin(),
                    self.timeout
                ),
                source: None,
            }),
        }
    }
}

/// Posts each message to its own URL, all under one secret and one guard: the `[reply_to]` route.
/// Connections are kept and shared.
pub struct ReplySender {
    connections: Connections,
    guard: AddressGuard,
    fixed: HeaderMap,
    signing: Signing,
}

impl ReplySender {
    /// A sender that signs with `secret`, or not at all, and reaches what `guard` lets through.
    ///
    /// # Errors
    /// The secret cannot sign.
    pub fn new(
        secret: Option<&SecretString>,
        guard: AddressGuard,
        attempt_timeout: Duration,
    ) -> Result<Self, BadSecret> {
        Ok(Self {
            connections: Connections::new(guard.clone(), attempt_timeout),
            guard,
            fixed: fixed_headers(HeaderMap::new()),
            signing: Signing { current: secret.map(SigningKey::new).transpose()?, previous: None },
        })
    }

    /// Sends an answer to a host. A URL that cannot be used, or whose literal address is refused,
    /// is a refusal: no retry would mend it.
    pub async fn send(&self, url: &str, message: &Message, attempt: Attempt) -> Outcome {
        let url = match parse_url(url, &self.guard) {
            Ok(url) => url,
            Err(bad) => return Outcome::refused(format!("the URL of reply_to: {bad}")),
        };
        let client = match self.connections.client(&url) {
            Ok(client) => client,
            Err(e) => return Outcome::retry(e.to_string()),
        };
        let purpose = Purpose::Answer;
        let headers = headers(&self.fixed, &self.signing, purpose, message, attempt.now);
        send(client, url, headers, message.payload.clone(), purpose, attempt).await
    }
}

/// One attempt.
async fn send(
    client: &Client,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    purpose: Purpose,
    attempt: Attempt,
) -> Outcome {
    let mut request = Request::new(Method::POST, url);
    *request.headers_mut() = headers;
    *request.body_mut() = Some(body.into());
    let deadline = Instant::now() + attempt.timeout;
    match timeout_at(deadline, client.execute(request)).await {
        Ok(Ok(response)) => {
            let retry_after = response.headers().get(RETRY_AFTER).map(|v| v.as_bytes());
            let outcome = response::classify(purpose, response.status(), retry_after, attempt.now);
            let bound = deadline.min(Instant::now() + BODY_TIME);
            // Whether the body came is no part of the outcome.
            let _ = timeout_at(bound, drain(response)).await;
            outcome
        }
        Ok(Err(e)) if e.is_builder() => {
            Outcome::refused("the URL cannot be sent to; check its host and path")
        }
        Ok(Err(e)) => Outcome::retry(transport_reason(&e)),
        Err(_) => Outcome::retry(format!("no response within {:?}", attempt.timeout)),
    }
}

/// Reads the body to its end or to its bound.
async fn drain(mut response: Response) {
    let mut left = BODY_BYTES;
    if response.content_length().is_some_and(|n| usize::try_from(n).is_ok_and(|n| n > left)) {
        return;
    }
    while let Ok(Some(chunk)) = response.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// What went wrong, from the innermost error: the outer ones only say that something did, and
/// carry the URL.
fn transport_reason(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
        if let Some(resolve) = innermost.downcast_ref::<ResolveError>() {
            return resolve.to_string();
        }
    }
    if error.is_timeout() {
        return "no connection in time".to_owned();
    }
    if std::ptr::addr_eq(innermost, error) {
        return "the request failed".to_owned();
    }
    let what = if error.is_connect() { "could not connect" } else { "the connection broke off" };
    format!("{what}: {innermost}")
}

/// Connects, and for `https` greets and checks the certificate; sends no request.
async fn shake_hands(resolver: &GuardedResolver, url: &Url) -> Result<(), ConnectError> {
    let origin = url.origin().ascii_serialization();
    let failed = |what: String, source: Option<Box<dyn Error + Send + Sync>>| ConnectError {
        what: format!("{origin} {what}"),
        source,
    };
    let port = url.port_or_known_default().unwrap_or(80);
    let (name, addresses) = match url.host() {
        Some(Host::Domain(name)) => {
            let addresses = resolver.addresses(name.to_owned(), port).await;
            let addresses =
                addresses.map_err(|e| failed(format!("cannot be reached: {e}"), Some(e.into())))?;
            (name.to_owned(), addresses)
        }
        Some(Host::Ipv4(ip)) => (ip.to_string(), vec![(ip, port).into()]),
        Some(Host::Ipv6(ip)) => (ip.to_string(), vec![(ip, port).into()]),
        None => return Err(failed("has no host".to_owned(), None)),
    };
    let stream = TcpStream::connect(&*addresses).await.map_err(|e| {
        failed(format!("cannot be reached: {e}; check host, port and firewall"), Some(e.into()))
    })?;
    if url.scheme() == "https" {
        let config = tls::trusting_the_system().map_err(|e| no_roots(e.into()))?;
        let name = ServerName::try_from(name)
            .map_err(|e| failed("has a host that TLS cannot name".to_owned(), Some(e.into())))?;
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.map_err(|e| {
            failed(
                format!("refuses TLS or has no certificate that the system trusts: {e}"),
                Some(e.into()),
            )
        })?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
