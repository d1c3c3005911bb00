use super::*;

const REQUIRED: [(&str, &str); 4] = [
    ("type", r#""wait.created""#),
    ("thread_id", r#""t""#),
    ("question_id", r#""q""#),
    ("question", r#"{"a":1}"#),
];

fn parse(text: impl AsRef<[u8]>) -> Result<Envelope, Refusal> {
    Envelope::parse(Bytes::copy_from_slice(text.as_ref()))
}

/// The required members, one of them replaced or one added.
fn with(key: &str, raw: &str) -> Result<Envelope, Refusal> {
    let mut members: Vec<(&str, &str)> = REQUIRED.into();
    match members.iter_mut().find(|(k, _)| *k == key) {
        Some(member) => member.1 = raw,
        None => members.push((key, raw)),
    }
    let members: Vec<_> = members.iter().map(|(k, raw)| format!("\"{k}\":{raw}")).collect();
    parse(format!("{{{}}}", members.join(",")))
}

fn field_refused(result: Result<Envelope, Refusal>) -> Option<String> {
    result.err().map(|refusal| {
        assert!(!refusal.what.is_empty());
        refusal.field
    })
}

#[test]
fn what_is_missing_or_wrong_is_refused_by_name() {
    for (left_out, _) in REQUIRED {
        let rest = REQUIRED.iter().filter(|(k, _)| *k != left_out);
        let members: Vec<_> = rest.map(|(k, raw)| format!("\"{k}\":{raw}")).collect();
        let refused = field_refused(parse(format!("{{{}}}", members.join(","))));
        assert_eq!(refused.as_deref(), Some(left_out));
    }
    let long = format!("\"{}\"", "x".repeat(2_049));
    let ids = [
        "\"\"",
        "null",
        "1.0",
        "1e3",
        "-1.5",
        "true",
        "[]",
        "{}",
        r#""a\u0000b""#,
        r#""\u0085""#,
        &*long,
    ];
    for key in ["thread_id", "question_id"] {
        for raw in ids {
            assert_eq!(field_refused(with(key, raw)).as_deref(), Some(key), "{raw}");
        }
    }
    for (key, raws) in [
        ("type", &["null", "1", r#""wait.answered""#, r#""Wait.Created""#][..]),
        ("event_id", &[r#""""#, r#""a\nb""#, &long]),
        (
            "expires_at",
            &[
                "1",
                "true",
                "[]",
                "{}",
                r#""""#,
                r#""2026-09-14""#,
                r#""2026-09-14T09:00:00""#,
                r#""soon""#,
                r#""10240-08-20T13:56:04""#,
            ],
        ),
        (
            "answer_ttl",
            &[
                "true",
                "[]",
                "{}",
                "0",
                "-1",
                "0.0",
                r#""""#,
                r#""15""#,
                r#""P1M""#,
                r#""P1Y""#,
                r#""PT0S""#,
                r#""-PT1S""#,
            ],
        ),
        ("tags", &["1", "\"a\"", "[]", "false"]),
        ("reply_to", &["1", "\"http://h/\"", "[]", "false"]),
        (
            "reply_with",
            &[
                "1",
                "\"a\"",
                "[]",
                "false",
                r#"{"thread_id":"x"}"#,
                r#"{"question_id":"x"}"#,
                r#"{"thread_id":null}"#,
                r#"{"thread_id":["t"]}"#,
                r#"{"thread_id":"x","thread_id":"t"}"#,
                r#"{"thread_id":"t","\u0074hread_id":"x"}"#,
            ],
        ),
    ] {
        for raw in raws {
            assert_eq!(field_refused(with(key, raw)).as_deref(), Some(key), "{key}: {raw}");
        }
    }
}

#[test]
fn what_may_be_absent_may_be_null_and_advice_of_a_wrong_type_is_carried() {
    for key in [
        "event_id",
        "allowed_actions",
        "expires_at",
        "default",
        "answer_ttl",
        "source",
        "reply_to",
        "reply_with",
        "correlation",
        "tags",
        "unknown",
    ] {
        assert_eq!(field_refused(with(key, "null")), None, "{key}");
    }
    for key in ["event_id", "allowed_actions", "source", "correlation", "default", "unknown"] {
        for raw in ["1.5", "true", "[1,null]", r#"{"a":{}}"#] {
            let envelope = with(key, raw).unwrap();
            let text = std::str::from_utf8(envelope.text()).unwrap();
            assert!(text.contains(&format!("\"{key}\":{raw}")), "{text}");
            assert_eq!(envelope.event_id(), None);
            assert_eq!(envelope.source_function(), None);
        }
    }
    assert_eq!(with("allowed_actions", "5").unwrap().allowed_actions(), None);
    let odd = with("allowed_actions", r#"["a",1,null,["b"]]"#).unwrap();
    assert_eq!(odd.allowed_actions(), Some(vec!["a".to_owned()]));
}

#[test]
fn an_integer_id_is_its_digits_and_reply_with_keeps_it_as_it_came() {
    for (key, other) in [("thread_id", "question_id"), ("question_id", "thread_id")] {
        for digits in ["42", "-5", "0", "340282366920938463463374607431768211456"] {
            let envelope = with(key, digits).unwrap();
            let id = |key| match key {
                "thread_id" => envelope.thread_id().as_str(),
                _ => envelope.question_id().as_str(),
            };
            assert_eq!(id(key), digits);
            let built = json::members(&envelope.reply_with())
                .unwrap()
                .into_iter()
                .map(|m| (m.key.into_owned(), m.raw.to_owned()))
                .collect::<Vec<_>>();
            assert!(built.contains(&(key.to_owned(), digits.to_owned())), "{built:?}");
            assert!(built.contains(&("answer".to_owned(), "null".to_owned())));
            assert!(!id(other).is_empty());
        }
    }
    assert_eq!(with("event_id", "7").unwrap().event_id().map(EventId::as_str), Some("7"));
    // The digits are what counts, however reply_with writes them.
    assert!(with("reply_with", r#"{"thread_id":"t"}"#).is_ok());
    let numbered = |reply_with: &str| {
        parse(format!(
            r#"{{"type":"wait.created","thread_id":42,"question_id":"7","question":0,"reply_with":{reply_with}}}"#
        ))
    };
    assert!(numbered(r#"{"thread_id":42,"question_id":7}"#).is_ok());
    assert!(numbered(r#"{"thread_id":"42","question_id":"7","answer":null}"#).is_ok());
    assert!(numbered(r#"{"thread_id":42.0}"#).is_err());
    assert!(numbered(r#"{"thread_id":"042"}"#).is_err());
}

#[test]
fn a_generation_in_reply_with_is_the_one_that_answers_without_it_are_for() {
    assert!(with("reply_with", r#"{"generation":1}"#).is_ok());
    for bad in ["2", "0", "9", "1.0", "\"1\"", "null", "true", "1,\"generation\":2"] {
        let refusal = with("reply_with", &format!(r#"{{"generation":{bad}}}"#)).unwrap_err();
        assert_eq!(refusal.field, "reply_with", "{bad}");
        assert!(refusal.to_string().contains("generation"), "{refusal}");
    }
}

#[test]
fn reply_with_is_as_published_or_built_from_the_ids_as_written() {
    let given = with("reply_with", r#"{ "x" : 1.10, "generation": 1 }"#).unwrap();
    assert_eq!(given.reply_with(), r#"{ "x" : 1.10, "generation": 1 }"#);
    for raw in ["null", "{}"] {
        assert!(with("reply_with", raw).is_ok());
    }
    let escaped = parse(
        r#"{"type":"wait.created","thread_id":"\u0074\"\/","question_id":"\ud83d\ude00","question":0}"#,
    )
    .unwrap();
    assert_eq!(escaped.thread_id().as_str(), "t\"/");
    assert_eq!(
        escaped.reply_with(),
        r#"{"thread_id": "\u0074\"\/", "question_id": "\ud83d\ude00", "answer": null}"#
    );
}

#[test]
fn the_first_generation_is_announced_untouched_and_later_ones_differ_in_reply_with_only() {
    let second = Generation::new(2).unwrap();
    for (raw, expected) in [
        (
            r#"{"thread_id": "t", "answer": null}"#,
            r#"{"thread_id": "t", "answer": null, "generation": 2}"#,
        ),
        ("{}", r#"{"generation": 2}"#),
        ("{ }", r#"{"generation": 2}"#),
        (r#"{"generation":1,"x":1e400}"#, r#"{"generation":2,"x":1e400}"#),
        ("null", r#"{"thread_id": "t", "question_id": "q", "answer": null, "generation": 2}"#),
    ] {
        let text = format!(
            r#" {{"x":1.10,"type":"wait.created","thread_id":"t","reply_with" : {raw} ,"question_id":"q","question":"reply_with"}} "#
        );
        let envelope = parse(&text).unwrap();
        assert_eq!(envelope.announced(Generation::FIRST).unwrap(), text);
        assert_eq!(
            envelope.announced(second).unwrap(),
            text.replace(&format!(": {raw} "), &format!(": {expected} "))
        );
    }
    // Without the member it comes last.
    let bare = with("x", "1").unwrap();
    let announced = bare.announced(second).unwrap();
    let (text, announced) =
        (std::str::from_utf8(bare.text()).unwrap(), std::str::from_utf8(&announced).unwrap());
    assert_eq!(
        announced,
        format!(
            "{}, \"reply_with\": {{\"thread_id\": \"t\", \"question_id\": \"q\", \"answer\": null, \"generation\": 2}}}}",
            text.strip_suffix('}').unwrap()
        )
    );
}

#[test]
fn a_top_level_key_stands_once_however_it_is_spelt() {
    for (more, key) in [
        (r#""thread_id":"t""#, "thread_id"),
        (r#""thread\u005fid":"t""#, "thread_id"),
        (r#""x":1,"y":2,"x":1"#, "x"),
        (r#""\u0000":1,"\u0000":2"#, "\\0"),
    ] {
        let text = format!(
            r#"{{"type":"wait.created","thread_id":"t","question_id":"q","question":0,{more}}}"#
        );
        assert_eq!(field_refused(parse(text)).as_deref(), Some(key), "{more}");
    }
    let long = "k".repeat(100_000);
    let text = format!(r#"{{"{long}":1,"{long}":2}}"#);
    let refusal = parse(text).unwrap_err();
    assert!(refusal.to_string().len() < 200, "{refusal}");
    // Within the question they are the asker's business, and so are NULs.
    let text = r#"{"x":1,"x":2,"\u0000":"\u0000","\u0078":3}"#;
    assert_eq!(with("question", text).unwrap().question(), text);
}

#[test]
fn what_is_no_json_is_refused_with_its_place() {
    let body = |question: &str| {
        format!(
            "{{\"type\":\"wait.created\",\n\"thread_id\":\"t\",\"question_id\":\"q\",\"question\":{question}}}"
        )
    };
    for bad in
        ["NaN", "Infinity", "-Infinity", r#""\ud800""#, r#"{"\udc00":1}"#, "01", "'a'", "", "1}"]
    {
        let refusal = parse(body(bad)).unwrap_err();
        assert_eq!(refusal.field, "", "{bad}");
        assert!(refusal.what.contains("line 2 column"), "{refusal}");
    }
    for bad in ["", " ", "[]", "1", "null", "\"x\"", "\u{feff}{}", "{}{}"] {
        assert_eq!(field_refused(parse(bad)).as_deref(), Some(""), "{bad}");
    }
    let mut bytes = body("\"?\"").into_bytes();
    let at = bytes.iter().position(|b| *b == b'?').unwrap();
    bytes[at] = 0xff;
    assert!(parse(bytes).unwrap_err().what.contains("invalid UTF-8 at line 2"));
}

#[test]
fn depth_and_size_end_where_the_contract_says() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(with("question", &nested(127)).is_ok());
    assert_eq!(field_refused(with("question", &nested(128))).as_deref(), Some(""));
    let filled = |size: usize| {
        let text = |n: usize| {
            format!(
                r#"{{"type":"wait.created","thread_id":"t","question_id":"q","question":"{}"}}"#,
                "x".repeat(n)
            )
        };
        let around = text(0).len();
        text(size - around)
    };
    assert!(parse(filled(1 << 20)).is_ok());
    let refusal = parse(filled((1 << 20) + 1)).unwrap_err();
    assert_eq!(refusal.to_string(), "the envelope has 1048577 bytes; at most 1048576 are taken");
}

#[test]
fn deadlines_defaults_and_lifetimes_are_read() {
    let expires = |raw| with("expires_at", raw).unwrap().expires_at().map(|t| t.to_string());
    assert_eq!(
        expires(r#""2026-09-14T09:00:00+02:00""#).as_deref(),
        Some("2026-09-14T07:00:00.000Z")
    );
    assert_eq!(expires(r#""10240-08-20T13:56:04Z""#), None);
    assert_eq!(expires(r#""0001-01-01T00:00:00Z""#).as_deref(), Some("0001-01-01T00:00:00.000Z"));
    let ttl = |raw| with("answer_ttl", raw).unwrap().answer_ttl().map(|d| d.as_millis());
    assert_eq!(ttl(r#"" pt15m ""#), Some(900_000));
    assert_eq!(ttl("0.25"), Some(250));
    assert_eq!(ttl("1e-9"), Some(1));
    // Longer than can be counted is for ever.
    assert_eq!(ttl("1e400"), None);
    assert_eq!(ttl(r#""P99999999999999999999W""#), None);
    let default = |raw| with("default", raw).unwrap().default();
    assert_eq!(default("null"), None);
    for raw in ["false", "0", "\"\"", "[]", "{}", "{\"a\":null}", "1.10"] {
        assert_eq!(default(raw).unwrap(), raw);
    }
    assert_eq!(with("default", " null ").unwrap().default(), None);
}

#[test]
fn questions_are_the_same_by_value() {
    let same = |a, b| with("question", a).unwrap().same_question(&with("question", b).unwrap());
    assert!(same(r#"{"a":1,"b":[1.0]}"#, r#"{ "b" : [1], "\u0061" : 1e0 }"#));
    assert!(same("null", " null"));
    assert!(!same("9007199254740993", "9007199254740992"));
    assert!(!same("[1,2]", "[2,1]"));
    assert!(!same("null", "false"));
}
