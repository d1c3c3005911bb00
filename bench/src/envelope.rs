//! The question that every wait of a run asks: the one of the message format's own example, in the
//! very text that agent-wait writes, about 600 bytes. Only its ids differ from wait to wait, always
//! in the same number of bytes, so that a request is made by writing ten digits in a few places.

use memchr::memmem::Finder;
use std::sync::LazyLock;

/// A wait's place in its run. It stands in all ids of the wait as ten decimal digits.
pub(crate) type Number = u32;

const DIGITS: usize = 10;

/// What the digits replace below.
const SPOT: &str = "##########";

/// Begins every question id of a run, and stands nowhere else: how stubs find ids in whatever the
/// services' protocols wrap around an envelope. With the digits it is 32 characters of lower hex, as
/// LangGraph's ids are.
const MARK: &str = "5be9c4a1e7d2f03b8a6c94";

const ENVELOPE: &str = concat!(
    r#"{"type": "wait.created", "event_id": "01JAV3K2R8Q9WZ7M##########", "#,
    r#""thread_id": "order-##########", "question_id": "5be9c4a1e7d2f03b8a6c94##########", "#,
    r#""question": {"function": "issue_refund", "args": {"order_id": "order-##########", "amount": 41000}}, "#,
    r#""allowed_actions": ["approve", "reject"], "expires_at": "2999-09-14T09:00:00Z", "#,
    r#""default": {"action": "reject", "reason": "no response within P3D"}, "answer_ttl": "PT15M", "#,
    r#""source": {"function": "issue_refund"}, "reply_to": null, "#,
    r#""reply_with": {"thread_id": "order-##########", "question_id": "5be9c4a1e7d2f03b8a6c94##########", "answer": null}, "#,
    r#""correlation": null, "tags": {"approver_group": "finance"}}"#,
);

/// The thread of wait `number`, as it stands in the envelope.
pub(crate) fn thread_id(number: Number) -> String {
    format!("order-{number:010}")
}

/// The question of wait `number`.
pub(crate) fn question_id(number: Number) -> String {
    format!("{MARK}{number:010}")
}

/// An envelope, perhaps with a request's head before it, whose ids can be set.
#[derive(Clone)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    spots: Vec<usize>,
}

impl Template {
    /// The envelope alone.
    pub(crate) fn envelope() -> Self {
        Self::with_head("")
    }

    /// A request that posts the envelope to `path` of `host`.
    pub(crate) fn request(host: &str, path: &str) -> Self {
        let length = ENVELOPE.len();
        Self::with_head(&format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ))
    }

    fn with_head(head: &str) -> Self {
        let text = format!("{head}{ENVELOPE}");
        let spots = text.match_indices(SPOT).map(|(at, _)| at).collect();
        Self { bytes: text.into_bytes(), spots }
    }

    /// All bytes, for wait `number`.
    pub(crate) fn of(&mut self, number: Number) -> &[u8] {
        let digits = digits(number);
        for &at in &self.spots {
            self.bytes[at..at + DIGITS].copy_from_slice(&digits);
        }
        &self.bytes
    }
}

fn digits(number: Number) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
    }
    digits
}

/// The number in a `wait.created` dedupe key, `None` when it is not exactly one of a first wait.
pub(crate) fn number_of_key(key: &[u8]) -> Option<Number> {
    let digits = key.strip_prefix(b"wait.created:")?.strip_prefix(MARK.as_bytes())?;
    if digits.len() == DIGITS { parse(digits) } else { None }
}

/// The number of the first question id in a text.
pub(crate) fn first_number(text: &[u8]) -> Option<Number> {
    static QUESTION: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
    after(text, QUESTION.find(text)? + MARK.len())
}

/// The numbers of the DynamoDB sort keys in a request, one after the other, a key that is repeated
/// within its own item once.
pub(crate) fn numbers_of_sort_keys(text: &[u8]) -> impl Iterator<Item = Option<Number>> + '_ {
    static SORT_KEY: LazyLock<Finder<'static>> =
        LazyLock::new(|| Finder::new("WAIT#5be9c4a1e7d2f03b8a6c94"));
    let mut last = None;
    SORT_KEY.find_iter(text).filter_map(move |at| {
        let number = after(text, at + SORT_KEY.needle().len());
        let repeated = last == Some(number);
        last = Some(number);
        (!repeated).then_some(number)
    })
}

fn after(text: &[u8], at: usize) -> Option<Number> {
    parse(text.get(at..at + DIGITS)?)
}

fn parse(digits: &[u8]) -> Option<Number> {
    let value = digits.iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'9' => Some(value * 10 + u64::from(digit - b'0')),
        _ => None,
    })?;
    Number::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_of_http_with_the_envelope_of_its_number() {
        let mut request = Template::request("127.0.0.1:8080", "/v1/waits");
        let total = request.of(0).len();
        let body = total - ENVELOPE.len()..total;
        for number in [0, 7, 4_294_967_295] {
            let bytes = request.of(number).to_vec();
            let head = std::str::from_utf8(&bytes[..body.start]).unwrap();
            assert!(head.starts_with("POST /v1/waits HTTP/1.1\r\n") && head.ends_with("\r\n\r\n"));
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
            let json: serde_json::Value = serde_json::from_slice(&bytes[body.clone()]).unwrap();
            let question_id = format!("{MARK}{number:010}");
            assert_eq!(json["question_id"], question_id);
            assert_eq!(json["reply_with"]["question_id"], question_id);
            assert_eq!(json["thread_id"], format!("order-{number:010}"));
            assert_eq!(json["event_id"].as_str().unwrap().len(), 26);
            assert_eq!(first_number(&bytes), Some(number));
            assert_eq!(&bytes[body.clone()], Template::envelope().of(number));
        }
    }

    #[test]
    fn the_envelope_is_as_long_as_a_usual_one() {
        assert!((500..=800).contains(&ENVELOPE.len()), "{}", ENVELOPE.len());
    }

    #[test]
    fn only_the_key_of_a_first_wait_has_a_number() {
        let key = format!("wait.created:{MARK}0000000042");
        assert_eq!(number_of_key(key.as_bytes()), Some(42));
        assert_eq!(number_of_key(format!("{key}:2").as_bytes()), None);
        assert_eq!(number_of_key(b"wait.created:5be9c4a1e7d2f03b8a6c94abcdefghij"), None);
        assert_eq!(number_of_key(b"wait.answered:x"), None);
    }

    #[test]
    fn sort_keys_are_found_once_an_item() {
        let text = format!(
            r#"{{"a":"WAIT#{MARK}0000000001","b":"WAIT#{MARK}0000000001"}},{{"sk":"WAIT#{MARK}0000000002"}}"#
        );
        let found: Vec<_> = numbers_of_sort_keys(text.as_bytes()).collect();
        assert_eq!(found, [Some(1), Some(2)]);
    }

    #[test]
    fn a_text_without_an_id_has_no_number() {
        assert_eq!(first_number(b"nothing here"), None);
        assert_eq!(first_number(MARK.as_bytes()), None);
        assert_eq!(first_number(format!("{MARK}99999999999").as_bytes()), None);
    }
}
