//! A client for the daemon's API, and what came back.

use crate::waiting::{PATIENCE, eventually};
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Speaks plain HTTP/1.1 to one base URL, perhaps with a key. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    pub(crate) key: Option<String>,
    pub(crate) client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body's bytes.
    pub body: Bytes,
}

impl Reply {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    /// The body as JSON. Numbers go through f64: compare exact ones in [`Reply::text`].
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{} is no JSON ({e}): {}", self.status, self.text()))
    }

    /// The code of an error in the contract's form; empty when there is none.
    #[must_use]
    pub fn code(&self) -> String {
        let code = serde_json::from_slice::<Value>(&self.body)
            .ok()
            .and_then(|body| body["error"]["code"].as_str().map(ToOwned::to_owned));
        code.unwrap_or_default()
    }

    /// One header as text; empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    /// Itself, if the status is `status`.
    ///
    /// # Panics
    /// With the body, if not.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

impl Api {
    /// For `base`, such as `http://127.0.0.1:8080`.
    #[must_use]
    pub fn new(base: impl Into<String>) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { base: base.into(), key: None, client }
    }

    /// The same, with `Authorization: Bearer <key>`.
    #[must_use]
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self.clone() }
    }

    /// What it speaks to, with `path` appended.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    /// `DELETE`.
    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, &[], Bytes::new()).await
    }

    /// `POST` of a JSON value.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, body.to_string()).await
    }

    /// `POST` of exactly these bytes, as JSON.
    pub async fn post_text(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        let json = [("content-type", "application/json")];
        self.send(Method::POST, path, &json, body.into()).await
    }

    /// Any request.
    ///
    /// # Panics
    /// When no answer comes within [`PATIENCE`] and a minute, the longest poll there is.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Reply {
        let what = format!("{method} {path}");
        self.try_send(method, path, headers, body)
            .await
            .unwrap_or_else(|e| panic!("{what} at {}: {e}", self.base))
    }

    /// Any request, where a failure of the connection is a result: the other side may be killed.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, String> {
        let mut request = Request::builder().method(method).uri(self.url(path));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        for (name, value) in headers {
            // Headers are bytes: captured ones are latin-1.
            request = request.header(*name, value.as_bytes());
        }
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        let exchange = async {
            let (parts, body) =
                self.client.request(request).await.map_err(|e| format!("{e:?}"))?.into_parts();
            let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        let longest = PATIENCE + std::time::Duration::from_secs(60);
        tokio::time::timeout(longest, exchange).await.map_err(|_| "no answer".to_owned())?
    }

    /// `GET`s `path` until its JSON satisfies `holds`, and gives that JSON.
    ///
    /// # Panics
    /// When it does not within [`PATIENCE`].
    pub async fn until(&self, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("GET {path} as wanted"), || async {
            let reply = self.get(path).await;
            let json = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
            (reply.status == 200 && holds(&json)).then_some(json)
        })
        .await
    }
}
