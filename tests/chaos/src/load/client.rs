//! Speaks to any of the replicas.

use crate::dice::Dice;
use crate::history::Reply;
use crate::text::Text;
use answerback_testkit::Api;
use answerback_testkit::http::Reply as Response;
use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a client waits for a reply. A stopped replica gives none.
const BOUND: Duration = Duration::from_millis(2_500);

/// How long most clients stay away from a replica that gave no reply, as a load balancer would.
const AWAY: Duration = Duration::from_secs(3);

/// A request to be made of a replica.
#[derive(Clone, Debug)]
pub struct Call {
    /// Of which.
    pub replica: usize,
    /// How.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// JSON, or nothing.
    pub body: Text,
    /// `Idempotency-Key`.
    pub key: Option<String>,
    /// How long the reply may take longer than usually.
    pub patience: Duration,
}

impl Call {
    /// A `POST` of JSON.
    #[must_use]
    pub fn post(replica: usize, path: impl Into<String>, body: &Text) -> Self {
        let (path, body, patience) = (path.into(), body.clone(), Duration::ZERO);
        Self { replica, method: Method::POST, path, body, key: None, patience }
    }

    /// A request without a body.
    #[must_use]
    pub fn bare(replica: usize, method: Method, path: impl Into<String>) -> Self {
        let path = path.into();
        Self { replica, method, path, body: "".into(), key: None, patience: Duration::ZERO }
    }
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    apis: Arc<Vec<Api>>,
    /// Why nobody knows what came of a request, and how often.
    unknown: Arc<Mutex<BTreeMap<String, usize>>>,
    /// Until when a replica that gave no reply is mostly left alone.
    away: Arc<Mutex<Vec<Instant>>>,
}

impl Client {
    /// For replicas at these URLs.
    #[must_use]
    pub fn new(urls: impl IntoIterator<Item = String>) -> Self {
        let apis: Vec<_> = urls.into_iter().map(Api::new).collect();
        let away = Arc::new(Mutex::new(vec![Instant::now(); apis.len()]));
        Self { apis: Arc::new(apis), unknown: Arc::default(), away }
    }

    /// How many replicas there are.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.apis.len()
    }

    /// A full URL of one of them.
    #[must_use]
    pub fn url(&self, replica: usize, path: &str) -> String {
        self.apis[replica].url(path)
    }

    /// One of the replicas; mostly one that is not known to be silent.
    pub fn pick(&self, dice: &mut Dice) -> usize {
        let any = dice.index(self.apis.len());
        if dice.percent(15) {
            return any;
        }
        let now = Instant::now();
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let mut near = (0..away.len()).map(|n| (any + n) % away.len());
        near.find(|n| away[*n] <= now).unwrap_or(any)
    }

    /// Makes a request: what came, unless nothing came.
    pub async fn send(&self, call: &Call) -> Option<Response> {
        let mut headers = Vec::new();
        if !call.body.is_empty() {
            headers.push(("content-type", "application/json"));
        }
        if let Some(key) = &call.key {
            headers.push(("idempotency-key", key.as_str()));
        }
        let body = Bytes::copy_from_slice(call.body.as_bytes());
        let sent =
            self.apis[call.replica].try_send(call.method.clone(), &call.path, &headers, body);
        match timeout(BOUND + call.patience, sent).await {
            Ok(Ok(response)) => Some(response),
            Ok(Err(error)) => {
                let refused = error.contains("ConnectionRefused");
                self.count(if refused { "connection refused" } else { "connection lost" });
                None
            }
            Err(_) => {
                self.away.lock().unwrap_or_else(PoisonError::into_inner)[call.replica] =
                    Instant::now() + AWAY;
                self.count("no reply in time");
                None
            }
        }
    }

    fn count(&self, why: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        *unknown.entry(why.to_owned()).or_default() += 1;
    }

    /// Why nobody knows what came of a request, and how often.
    #[must_use]
    pub fn unknown(&self) -> BTreeMap<String, usize> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, judged; `read` takes what a success says.
    pub async fn judged<T>(&self, call: &Call, read: impl Fn(&Response) -> Option<T>) -> Reply<T> {
        let Some(response) = self.send(call).await else { return Reply::Unknown };
        let reply = judge(&response, read);
        if let Reply::Unknown = reply {
            self.count(&format!("{} {}", response.status, response.code()));
        }
        reply
    }
}

/// What a response means for whoever asked.
fn judge<T>(response: &Response, read: impl Fn(&Response) -> Option<T>) -> Reply<T> {
    let code = response.code();
    let again =
        matches!(response.status, 408 | 429 | 502..=504) || code == "idempotency-key-in-flight";
    if again {
        return Reply::Unknown;
    }
    if (200..300).contains(&response.status)
        && let Some(done) = read(response)
    {
        return Reply::Ok(done);
    }
    let details = serde_json::from_slice::<Value>(&response.body).unwrap_or_default();
    let state = details["error"]["details"]["state"].as_str().map(Into::into);
    Reply::Refused { status: response.status, code: code.into(), state }
}

/// An id as one segment of a path or one value of a query.
#[must_use]
pub fn escaped(id: &str) -> String {
    utf8_percent_encode(id, NON_ALPHANUMERIC).to_string()
}

/// Where the API has this generation of a wait, with `more` as the path's end.
#[must_use]
pub(super) fn wait_path(wait: &crate::history::WaitKey, more: &str) -> String {
    format!(
        "/v1/waits/{}{more}?thread_id={}&generation={}",
        escaped(&wait.question),
        escaped(&wait.thread),
        wait.generation
    )
}
