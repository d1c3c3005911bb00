//! `reply_to`: a wish of the asker, followed only where the operator allows it.

use crate::model::Name;
use answerback_contract::json::{self, Json};
use url::Url;

/// A place that an envelope names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyTo {
    /// An HTTP endpoint.
    Http(Url),
    /// An SQS queue.
    Sqs(Url),
    /// A Lambda function.
    Lambda(String),
}

impl ReplyTo {
    /// Reads the `reply_to` object of an envelope: `{"kind":"http","url"}`, `{"kind":"sqs","url"}`
    /// or `{"kind":"lambda","arn"}` (wire facts, section 1).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(raw: &str) -> Result<Self, String> {
        let value = json::parse(raw).map_err(|e| e.to_string())?;
        let text = |key: &str| {
            value.get(key).and_then(Json::as_str).ok_or_else(|| format!("it has no `{key}` text"))
        };
        let url = || {
            let url = Url::parse(text("url")?).map_err(|e| format!("its `url` is no URL: {e}"))?;
            match url.scheme() {
                "http" | "https" if url.has_host() => Ok(url),
                _ => Err("its `url` has another scheme than http and https".to_owned()),
            }
        };
        match text("kind")? {
            "http" => url().map(Self::Http),
            "sqs" => url().map(Self::Sqs),
            "lambda" => {
                let arn = text("arn")?;
                if arn.starts_with("arn:") {
                    Ok(Self::Lambda(arn.to_owned()))
                } else {
                    Err("its `arn` does not start with arn:".to_owned())
                }
            }
            _ => Err("its `kind` is none of http, sqs, lambda".to_owned()),
        }
    }

    /// What isolates it from other places: the origin of an HTTP endpoint, the queue, the function.
    #[must_use]
    pub fn origin(&self) -> Name {
        match self {
            Self::Http(url) => Name::new(&url.origin().ascii_serialization()),
            Self::Sqs(url) => Name::new(&format!("sqs {url}")),
            Self::Lambda(arn) => Name::new(arn),
        }
    }
}

/// `[reply_to] allow`: URL patterns (scheme, host, port and path) and ARN patterns.
#[derive(Clone, Debug, Default)]
pub struct Allow(Vec<Pattern>);

#[derive(Clone, Debug)]
enum Pattern {
    Url { scheme: String, host: String, port: Port, path: String },
    Arn(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Port {
    Any,
    Number(Option<u16>),
}

impl Allow {
    /// Reads the patterns. `*` stands for a port, for any text within an ARN or a path, and, as
    /// `*.`, for one or more leading labels of a host. A pattern without a path allows every path.
    ///
    /// # Errors
    /// The first pattern that is none, and why.
    pub fn read<S: AsRef<str>>(patterns: &[S]) -> Result<Self, String> {
        patterns.iter().map(|p| Pattern::read(p.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Whether answers may go there.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, place: &ReplyTo) -> Result<(), String> {
        if let ReplyTo::Http(url) | ReplyTo::Sqs(url) = place
            && (!url.username().is_empty() || url.password().is_some())
        {
            return Err("its `url` has a user part".to_owned());
        }
        if self.0.iter().any(|pattern| pattern.allows(place)) {
            Ok(())
        } else {
            Err("it is not under [reply_to] allow".to_owned())
        }
    }
}

impl Pattern {
    fn read(text: &str) -> Result<Self, String> {
        if text.starts_with("arn:") {
            return Ok(Self::Arn(text.to_owned()));
        }
        let bad = |why: &str| format!("{text:?} is no pattern: {why}");
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| bad("write scheme://host, or an ARN that starts with arn:"))?;
        if !matches!(scheme, "http" | "https") {
            return Err(bad("the scheme must be http or https"));
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/*"),
        };
        if authority.contains('@') {
            return Err(bad("it has a user part"));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let port = match port {
            Some("*") => Port::Any,
            Some(digits) => {
                Port::Number(Some(digits.parse().map_err(|_| bad("the port is no number"))?))
            }
            None => Port::Number(None),
        };
        let labels = host.strip_prefix("*.").unwrap_or(host);
        if labels.is_empty() || labels.contains('*') {
            return Err(bad("in a host, * can only stand first, as in *.example.com"));
        }
        // Through the URL parser, so that both sides are spelt alike.
        let parsed =
            Url::parse(&format!("{scheme}://{labels}/")).map_err(|e| bad(&e.to_string()))?;
        let labels = parsed.host_str().unwrap_or_default().trim_end_matches('.');
        let host = if host.starts_with("*.") { format!("*.{labels}") } else { labels.to_owned() };
        let default = if scheme == "https" { 443 } else { 80 };
        let port = match port {
            Port::Number(None) => Port::Number(Some(default)),
            other => other,
        };
        Ok(Self::Url { scheme: scheme.to_owned(), host, port, path: path.to_owned() })
    }

    fn allows(&self, place: &ReplyTo) -> bool {
        match (self, place) {
            (Self::Arn(pattern), ReplyTo::Lambda(arn)) => fits(pattern, arn),
            (Self::Url { scheme, host, port, path }, ReplyTo::Http(url) | ReplyTo::Sqs(url)) => {
                let target = url.host_str().unwrap_or_default().trim_end_matches('.');
                let host_fits = match host.strip_prefix("*.") {
                    Some(suffix) => target
                        .strip_suffix(suffix)
                        .is_some_and(|labels| labels.len() > 1 && labels.ends_with('.')),
                    None => target == host,
                };
                let port_fits =
                    *port == Port::Any || *port == Port::Number(url.port_or_known_default());
                url.scheme() == scheme && host_fits && port_fits && fits(path, url.path())
            }
            _ => false,
        }
    }
}

/// Whether a text fits a pattern in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(pattern: &str, url: &str) -> bool {
        let raw = format!(r#"{{"kind":"http","url":"{url}"}}"#);
        let place = ReplyTo::read(&raw).and_then(|p| Allow::read(&[pattern])?.check(&p));
        place.is_ok()
    }

    #[test]
    fn scheme_host_port_and_path_must_fit() {
        assert!(allowed("http://127.0.0.1:*", "http://127.0.0.1:8123/answers"));
        assert!(allowed("http://127.0.0.1:*", "http://0x7f000001:1/"));
        assert!(!allowed("http://127.0.0.1:*", "https://127.0.0.1:8123/answers"));
        assert!(!allowed("http://127.0.0.1", "http://127.0.0.1:8123/"));
        assert!(allowed("http://127.0.0.1", "http://127.0.0.1/x"));
        assert!(allowed("https://*.internal.example.com", "https://a.b.internal.example.com/x?y"));
        assert!(allowed("https://*.internal.example.com", "https://A.Internal.Example.com./x"));
        assert!(!allowed("https://*.internal.example.com", "https://internal.example.com/"));
        assert!(!allowed("https://*.internal.example.com", "https://evilinternal.example.com/"));
        assert!(!allowed(
            "https://*.internal.example.com",
            "https://internal.example.com.evil.org/"
        ));
        assert!(allowed("https://h/answers/*", "https://h/answers/1"));
        assert!(!allowed("https://h/answers/*", "https://h/answers"));
        assert!(!allowed("https://h/answers/*", "https://h/x/../answer"));
        assert!(allowed("https://h/a", "https://h/a?b=c"));
    }

    #[test]
    fn a_user_part_never_passes_for_a_host() {
        assert!(!allowed("http://127.0.0.1:*", "http://127.0.0.1:80@evil.example/"));
        assert!(!allowed("http://127.0.0.1:*", "http://user:pass@127.0.0.1:80/"));
        assert!(!allowed("http://127.0.0.1:*", "http://127.0.0.1%2f@evil.example/"));
    }

    #[test]
    fn functions_fit_by_arn() {
        let allow =
            Allow::read(&["arn:aws:lambda:eu-west-1:111122223333:function:agent-*"]).unwrap();
        let lambda =
            |arn: &str| ReplyTo::read(&format!(r#"{{"kind":"lambda","arn":"{arn}"}}"#)).unwrap();
        assert!(
            allow.check(&lambda("arn:aws:lambda:eu-west-1:111122223333:function:agent-x")).is_ok()
        );
        assert!(
            allow.check(&lambda("arn:aws:lambda:eu-west-1:111122223333:function:other")).is_err()
        );
    }

    #[test]
    fn what_agent_wait_lets_through_unchecked_is_told_apart() {
        for bad in [
            r#"{"kind":"http","url":""}"#,
            r#"{"kind":"http","url":"/answers"}"#,
            r#"{"kind":"http"}"#,
            r#"{"kind":"ftp","url":"ftp://x"}"#,
            r#"{"kind":"http","url":"file:///etc"}"#,
            r#"{"url":"http://x"}"#,
        ] {
            assert!(ReplyTo::read(bad).is_err(), "{bad}");
        }
        for bad in ["127.0.0.1", "ftp://x", "http://*", "http://a.*.b", "http://u@h", "http://h:x"]
        {
            assert!(Allow::read(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn places_are_isolated_by_origin() {
        let http = ReplyTo::read(r#"{"kind":"http","url":"http://h:81/a/b"}"#).unwrap();
        assert_eq!(http.origin().as_str(), "http://h:81");
    }
}
