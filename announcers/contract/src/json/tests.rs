use super::*;
use proptest::prelude::*;

fn same(a: &str, b: &str) -> bool {
    same_value(&parse(a).unwrap(), &parse(b).unwrap())
}

#[test]
fn members_keep_their_text() {
    let found =
        members(r#" { "a" : 1.10 , "b\u0041":[ 1e400, {"x":1,"x":2} ] ,"c": "\u0000" } "#).unwrap();
    let seen: Vec<_> = found.iter().map(|m| (&*m.key, m.raw)).collect();
    assert_eq!(seen, [("a", "1.10"), ("bA", r#"[ 1e400, {"x":1,"x":2} ]"#), ("c", r#""\u0000""#)]);
}

#[test]
fn what_python_can_write_and_json_cannot_is_refused_with_its_place() {
    for bad in [
        r#"{"a": NaN}"#,
        r#"{"a": Infinity}"#,
        r#"{"a": -Infinity}"#,
        r#"{"a":"\ud83d"}"#,
        r#"{"a":"\ude00"}"#,
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":+1}",
        "{\"a\":.5}",
        "{\"a\":1,}",
        "{'a':1}",
        "{\"a\":1} x",
        "",
        "\u{feff}{}",
        "{\"a\":\"\n\"}",
        "{\"a\":tru}",
        "{\"a\":\"\\x\"}",
        "{\"a\"}",
        "{\"a\":}",
    ] {
        assert!(members(bad).is_err(), "{bad}");
        assert!(parse(bad).is_err(), "{bad}");
    }
    let place = members("{\n  \"a\": NaN}").unwrap_err();
    assert_eq!(place.line, 2);
    assert_eq!(members("[1]").unwrap_err().to_string(), "expected an object at line 1 column 1");
}

#[test]
fn depth_is_bounded_at_128() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(parse(&nested(128)).is_ok());
    assert!(parse(&nested(129)).is_err());
    let inside = |n: usize| format!("{{\"q\":{}}}", nested(n));
    assert!(members(&inside(127)).is_ok());
    assert!(members(&inside(128)).unwrap_err().to_string().contains("deeper than 128"));
    assert!(members(&inside(100_000)).is_err());
}

#[test]
fn setting_a_member_leaves_the_rest_as_it_was() {
    let set = |object, raw| with_member(object, "answer", raw).unwrap();
    assert_eq!(
        set(r#"{"a": 1.10, "answer": null, "b":[ 1 ]}"#, "[2]"),
        r#"{"a": 1.10, "answer": [2], "b":[ 1 ]}"#
    );
    assert_eq!(set(r#" {"a": 1.10 } "#, "2"), r#" {"a": 1.10, "answer": 2} "#);
    assert_eq!(set("{}", "2"), r#"{"answer": 2}"#);
    assert_eq!(
        set(r#"{"answer":1,"x":"}","answer":1}"#, "2"),
        r#"{"answer":1,"x":"}","answer":2}"#
    );
    assert!(with_member("[]", "answer", "1").is_err());
}

#[test]
fn numbers_compare_exactly_by_value() {
    assert!(same("1", "1.0"));
    assert!(same("1e2", "100"));
    assert!(same("0", "-0.0e5"));
    assert!(same("[1e400]", "[10e399]"));
    assert!(!same("9007199254740993", "9007199254740992"));
    assert!(!same("1", "\"1\""));
    assert!(!same("-1", "1"));
    assert!(same(r#"{"a":1,"b":[]}"#, r#" {"b" : [], "\u0061":1.00} "#));
    assert!(!same(r#"{"a":1}"#, r#"{"a":1,"b":null}"#));
    assert!(same(r#"{"a":0,"a":1}"#, r#"{"a":1}"#));
}

#[test]
fn exponents_compare_exactly_however_long_they_are() {
    let far = |first: &str, zeros: usize, last: &str| format!("{first}{}{last}", "0".repeat(zeros));
    let e = |mantissa: &str, power: &str| format!("{mantissa}e{power}");
    let (a, next) = (far("1", 60, "0"), far("1", 60, "1"));
    assert!(!same(&e("1", &a), &e("1", &next)));
    assert!(same(&e("10", &a), &e("1", &next)));
    assert!(same(&e("0.1", &next), &e("1", &a)));
    assert!(same(&e("0.1", &far("1", 60, "")), &e("1", &"9".repeat(60))));
    assert!(same(&e("1", &far("1", 60, "")), &e("10", &"9".repeat(60))));
    assert!(same(&e("1", &far("-1", 60, "")), &e("0.1", &format!("-{}", "9".repeat(60)))));
    assert!(!same(&e("1", &far("-1", 60, "")), &e("1", &far("1", 60, ""))));
    assert!(same(&e("1", &far("+00001", 60, "")), &e("1", &far("1", 60, ""))));
    // At the edge of what the exponent's own type holds.
    let most = i128::MAX.to_string();
    let over = "170141183460469231731687303715884105728";
    assert!(same(&e("10", &most), &e("1", over)));
    assert!(same(&e("0.1", over), &e("1", &most)));
    assert!(!same(&e("1", &most), &e("1", over)));
}

proptest! {
    /// jiter and serde_json agree on what is JSON, but for what serde_json cannot hold.
    #[test]
    fn agrees_with_serde_json(text in r#"[\[\]{}:,"\\0-9a-fnultre.+\- ]{0,24}"#) {
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        let out_of_range = theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range"));
        if !out_of_range {
            prop_assert_eq!(parse(&text).is_ok(), theirs.is_ok(), "{}", text);
        }
    }

    #[test]
    fn what_is_written_reads_back_the_same(text in any::<String>()) {
        let quoted = Quoted(&text).to_string();
        prop_assert_eq!(parse(&quoted).unwrap(), Json::String(Cow::Owned(text.clone())));
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
    }

    #[test]
    fn integers_and_scaled_decimals_are_equal(n in any::<i64>(), shift in 0_usize..30) {
        let scaled = format!("{n}{}e-{shift}", "0".repeat(shift));
        let plain = n.to_string();
        prop_assert!(same_value(&Json::Number(&plain), &Json::Number(&scaled)));
        let other = (i128::from(n) + 1).to_string();
        prop_assert!(!same_value(&Json::Number(&plain), &Json::Number(&other)));
    }
}

/// A megabyte of one pattern, the size of the largest message.
fn megabyte(of: &str) -> String {
    of.repeat((1 << 20) / of.len())
}

#[test]
fn a_depth_bomb_needs_little_stack_and_is_refused() {
    let tried = std::thread::Builder::new().stack_size(512 << 10).spawn(|| {
        for bomb in ["[", "{\"a\":", "[{\"a\":[", "[[],["] {
            let bomb = megabyte(bomb);
            assert!(parse(&bomb).is_err());
            assert!(members(&bomb).is_err());
            assert!(members(&format!("{{\"q\":{bomb}")).is_err());
        }
        let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
        let value = parse(&deep).unwrap();
        assert_eq!(value.depth(), 128);
        assert!(same_value(&value, &parse(&value.to_string()).unwrap()));
    });
    tried.unwrap().join().unwrap();
}

/// Quadratic work on these would take minutes.
#[test]
fn the_widest_documents_are_read_and_compared_in_passing() {
    let keys: Vec<String> = (0..90_000).map(|n| format!("\"{n}\":{n}")).collect();
    let forth = format!("{{{}}}", keys.join(","));
    let back = format!("{{{}}}", keys.iter().rev().cloned().collect::<Vec<_>>().join(","));
    assert!(same(&forth, &back));
    assert_eq!(members(&forth).unwrap().len(), 90_000);
    assert!(with_member(&forth, "89999", "0").unwrap().ends_with(":0}"));
    let twice = format!("{{{}\"a\":1}}", megabyte("\"a\":0,"));
    assert!(same(&twice, "{\"a\":1}"));
    let numbers = format!("[{}0]", megabyte("0,"));
    assert!(same(&numbers, &numbers.replace('0', "0.0")));
    let texts = format!("[\"{}\"]", megabyte("\\u0000"));
    assert!(same(&texts, &texts));
    // A long run of digits: jiter takes integers of up to 4,300 digits, as Python writes them.
    let long = format!("{}.{}", "9".repeat(4_300), "9".repeat(1 << 20));
    assert!(same(&long, &format!("{long}e0")));
    assert!(parse(&"9".repeat(4_300)).is_ok());
    assert!(parse(&"9".repeat(4_301)).unwrap_err().to_string().contains("out of range"));
}

#[test]
fn lone_surrogates_are_refused_wherever_they_stand() {
    for bad in [
        r#"{"\ud800":1}"#,
        r#"{"q":{"\udc00":1}}"#,
        r#"{"q":[{"a":"x\ud83dy"}]}"#,
        r#"{"q":"\ud83d\ud83d"}"#,
        r#"{"q":"\ud83d\n"}"#,
        r#"{"q":"\uD83D\uDE0"}"#,
    ] {
        assert!(parse(bad).is_err(), "{bad}");
        assert!(members(bad).is_err(), "{bad}");
    }
    assert!(members(r#"{"q":"\ud83d\ude00","\u0000":"\u0000"}"#).is_ok());
}

#[test]
fn invalid_utf_8_is_refused_with_its_place() {
    let bad = JsonError::check_utf8(b"{\n \"a\":\"\xff\"}").unwrap_err();
    assert_eq!(bad.to_string(), "invalid UTF-8 at line 2 column 7");
    for bytes in [&b"\xc0\x80"[..], b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"] {
        assert!(JsonError::check_utf8(bytes).is_err(), "{bytes:x?}");
    }
}
