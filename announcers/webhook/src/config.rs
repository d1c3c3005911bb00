//! Settings into a target: pure, every problem with its place and cure.

use crate::guard::{AddressGuard, AddressRefused};
use crate::request::{Signing, fixed_headers, is_reserved};
use crate::signature::{BadSecret, SigningKey};
use answerback_contract::settings::{Problem, Settings};
use answerback_contract::{ExposeSecret, Field, Purpose, SecretString};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use url::Url;

/// The settings of `webhook` announcers and `http` routes.
pub(crate) const FIELDS: &[Field] = &[
    Field {
        key: "url",
        required: true,
        help: "Where to post to: http or https, without user or fragment.",
    },
    Field {
        key: "secret_env",
        required: false,
        help: "The environment variable with the secret that signs each attempt (X-Agent-Wait-Signature, webhook-signature). One that starts with whsec_ is base64 after that. Default: nothing is signed.",
    },
    Field { key: "secret_file", required: false, help: "The file with that secret." },
    Field {
        key: "previous_secret_env",
        required: false,
        help: "The environment variable with the secret before a rotation; it signs webhook-signature too, until receivers have changed over.",
    },
    Field {
        key: "previous_secret_file",
        required: false,
        help: "The file with the secret before a rotation.",
    },
    Field {
        key: "authorization_env",
        required: false,
        help: "The environment variable with the value of an Authorization header, such as \"Bearer …\" or \"Basic …\".",
    },
    Field {
        key: "authorization_file",
        required: false,
        help: "The file with the value of an Authorization header.",
    },
    Field {
        key: "headers",
        required: false,
        help: "A table of further headers. Those that sign or describe the content cannot be set.",
    },
    Field {
        key: "allow_private",
        required: false,
        help: "Address blocks or addresses that may be reached though they are private, loopback, link-local or the like. Default: none.",
    },
];

/// Where to post, how to sign and which addresses may be reached: everything but a connection.
#[derive(Clone)]
pub struct HttpTarget {
    pub(crate) url: Url,
    pub(crate) purpose: Purpose,
    pub(crate) fixed: Arc<HeaderMap>,
    pub(crate) signing: Arc<Signing>,
    pub(crate) guard: AddressGuard,
}

/// Why a target cannot be made of a URL and a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// No URL at all. The text itself is left out: a URL can carry a secret.
    #[error("is no URL ({0}); write one such as \"https://example.com/hooks\"")]
    Malformed(url::ParseError),
    /// Another scheme.
    #[error("must start with http:// or https://")]
    Scheme,
    /// `user:password@`.
    #[error(
        "has a user or password in it; take it out and give the Authorization header by authorization_env"
    )]
    Userinfo,
    /// `#…`, which is never sent.
    #[error("has a fragment (#…), which is never sent; take it out")]
    Fragment,
    /// A literal address that the guard refuses.
    #[error(transparent)]
    Address(AddressRefused),
    /// A secret that cannot sign.
    #[error(transparent)]
    Secret(BadSecret),
}

impl HttpTarget {
    /// A target for one URL without settings, such as the `reply_to` of a wait.
    ///
    /// # Errors
    /// What is wrong with the URL or the secret. A name is judged at each connection, by what it
    /// resolves to then; only literal addresses are judged here.
    pub fn for_url(
        url: &str,
        secret: Option<&SecretString>,
        guard: AddressGuard,
        purpose: Purpose,
    ) -> Result<Self, BadTarget> {
        let current = secret.map(SigningKey::new).transpose().map_err(BadTarget::Secret)?;
        Ok(Self {
            url: parse_url(url, &guard)?,
            purpose,
            fixed: Arc::new(fixed_headers(HeaderMap::new())),
            signing: Arc::new(Signing { current, previous: None }),
            guard,
        })
    }

    /// Scheme, host and port. Paths and queries stay out: with many services they are the secret.
    pub(crate) fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

/// Reads and judges a URL.
pub(crate) fn parse_url(text: &str, guard: &AddressGuard) -> Result<Url, BadTarget> {
    let url = Url::parse(text).map_err(BadTarget::Malformed)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(BadTarget::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(BadTarget::Userinfo);
    }
    if url.fragment().is_some() {
        return Err(BadTarget::Fragment);
    }
    guard.check_literal(&url).map_err(BadTarget::Address)?;
    Ok(url)
}

/// Reads the settings of a `webhook` announcer or an `http` route.
pub(crate) fn validate(
    purpose: Purpose,
    settings: &mut Settings,
) -> Result<HttpTarget, Vec<Problem>> {
    let guard = read_guard(settings);
    let url = read_url(settings, &guard);
    let signing = read_signing(settings);
    let headers = read_headers(settings);
    match url {
        Some(url) if !settings.has_problems() => Ok(HttpTarget {
            url,
            purpose,
            fixed: Arc::new(fixed_headers(headers)),
            signing: Arc::new(signing),
            guard,
        }),
        _ => Err(settings.take_problems()),
    }
}

fn read_guard(settings: &mut Settings) -> AddressGuard {
    let place = settings.place_of("allow_private");
    let blocks = settings.strings("allow_private").unwrap_or_default();
    AddressGuard::allowing(&blocks).unwrap_or_else(|bad| {
        settings.problem("allow_private", place, bad.to_string());
        AddressGuard::default()
    })
}

fn read_url(settings: &mut Settings, guard: &AddressGuard) -> Option<Url> {
    let place = settings.place_of("url");
    let text = settings.required_string("url", "the URL to post to");
    if text.is_empty() {
        return None;
    }
    match parse_url(&text, guard) {
        Ok(url) => Some(url),
        Err(bad) => {
            settings.problem("url", place, bad.to_string());
            None
        }
    }
}

fn read_signing(settings: &mut Settings) -> Signing {
    let current = read_key(settings, "secret_env", "secret_file");
    let place = settings.place_of("previous_secret_env");
    let previous = read_key(settings, "previous_secret_env", "previous_secret_file");
    if current.is_none() && previous.is_some() && !settings.has_problems() {
        settings.problem(
            "previous_secret_env",
            place,
            "stands without a current secret; name that by secret_env or secret_file",
        );
    }
    Signing { current, previous }
}

fn read_key(
    settings: &mut Settings,
    env_key: &'static str,
    file_key: &'static str,
) -> Option<SigningKey> {
    let key = if settings.has(file_key) { file_key } else { env_key };
    let place = settings.place_of(key);
    let secret = settings.secret(env_key, file_key)?;
    match SigningKey::new(&secret) {
        Ok(signing) => Some(signing),
        Err(bad) => {
            settings.problem(key, place, bad.to_string());
            None
        }
    }
}

fn read_headers(settings: &mut Settings) -> HeaderMap {
    let place = settings.place_of("headers");
    let mut headers = HeaderMap::new();
    for (name, value) in settings.string_table("headers").unwrap_or_default() {
        let key = format!("headers.{name}");
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            settings.problem(&key, place.clone(), "is no header name; use letters, digits and -");
            continue;
        };
        if is_reserved(&parsed) {
            let what = "is set by answerback itself, which signs and describes the content with it; take it out";
            settings.problem(&key, place.clone(), what);
            continue;
        }
        let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) else {
            let what = "has a control character in its value; take it out";
            settings.problem(&key, place.clone(), what);
            continue;
        };
        if headers.insert(parsed, value).is_some() {
            settings.problem(&key, place.clone(), "stands twice, in different letter case");
        }
    }
    let place = settings.place_of("authorization_env");
    if let Some(secret) = settings.secret("authorization_env", "authorization_file") {
        let value = HeaderValue::from_bytes(secret.expose_secret().as_bytes());
        let what = match value {
            Ok(value) => headers
                .insert(AUTHORIZATION, value)
                .map(|_| "stands beside headers.Authorization; keep one of them"),
            Err(_) => Some("has a control character in it; give one line such as \"Bearer …\""),
        };
        if let Some(what) = what {
            settings.problem("authorization_env", place, what);
        }
    }
    if let Some(value) = headers.get_mut(AUTHORIZATION) {
        value.set_sensitive(true);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::testing::{MapSecrets, setting, settings, text};
    use answerback_contract::settings::{Setting, Value};

    fn secrets() -> MapSecrets {
        let pairs = [
            ("S", "topsecret"),
            ("OLD", "whsec_a2V5"),
            ("BAD", "whsec_***"),
            ("AUTH", "Bearer t0ken"),
            ("TWO_LINES", "Bearer a\nX-Evil: b"),
        ];
        MapSecrets(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into())
    }

    fn list(items: &[&str]) -> Setting {
        setting(Value::Array(items.iter().map(|i| text(i)).collect()))
    }

    fn table(items: &[(&str, &str)]) -> Setting {
        let items = items.iter().map(|(k, v)| ((*k).to_owned(), text(v)));
        setting(Value::Table(items.collect()))
    }

    fn read(pairs: Vec<(&str, Setting)>) -> Result<HttpTarget, Vec<String>> {
        let mut settings = settings(pairs, secrets());
        let target = validate(Purpose::Announce, &mut settings);
        let target = target.map_err(|p| p.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        match settings.finish() {
            Ok(()) => Ok(target),
            Err(p) => Err(p.iter().map(ToString::to_string).collect()),
        }
    }

    fn problem(pairs: Vec<(&str, Setting)>) -> String {
        let problems = read(pairs).err().expect("refused");
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].clone()
    }

    #[test]
    fn the_example_of_the_documentation_is_taken() {
        let target = read(vec![
            ("url", text("https://portal.example.com/hooks/waits?k=s3cret")),
            ("secret_env", text("S")),
            ("previous_secret_env", text("OLD")),
            ("headers", table(&[("X-Team", "payments")])),
            ("allow_private", list(&["127.0.0.0/8"])),
            ("authorization_env", text("AUTH")),
        ])
        .unwrap();
        assert_eq!(target.origin(), "https://portal.example.com");
        assert_eq!(target.fixed.get("x-team").unwrap(), "payments");
        assert_eq!(target.fixed.get("content-type").unwrap(), "application/json");
        assert!(target.fixed.get("authorization").unwrap().is_sensitive());
        assert!(target.signing.current.is_some() && target.signing.previous.is_some());
    }

    #[test]
    fn a_url_is_refused_with_its_cure_and_without_repeating_it() {
        for (url, wanted) in [
            ("nonsense s3cret", "is no URL"),
            ("ftp://example.com/s3cret", "http:// or https://"),
            ("https://user:s3cret@example.com/", "authorization_env"),
            ("https://s3cret@example.com/", "authorization_env"),
            ("https://example.com/#s3cret", "fragment"),
            ("http://127.0.0.1:9000/s3cret", "add it to allow_private"),
            ("http://0x7f.1/s3cret", "127.0.0.1 is loopback"),
            ("http://localhost:1/s3cret", "loopback"),
            ("http://[::ffff:10.0.0.1]/s3cret", "10.0.0.1 is private"),
            ("", "is empty"),
        ] {
            let problem = problem(vec![("url", text(url))]);
            assert!(problem.contains(wanted), "{url}: {problem}");
            assert!(problem.starts_with("test.toml:1: announcers.test.url: "), "{problem}");
            assert!(!problem.contains("s3cret"), "{problem}");
        }
    }

    #[test]
    fn headers_never_replace_what_signs_or_describes_the_content() {
        for name in ["Content-Type", "webhook-id", "X-Agent-Wait-Signature", "Host", "connection"] {
            let problem = problem(vec![
                ("url", text("https://example.com/")),
                ("headers", table(&[(name, "x")])),
            ]);
            assert!(
                problem.contains(&format!("headers.{name}: is set by answerback")),
                "{problem}"
            );
        }
    }

    #[test]
    fn headers_have_names_and_values_that_http_knows() {
        for (headers, wanted) in [
            (&[("X Team", "x")][..], "is no header name"),
            (&[("X-Team", "a\r\nb")], "control character"),
            (&[("x-team", "a"), ("X-Team", "b")], "stands twice"),
        ] {
            let problem =
                problem(vec![("url", text("https://example.com/")), ("headers", table(headers))]);
            assert!(problem.contains(wanted), "{problem}");
        }
    }

    #[test]
    fn secrets_are_checked_where_they_stand_and_never_shown() {
        let url = || ("url", text("https://example.com/"));
        let bad = problem(vec![url(), ("secret_env", text("BAD"))]);
        assert!(bad.contains("secret_env: the secret starts with whsec_"), "{bad}");
        assert!(!bad.contains("***"));
        let alone = problem(vec![url(), ("previous_secret_env", text("OLD"))]);
        assert!(alone.contains("stands without a current secret"), "{alone}");
        let lines = problem(vec![url(), ("authorization_env", text("TWO_LINES"))]);
        assert!(lines.contains("control character") && !lines.contains("Evil"), "{lines}");
        let twice = problem(vec![
            url(),
            ("authorization_env", text("AUTH")),
            ("headers", table(&[("Authorization", "x")])),
        ]);
        assert!(twice.contains("keep one of them"), "{twice}");
        let clear = problem(vec![url(), ("secret", text("topsecret"))]);
        assert!(clear.contains("must not stand") && !clear.contains("topsecret"), "{clear}");
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let problems = read(vec![
            ("url", text("ftp://x")),
            ("allow_private", list(&["localhost"])),
            ("headers", table(&[("Host", "x")])),
            ("secret_env", text("NONE")),
        ])
        .err()
        .unwrap();
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn a_target_for_one_url_needs_no_settings() {
        let guard = AddressGuard::allowing(&["127.0.0.0/8"]).unwrap();
        let url = "http://127.0.0.1:9/answers";
        assert!(HttpTarget::for_url(url, None, guard.clone(), Purpose::Answer).is_ok());
        let refused = HttpTarget::for_url("http://10.0.0.1/", None, guard, Purpose::Answer).err();
        assert!(matches!(refused, Some(BadTarget::Address(_))));
    }

    #[test]
    fn every_key_that_is_read_is_a_field() {
        let mut settings = settings(vec![("url", text("https://example.com/"))], secrets());
        validate(Purpose::Announce, &mut settings).ok().unwrap();
        for field in FIELDS {
            let mut with = answerback_contract::settings::testing::settings(
                vec![
                    ("url", text("https://example.com/")),
                    (field.key, setting(Value::Boolean(true))),
                ],
                secrets(),
            );
            let _ = validate(Purpose::Announce, &mut with);
            if let Err(problems) = with.finish() {
                assert!(!problems.iter().any(|p| p.what.contains("no key")), "{}", field.key);
            }
        }
    }
}
