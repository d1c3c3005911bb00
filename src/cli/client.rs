//! Speaks to a running daemon over its HTTP API (contract, section 3).

use super::exit::Failure;
use super::output::clean;
use answerback_contract::{Bytes, ExposeSecret as _, SecretString};
use anyhow::Context as _;
use http::{HeaderValue, Method, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Everything in an id but what stands for itself in any path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Which daemon, and how its answers are shown. Every command that speaks to one takes these.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Daemon")]
pub(crate) struct Connection {
    /// Where the daemon is
    #[arg(
        long,
        global = true,
        env = "ANSWERBACK_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080"
    )]
    // No `Url`: clap would show what is none, and with it a password.
    url: String,

    /// The API key; better by the environment, where no list of processes shows it
    #[arg(long, global = true, env = "ANSWERBACK_API_KEY", hide_env_values = true)]
    key: Option<SecretString>,

    /// Print JSON as the daemon sends it, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// A client of one daemon.
#[derive(Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    base: Url,
    /// The base as messages show it.
    shown: String,
    authorization: Option<HeaderValue>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Bytes>,
}

impl Ask {
    /// A request of a path below the daemon's URL, already encoded.
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), query: Vec::new(), body: None }
    }

    /// A request of `/v1/<collection>/<id><rest>`. Ids that URLs cannot carry in a path go by
    /// `-?question_id=` (contract, section 3).
    pub(crate) fn wait(method: Method, question_id: &str, rest: &str) -> Self {
        if matches!(question_id, "-" | "." | "..") {
            let ask = Self::new(method, format!("/v1/waits/-{rest}"));
            return ask.with("question_id", Some(question_id));
        }
        Self::new(method, format!("/v1/waits/{}{rest}", segment(question_id)))
    }

    /// With a query parameter, when there is a value.
    pub(crate) fn with(mut self, key: &str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (key.to_owned(), value.to_string())));
        self
    }

    /// With a JSON body.
    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }
}

/// An id as one segment of a path.
pub(crate) fn segment(id: &str) -> String {
    utf8_percent_encode(id, SEGMENT).to_string()
}

impl Api {
    /// A client as the arguments say.
    ///
    /// # Errors
    /// The URL or the key cannot be used.
    pub(crate) fn new(connection: &Connection) -> Result<Self, Failure> {
        let mut base = Url::parse(&connection.url).map_err(|e| {
            let what = format!("--url is no URL ({e}); write one such as http://127.0.0.1:8080");
            Failure::Usage(what)
        })?;
        let shown = shown(&base);
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            let what = format!("--url {shown}: must start with http:// or https://");
            return Err(Failure::Usage(what));
        }
        let authorization = connection
            .key
            .as_ref()
            .filter(|key| !key.expose_secret().is_empty())
            .map(|key| {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
                    .map_err(|_| {
                    Failure::Usage("the API key has a character that no header can carry".into())
                })?;
                value.set_sensitive(true);
                Ok::<_, Failure>(value)
            })
            .transpose()?;
        if authorization.is_some() {
            // What the URL holds would be a second Authorization.
            let _ = base.set_username("");
            let _ = base.set_password(None);
        }
        let builder = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .timeout(Duration::from_secs(90))
            // A redirect could carry the key to somebody else.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("answerback/", env!("CARGO_PKG_VERSION")));
        let builder = match base.scheme() {
            "https" => builder,
            // Must work on machines without any certificates.
            _ => builder.tls_backend_preconfigured(without_roots()?),
        };
        let builder = if is_loopback(&base) { builder.no_proxy() } else { builder };
        let http = builder.build().context("the HTTP client cannot be set up")?;
        Ok(Self { http, base, shown, authorization })
    }

    /// Asks, and gives the body of a good reply.
    ///
    /// # Errors
    /// The daemon is not there, or refuses.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Bytes, Failure> {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{}", self.base.path().trim_end_matches('/'), ask.path));
        url.set_query(None);
        if !ask.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&ask.query);
        }
        let collection = ask.path.split('/').nth(2).unwrap_or_default().to_owned();
        let mut request = self.http.request(ask.method, url);
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value.clone());
        }
        if let Some(body) = ask.body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        let response = request.send().await.map_err(|e| self.unreachable(e))?;
        let status = response.status();
        let request_id = response
            .headers()
            .get("x-request-id")
            .and_then(|id| id.to_str().ok())
            .map(ToOwned::to_owned);
        let body = response.bytes().await.map_err(|e| self.unreachable(e))?;
        if status.is_success() {
            return Ok(body);
        }
        let error = ApiError::read(status, request_id, body, &collection, &self.shown);
        Err(Failure::Api(Box::new(error)))
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let base = self.shown.trim_end_matches('/');
        let cure = "is the daemon running? Start it by `answerback serve`, or name another by --url or ANSWERBACK_URL";
        let what = if error.is_timeout() { "no answer in time" } else { "no answer" };
        // The URL stands in the sentence already, and the innermost cause says the most.
        let error = anyhow::Error::new(error.without_url());
        let cause = error.root_cause().to_string();
        Failure::other(format!("{what} from {base}: {cause}; {cure}"))
    }
}

/// A URL without the user and password that it may hold, and without what may hold more.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Neither fails for a URL that has a host; of others nothing but the scheme is shown.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return format!("{}:…", url.scheme());
    }
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

fn without_roots() -> anyhow::Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}

/// The error form of the API.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) details: Value,
    /// What was asked for: `waits`, `deliveries`, …
    collection: String,
    pub(crate) request_id: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    /// The body as it came.
    pub(crate) body: Bytes,
}

impl ApiError {
    fn read(
        status: StatusCode,
        request_id: Option<String>,
        body: Bytes,
        collection: &str,
        base: &str,
    ) -> Self {
        let form: Value = serde_json::from_slice(&body).unwrap_or_default();
        let error = &form["error"];
        let text = |key: &str| error[key].as_str().map(ToOwned::to_owned);
        let (code, message) = match (text("code"), text("message")) {
            (Some(code), Some(message)) => (code, message),
            _ => (
                format!("HTTP {}", status.as_u16()),
                format!("what is at {base} does not answer as answerback does; check --url"),
            ),
        };
        Self {
            status,
            code,
            message,
            details: error["details"].clone(),
            collection: collection.to_owned(),
            request_id: text("requestId").or(request_id),
            retry_after: error["retryAfterSeconds"].as_u64().map(Duration::from_secs),
            body,
        }
    }

    /// What the person at the terminal can do about it.
    fn cure(&self) -> Option<String> {
        let detail = |key: &str| self.details[key].as_str();
        let cure = match self.code.as_str() {
            "unauthenticated" => "give a key by ANSWERBACK_API_KEY or --key".to_owned(),
            "forbidden" => {
                format!("use a key with the scope {:?}", detail("scope").unwrap_or("admin"))
            }
            "ambiguous-wait" => {
                let threads: Vec<_> = self.details["thread_ids"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(|id| format!("--thread {}", shell_word(id)))
                    .collect();
                format!("add one of {}", threads.join(", "))
            }
            "wait-not-found" | "not-found" if self.details["field"].is_null() => {
                match self.collection.as_str() {
                    list @ ("announcements" | "deliveries") => {
                        format!("see what there is by `answerback {list} list`")
                    }
                    "announcers" => "the configuration names them: [announcers.NAME]".to_owned(),
                    _ => "see what there is by `answerback waits list`".to_owned(),
                }
            }
            "rate-limit-exceeded" | "store-unavailable" | "shutting-down" => match self.retry_after
            {
                Some(after) => format!("try again in {} s", after.as_secs()),
                None => "try again".to_owned(),
            },
            _ => return None,
        };
        Some(cure)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let request = match &self.request_id {
            Some(id) => format!(", request {id}"),
            None => String::new(),
        };
        write!(f, "error: {} ({}{})", clean(&self.message), clean(&self.code), clean(&request))?;
        match self.cure() {
            Some(cure) => write!(f, "\n  {}", clean(&cure)),
            None => Ok(()),
        }
    }
}

/// A text as a shell takes it in one word.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment_however_it_looks() {
        let path = |id| Ask::wait(Method::GET, id, "/cancel").path;
        assert_eq!(path("pay-1"), "/v1/waits/pay-1/cancel");
        assert_eq!(path("a/b?c#d%2F é"), "/v1/waits/a%2Fb%3Fc%23d%252F%20%C3%A9/cancel");
        let dots = Ask::wait(Method::GET, "..", "");
        assert_eq!(dots.path, "/v1/waits/-");
        assert_eq!(dots.query, [("question_id".to_owned(), "..".to_owned())]);
    }

    #[test]
    fn an_error_is_told_with_code_request_and_cure() {
        let read = |body: &'static str| {
            let base = "http://127.0.0.1:1/";
            let body = Bytes::from(body);
            ApiError::read(StatusCode::CONFLICT, None, body, "waits", base).to_string()
        };
        assert_eq!(
            read(
                r#"{"error":{"code":"ambiguous-wait","message":"several threads","details":{"thread_ids":["a","b c"]},"requestId":"r-1"}}"#
            ),
            "error: several threads (ambiguous-wait, request r-1)\n  add one of --thread a, --thread 'b c'"
        );
        assert_eq!(
            read(
                r#"{"error":{"code":"store-unavailable","message":"full","details":{},"retryAfterSeconds":2,"requestId":"r"}}"#
            ),
            "error: full (store-unavailable, request r)\n  try again in 2 s"
        );
        assert_eq!(
            read("<html>"),
            "error: what is at http://127.0.0.1:1/ does not answer as answerback does; check --url (HTTP 409)"
        );
    }

    #[test]
    fn what_is_not_there_is_looked_for_in_its_own_list() {
        let cure = |collection| {
            let body = Bytes::from_static(
                br#"{"error":{"code":"not-found","message":"nothing","details":{},"requestId":"r"}}"#,
            );
            let status = StatusCode::NOT_FOUND;
            ApiError::read(status, None, body, collection, "http://h/").cure().unwrap()
        };
        assert_eq!(cure("waits"), "see what there is by `answerback waits list`");
        assert_eq!(cure("deliveries"), "see what there is by `answerback deliveries list`");
        assert_eq!(cure("announcements"), "see what there is by `answerback announcements list`");
        assert!(cure("announcers").contains("[announcers.NAME]"));
    }

    #[test]
    fn a_password_in_the_url_is_never_shown() {
        let api = |url: &str| {
            Api::new(&Connection { url: url.to_owned(), key: None, json: false })
                .map_err(|failure| failure.message().unwrap())
        };
        assert_eq!(
            api("http://me:s3cret@127.0.0.1:1/x?token=s3cret#s3cret").unwrap().shown,
            "http://127.0.0.1:1/x"
        );
        for bad in [
            "http://me:s3cret@127.0.0.1:port/",
            "http://me:s3cret@/",
            "ftp://me:s3cret@h/",
            "me:s3cret@h",
            "mailto:s3cret@h",
            "s3cret",
            "",
        ] {
            let message = api(bad).err().unwrap();
            assert!(message.contains("--url") && message.contains("http://"), "{message}");
            assert!(!message.contains("s3cret"), "{bad}: {message}");
        }
    }

    #[test]
    fn words_for_the_shell_are_quoted_where_needed() {
        assert_eq!(shell_word("order-1"), "order-1");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
    }
}
