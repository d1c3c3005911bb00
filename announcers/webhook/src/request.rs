//! The headers and the body of one attempt. Pure: the time comes with the attempt.

use crate::signature::SigningKey;
use answerback_contract::{Message, Purpose, Time};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::borrow::Cow;

pub(crate) const EVENT: HeaderName = HeaderName::from_static("x-agent-wait-event");
pub(crate) const DEDUPE_KEY: HeaderName = HeaderName::from_static("x-agent-wait-dedupe-key");
pub(crate) const SIGNATURE: HeaderName = HeaderName::from_static("x-agent-wait-signature");
pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
pub(crate) const ANSWERED_BY: HeaderName = HeaderName::from_static("x-answerback-answered-by");
pub(crate) const ANSWERED_VIA: HeaderName = HeaderName::from_static("x-answerback-answered-via");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Everything but visible ASCII, and the percent sign itself (contract, section 4). Bytes beyond
/// ASCII are always encoded.
const NOT_VISIBLE: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// A text as it travels in a header: percent-encoded where it is not visible ASCII.
pub(crate) fn encode(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, NOT_VISIBLE).into()
}

/// The secrets that sign: the current one, and the one that receivers may still check with.
#[derive(Clone, Default)]
pub(crate) struct Signing {
    /// Signs both ways. Without it nothing is signed.
    pub(crate) current: Option<SigningKey>,
    /// Signs the standard way only, beside the current one.
    pub(crate) previous: Option<SigningKey>,
}

/// Whether a configured header would replace one that says or signs what is sent.
///
/// Connection headers are HTTP's own affair, and `Host` and the length follow from URL and body.
pub(crate) fn is_reserved(name: &HeaderName) -> bool {
    const RESERVED: [&str; 9] = [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
    ];
    const RESERVED_PREFIXES: [&str; 4] = ["webhook-", "x-agent-wait-", "x-answerback-", "proxy-"];
    let name = name.as_str();
    RESERVED.contains(&name)
        || name == "upgrade"
        || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The headers that every request of a target has, beside those of [`headers`].
pub(crate) fn fixed_headers(configured: HeaderMap) -> HeaderMap {
    let mut headers = configured;
    headers.insert(CONTENT_TYPE, JSON);
    headers
}

/// The headers of one attempt, signed for this instant.
pub(crate) fn headers(
    fixed: &HeaderMap,
    signing: &Signing,
    purpose: Purpose,
    message: &Message,
    now: Time,
) -> HeaderMap {
    let mut headers = fixed.clone();
    headers.insert(EVENT, HeaderValue::from_static(message.event.name()));
    let id = encode(message.dedupe_key.as_str());
    insert(&mut headers, DEDUPE_KEY, &id);
    let timestamp = now.seconds().to_string();
    insert(&mut headers, WEBHOOK_ID, &id);
    insert(&mut headers, WEBHOOK_TIMESTAMP, &timestamp);
    if let Some(current) = &signing.current {
        insert(&mut headers, SIGNATURE, &current.agent_wait(&message.payload));
        let mut standard = String::with_capacity(96);
        current.append_standard(&mut standard, &id, &timestamp, &message.payload);
        if let Some(previous) = &signing.previous {
            previous.append_standard(&mut standard, &id, &timestamp, &message.payload);
        }
        insert(&mut headers, WEBHOOK_SIGNATURE, &standard);
    }
    if purpose == Purpose::Answer {
        if let Some(by) = &message.answered_by {
            insert(&mut headers, ANSWERED_BY, &encode(by));
        }
        if let Some(via) = message.answered_via {
            headers.insert(ANSWERED_VIA, HeaderValue::from_static(via.name()));
        }
    }
    headers
}

/// Visible ASCII is always a header value; anything else was encoded before.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::message;
    use answerback_contract::{Bytes, DedupeKey, DedupeRest, Event, Via};

    fn signing(current: Option<&str>, previous: Option<&str>) -> Signing {
        let key = |s: &str| SigningKey::new(&s.into()).unwrap();
        Signing { current: current.map(key), previous: previous.map(key) }
    }

    fn built(signing: &Signing, purpose: Purpose, message: &Message) -> HeaderMap {
        let fixed = fixed_headers(HeaderMap::new());
        headers(&fixed, signing, purpose, message, Time::from_millis(1_614_265_330_999))
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        headers.get(name).map(|v| v.to_str().unwrap())
    }

    #[test]
    fn percent_and_all_but_visible_ascii_are_encoded() {
        assert_eq!(encode("wait.created:v1:a~!@\"<>`{}"), "wait.created:v1:a~!@\"<>`{}");
        assert_eq!(encode("100% é☃ \u{7f}"), "100%25%20%C3%A9%E2%98%83%20%7F");
        let all: String = (0_u8..=0x7f).map(char::from).collect();
        assert!(encode(&all).bytes().all(|b| (0x21..=0x7e).contains(&b)));
    }

    #[test]
    fn the_headers_are_those_of_the_contract() {
        let mut m = message(b"{\"test\": 2432232314}");
        m.dedupe_key = DedupeKey::of(Event::Created, &DedupeRest::kept("q 1"), 0);
        let headers = built(&signing(Some("s"), None), Purpose::Announce, &m);
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "content-type",
                "webhook-id",
                "webhook-signature",
                "webhook-timestamp",
                "x-agent-wait-dedupe-key",
                "x-agent-wait-event",
                "x-agent-wait-signature"
            ]
        );
        assert_eq!(text(&headers, "content-type"), Some("application/json"));
        assert_eq!(text(&headers, "x-agent-wait-event"), Some("wait.created"));
        assert_eq!(text(&headers, "x-agent-wait-dedupe-key"), Some("wait.created:q%201"));
        assert_eq!(text(&headers, "webhook-id"), Some("wait.created:q%201"));
        assert_eq!(text(&headers, "webhook-timestamp"), Some("1614265330"));
    }

    #[test]
    fn without_a_secret_nothing_is_signed() {
        let headers = built(&signing(None, Some("old")), Purpose::Announce, &message(b"{}"));
        assert_eq!(text(&headers, "x-agent-wait-signature"), None);
        assert_eq!(text(&headers, "webhook-signature"), None);
        assert_eq!(text(&headers, "webhook-timestamp"), Some("1614265330"));
    }

    #[test]
    fn the_previous_secret_signs_the_standard_way_only() {
        let m = message(b"{}");
        let one = built(&signing(Some("new"), None), Purpose::Announce, &m);
        let both = built(&signing(Some("new"), Some("old")), Purpose::Announce, &m);
        assert_eq!(text(&one, "x-agent-wait-signature"), text(&both, "x-agent-wait-signature"));
        let standard = text(&both, "webhook-signature").unwrap();
        let (new, old) = standard.split_once(' ').unwrap();
        assert_eq!(Some(new), text(&one, "webhook-signature"));
        let old_alone = built(&signing(Some("old"), None), Purpose::Announce, &m);
        assert_eq!(Some(old), text(&old_alone, "webhook-signature"));
    }

    #[test]
    fn an_answer_says_who_answered_and_how() {
        let mut m = message(b"{}");
        m.event = Event::Answered;
        m.answered_by = Some("Zoë (approvers)".to_owned());
        m.answered_via = Some(Via::Link);
        let headers = built(&signing(None, None), Purpose::Answer, &m);
        assert_eq!(text(&headers, "x-agent-wait-event"), Some("wait.answered"));
        assert_eq!(text(&headers, "x-answerback-answered-by"), Some("Zo%C3%AB%20(approvers)"));
        assert_eq!(text(&headers, "x-answerback-answered-via"), Some("link"));
        let headers = built(&signing(None, None), Purpose::Announce, &m);
        assert_eq!(text(&headers, "x-answerback-answered-by"), None);
    }

    #[test]
    fn each_instant_has_its_own_signature_over_the_exact_bytes() {
        let signing = signing(Some("s"), None);
        let fixed = fixed_headers(HeaderMap::new());
        let at = |seconds: i64, body: &'static [u8]| {
            let mut m = message(b"");
            m.payload = Bytes::from_static(body);
            let now = Time::from_millis(seconds * 1_000);
            let headers = headers(&fixed, &signing, Purpose::Announce, &m, now);
            text(&headers, "webhook-signature").unwrap().to_owned()
        };
        assert_eq!(at(1, b"{}"), at(1, b"{}"));
        assert_ne!(at(1, b"{}"), at(2, b"{}"));
        assert_ne!(at(1, b"{}"), at(1, b"{ }"));
    }

    #[test]
    fn signing_and_content_headers_are_reserved() {
        for name in [
            "Webhook-Id",
            "webhook-signature",
            "X-Agent-Wait-Anything",
            "x-answerback-answered-by",
            "Content-Type",
            "content-length",
            "Host",
            "Transfer-Encoding",
            "connection",
            "proxy-authorization",
        ] {
            assert!(is_reserved(&name.parse().unwrap()), "{name}");
        }
        for name in ["X-Team", "User-Agent", "Authorization", "webhooks", "x-agent"] {
            assert!(!is_reserved(&name.parse().unwrap()), "{name}");
        }
    }
}
