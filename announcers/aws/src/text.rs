//! What SQS and SNS refuse in ids, bodies and attributes, and what it becomes.

use sha2::{Digest, Sha256};
use std::borrow::Cow;

/// The most characters of a `MessageGroupId` or `MessageDeduplicationId` (SQS and SNS API
/// reference).
pub const MAX_FIFO_ID: usize = 128;

/// `sha256:` and the lower-case hex digest of a text.
#[must_use]
pub fn hashed(text: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())))
}

/// A text as group or deduplication id of a FIFO queue or topic.
///
/// Both take 1 to 128 ASCII letters, digits and punctuation. Whatever else becomes its hash
/// (contract, section 4), so that equal ids stay equal and different ones different.
#[must_use]
pub fn fifo_id(text: &str) -> String {
    let taken =
        (1..=MAX_FIFO_ID).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if taken { text.to_owned() } else { hashed(text) }
}

/// A JSON text without the two characters that JSON takes raw and SQS and SNS refuse: U+FFFE and
/// U+FFFF, written as escapes. They can stand only inside JSON strings, so the value is the same.
///
/// Taken are #x9, #xA, #xD, #x20-#xD7FF, #xE000-#xFFFD, #x10000-#x10FFFF (SQS API reference,
/// `SendMessage`); the other refused ones, controls, JSON has only as escapes.
#[must_use]
pub fn json_body(text: &str) -> Cow<'_, str> {
    // Both are EF BF xx in UTF-8; the search for one byte is much faster than for characters.
    if !text.as_bytes().contains(&0xEF) || !text.contains(['\u{fffe}', '\u{ffff}']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\u{fffe}' => out.push_str("\\ufffe"),
            '\u{ffff}' => out.push_str("\\uffff"),
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// The value of a string attribute: controls and what XML refuses become `_`.
#[must_use]
pub fn attribute_value(text: &str) -> Cow<'_, str> {
    let refused = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    if !text.contains(refused) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if refused(c) { '_' } else { c }).collect())
}

/// A JSON text as the value of a string attribute: what [`attribute_value`] would replace is
/// written as an escape, so that the text stays the same JSON value.
#[must_use]
pub fn json_attribute_value(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_that_fifo_takes_stay_and_others_are_hashed() {
        let punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
        assert_eq!(fifo_id(punctuation), punctuation);
        assert_eq!(fifo_id("order-4471"), "order-4471");
        assert_eq!(fifo_id(&"x".repeat(128)), "x".repeat(128));
        let long = fifo_id(&"x".repeat(129));
        assert_eq!(long.len(), 71);
        assert!(long.starts_with("sha256:"));
        assert_eq!(
            fifo_id("a b"),
            "sha256:c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65"
        );
        for refused in ["", "a b", "Zoë", "a\u{7f}", "a\tb"] {
            assert!(fifo_id(refused).starts_with("sha256:"), "{refused:?}");
        }
    }

    #[test]
    fn noncharacters_in_a_body_become_escapes_and_nothing_else_changes() {
        let plain = r#"{"a": "Zoë ☃ 🙂 \u0000", "b": 1.10}"#;
        assert!(matches!(json_body(plain), Cow::Borrowed(same) if same == plain));
        assert!(matches!(json_body("\"ﬁ\u{fffd}\""), Cow::Borrowed(_)));
        assert_eq!(json_body("\"x\u{fffe}y\u{ffff}z\""), r#""x\ufffey\uffffz""#);
    }

    #[test]
    fn controls_in_an_attribute_become_underscores() {
        assert_eq!(attribute_value("a\nb\u{7f}c\u{85}d\u{ffff}"), "a_b_c_d_");
        assert!(matches!(attribute_value("Zoë ☃"), Cow::Borrowed(_)));
        assert_eq!(json_attribute_value("[\"\u{7f}\u{fffe}\"]"), r#"["\u007f\ufffe"]"#);
    }

    proptest! {
        #[test]
        fn an_escaped_body_is_the_same_json_value_and_has_only_taken_characters(text in any::<String>(), odd in "[\u{fffe}\u{ffff}a]{0,4}") {
            let body = answerback_contract::json::Quoted(&format!("{text}{odd}")).to_string();
            let sent = json_body(&body);
            prop_assert_eq!(
                serde_json::from_str::<String>(&sent).unwrap(),
                serde_json::from_str::<String>(&body).unwrap()
            );
            let taken = |c: char| {
                matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
            };
            prop_assert!(sent.chars().all(taken));
        }
    }
}
