//! Speaks to any of the replicas.

use crate::history::Reply;
use crate::text::Text;
use answerback_testkit::Api;
use answerback_testkit::http::Reply as Response;
use bytes::Bytes;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a client waits for a reply. A stopped replica gives none.
const BOUND: Duration = Duration::from_secs(4);

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
pub struct Client(Arc<Vec<Api>>);

impl Client {
    /// For replicas at these URLs.
    #[must_use]
    pub fn new(urls: impl IntoIterator<Item = String>) -> Self {
        Self(Arc::new(urls.into_iter().map(Api::new).collect()))
    }

    /// How many replicas there are.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.0.len()
    }

    /// A full URL of one of them.
    #[must_use]
    pub fn url(&self, replica: usize, path: &str) -> String {
        self.0[replica].url(path)
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
        let sent = self.0[call.replica].try_send(call.method.clone(), &call.path, &headers, body);
        timeout(BOUND + call.patience, sent).await.ok()?.ok()
    }

    /// The same, judged; `read` takes what a success says.
    pub async fn judged<T>(&self, call: &Call, read: impl Fn(&Response) -> Option<T>) -> Reply<T> {
        self.send(call).await.map_or(Reply::Unknown, |response| judge(&response, read))
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
