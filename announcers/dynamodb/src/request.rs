//! A message as what is to be written.

use crate::value::{self, Care, Item, MAX_ITEM_BYTES};
use answerback_aws::text;
use answerback_contract::json;
use answerback_contract::{Event, Message, Outcome, Rejection, WaitState};
use aws_sdk_dynamodb::types::AttributeValue;
use std::time::Duration;

/// The most bytes of a partition key and of a sort key.
const MAX_PK_BYTES: usize = 2_048;
const MAX_SK_BYTES: usize = 1_024;

/// Longer than any RFC 3339 time that is written with care; the text can be an index's key.
const MAX_TIME_BYTES: usize = 64;

pub(crate) const PK: &str = "pk";
pub(crate) const SK: &str = "sk";
pub(crate) const STATUS: &str = "status";
pub(crate) const OPEN: &str = "open";
const QUESTION: &str = "question";
const ENVELOPE: &str = "envelope";
const OVERSIZE: &str = "oversize";
const EXPIRES_AT: &str = "expires_at";

/// What a message asks of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// A row for a fresh wait.
    Open,
    /// The wait's end on its row.
    Close,
    /// Nothing: the row says already what the message does.
    Nothing,
}

/// What is to be done.
pub(crate) fn wish(event: Event) -> Wish {
    match event {
        Event::Created => Wish::Open,
        Event::Answered | Event::TimedOut | Event::Cancelled => Wish::Close,
        Event::Reminder => Wish::Nothing,
    }
}

/// The row's key.
pub(crate) fn key(message: &Message) -> (AttributeValue, AttributeValue) {
    let bounded = |prefix: &str, id: &str, most: usize| {
        let plain = format!("{prefix}{id}");
        let fits = plain.len() <= most;
        AttributeValue::S(if fits { plain } else { format!("{prefix}{}", text::hashed(id)) })
    };
    (
        bounded("THREAD#", message.thread_id.as_str(), MAX_PK_BYTES),
        bounded("WAIT#", message.wait_key.as_str(), MAX_SK_BYTES),
    )
}

/// What a closed row says beyond an open one.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Closing {
    pub(crate) status: &'static str,
    /// Name and value of the rest.
    pub(crate) rest: Vec<(&'static str, AttributeValue)>,
}

/// The end of a wait as attributes. `ttl` is how long the row stays after it.
pub(crate) fn closing(message: &Message, ttl: Option<Duration>) -> Closing {
    let status = match (message.state, message.event) {
        (WaitState::Completed, _) => "answered",
        (WaitState::TimedOut, _) => "timed-out",
        (WaitState::Cancelled | WaitState::Unused, _) => "cancelled",
        (_, Event::Answered) => "answered",
        (_, Event::TimedOut) => "timed-out",
        _ => "cancelled",
    };
    let mut rest = Vec::with_capacity(4);
    let mut add = |name, text: String| rest.push((name, AttributeValue::S(text)));
    // A deadline's default is an answer, too.
    if status == "answered" || message.answered_via.is_some() {
        add("answered_at", message.at.to_string());
    }
    if let Some(by) = &message.answered_by {
        add("answered_by", by.clone());
    }
    if let Some(via) = message.answered_via {
        add("answered_via", via.name().to_owned());
    }
    if let Some(ttl) = ttl {
        let at = message.at.after(ttl).seconds();
        rest.push(("ttl", AttributeValue::N(at.to_string())));
    }
    Closing { status, rest }
}

/// The whole row, open or with its end. Without question and envelope where it would weigh too
/// much.
///
/// # Errors
/// The outcome of a message whose row weighs too much even so.
pub(crate) fn item(
    message: &Message,
    closing: Option<&Closing>,
    care: Care,
) -> Result<Item, Outcome> {
    let document = match message.event {
        // What is announced may have a link or a claim check beside the envelope's fields.
        Event::Created => &message.payload,
        _ => &message.envelope,
    };
    let refused = |_| Outcome::refused("the envelope is not JSON");
    let document =
        std::str::from_utf8(document).map_err(|_| Outcome::refused("the envelope is not UTF-8"))?;
    let mut item = Item::with_capacity(24);
    let mut expires_at = None;
    for member in json::members(document).map_err(refused)? {
        if member.key == EXPIRES_AT {
            expires_at = Some(member.raw);
        }
        if value::is_name(&member.key) {
            let value = value::of_text(member.raw, care).map_err(refused)?;
            item.insert(member.key.into_owned(), value);
        }
    }
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let (pk, sk) = key(message);
    // The daemon's own attributes come last, so that no field of an envelope stands in for one.
    item.extend(
        [
            (PK, pk),
            (SK, sk),
            // Envelopes may have integers here; a table's index wants one type.
            ("thread_id", text(message.thread_id.as_str())),
            ("question_id", text(message.question_id.as_str())),
            (EXPIRES_AT, AttributeValue::S(deadline(message, expires_at))),
            ("generation", AttributeValue::N(message.generation.to_string())),
            (ENVELOPE, text(document)),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    for name in ["answered_at", "answered_by", "answered_via", "ttl", OVERSIZE] {
        item.remove(name);
    }
    let status = closing.map_or(OPEN, |closing| closing.status);
    item.insert(STATUS.to_owned(), text(status));
    let rest = closing.map(|closing| &*closing.rest).unwrap_or_default();
    item.extend(rest.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    fit(item)
}

fn fit(item: Item) -> Result<Item, Outcome> {
    let whole = value::item_bytes(&item);
    if whole <= MAX_ITEM_BYTES {
        return Ok(item);
    }
    let item = without_large(item);
    let rest = value::item_bytes(&item);
    if rest <= MAX_ITEM_BYTES {
        return Ok(item);
    }
    Err(Outcome::Rejected {
        rejection: Rejection::TooLarge,
        reason: format!(
            "the item has {whole} bytes, and {rest} without question and envelope; DynamoDB takes \
             {MAX_ITEM_BYTES}: send fewer or smaller other fields"
        ),
    })
}

/// A row without question and envelope, and marked so.
pub(crate) fn without_large(mut item: Item) -> Item {
    item.remove(QUESTION);
    item.remove(ENVELOPE);
    item.insert(OVERSIZE.to_owned(), AttributeValue::Bool(true));
    item
}

/// The deadline as the envelope has it, or `never`.
fn deadline(message: &Message, raw: Option<&str>) -> String {
    let Some(at) = message.expires_at else { return "never".to_owned() };
    let written = raw.and_then(|raw| json::parse(raw).ok());
    match written.as_ref().and_then(json::Json::as_str) {
        Some(text) if text.len() <= MAX_TIME_BYTES => text.to_owned(),
        _ => at.to_string(),
    }
}

/// An expression that writes an end, with placeholders for names (some are DynamoDB's reserved
/// words) and values: `#n` and `:n` of the `n`th attribute, `#s` and `:s` of the status.
pub(crate) fn close_expression(closing: &Closing, drop_large: bool) -> String {
    let mut expression = "SET #s = :s".to_owned();
    for n in 0..closing.rest.len() {
        expression.push_str(&format!(", #{n} = :{n}"));
    }
    if drop_large {
        expression.push_str(", #o = :o REMOVE #q, #e");
    }
    expression
}

/// The names and values of [`close_expression`] that are not the closing's own.
pub(crate) fn large_names() -> [(&'static str, &'static str); 3] {
    [("#o", OVERSIZE), ("#q", QUESTION), ("#e", ENVELOPE)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_aws::testing;
    use answerback_contract::json::Json;
    use answerback_contract::{Bytes, DedupeKey, DedupeRest, Time, Via};
    use std::fmt::Write as _;

    const SMALL: &str = r#"{"type":"wait.created","event_id":"e","thread_id":"t-1","question_id":"q","question":{"n":1.10},"expires_at":"2026-12-03T13:56:07Z","default":false,"answer_ttl":"","correlation":null,"tags":{"a":0},"mine":[1,1e400]}"#;

    fn of(envelope: &str) -> Message {
        testing::message(envelope).unwrap()
    }

    fn open(message: &Message) -> Result<Item, Outcome> {
        item(message, None, Care::Usual)
    }

    /// As the wire has it, members in order of their names.
    fn shown(value: &AttributeValue) -> String {
        match value {
            AttributeValue::S(text) => format!("{{\"S\":{}}}", json::Quoted(text)),
            AttributeValue::N(text) => format!("{{\"N\":{}}}", json::Quoted(text)),
            AttributeValue::Bool(b) => format!("{{\"BOOL\":{b}}}"),
            AttributeValue::Null(b) => format!("{{\"NULL\":{b}}}"),
            AttributeValue::L(items) => {
                let items: Vec<String> = items.iter().map(shown).collect();
                format!("{{\"L\":[{}]}}", items.join(","))
            }
            AttributeValue::M(members) => {
                let mut out = String::new();
                for (name, value) in members {
                    write!(out, ",{}:{}", json::Quoted(name), shown(value)).unwrap();
                }
                format!("{{\"M\":{{{}}}}}", out.trim_start_matches(','))
            }
            other => panic!("{other:?}"),
        }
    }

    fn same(ours: &AttributeValue, theirs: &Json<'_>) -> bool {
        json::same_value(&json::parse(&shown(ours)).unwrap(), theirs)
    }

    #[test]
    fn what_agent_wait_wrote_is_written_where_it_was_right() {
        let mut compared = 0;
        for (case, message) in testing::cases() {
            let Some(Json::Object(theirs)) = case.get("dynamodb") else { continue };
            let ours = open(&message).unwrap();
            let oversize = ours.contains_key(OVERSIZE);
            for (name, value) in theirs {
                // Ids that came as integers, years past 9999 and a ttl on an open row: otherwise.
                let differs = match &**name {
                    "thread_id" => case.name.starts_with("127-"),
                    "question_id" => case.name.starts_with("184-"),
                    "expires_at" => case.name.starts_with("082-"),
                    "ttl" => true,
                    // Python sets became DynamoDB's; the envelope has their text.
                    "question" => oversize || case.name.starts_with("047-"),
                    // 2,048 bytes and more as partition key.
                    "pk" => case.name.starts_with("121-"),
                    _ => false,
                };
                // Long texts are cut out of the captures.
                if !differs && !value.to_string().contains("@omitted") {
                    let ours = ours.get(&**name).unwrap();
                    let shown: String = shown(ours).chars().take(500).collect();
                    assert!(same(ours, value), "{} {name}: {shown}", case.name);
                    compared += 1;
                }
            }
            assert!(ours.contains_key("correlation"), "{}", case.name);
            if !oversize {
                assert_eq!(ours[ENVELOPE], AttributeValue::S(case.envelope.to_owned()));
            }
        }
        assert!(compared > 900, "{compared}");
    }

    #[test]
    fn every_field_is_kept_as_it_is() {
        let item = open(&of(SMALL)).unwrap();
        let mut lines: Vec<String> =
            item.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                r#"answer_ttl {"S":""}"#,
                r#"correlation {"NULL":true}"#,
                r#"default {"BOOL":false}"#,
                &format!("envelope {{\"S\":{}}}", json::Quoted(SMALL)),
                r#"event_id {"S":"e"}"#,
                r#"expires_at {"S":"2026-12-03T13:56:07Z"}"#,
                r#"generation {"N":"1"}"#,
                r#"mine {"L":[{"N":"1"},{"S":"1e400"}]}"#,
                r#"pk {"S":"THREAD#t-1"}"#,
                r#"question {"M":{"n":{"N":"1.10"}}}"#,
                r#"question_id {"S":"q"}"#,
                r#"sk {"S":"WAIT#q"}"#,
                r#"status {"S":"open"}"#,
                r#"tags {"M":{"a":{"N":"0"}}}"#,
                r#"thread_id {"S":"t-1"}"#,
                r#"type {"S":"wait.created"}"#,
            ]
        );
    }

    #[test]
    fn no_field_of_an_envelope_stands_in_for_the_rows_own() {
        let sly = r#"{"thread_id":"t","question_id":"q","pk":"x","sk":1,"status":"answered","ttl":1,"generation":9,"envelope":0,"oversize":true,"answered_at":"x","":1}"#;
        let item = open(&of(sly)).unwrap();
        assert_eq!(item[PK], AttributeValue::S("THREAD#t".to_owned()));
        assert_eq!(item[SK], AttributeValue::S("WAIT#q".to_owned()));
        assert_eq!(item[STATUS], AttributeValue::S("open".to_owned()));
        assert_eq!(item["generation"], AttributeValue::N("1".to_owned()));
        assert_eq!(item[ENVELOPE], AttributeValue::S(sly.to_owned()));
        for name in ["ttl", "oversize", "answered_at", ""] {
            assert!(!item.contains_key(name), "{name}");
        }
    }

    #[test]
    fn without_a_deadline_the_row_expires_never() {
        for envelope in [
            r#"{"thread_id":"t","question_id":"q"}"#,
            r#"{"thread_id":"t","question_id":"q","expires_at":null}"#,
            r#"{"thread_id":"t","question_id":"q","expires_at":"10240-08-20T13:56:04Z"}"#,
        ] {
            let item = open(&of(envelope)).unwrap();
            assert_eq!(item[EXPIRES_AT], AttributeValue::S("never".to_owned()), "{envelope}");
        }
    }

    #[test]
    fn keys_over_2048_and_1024_bytes_are_hashed() {
        let mut message = of(SMALL);
        let keys = |message: &Message| {
            let (pk, sk) = key(message);
            (pk.as_s().unwrap().clone(), sk.as_s().unwrap().clone())
        };
        let id = |n: usize| "x".repeat(n);
        message.thread_id = answerback_contract::ThreadId::new(&id(2_041)).unwrap();
        message.wait_key = DedupeRest::kept(&id(1_019));
        assert_eq!(
            keys(&message),
            (format!("THREAD#{}", id(2_041)), format!("WAIT#{}", id(1_019)))
        );
        message.thread_id = answerback_contract::ThreadId::new(&id(2_042)).unwrap();
        message.wait_key = DedupeRest::kept(&id(1_020));
        assert_eq!(
            keys(&message),
            (
                format!("THREAD#{}", text::hashed(&id(2_042))),
                format!("WAIT#{}", text::hashed(&id(1_020)))
            )
        );
    }

    #[test]
    fn a_repeated_message_has_the_waits_own_row() {
        let mut message = of(SMALL);
        message.dedupe_key = DedupeKey::of(Event::Answered, &message.wait_key, 3);
        assert_eq!(key(&message).1, AttributeValue::S("WAIT#q".to_owned()));
    }

    #[test]
    fn an_end_says_when_who_and_how_and_when_the_row_may_go() {
        let mut message = of(SMALL);
        message.event = Event::Answered;
        message.state = WaitState::Completed;
        message.at = Time::from_millis(1_796_000_000_123);
        message.answered_by = Some("ann".to_owned());
        message.answered_via = Some(Via::Api);
        let end = closing(&message, Some(Duration::from_secs(90 * 86_400)));
        assert_eq!(end.status, "answered");
        let text = |text: &str| AttributeValue::S(text.to_owned());
        assert_eq!(
            end.rest,
            [
                ("answered_at", text("2026-11-30T00:53:20.123Z")),
                ("answered_by", text("ann")),
                ("answered_via", text("api")),
                ("ttl", AttributeValue::N("1803776000".to_owned())),
            ]
        );
        assert_eq!(
            close_expression(&end, false),
            "SET #s = :s, #0 = :0, #1 = :1, #2 = :2, #3 = :3"
        );
        assert!(close_expression(&end, true).ends_with(", #o = :o REMOVE #q, #e"));
        message.event = Event::TimedOut;
        message.state = WaitState::TimedOut;
        message.answered_by = None;
        message.answered_via = None;
        let end = closing(&message, None);
        assert_eq!((end.status, end.rest.len()), ("timed-out", 0));
        message.answered_via = Some(Via::Default);
        assert_eq!(closing(&message, None).rest[0].0, "answered_at");
        message.state = WaitState::Cancelled;
        assert_eq!(closing(&message, None).status, "cancelled");
    }

    #[test]
    fn a_row_that_never_was_is_written_whole_with_its_end() {
        let mut message = of(SMALL);
        message.event = Event::Cancelled;
        message.state = WaitState::Cancelled;
        message.payload = Bytes::from_static(b"{\"type\":\"wait.cancelled\"}");
        let end = closing(&message, Some(Duration::from_secs(1)));
        let item = item(&message, Some(&end), Care::Usual).unwrap();
        assert_eq!(item[STATUS], AttributeValue::S("cancelled".to_owned()));
        assert_eq!(item[ENVELOPE], AttributeValue::S(SMALL.to_owned()));
        assert_eq!(item["type"], AttributeValue::S("wait.created".to_owned()));
        assert!(item.contains_key("ttl"));
    }

    #[test]
    fn over_400_kb_the_question_and_the_text_are_left_out() {
        let with = |question: usize, mine: usize| {
            of(&format!(
                r#"{{"thread_id":"t","question_id":"q","question":"{}","mine":"{}"}}"#,
                "x".repeat(question),
                "y".repeat(mine)
            ))
        };
        let whole = value::item_bytes(&open(&with(1_000, 0)).unwrap()) - 2 * 1_000;
        assert_eq!((MAX_ITEM_BYTES - whole) % 2, 0);
        let most = (MAX_ITEM_BYTES - whole) / 2;
        let full = open(&with(most, 0)).unwrap();
        assert_eq!(value::item_bytes(&full), MAX_ITEM_BYTES);
        assert!(!full.contains_key(OVERSIZE));
        let over = open(&with(most + 1, 0)).unwrap();
        assert_eq!(over[OVERSIZE], AttributeValue::Bool(true));
        assert!(!over.contains_key(QUESTION) && !over.contains_key(ENVELOPE));
        assert_eq!(over[STATUS], AttributeValue::S("open".to_owned()));
        assert!(open(&with(1_000_000, 400_000)).is_ok());
        assert!(matches!(
            open(&with(1, 409_600)).unwrap_err(),
            Outcome::Rejected { rejection: Rejection::TooLarge, .. }
        ));
    }
}
