//! JSON as attribute values, and what they weigh.
//!
//! Limits: Amazon DynamoDB Developer Guide, "Service, account, and table quotas" and "Item sizes
//! and formats".

use answerback_contract::json::{self, Decimal, Json, JsonError};
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::HashMap;

/// One row, or a map within it.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The most bytes of an item, names counted.
pub(crate) const MAX_ITEM_BYTES: usize = 409_600;

/// Arrays and objects within one another that a value may have. AWS's page says 32 levels; the
/// service was seen to count the innermost scalar as one of them, so that the last is tried and,
/// refused, written as text.
const MAX_NESTING: usize = 32;
const SURE_NESTING: usize = 31;

/// The most bytes of an attribute's name.
const MAX_NAME_BYTES: usize = 65_535;

/// How far a value is trusted to be taken as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Care {
    /// What the documents allow goes natively.
    Usual,
    /// After a refusal: what the service may have refused, the last level and empty names within
    /// maps, goes as text.
    More,
}

/// The most significant digits of a number.
const MAX_DIGITS: usize = 38;

/// A value from its JSON text: as it is, or where DynamoDB cannot hold it so, the text.
pub(crate) fn of_text(text: &str, care: Care) -> Result<AttributeValue, JsonError> {
    let value = json::parse(text)?;
    let native = match care {
        Care::Usual => value.depth() <= MAX_NESTING,
        Care::More => value.depth() <= SURE_NESTING && names_fit(&value),
    };
    Ok(if native { of(value) } else { AttributeValue::S(text.to_owned()) })
}

/// Whether every name within is one that DynamoDB takes for sure.
fn names_fit(value: &Json<'_>) -> bool {
    match value {
        Json::Array(items) => items.iter().all(names_fit),
        Json::Object(members) => {
            members.iter().all(|(key, value)| is_name(key) && names_fit(value))
        }
        _ => true,
    }
}

fn of(value: Json<'_>) -> AttributeValue {
    match value {
        Json::Null => AttributeValue::Null(true),
        Json::Bool(b) => AttributeValue::Bool(b),
        Json::Number(text) => number(text),
        Json::String(text) => AttributeValue::S(text.into_owned()),
        Json::Array(items) => AttributeValue::L(items.into_iter().map(of).collect()),
        // Of a double key the last counts, as it does where maps are collected.
        Json::Object(members) => AttributeValue::M(
            members.into_iter().map(|(key, value)| (key.into_owned(), of(value))).collect(),
        ),
    }
}

/// Whether DynamoDB takes an attribute of that name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
}

/// A number: N where DynamoDB holds it exactly (38 significant digits, magnitude from 1E-130 to
/// 9.9…9E+125), else S with the text.
fn number(text: &str) -> AttributeValue {
    let Decimal { negative, digits, exponent, .. } = Decimal::of(text);
    if digits.is_empty() {
        return AttributeValue::N("0".to_owned());
    }
    let length = i128::try_from(digits.len()).unwrap_or(i128::MAX);
    let magnitude = exponent.saturating_add(length).saturating_sub(1);
    if digits.len() > MAX_DIGITS || !(-130..=125).contains(&magnitude) {
        return AttributeValue::S(text.to_owned());
    }
    // Written zeros beyond the digits could be counted as digits.
    if text.len() <= MAX_DIGITS {
        return AttributeValue::N(text.to_owned());
    }
    let sign = if negative { "-" } else { "" };
    AttributeValue::N(format!("{sign}{digits}E{exponent}"))
}

/// What an item weighs.
pub(crate) fn item_bytes(item: &Item) -> usize {
    item.iter().map(|(name, value)| name.len() + bytes(value)).sum()
}

/// What a value weighs without its name.
fn bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(text) => {
            let Decimal { negative, digits, .. } = Decimal::of(text);
            digits.len().div_ceil(2) + 1 + usize::from(negative)
        }
        AttributeValue::L(items) => 3 + items.iter().map(|item| 1 + bytes(item)).sum::<usize>(),
        AttributeValue::M(members) => {
            3 + members.iter().map(|(name, value)| 1 + name.len() + bytes(value)).sum::<usize>()
        }
        // Null and booleans; the other types are not written here.
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AttributeValue::{Bool, L, M, N, Null, S};

    fn text(value: &str) -> AttributeValue {
        S(value.to_owned())
    }

    fn native(text: &str) -> Result<AttributeValue, JsonError> {
        of_text(text, Care::Usual)
    }

    #[test]
    fn every_json_value_has_its_type() {
        assert_eq!(native("null").unwrap(), Null(true));
        assert_eq!(native("false").unwrap(), Bool(false));
        assert_eq!(native("0").unwrap(), N("0".to_owned()));
        assert_eq!(native("\"\"").unwrap(), text(""));
        assert_eq!(native("[]").unwrap(), L(Vec::new()));
        assert_eq!(native("{}").unwrap(), M(Item::new()));
        assert_eq!(
            native(r#"{"a":[1.10,"x",{"b":null}]}"#).unwrap(),
            M(Item::from([(
                "a".to_owned(),
                L(vec![
                    N("1.10".to_owned()),
                    text("x"),
                    M(Item::from([("b".to_owned(), Null(true))]))
                ])
            )]))
        );
        assert!(native("NaN").is_err());
    }

    #[test]
    fn numbers_that_dynamodb_holds_exactly_are_n_and_others_s() {
        let nines = "9".repeat(38);
        let long_zeros = format!("1{}", "0".repeat(60));
        for (written, sent) in [
            ("41000", "41000"),
            ("-0.0", "0"),
            ("9007199254740993", "9007199254740993"),
            ("18446744073709551616", "18446744073709551616"),
            ("1e+16", "1e+16"),
            ("1.10", "1.10"),
            ("1e-130", "1e-130"),
            ("1e125", "1e125"),
            (&*nines, &*nines),
            (&*long_zeros, "1E60"),
            ("0.00000000000000000000000000000000000000000012", "12E-44"),
        ] {
            assert_eq!(number(written), N(sent.to_owned()), "{written}");
        }
        let edge = format!("{nines}e88");
        assert_eq!(number(&edge), N(format!("{nines}E88")));
        for written in [
            format!("{nines}e89"),
            "1e126".to_owned(),
            "1e-131".to_owned(),
            "1e308".to_owned(),
            "1e400".to_owned(),
            format!("{nines}9"),
            format!("1.{}1", "0".repeat(37)),
            "-1e999999999999999999999999999999999999999999".to_owned(),
        ] {
            assert_eq!(number(&written), S(written.clone()), "{written}");
        }
    }

    #[test]
    fn thirty_two_levels_are_native_and_more_are_text() {
        let lists = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        let maps = |n: usize| format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n));
        for nested in [lists, maps] {
            assert!(!native(&nested(32)).unwrap().is_s());
            assert_eq!(native(&nested(33)).unwrap(), text(&nested(33)));
            assert!(!of_text(&nested(31), Care::More).unwrap().is_s());
            assert_eq!(of_text(&nested(32), Care::More).unwrap(), text(&nested(32)));
        }
    }

    #[test]
    fn of_a_double_key_the_last_counts() {
        assert_eq!(
            native(r#"{"a":1,"a":2}"#).unwrap(),
            M(Item::from([("a".to_owned(), N("2".to_owned()))]))
        );
    }

    #[test]
    fn what_is_refused_as_it_is_can_be_written_as_text() {
        let odd = r#"{"": 1.10}"#;
        assert!(matches!(native(odd).unwrap(), M(_)));
        assert_eq!(of_text(odd, Care::More).unwrap(), text(odd));
        assert_eq!(of_text("\"x\"", Care::More).unwrap(), text("x"));
    }

    #[test]
    fn sizes_follow_the_published_rules() {
        let item = |value| Item::from([("name".to_owned(), value)]);
        for (value, weighs) in [
            (text("Zoë"), 4),
            (Null(true), 1),
            (Bool(false), 1),
            (N("0".to_owned()), 1),
            (N("41000".to_owned()), 2),
            (N("-123".to_owned()), 4),
            (N("9".repeat(38)), 20),
            (L(Vec::new()), 3),
            (L(vec![Null(true), text("ab")]), 3 + 2 + 3),
            (M(Item::from([("k".to_owned(), text("ab"))])), 3 + 1 + 1 + 2),
        ] {
            assert_eq!(item_bytes(&item(value.clone())), 4 + weighs, "{value:?}");
        }
    }
}
