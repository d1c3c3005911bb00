//! The rules that SQS and SNS share.

use super::faults::Refusal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Entries of a batch (`MaxNumberOfMessages` of the quota pages of both services).
const BATCH_ENTRIES: usize = 10;

/// Message attributes of one message: SQS refuses more; SNS takes them, but then raw delivery to SQS
/// loses the whole message, so that no sender of ours may go there.
const ATTRIBUTES: usize = 10;

/// A message attribute: name, type, value.
pub(super) type Attribute = (String, String, String);

/// Ids of a batch: 1 to 80 characters of letters, digits, hyphen and underscore, all different.
pub(super) fn batch<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Refusal> {
    if ids.len() == 0 {
        return Err(Refusal::sender("EmptyBatchRequest", "There should be at least one entry"));
    }
    if ids.len() > BATCH_ENTRIES {
        let what =
            format!("Maximum number of entries per request are 10. You have sent {}.", ids.len());
        return Err(Refusal::sender("TooManyEntriesInBatchRequest", what));
    }
    let mut seen = BTreeSet::new();
    for id in ids {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if id.is_empty() || id.len() > 80 || !id.bytes().all(legal) {
            return Err(Refusal::sender(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.",
            ));
        }
        if !seen.insert(id) {
            return Err(Refusal::sender("BatchEntryIdsNotDistinct", format!("Id {id} repeated.")));
        }
    }
    Ok(())
}

/// `MessageGroupId` and `MessageDeduplicationId`: 1 to 128 characters of ASCII letters, digits and
/// punctuation. Both are needed where order counts (content-based deduplication is off here);
/// elsewhere the deduplication id is refused.
pub(super) fn ordering(
    fifo: bool,
    group: Option<&str>,
    dedup: Option<&str>,
) -> Result<(), Refusal> {
    let check = |name: &str, id: &str| {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b.is_ascii_punctuation();
        if (1..=128).contains(&id.len()) && id.bytes().all(legal) {
            return Ok(());
        }
        Err(Refusal::sender(
            "InvalidParameterValue",
            format!(
                "Value {id} for parameter {name} is invalid. Reason: {name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
            ),
        ))
    };
    if let Some(group) = group {
        check("MessageGroupId", group)?;
    }
    match (fifo, group, dedup) {
        (true, None, _) => Err(Refusal::sender(
            "MissingParameter",
            "The request must contain the parameter MessageGroupId.",
        )),
        (true, Some(_), None) => Err(Refusal::sender(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
        )),
        (true, Some(_), Some(dedup)) => check("MessageDeduplicationId", dedup),
        (false, _, Some(_)) => Err(Refusal::sender(
            "InvalidParameterValue",
            "The request include parameter that is not valid for this queue type",
        )),
        (false, _, None) => Ok(()),
    }
}

/// Texts: tab, line feed, carriage return, and U+0020 to U+D7FF, U+E000 to U+FFFD, U+10000 and on.
pub(super) fn text(what: &str, text: &str) -> Result<(), Refusal> {
    let legal = |c: char| match c {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        other => other >= ' ',
    };
    if text.chars().all(legal) {
        return Ok(());
    }
    Err(Refusal::sender("InvalidMessageContents", format!("Invalid characters found in {what}")))
}

/// Names of 1 to 256 letters, digits, hyphens, underscores and single inner periods, without the
/// prefixes that AWS keeps; values that are not empty, and numbers of up to 38 digits.
pub(super) fn attributes(attributes: &[Attribute]) -> Result<(), Refusal> {
    let refused = |what: String| Err(Refusal::sender("InvalidParameterValue", what));
    if attributes.len() > ATTRIBUTES {
        return refused(format!(
            "{} message attributes, at most 10 reach every subscriber",
            attributes.len()
        ));
    }
    let mut seen = BTreeSet::new();
    for (name, kind, value) in attributes {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let lower = name.to_ascii_lowercase();
        let reserved = lower.starts_with("aws.") || lower.starts_with("amazon.");
        let periods = name.starts_with('.') || name.ends_with('.') || name.contains("..");
        if name.is_empty() || name.len() > 256 || !name.bytes().all(legal) || reserved || periods {
            return refused(format!("Invalid message attribute name '{name}'"));
        }
        if !seen.insert(name) {
            return refused(format!("Message attribute name '{name}' already exists."));
        }
        if value.is_empty() {
            return refused(format!(
                "The message attribute '{name}' must contain non-empty message attribute value for message attribute type '{kind}'."
            ));
        }
        text(&format!("message attribute '{name}'"), value)?;
        match kind.as_str() {
            "String" => {}
            "Number" if number(value) => {}
            "String.Array" if array(value) => {}
            _ => {
                return refused(format!(
                    "Can't cast the value of message attribute '{name}' to {kind}: {value}"
                ));
            }
        }
    }
    Ok(())
}

/// Up to 38 significant digits, between -10^128 and 10^126.
fn number(value: &str) -> bool {
    let Ok(near) = value.parse::<f64>() else { return false };
    let mantissa = value.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let significant = digits.trim_start_matches('0').trim_end_matches('0').len();
    let form = mantissa.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    form && significant <= 38 && near.is_finite() && (-1e128..=1e126).contains(&near)
}

/// A JSON array of strings, numbers, booleans and nulls.
fn array(value: &str) -> bool {
    use serde_json::Value;
    matches!(serde_json::from_str(value), Ok(Value::Array(items))
        if items.iter().all(|item| !item.is_array() && !item.is_object()))
}

/// What counts against a size limit: body, and name, type and value of every attribute.
pub(super) fn size(body: &str, attributes: &[Attribute]) -> usize {
    body.len() + attributes.iter().map(|(n, t, v)| n.len() + t.len() + v.len()).sum::<usize>()
}

/// The five minutes within which an ordered queue or topic swallows a deduplication id that it has seen.
#[derive(Default)]
pub(super) struct Window {
    seen: BTreeMap<String, Instant>,
    pub(super) swallowed: usize,
}

impl Window {
    /// Whether the message is new; a duplicate is answered like one, and goes nowhere.
    pub(super) fn admit(&mut self, dedup: &str, now: Instant) -> bool {
        const LENGTH: Duration = Duration::from_secs(300);
        match self.seen.get(dedup) {
            Some(first) if now.duration_since(*first) < LENGTH => {
                self.swallowed += 1;
                false
            }
            _ => {
                self.seen.insert(dedup.to_owned(), now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, kind: &str, value: &str) -> bool {
        attributes(&[(name.into(), kind.into(), value.into())]).is_ok()
    }

    #[test]
    fn attribute_names_and_values_are_held_to_the_documented_form() {
        assert!(one("approver_group", "String", "finance") && one("a.b-c", "String", "0"));
        for name in ["", "a b", "ü", ".a", "a.", "a..b", "AWS.x", "amazon.x", &"a".repeat(257)] {
            assert!(!one(name, "String", "x"), "{name}");
        }
        assert!(!one("a", "String", "") && !one("a", "String", "\u{1}") && !one("a", "Text", "x"));
        assert!(one("a", "Number", "-1.5e3") && one("a", "Number", &"9".repeat(38)));
        for value in ["NaN", "inf", "1e127", "+1", "one", &"9".repeat(39)] {
            assert!(!one("a", "Number", value), "{value}");
        }
        assert!(
            one("a", "String.Array", "[1,\"a\",null,true]") && !one("a", "String.Array", "[[1]]")
        );
        let eleven: Vec<_> =
            (0..11).map(|n| (format!("a{n}"), "String".into(), "x".into())).collect();
        assert!(attributes(&eleven).is_err() && attributes(&eleven[..10]).is_ok());
    }

    #[test]
    fn ids_are_held_to_the_documented_form() {
        let long = "x".repeat(129);
        assert!(ordering(true, Some("a"), Some("wait.created:a")).is_ok());
        assert!(ordering(false, None, None).is_ok() && ordering(false, Some("a"), None).is_ok());
        for (fifo, group, dedup) in [
            (true, None, Some("d")),
            (true, Some("g"), None),
            (true, Some("a b"), Some("d")),
            (true, Some("g"), Some("é")),
            (true, Some(""), Some("d")),
            (true, Some(&long), Some("d")),
            (true, Some("g"), Some(&long)),
            (false, None, Some("d")),
        ] {
            assert!(ordering(fifo, group, dedup).is_err(), "{fifo} {group:?} {dedup:?}");
        }
        assert!(batch(["a", "b-_1"].into_iter()).is_ok());
        for ids in [&[][..] as &[&str], &["a", "a"], &["a.b"], &[""], &["x"; 11]] {
            assert!(batch(ids.iter().copied()).is_err(), "{ids:?}");
        }
    }
}
