use super::*;
use crate::model::WaitId;
use crate::testing::{Interpreter, envelope, publish};
use std::time::Duration;

fn parse(text: impl AsRef<[u8]>) -> Result<Answer, Refusal> {
    Answer::parse(&Bytes::copy_from_slice(text.as_ref()))
}

fn with(members: &str) -> Result<Answer, Refusal> {
    parse(format!(r#"{{"thread_id":"t","question_id":"q",{members}}}"#))
}

fn at(ms: i64) -> Time {
    Time::from_millis(ms)
}

fn request(answer: Answer) -> AnswerRequest {
    AnswerRequest {
        tenant: TenantId::default_tenant(),
        answer,
        answered_by: Some("kim (key: ops)".to_owned()),
        via: Via::Api,
    }
}

/// A store with one wait, asked at 0.
fn asked(members: &str, rules: Rules) -> Interpreter {
    let mut store = Interpreter::new(rules);
    store.publish(&publish(envelope(members)), at(0)).unwrap();
    store
}

fn say(store: &mut Interpreter, members: &str, now: i64) -> AnswerOutcome {
    store.answer(&request(with(members).unwrap()), at(now)).unwrap()
}

#[test]
fn what_is_missing_or_wrong_is_refused_by_name() {
    for (text, field) in [
        (r#"{"question_id":"q","answer":1}"#, "thread_id"),
        (r#"{"thread_id":"t","answer":1}"#, "question_id"),
        (r#"{"thread_id":"t","question_id":"q"}"#, "answer"),
        (r#"{"thread_id":"","question_id":"q","answer":1}"#, "thread_id"),
        (r#"{"thread_id":"t","question_id":null,"answer":1}"#, "question_id"),
        (r#"{"thread_id":"t","question_id":1.0,"answer":1}"#, "question_id"),
        (r#"{"thread_id":"t","question_id":"q","answer":1,"answer":1}"#, "answer"),
        (r#"{"thread_id":"t","question_id":"q","answer":1,"\u0061nswer":2}"#, "answer"),
        (r#"{"thread_id":"t","question_id":"q","answer":1,"x":1,"x":1}"#, "x"),
        ("[]", ""),
        ("", ""),
        (r#"{"thread_id":"t","question_id":"q","answer":NaN}"#, ""),
        (r#"{"thread_id":"t","question_id":"q","answer":"\ud800"}"#, ""),
    ] {
        assert_eq!(parse(text).unwrap_err().field, field, "{text}");
    }
    for raw in ["0", "-1", "1.0", "1e0", "\"1\"", "true", "[]", "{}"] {
        let refusal = with(&format!(r#""answer":1,"generation":{raw}"#)).unwrap_err();
        assert_eq!(refusal.field, "generation", "{raw}");
    }
    for raw in ["1", "true", "\"\"", "\"2026-09-14T09:00:00\"", "\"PT1S\"", "{}"] {
        let refusal = with(&format!(r#""answer":1,"valid_until":{raw}"#)).unwrap_err();
        assert_eq!(refusal.field, "valid_until", "{raw}");
    }
    let long = format!("\"{}\"", "x".repeat(1_001));
    for raw in ["1", "true", "[]", "{}", &*long] {
        let refusal = with(&format!(r#""answer":1,"answered_by":{raw}"#)).unwrap_err();
        assert_eq!(refusal.field, "answered_by", "{raw}");
    }
    let large = format!(r#""answer":"{}""#, "x".repeat(1 << 20));
    assert!(with(&large).unwrap_err().what.contains("at most 1048576"));
    assert!(
        parse(b"{\"thread_id\":\"t\",\"question_id\":\"q\",\"answer\":\"\xff\"}")
            .unwrap_err()
            .what
            .contains("invalid UTF-8")
    );
}

#[test]
fn optional_fields_may_be_absent_or_null() {
    let plain = with(r#""answer":1"#).unwrap();
    let nulls =
        with(r#""answer":1,"generation":null,"valid_until":null,"answered_by":null"#).unwrap();
    assert_eq!(plain, nulls);
    assert_eq!(plain.generation, Generation::FIRST);
    let full = with(
        r#""answer":1,"generation":3,"valid_until":"2026-09-14T09:00:00Z","answered_by":"kim","x":{}"#,
    )
    .unwrap();
    assert_eq!(full.generation.get(), 3);
    assert_eq!(full.valid_until.unwrap().to_string(), "2026-09-14T09:00:00.000Z");
    assert_eq!(full.answered_by.as_deref(), Some("kim"));
    // Never, as agent-wait writes it; and a generation that no wait can have.
    let far = with(r#""answer":1,"valid_until":"10240-01-01T00:00:00Z","generation":99999999999"#);
    let far = far.unwrap();
    assert_eq!((far.valid_until, far.generation.get()), (None, u32::MAX));
    let digits = parse(r#"{"thread_id":42,"question_id":-7,"answer":1}"#).unwrap();
    assert_eq!((digits.thread_id.as_str(), digits.question_id.as_str()), ("42", "-7"));
}

#[test]
fn any_json_is_an_answer_and_stays_the_text_it_came_as() {
    for raw in
        ["null", "false", "0", "\"\"", "[]", "{}", "1.10", "1e400", r#"{"b":1,"a":"\u0000","b":2}"#]
    {
        let mut store = asked(r#""question":1"#, Rules::default());
        let outcome = say(&mut store, &format!(r#""answer" : {raw} "#), 1);
        assert_eq!(outcome, AnswerOutcome::Accepted, "{raw}");
        let wait = &store.waits()[0];
        assert_eq!(wait.state, WaitState::Completed);
        let given = wait.answer.as_ref().unwrap();
        assert_eq!(given.value, raw);
        assert_eq!(given.answered_by.as_deref(), Some("kim (key: ops)"));
        assert_eq!((given.answered_via, given.answered_at), (Via::Api, at(1)));
    }
}

#[test]
fn the_first_answer_wins_and_only_the_same_is_accepted_again() {
    for (first, again, same) in [
        ("null", "null", true),
        ("1", "1.0", true),
        ("1", "10e-1", true),
        (r#"{"a":1,"b":[1,2]}"#, r#"{ "b":[1,2.0], "\u0061":1 }"#, true),
        ("9007199254740993", "9007199254740992", false),
        ("null", "false", false),
        ("0", "false", false),
        ("\"\"", "null", false),
        ("[]", "{}", false),
        ("[1,2]", "[2,1]", false),
        (r#"{"a":1}"#, r#"{"a":1,"b":null}"#, false),
        ("\"1\"", "1", false),
    ] {
        let mut store = asked(r#""question":1"#, Rules::default());
        assert_eq!(say(&mut store, &format!(r#""answer":{first}"#), 1), AnswerOutcome::Accepted);
        let before = store.waits().to_vec();
        let queued = store.outbox().len();
        let expected = if same {
            AnswerOutcome::AcceptedAgain
        } else {
            AnswerOutcome::Closed { state: WaitState::Completed, generation: Generation::FIRST }
        };
        assert_eq!(
            say(&mut store, &format!(r#""answer":{again}"#), 2),
            expected,
            "{first} {again}"
        );
        assert_eq!(store.waits(), before);
        assert_eq!(store.outbox().len(), queued, "an answer goes out once");
    }
}

#[test]
fn an_answer_counts_for_its_own_tenant_thread_question_and_generation_only() {
    let mut store = asked(r#""question":1"#, Rules::default());
    store.publish(&publish(envelope(r#""question":2,"event_id":"e2""#)), at(1)).unwrap();
    let mut other = request(with(r#""answer":1,"generation":2"#).unwrap());
    other.tenant = TenantId::new("other").unwrap();
    assert_eq!(store.answer(&other, at(2)).unwrap(), AnswerOutcome::NotFound);
    for text in [
        r#"{"thread_id":"u","question_id":"q","answer":1}"#,
        r#"{"thread_id":"t","question_id":"p","answer":1}"#,
        r#"{"thread_id":"t","question_id":"q","answer":1,"generation":3}"#,
    ] {
        let outcome = store.answer(&request(parse(text).unwrap()), at(2)).unwrap();
        assert_eq!(outcome, AnswerOutcome::NotFound, "{text}");
    }
    // Without a generation it is for the first, which was withdrawn.
    let withdrawn =
        AnswerOutcome::Closed { state: WaitState::Cancelled, generation: Generation::FIRST };
    assert_eq!(say(&mut store, r#""answer":1"#, 2), withdrawn);
    assert_eq!(say(&mut store, r#""answer":1,"generation":1"#, 2), withdrawn);
    assert_eq!(say(&mut store, r#""answer":1,"generation":2"#, 2), AnswerOutcome::Accepted);
}

#[test]
fn the_deadline_is_judged_at_the_moment_of_the_answer() {
    let members = r#""question":1,"expires_at":"1970-01-01T00:00:10Z""#;
    for (now, expected) in [
        (9_999, AnswerOutcome::Accepted),
        (
            10_000,
            AnswerOutcome::Closed { state: WaitState::TimedOut, generation: Generation::FIRST },
        ),
        (
            10_001,
            AnswerOutcome::Closed { state: WaitState::TimedOut, generation: Generation::FIRST },
        ),
    ] {
        let mut store = asked(members, Rules::default());
        assert_eq!(say(&mut store, r#""answer":1"#, now), expected, "{now}");
        assert_eq!(store.waits()[0].closed_at, Some(at(now)));
    }
    // The default goes out on the late answer, and a later sweep finds nothing to do.
    let mut store = asked(&format!(r#"{members},"default":0"#), Rules::default());
    assert!(matches!(say(&mut store, r#""answer":1"#, 60_000), AnswerOutcome::Closed { .. }));
    assert_eq!(store.waits()[0].answer.as_ref().unwrap().value, "0");
    assert_eq!(store.outbox().len(), 1);
    assert_eq!(store.time_out(at(70_000)).unwrap(), []);
}

#[test]
fn an_answer_past_its_own_expiry_is_refused_and_the_wait_stays_open() {
    for (until, expected) in [
        ("1970-01-01T00:00:04.999Z", AnswerOutcome::Expired),
        ("1970-01-01T00:00:05Z", AnswerOutcome::Expired),
        ("1970-01-01T00:00:05.001Z", AnswerOutcome::Accepted),
        ("0001-01-01T00:00:00Z", AnswerOutcome::Expired),
        ("10000-01-01T00:00:00Z", AnswerOutcome::Accepted),
    ] {
        let mut store = asked(r#""question":1"#, Rules::default());
        let outcome = say(&mut store, &format!(r#""answer":1,"valid_until":"{until}""#), 5_000);
        assert_eq!(outcome, expected, "{until}");
        assert_eq!(store.waits()[0].state == WaitState::Open, expected == AnswerOutcome::Expired);
    }
    // A retry of what was accepted stays accepted, however late.
    let mut store = asked(r#""question":1"#, Rules::default());
    let answer = r#""answer":1,"valid_until":"1970-01-01T00:00:01Z""#;
    assert_eq!(say(&mut store, answer, 0), AnswerOutcome::Accepted);
    assert_eq!(say(&mut store, answer, 5_000), AnswerOutcome::AcceptedAgain);
}

#[test]
fn an_answer_is_usable_until_the_earlier_of_its_own_expiry_and_the_askers() {
    let second = |n: i64| Some(at(n * 1_000));
    let own = r#","valid_until":"1970-01-01T00:00:20Z""#;
    for (ttl, own, expected) in [
        ("null", "", None),
        ("null", own, second(20)),
        ("5", own, second(6)),
        ("\"PT5S\"", "", second(6)),
        ("60", own, second(20)),
        ("1e400", "", None),
        ("1e400", own, second(20)),
        ("1e15", "", Some(Time::MAX)),
    ] {
        let mut store = asked(&format!(r#""question":1,"answer_ttl":{ttl}"#), Rules::default());
        say(&mut store, &format!(r#""answer":1{own}"#), 1_000);
        let given = store.waits()[0].answer.clone().unwrap();
        assert_eq!(given.valid_until, expected, "{ttl} {own}");
        if let Some(until) = given.valid_until {
            assert!(given.is_valid(until.before(Duration::from_millis(1))));
            assert!(!given.is_valid(until));
        }
    }
}

#[test]
fn actions_are_enforced_only_where_the_operator_wants_it() {
    let rules = |enforce| Rules { enforce_allowed_actions: enforce, ..Rules::default() };
    let allowed = r#"["approve","reject",7]"#;
    for (allowed, answer, passes) in [
        (allowed, r#"{"action":"approve"}"#, true),
        (allowed, r#"{"action":"Approve"}"#, false),
        (allowed, r#"{"action":"edit"}"#, false),
        (allowed, r#"{"action":7.0}"#, true),
        (allowed, r#"{"action":8}"#, false),
        (allowed, r#"{"action":null}"#, false),
        (allowed, r#"{"action":["approve"]}"#, false),
        (allowed, r#"{"action":"edit","action":"approve"}"#, false),
        (allowed, r#"{"note":"no action"}"#, true),
        (allowed, r#""approve""#, true),
        (allowed, "null", true),
        ("null", r#"{"action":"edit"}"#, true),
        ("\"approve\"", r#"{"action":"edit"}"#, true),
    ] {
        let members = format!(r#""question":1,"allowed_actions":{allowed}"#);
        let answer = format!(r#""answer":{answer}"#);
        let mut store = asked(&members, rules(true));
        let expected =
            if passes { AnswerOutcome::Accepted } else { AnswerOutcome::ActionNotAllowed };
        assert_eq!(say(&mut store, &answer, 1), expected, "{allowed} {answer}");
        assert_eq!(store.waits()[0].state.is_over(), passes);
        let mut store = asked(&members, rules(false));
        assert_eq!(say(&mut store, &answer, 1), AnswerOutcome::Accepted);
    }
}

#[test]
fn a_withdrawn_wait_takes_no_answer_and_an_answered_one_is_not_withdrawn() {
    use crate::CancelOutcome;
    let mut store = asked(r#""question":1,"expires_at":"1970-01-01T00:00:10Z""#, Rules::default());
    let wait = WaitId(0);
    assert_eq!(store.cancel(wait, at(1)).unwrap(), CancelOutcome::Cancelled);
    let again = CancelOutcome::Closed(WaitState::Cancelled);
    assert_eq!(store.cancel(wait, at(2)).unwrap(), again);
    assert_eq!(
        say(&mut store, r#""answer":1"#, 3),
        AnswerOutcome::Closed { state: WaitState::Cancelled, generation: Generation::FIRST }
    );
    assert_eq!(store.time_out(at(20_000)).unwrap(), [], "withdrawn, so nothing is due");
    let mut store = asked(r#""question":1"#, Rules::default());
    say(&mut store, r#""answer":1"#, 1);
    assert_eq!(store.cancel(wait, at(2)).unwrap(), CancelOutcome::Closed(WaitState::Completed));
    let mut store = asked(r#""question":1,"expires_at":"1970-01-01T00:00:10Z""#, Rules::default());
    assert_eq!(store.cancel(wait, at(10_000)).unwrap(), CancelOutcome::Closed(WaitState::TimedOut));
    assert_eq!(store.waits()[0].state, WaitState::TimedOut);
}
