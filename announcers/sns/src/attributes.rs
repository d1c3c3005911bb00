//! The attributes that subscribers filter on: transition, thread and tags.
//!
//! SNS refuses the whole message for one bad attribute, and a subscribed SQS queue with raw
//! delivery drops messages of more than ten (Amazon SNS Developer Guide, "Message attributes").
//! Both never happen here: names and values are cleaned, and what does not fit goes into one
//! attribute `tags`.

use answerback_aws::text;
use answerback_contract::json::{Decimal, Json, JsonError};
use answerback_contract::{Event, Message};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The most attributes that raw delivery to SQS takes.
pub(crate) const MAX_ATTRIBUTES: usize = 10;

/// The most characters of a name.
const MAX_NAME: usize = 256;

const TRANSITION: &str = "transition";
const THREAD_ID: &str = "thread_id";
const TAGS: &str = "tags";

/// An attribute's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataType {
    String,
    Number,
    StringArray,
}

impl DataType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::String => "String",
            Self::Number => "Number",
            Self::StringArray => "String.Array",
        }
    }
}

/// One attribute, as SNS takes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) data_type: DataType,
    pub(crate) value: String,
}

impl Attribute {
    /// Name, type and value all count.
    pub(crate) fn bytes(&self) -> usize {
        self.name.len() + self.data_type.name().len() + self.value.len()
    }
}

type Tag<'a> = (Cow<'a, str>, Json<'a>);

/// At most [`MAX_ATTRIBUTES`]: `transition`, `thread_id` and all tags that are not empty; where
/// those do not fit, seven of them by `priority` and then in their order, and all as JSON in
/// `tags`.
pub(crate) fn of(message: &Message, priority: &[String]) -> Result<Vec<Attribute>, JsonError> {
    let tags = last_wins(message.tags()?);
    Ok(choose(message.event, message.thread_id.as_str(), &tags, priority))
}

fn choose(event: Event, thread_id: &str, tags: &[Tag<'_>], priority: &[String]) -> Vec<Attribute> {
    let string = |name: &str, value: String| Attribute {
        name: name.to_owned(),
        data_type: DataType::String,
        value,
    };
    let mut attributes = vec![
        string(TRANSITION, event.transition().to_owned()),
        string(THREAD_ID, text::attribute_value(thread_id).into_owned()),
    ];
    let mut filled: Vec<&Tag<'_>> = tags.iter().filter(|(_, value)| !is_empty(value)).collect();
    let all_fit = attributes.len() + filled.len() <= MAX_ATTRIBUTES;
    let mut taken = BTreeSet::from([TRANSITION.to_owned(), THREAD_ID.to_owned()]);
    if !all_fit {
        taken.insert(TAGS.to_owned());
        filled.sort_by_key(|(name, _)| {
            priority.iter().position(|wanted| wanted == name).unwrap_or(usize::MAX)
        });
        filled.truncate(MAX_ATTRIBUTES - attributes.len() - 1);
    }
    let names = distinct(filled.iter().map(|(name, _)| &**name).collect(), taken);
    attributes.extend(filled.iter().zip(names).map(|((_, value), name)| {
        let (data_type, value) = rendered(value);
        Attribute { name, data_type, value }
    }));
    if !all_fit {
        attributes.push(string(TAGS, text::json_attribute_value(&object(tags))));
    }
    attributes
}

/// Of a double key the last value counts, in the place of the first.
fn last_wins(tags: Vec<Tag<'_>>) -> Vec<Tag<'_>> {
    let mut unique: Vec<Tag<'_>> = Vec::with_capacity(tags.len());
    for (name, value) in tags {
        match unique.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => unique.push((name, value)),
        }
    }
    unique
}

fn object(tags: &[Tag<'_>]) -> String {
    Json::Object(tags.to_vec()).to_string()
}

/// What SNS refuses or a filter cannot use. Zero and false say something and are not empty.
fn is_empty(value: &Json<'_>) -> bool {
    match value {
        Json::Null => true,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.is_empty(),
        Json::Bool(_) | Json::Number(_) => false,
    }
}

fn rendered(value: &Json<'_>) -> (DataType, String) {
    match value {
        Json::String(text) => (DataType::String, text::attribute_value(text).into_owned()),
        Json::Number(written) => match number(written) {
            Some(number) => (DataType::Number, number),
            None => (DataType::String, (*written).to_owned()),
        },
        Json::Array(items) if items.iter().all(is_scalar) => {
            let cleaned = items.iter().map(|item| match item {
                Json::String(text) => {
                    Json::String(Cow::Owned(text::attribute_value(text).into_owned()))
                }
                other => other.clone(),
            });
            let array = Json::Array(cleaned.collect());
            (DataType::StringArray, array.to_string())
        }
        other => (DataType::String, text::json_attribute_value(&other.to_string())),
    }
}

fn is_scalar(value: &Json<'_>) -> bool {
    !matches!(value, Json::Array(_) | Json::Object(_))
}

/// A number as SNS holds it: from -10^9 to 10^9 with five digits after the point, without an
/// exponent; `None` when it is another.
fn number(written: &str) -> Option<String> {
    let Decimal { negative, digits, exponent, .. } = Decimal::of(written);
    if digits.is_empty() {
        return Some("0".to_owned());
    }
    // The value is digits × 10^exponent, so its whole part has `digits.len() + exponent` digits.
    let exponent = i32::try_from(exponent).ok().filter(|e| (-5..=9).contains(e))?;
    let whole = i32::try_from(digits.len()).ok()? + exponent;
    if whole > 10 || (whole == 10 && (digits != "1" || exponent != 9)) {
        return None;
    }
    let sign = if negative { "-" } else { "" };
    let digit_count = usize::try_from(whole).unwrap_or(0);
    Some(match exponent {
        0.. => format!("{sign}{digits}{}", "0".repeat(usize::try_from(exponent).ok()?)),
        _ if whole > 0 => format!("{sign}{}.{}", &digits[..digit_count], &digits[digit_count..]),
        _ => {
            let zeros = usize::try_from(-whole).ok()?;
            format!("{sign}0.{}{digits}", "0".repeat(zeros))
        }
    })
}

/// Names that SNS takes, each other than the rest and than `taken`. A name that needs no cleaning
/// keeps it; a cleaned one that meets it gets a number.
fn distinct(names: Vec<&str>, mut taken: BTreeSet<String>) -> Vec<String> {
    let cleaned: Vec<String> = names.iter().map(|name| clean(name)).collect();
    let keeps: Vec<bool> = names
        .iter()
        .zip(&cleaned)
        .map(|(name, clean)| name == clean && taken.insert(clean.clone()))
        .collect();
    cleaned
        .into_iter()
        .zip(keeps)
        .map(|(clean, keeps)| {
            if keeps || taken.insert(clean.clone()) {
                return clean;
            }
            let mut counter = 2_u32;
            loop {
                let suffix = format!("_{counter}");
                let base = &clean[..clean.len().min(MAX_NAME - suffix.len())];
                let name = format!("{base}{suffix}");
                if taken.insert(name.clone()) {
                    return name;
                }
                counter += 1;
            }
        })
        .collect()
}

/// A name of 1 to 256 of A-Z, a-z, 0-9, `_`, `-` and `.`, without a period at an end or after
/// another, and without AWS's own prefixes in any case. What is refused becomes `_`.
fn clean(name: &str) -> String {
    let taken = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut clean: String =
        name.chars().take(MAX_NAME).map(|c| if taken(c) { c } else { '_' }).collect();
    let mut replace = |at: usize| clean.replace_range(at..=at, "_");
    let bytes: Vec<u8> =
        name.chars().take(MAX_NAME).map(|c| u8::try_from(c).unwrap_or(b'_')).collect();
    let mut after_period = true;
    for (at, byte) in bytes.iter().enumerate() {
        let period = *byte == b'.';
        if period && (after_period || at + 1 == bytes.len()) {
            replace(at);
            after_period = false;
        } else {
            after_period = period;
        }
    }
    for prefix in ["aws.", "amazon."] {
        if clean.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix)) {
            clean.replace_range(prefix.len() - 1..prefix.len(), "_");
        }
    }
    if clean.is_empty() { "_".to_owned() } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_aws::testing;
    use answerback_contract::json;
    use proptest::prelude::*;

    fn with_tags(tags: &str) -> Message {
        testing::message(&format!(r#"{{"thread_id":"t-1","question_id":"q","tags":{tags}}}"#))
            .unwrap()
    }

    fn shown(tags: &str, priority: &[&str]) -> Vec<String> {
        let priority: Vec<String> = priority.iter().map(|p| (*p).to_owned()).collect();
        of(&with_tags(tags), &priority)
            .unwrap()
            .iter()
            .map(|a| format!("{} {} {}", a.name, a.data_type.name(), a.value))
            .collect()
    }

    #[test]
    fn every_tag_has_the_type_that_filters_need() {
        assert_eq!(
            shown(
                r#"{"s":"x","t":true,"f":false,"n":12.50,"z":0,"a":["x",1,true,null],"o":{"k":[1.10]},"aa":[[1]]}"#,
                &[]
            ),
            [
                "transition String created",
                "thread_id String t-1",
                "s String x",
                "t String true",
                "f String false",
                "n Number 12.5",
                "z Number 0",
                r#"a String.Array ["x",1,true,null]"#,
                r#"o String {"k":[1.10]}"#,
                "aa String [[1]]",
            ]
        );
    }

    #[test]
    fn empty_values_are_skipped() {
        assert_eq!(
            shown(r#"{"a":"","b":null,"c":[],"d":{},"e":0,"f":false}"#, &[])[2..],
            ["e Number 0", "f String false"]
        );
    }

    #[test]
    fn numbers_outside_of_what_sns_holds_are_strings() {
        for (written, sent) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("41000", "41000"),
            ("1e9", "1000000000"),
            ("-1000000000", "-1000000000"),
            ("999999999.99999", "999999999.99999"),
            ("-1.5E+2", "-150"),
            ("0.00001", "0.00001"),
            ("12e-4", "0.0012"),
            ("1.1000000000", "1.1"),
        ] {
            assert_eq!(number(written).as_deref(), Some(sent), "{written}");
        }
        for written in
            ["1000000001", "1000000000.1", "-1e10", "0.000001", "1e400", "1e-400", "9999999999"]
        {
            assert_eq!(number(written), None, "{written}");
        }
        assert_eq!(shown(r#"{"n":9007199254740993}"#, &[])[2], "n String 9007199254740993");
    }

    #[test]
    fn eight_tags_fit_and_nine_do_not() {
        let tags = |n: usize| {
            let members: Vec<_> = (0..n).map(|i| format!(r#""t{i}":"{i}""#)).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(shown(&tags(8), &[]).len(), 10);
        assert_eq!(shown(&tags(8), &[])[9], "t7 String 7");
        let nine = shown(&tags(9), &["t8", "missing", "t5"]);
        assert_eq!(nine.len(), 10);
        assert_eq!(nine[2..5], ["t8 String 8", "t5 String 5", "t0 String 0"]);
        assert_eq!(nine[8], "t4 String 4");
        assert_eq!(nine[9], format!("tags String {}", tags(9)));
        // Empty ones do not count, but stand in `tags`.
        let padded = tags(8).replace('}', r#","e1":"","e2":null}"#);
        assert_eq!(shown(&padded, &[]).len(), 10);
        assert!(!shown(&padded, &[])[9].starts_with("tags "));
    }

    #[test]
    fn the_json_of_all_tags_is_exact_and_has_no_controls() {
        let tags = "{\"a\":1.10,\"b\":9007199254740993,\"c\":\"x\u{7f}\\n\",\"d\":1,\"e\":1,\
                    \"f\":1,\"g\":1,\"h\":1,\"i\":\"\"   ,\"j\":1}";
        let all = shown(tags, &[]);
        assert_eq!(
            all[9],
            r#"tags String {"a":1.10,"b":9007199254740993,"c":"x\u007f\n","d":1,"e":1,"f":1,"g":1,"h":1,"i":"","j":1}"#
        );
    }

    #[test]
    fn no_tag_replaces_transition_or_thread_id() {
        assert_eq!(
            shown(r#"{"thread_id":"HIJACK","transition":"resumed","thread_id_2":"x"}"#, &[]),
            [
                "transition String created",
                "thread_id String t-1",
                "thread_id_3 String HIJACK",
                "transition_2 String resumed",
                "thread_id_2 String x",
            ]
        );
        let many = r#"{"tags":"mine","b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}"#;
        assert_eq!(shown(many, &[])[2], "tags_2 String mine");
        assert!(shown(many, &[])[9].starts_with("tags String {"));
    }

    #[test]
    fn names_become_such_as_sns_takes_and_stay_distinct() {
        for (name, sent) in [
            ("team.name", "team.name"),
            (".lead", "_lead"),
            ("trail.", "trail_"),
            ("a..b", "a._b"),
            ("a....b", "a._._b"),
            (".", "_"),
            ("..", "__"),
            ("", "_"),
            ("AWS.x", "AWS_x"),
            ("aMazon.x", "aMazon_x"),
            ("AWSx", "AWSx"),
            ("with space", "with_space"),
            ("Zoë/☃", "Zo___"),
        ] {
            assert_eq!(clean(name), sent, "{name}");
        }
        assert_eq!(clean(&"ö".repeat(300)), "_".repeat(256));
        assert_eq!(
            shown(r#"{"a b":1,"a/b":2,"a_b":3}"#, &[])[2..],
            ["a_b_2 Number 1", "a_b_3 Number 2", "a_b Number 3"]
        );
    }

    #[test]
    fn controls_in_values_become_underscores() {
        assert_eq!(
            shown("{\"a\":\"x\\n\\u0000y\",\"b\":[\"\\t\u{ffff}\"]}", &[])[2..],
            ["a String x__y", "b String.Array [\"__\"]"]
        );
    }

    #[test]
    fn of_a_double_key_the_last_counts() {
        assert_eq!(shown(r#"{"a":1,"b":2,"a":3}"#, &[])[2..], ["a Number 3", "b Number 2"]);
    }

    #[test]
    fn what_agent_wait_sent_is_sent_where_it_was_right() {
        let mut compared = 0;
        for (case, message) in testing::cases() {
            let Some(theirs) = case.get("sns").and_then(|sns| sns.get("MessageAttributes")) else {
                continue;
            };
            let Json::Object(theirs) = theirs else { panic!("{}", case.name) };
            // Where it sent too many, bad names, or let a tag replace an attribute, it was wrong;
            // where it dropped zeros and wrote `True`, the contract says otherwise.
            let wrong = ["091-", "094-", "095-", "097-", "127-"];
            if wrong.iter().any(|number| case.name.starts_with(number)) {
                continue;
            }
            let ours: Vec<(String, String)> = of(&message, &[])
                .unwrap()
                .into_iter()
                .map(|a| (a.name, format!("{} {}", a.data_type.name(), a.value)))
                .collect();
            let theirs: Vec<(String, String)> = theirs
                .iter()
                .map(|(name, value)| {
                    let part = |key| value.get(key).and_then(Json::as_str).unwrap();
                    (name.to_string(), format!("{} {}", part("DataType"), part("StringValue")))
                })
                .collect();
            assert_eq!(ours, theirs, "{}", case.name);
            compared += 1;
        }
        assert!(compared > 80, "{compared}");
    }

    proptest! {
        #[test]
        fn whatever_the_tags_sns_takes_the_attributes(
            tags in proptest::collection::vec(("\\PC{0,6}|[a.]{0,4}|aws\\.x|tags|thread_id|[a_]{300}", "\\PC{0,3}|\n|\u{fffe}"), 0..14),
            priority in proptest::collection::vec("[a.]{0,4}", 0..3),
        ) {
            let members: Vec<String> = tags
                .iter()
                .map(|(name, value)| format!("{}:{}", json::Quoted(name), json::Quoted(value)))
                .collect();
            let message = with_tags(&format!("{{{}}}", members.join(",")));
            let attributes = of(&message, &priority).unwrap();
            prop_assert!(attributes.len() <= MAX_ATTRIBUTES);
            let names: BTreeSet<&str> = attributes.iter().map(|a| &*a.name).collect();
            prop_assert_eq!(names.len(), attributes.len());
            prop_assert_eq!(&attributes[0].value, "created");
            prop_assert_eq!(&attributes[1].value, "t-1");
            for a in &attributes {
                let name = a.name.to_ascii_lowercase();
                prop_assert!((1..=256).contains(&name.len()), "{}", name);
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)), "{}", name);
                prop_assert!(!name.starts_with('.') && !name.ends_with('.') && !name.contains(".."), "{}", name);
                prop_assert!(!name.starts_with("aws.") && !name.starts_with("amazon."), "{}", name);
                prop_assert!(!a.value.is_empty());
                let refused = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
                prop_assert!(!a.value.contains(refused));
            }
        }
    }
}
