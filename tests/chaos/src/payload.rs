//! What is asked and answered: JSON that a careless hand would change on its way.

use crate::dice::Dice;
use std::fmt::Write as _;

/// Questions. Each is one JSON text; the number is put in for `@`.
const QUESTIONS: [&str; 12] = [
    r#"{"function":"issue_refund","args":{"order_id":"o-@","amount":41000}}"#,
    r#"{"function":"rückerstatten","args":{"名前":"山田 太郎 🇯🇵","note":"naïve — “quoted” \u2028 \u0000 end","n":@}}"#,
    r#"{"big":9007199254740993,"bigger":123456789012345678901234567890,"n":@}"#,
    r#"{"decimal":0.1000000000000000055511151231257827021181583404541015625,"exp":1.0e-400,"n":@}"#,
    r#"{"float":1.0,"int":1,"minus":-0,"minus0":-0.0,"e":1E5,"n":@}"#,
    r#"{ "spaced" : [ 1 , 2 ,  3 ] ,	"n" : @ }"#,
    r#"{"z":1,"a":2,"m":3,"a2":[{"z":1,"a":[]}],"empty":{},"n":@}"#,
    r#"{"twice":1,"twice":2,"n":@}"#,
    r#"["a list", @, null, true, {"deep":[[[[[[[[[[[[[[[[@]]]]]]]]]]]]]]]]}]"#,
    r#""just a text @ with \"escapes\" \\ \/ \ud83d\ude00 and a tab\t""#,
    r#"@"#,
    r#"{"html":"</script><!--","crlf":"a\r\nb","del":"\u007f","n":@}"#,
];

/// Answers, with the same value written in another way beside it.
const ANSWERS: [(&str, &str); 7] = [
    (
        r#"{"action":"approve","by":"@","limit":1.0}"#,
        r#"{ "limit": 1, "by":"@", "action":"approve" }"#,
    ),
    (
        r#"{"action":"edit","args":{"n":9007199254740993},"by":"@"}"#,
        r#"{"by":"@","args":{"n":9007199254740993},"action":"edit"}"#,
    ),
    (r#"["@",false,null]"#, r#"[ "@" , false , null ]"#),
    (r#""é @""#, r#""\u00e9 @""#),
    (r#"{"by":"@","empty":{},"zero":0}"#, r#"{"zero":0.0,"empty":{ },"by":"@"}"#),
    (
        r#"{"by":"@","long":0.10000000000000000000000000000000000001}"#,
        r#"{"long":0.100000000000000000000000000000000000010,"by":"@"}"#,
    ),
    (r#"{"by":"@","text":"дa 🙂 \u0001"}"#, r#"{"text":"дa \ud83d\ude42 \u0001","by":"@"}"#),
];

/// The question of that number: others ask others.
#[must_use]
pub fn question(number: u64) -> String {
    let kind = usize::try_from(number % QUESTIONS.len() as u64).unwrap_or(0);
    QUESTIONS[kind].replace('@', &number.to_string())
}

/// An answer that nobody else gives: as it is sent, and the same value otherwise written.
#[must_use]
pub fn answer(dice: &mut Dice, who: &str) -> (String, String) {
    let (one, other) = dice.pick(&ANSWERS);
    (one.replace('@', who), other.replace('@', who))
}

/// What an envelope is made of.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// Conversation.
    pub thread: &'a str,
    /// Id.
    pub question_id: &'a str,
    /// The publish.
    pub event_id: &'a str,
    /// JSON text.
    pub question: &'a str,
    /// RFC 3339.
    pub expires_at: Option<String>,
    /// JSON text.
    pub default: Option<&'a str>,
    /// Where the host is.
    pub reply_to: Option<&'a str>,
}

/// An envelope's text, in one of several layouts.
#[must_use]
pub fn envelope(asked: &Asked<'_>, dice: &mut Dice) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut members = vec![
        format!("\"type\":{}", quoted("wait.created")),
        format!("\"thread_id\":{}", quoted(asked.thread)),
        format!("\"question_id\":{}", quoted(asked.question_id)),
        format!("\"event_id\":{}", quoted(asked.event_id)),
        format!("\"question\":{}", asked.question),
    ];
    if let Some(at) = &asked.expires_at {
        members.push(format!("\"expires_at\":{}", quoted(at)));
    }
    if let Some(default) = asked.default {
        members.push(format!("\"default\":{default}"));
    }
    if let Some(reply_to) = asked.reply_to {
        members.push(format!("\"reply_to\":{{\"kind\":\"http\",\"url\":{}}}", quoted(reply_to)));
    }
    if dice.percent(30) {
        members.push(
            r#""tags":{"region":"eu-west-1","größe":12345678901234567890,"vip":true}"#.into(),
        );
    }
    if dice.percent(20) {
        members.push(r#""x-unknown" : {"kept":[1.50, 1e2, "\u00e9"]}"#.into());
    }
    if dice.percent(20) {
        members.push(r#""answer_ttl":"PT4H""#.into());
    }
    // Members come in any order, with any white space between them.
    for last in (1..members.len()).rev() {
        members.swap(last, dice.index(last + 1));
    }
    let between = *dice.pick(&[",", ", ", ",\n  ", " ,\t"]);
    let mut text = String::with_capacity(512);
    let _ = write!(text, "{{{}}}", members.join(between));
    if dice.percent(10) {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback::contract::json;

    #[test]
    fn questions_and_answers_are_json_and_the_two_ways_of_an_answer_are_one_value() {
        for number in 0..24 {
            let text = question(number);
            json::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
        let mut dice = Dice::new(1, "answers");
        for n in 0..50 {
            let (one, other) = answer(&mut dice, &format!("w{n}"));
            assert_ne!(one, other);
            let (a, b) = (json::parse(&one).unwrap(), json::parse(&other).unwrap());
            assert!(json::same_value(&a, &b), "{one} {other}");
        }
    }
}
