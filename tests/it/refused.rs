//! Bad input: refused by name, with nothing stored; or taken and carried unchanged.

use crate::bed::{all_of, bare, envelope, later, webhook};
use answerback_testkit::Receiver;
use serde_json::{Value, json};
use std::time::Duration;

/// An envelope as text, one member replaced or added by `raw`.
fn with(name: &str, raw: &str) -> String {
    let mut text = envelope("t", "q").to_string();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value[name] = json!("@here");
    text = value.to_string();
    text.replace("\"@here\"", raw)
}

fn without(name: &str) -> String {
    let mut value = envelope("t", "q");
    value.as_object_mut().unwrap().shift_remove(name);
    value.to_string()
}

/// The body, and what its refusal names.
fn bad() -> Vec<(String, &'static str)> {
    let long = format!("\"{}\"", "x".repeat(2_049));
    let mut bad: Vec<(String, &str)> = ["thread_id", "question_id"]
        .into_iter()
        .flat_map(|id| {
            ["null", "\"\"", "[]", "{}", "true", "1.5", r#""\u0000""#, r#""a\nb""#, &long]
                .map(|raw| (with(id, raw), id))
        })
        .collect();
    for field in ["thread_id", "question_id", "question", "type"] {
        bad.push((without(field), field));
    }
    let typed = [
        ("expires_at", "1"),
        ("expires_at", "\"tomorrow\""),
        ("expires_at", "\"2030-01-01T00:00:00\""),
        ("expires_at", "\"2030-02-30T00:00:00Z\""),
        ("expires_at", "true"),
        ("answer_ttl", "\"P1Y2M10DT2H30M\""),
        ("answer_ttl", "\"P1M\""),
        ("answer_ttl", "\"PT\""),
        ("answer_ttl", "\"P\""),
        ("answer_ttl", "\"15m\""),
        ("answer_ttl", "true"),
        ("answer_ttl", "[]"),
        ("tags", "[]"),
        ("tags", "\"finance\""),
        ("tags", "1"),
        ("reply_to", "1"),
        ("reply_to", "[]"),
        ("reply_with", "1"),
        ("reply_with", r#"{"thread_id":"another","question_id":"q","answer":null}"#),
        ("reply_with", r#"{"thread_id":"t","question_id":"another","answer":null}"#),
    ];
    bad.extend(typed.map(|(field, raw)| (with(field, raw), field)));
    let twice = envelope("t", "q").to_string().replacen('{', r#"{"thread_id":"t","#, 1);
    bad.push((twice, "thread_id"));
    let twice = envelope("t", "q").to_string().replacen('{', r#"{"x":1,"x":2,"#, 1);
    bad.push((twice, "`x`"));
    bad.push((with("question", r#""\ud800""#), "column"));
    bad.push((with("question", "NaN"), "column"));
    bad.push((with("default", "Infinity"), "column"));
    bad.push((with("tags", r#"{"a":-Infinity}"#), "column"));
    bad.push((with("question", &format!("{}{}", "[".repeat(129), "]".repeat(129))), "column"));
    bad.push((envelope("t", "q").to_string() + "x", "column"));
    bad.push(("[]".to_owned(), "object"));
    bad.push((String::new(), "column"));
    bad
}

#[tokio::test]
async fn what_the_contract_refuses_is_a_400_that_names_it_and_nothing_is_stored() {
    let daemon = bare().start().await;
    let mut wrong = Vec::new();
    for (body, named) in bad() {
        let reply = daemon.api().post_text("/v1/waits", body.clone()).await;
        let shown: String = body.chars().take(300).collect();
        if (reply.status, reply.code().as_str()) != (400, "bad-input")
            || !reply.text().contains(named)
        {
            wrong.push(format!("{shown}\n  -> {} {}", reply.status, reply.text()));
        }
        if reply.status == 400 && !reply.json()["error"]["requestId"].is_string() {
            wrong.push(format!("{shown}\n  -> without requestId"));
        }
    }
    let invalid = [&b"{\"type\":\"wait.created\",\"thread_id\":\"\xff\""[..], b"\xff\xfe"];
    for body in invalid {
        let reply = daemon.api().post_text("/v1/waits", body).await;
        if reply.status != 400 {
            wrong.push(format!("{body:?} -> {} {}", reply.status, reply.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(all_of(daemon.api(), "/v1/waits").await.is_empty());
}

#[tokio::test]
async fn a_mebibyte_is_taken_and_one_byte_more_is_not() {
    let daemon = bare().start().await;
    let empty = with("question", "\"\"").len();
    let full = with("question", &format!("\"{}\"", "x".repeat((1 << 20) - empty)));
    assert_eq!(full.len(), 1 << 20);
    let refused = daemon.api().post_text("/v1/waits", full.replacen("xx", "xxx", 1)).await;
    assert_eq!((refused.status, refused.code().as_str()), (413, "request-too-large"));
    assert!(all_of(daemon.api(), "/v1/waits").await.is_empty());
    daemon.api().post_text("/v1/waits", full.clone()).await.expect(202);
    assert!(daemon.api().get("/v1/waits/q").await.expect(200).text().contains(&full));
}

/// Odd, but JSON that the contract lets pass: it arrives byte for byte.
#[tokio::test]
async fn odd_content_is_carried_unchanged_both_ways() {
    let (hook, host) = (Receiver::start().await, Receiver::start().await);
    let daemon = bare()
        .config(&webhook("hook", &hook.url("/"), ""))
        .config(&crate::bed::http_route("host", &host.url("/"), ""))
        .start()
        .await;
    let deep = format!("{}{}", "[".repeat(126), "]".repeat(126));
    let odd = [
        r#""\u0000\u0001\u007f""#,
        r#"{"a":1,"a":2,"b":{"c":1,"c":2}}"#,
        "123456789012345678901234567890123456789012345678901234567890",
        "-0.0",
        "1.0000000000000000000000000000000000000000000000000001",
        "1e400",
        "1E+2",
        r#"{"z":1,"a":2,"m":[1.10, 2 ,  3]}"#,
        "9007199254740993",
        "\"\u{fffe}\u{ffff}\u{2028}\u{feff}\u{1f44d}\"",
        r#""\ud83d\udc4d""#,
        "null",
        "false",
        "0",
        "\"\"",
        "[]",
        "{}",
        &deep,
    ];
    for (n, raw) in odd.iter().enumerate() {
        let body = format!(
            r#"{{ "type" : "wait.created","thread_id":"t{n}","question_id":"q{n}",  "question":{raw}, "unknown": [{raw}],"source": 7, "allowed_actions": "approve", "reply_with":{{"thread_id":"t{n}", "mine":[1.10] ,"question_id":"q{n}","answer":null}}}}"#
        );
        daemon.api().post_text("/v1/waits", body.clone()).await.expect(202);
        assert_eq!(hook.next().await.text(), body);
        let message = format!(r#"{{"thread_id":"t{n}","question_id":"q{n}","answer":{raw}}}"#);
        daemon.api().post_text("/v1/answers", message.clone()).await.expect(200);
        let delivered = host.next().await;
        let wanted = format!(
            r#"{{"thread_id":"t{n}", "mine":[1.10] ,"question_id":"q{n}","answer":{raw}}}"#
        );
        assert_eq!(delivered.text(), wanted);
        // The same again is accepted again, another is not.
        daemon.api().post_text("/v1/answers", message).await.expect(200);
        let other =
            format!(r#"{{"thread_id":"t{n}","question_id":"q{n}","answer":"no, another"}}"#);
        let refused = daemon.api().post_text("/v1/answers", other).await.expect(409);
        assert_eq!(refused.code(), "wait-closed");
    }
    crate::bed::settled(&daemon).await;
    assert_eq!((hook.all().len(), host.all().len()), (odd.len(), odd.len()));
}

#[tokio::test]
async fn a_refused_answer_changes_nothing() {
    let daemon = bare().start().await;
    let mut asked = envelope("t", "q");
    asked["expires_at"] = json!(later(Duration::from_secs(3_600)));
    daemon.api().post("/v1/waits", &asked).await.expect(202);
    let bad = [
        (r#"{"thread_id":"t","question_id":"q"}"#, 400, "bad-input"),
        (r#"{"thread_id":"t","question_id":"q","answer":1,"answer":2}"#, 400, "bad-input"),
        (r#"{"thread_id":"t","question_id":"q","answer":NaN}"#, 400, "bad-input"),
        (r#"{"thread_id":"t","question_id":"","answer":1}"#, 400, "bad-input"),
        (r#"{"thread_id":"t","question_id":"q","answer":1,"generation":0}"#, 400, "bad-input"),
        (r#"{"thread_id":"t","question_id":"q","answer":1,"generation":"1"}"#, 400, "bad-input"),
        (
            r#"{"thread_id":"t","question_id":"q","answer":1,"valid_until":"2001-01-01T00:00:00Z"}"#,
            400,
            "answer-expired",
        ),
        (
            r#"{"thread_id":"t","question_id":"q","answer":1,"valid_until":"2030-01-01T00:00:00"}"#,
            400,
            "bad-input",
        ),
        (r#"{"thread_id":"t","question_id":"another","answer":1}"#, 404, "wait-not-found"),
        (r#"{"thread_id":"another","question_id":"q","answer":1}"#, 404, "wait-not-found"),
    ];
    for (body, status, code) in bad {
        let reply = daemon.api().post_text("/v1/answers", body).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (status, code),
            "{body}: {}",
            reply.text()
        );
    }
    let wait = daemon.api().get("/v1/waits/q").await.expect(200).json();
    assert_eq!((&wait["state"], &wait["answer"]), (&json!("open"), &Value::Null));
}
