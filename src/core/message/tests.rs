use super::*;
use crate::model::{Destination, Name, OutboxId};
use crate::testing::{Interpreter, Queued, envelope, publish};
use crate::{AnnouncerRule, Answer, AnswerRequest, Republished, RouteRule, Rules};
use answerback_contract::{Generation, TenantId, Via};

fn at(ms: i64) -> Time {
    Time::from_millis(ms)
}

/// One announcer that is told of everything, and a route that takes every answer.
fn rules() -> Rules {
    Rules {
        announcers: vec![AnnouncerRule {
            name: Name::new("all"),
            tenant: TenantId::default_tenant(),
            matcher: crate::matching::Matcher::default(),
            events: Event::ALL.to_vec(),
            follows_state: false,
            ordered: true,
        }],
        routes: vec![RouteRule {
            name: Name::new("host"),
            tenant: TenantId::default_tenant(),
            matcher: crate::matching::Matcher::default(),
            pull: false,
        }],
        republished: Republished::Resend,
        ..Rules::default()
    }
}

fn ask(store: &mut Interpreter, members: &str, now: i64) {
    store.publish(&publish(envelope(members)), at(now)).unwrap();
}

fn say(store: &mut Interpreter, members: &str, now: i64) {
    let text = format!(r#"{{"thread_id":"t","question_id":"q",{members}}}"#);
    let request = AnswerRequest {
        tenant: TenantId::default_tenant(),
        answer: Answer::parse(&Bytes::from(text)).unwrap(),
        answered_by: Some("\"kim\" (key: ops)".to_owned()),
        via: Via::Sqs,
    };
    store.answer(&request, at(now)).unwrap();
}

/// The message of an event to a destination, the newest where there are several.
fn sent(store: &Interpreter, event: Event, to: &str) -> Message {
    let of = |q: &&Queued| q.send.event == event && q.send.destination.label() == to;
    store.message(store.outbox().iter().rfind(of).unwrap()).unwrap()
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_host_gets_reply_with_as_published_with_the_answer_set() {
    for (reply_with, answer, expected) in [
        (
            r#"{"thread_id": "t", "question_id": "q", "answer": null}"#,
            r#"{"action":"approve"}"#,
            r#"{"thread_id": "t", "question_id": "q", "answer": {"action":"approve"}}"#,
        ),
        (
            r#"{"x":9007199254740993,"answer":{"old":[1]},"y":1.10}"#,
            "1e400",
            r#"{"x":9007199254740993,"answer":1e400,"y":1.10}"#,
        ),
        ("{}", "null", r#"{"answer": null}"#),
        ("null", "false", r#"{"thread_id": "t", "question_id": "q", "answer": false}"#),
        // A field that the asker put there itself is the asker's.
        (
            r#"{"generation":1,"valid_until":"mine"}"#,
            "[]",
            r#"{"generation":1,"valid_until":"mine", "answer": []}"#,
        ),
    ] {
        for generation in [1, 2] {
            let mut store = Interpreter::new(rules());
            if generation == 2 {
                ask(&mut store, r#""question":"other","event_id":"e0""#, 0);
            }
            ask(
                &mut store,
                &format!(r#""question":1,"event_id":"e1","reply_with":{reply_with}"#),
                0,
            );
            say(&mut store, &format!(r#""generation":{generation},"answer":{answer}"#), 1_000);
            let message = sent(&store, Event::Answered, "host");
            assert_eq!(text(&message.payload), expected, "generation {generation}");
            assert_eq!(message.generation.get(), generation);
        }
    }
}

#[test]
fn the_host_is_told_until_when_the_answer_is_usable() {
    let mut store = Interpreter::new(rules());
    ask(&mut store, r#""question":1,"answer_ttl":"PT15M""#, 0);
    say(&mut store, r#""answer":1"#, 1_000);
    assert_eq!(
        text(&sent(&store, Event::Answered, "host").payload),
        r#"{"thread_id": "t", "question_id": "q", "answer": 1, "valid_until": "1970-01-01T00:15:01.000Z"}"#
    );
    let mut store = Interpreter::new(rules());
    ask(&mut store, r#""question":1,"reply_with":{"valid_until":null,"answer":0}"#, 0);
    say(&mut store, r#""answer":1,"valid_until":"2026-09-14T11:00:00.5+02:00""#, 1_000);
    assert_eq!(
        text(&sent(&store, Event::Answered, "host").payload),
        r#"{"valid_until":"2026-09-14T09:00:00.500Z","answer":1}"#
    );
}

#[test]
fn an_announcement_is_the_envelope_and_names_the_generation_from_the_second_on() {
    let mut store = Interpreter::new(rules());
    ask(&mut store, r#""event_id":"e1","question":1.10,"reply_with":{"answer":null},"x":[ 1 ]"#, 5);
    let first = sent(&store, Event::Created, "all");
    assert_eq!(first.payload, store.waits()[0].envelope);
    assert_eq!((first.event_id.as_str(), first.dedupe_key.as_str()), ("e1", "wait.created:q"));
    assert_eq!((first.state, first.at), (WaitState::Open, at(5)));
    assert_eq!((first.answered_by.clone(), first.answered_via), (None, None));
    ask(&mut store, r#""event_id":"e2","question":2,"reply_with":{"answer":null},"x":[ 1 ]"#, 6);
    let second = sent(&store, Event::Created, "all");
    assert_eq!(
        text(&second.payload),
        r#"{"type":"wait.created","thread_id":"t","question_id":"q","event_id":"e2","question":2,"reply_with":{"answer":null, "generation": 2},"x":[ 1 ]}"#
    );
    assert_eq!(second.envelope, second.payload);
    assert_eq!((second.event_id.as_str(), second.dedupe_key.as_str()), ("e2", "wait.created:q:2"));
    assert_eq!(second.generation, Generation::new(2).unwrap());
}

/// The members of a lifecycle message, checked to be in the contract's order.
fn lifecycle(store: &Interpreter, event: Event) -> Vec<(String, String)> {
    let message = sent(store, event, "all");
    let members = json::members(text(&message.payload)).unwrap();
    let members: Vec<_> = members.iter().map(|m| (m.key.to_string(), m.raw.to_owned())).collect();
    let keys: Vec<_> = members.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "type",
            "event_id",
            "thread_id",
            "question_id",
            "generation",
            "state",
            "at",
            "answered_by",
            "answered_via",
            "tags",
            "source"
        ]
    );
    assert_eq!(members[1].1, format!("\"{}\"", message.event_id));
    assert_eq!(message.envelope, store.waits().last().unwrap().envelope);
    members
}

#[test]
fn the_end_of_a_wait_is_told_with_its_tags_and_who_answered() {
    let members = r#""question":"?","tags":{"n": 1.10,"n":2},"source":{ "function":"f" },"expires_at":"1970-01-01T00:00:10Z","default":"!""#;
    let raws = |members: Vec<(String, String)>| {
        members.into_iter().skip(4).map(|(_, raw)| raw).collect::<Vec<_>>().join(" ")
    };
    let mut store = Interpreter::new(rules());
    ask(&mut store, members, 0);
    say(&mut store, r#""answer":"!""#, 1_000);
    let answered = sent(&store, Event::Answered, "all");
    assert_eq!(answered.dedupe_key.as_str(), "wait.answered:q");
    assert_eq!(answered.answered_by.as_deref(), Some("\"kim\" (key: ops)"));
    assert_eq!(answered.answered_via, Some(Via::Sqs));
    assert_eq!(
        raws(lifecycle(&store, Event::Answered)),
        r#"1 "completed" "1970-01-01T00:00:01.000Z" "\"kim\" (key: ops)" "sqs" {"n": 1.10,"n":2} { "function":"f" }"#
    );

    let mut store = Interpreter::new(rules());
    ask(&mut store, members, 0);
    store.time_out(at(10_500)).unwrap();
    assert_eq!(
        raws(lifecycle(&store, Event::TimedOut)),
        r#"1 "timed-out" "1970-01-01T00:00:10.500Z" null "default" {"n": 1.10,"n":2} { "function":"f" }"#
    );
    // The host is sent the default under the event of an answer, the wait stays timed out.
    let default = sent(&store, Event::Answered, "host");
    assert_eq!((default.state, default.answered_via), (WaitState::TimedOut, Some(Via::Default)));
    assert_eq!(default.dedupe_key.as_str(), "wait.answered:q");

    let mut store = Interpreter::new(rules());
    ask(&mut store, r#""question":"?""#, 0);
    store.cancel(store.waits()[0].id, at(2_000)).unwrap();
    assert_eq!(
        raws(lifecycle(&store, Event::Cancelled)),
        r#"1 "cancelled" "1970-01-01T00:00:02.000Z" null null {} null"#
    );
}

#[test]
fn the_answer_is_told_only_to_announcers_that_ask_for_it() {
    let mut store = Interpreter::new(rules());
    ask(&mut store, r#""question":"?""#, 0);
    say(&mut store, r#""answer":{ "a" : 1e400 }"#, 1_000);
    let leased = |event| Leased {
        id: OutboxId(0),
        lease: 0,
        destination: Destination::Announcer(Name::new("all")),
        event,
        repeat: 0,
        event_id: None,
        attempts: 0,
        queued_at: at(1_000),
        wait: Arc::new(store.waits()[0].clone()),
    };
    let payload = |event, include| of(&leased(event), include).unwrap().payload;
    assert!(text(&payload(Event::Answered, true)).ends_with(r#","answer":{ "a" : 1e400 }}"#));
    assert!(!text(&payload(Event::Answered, false)).contains("1e400"));
    // Asked or not: a question is announced without an answer, and so is a reminder.
    for event in [Event::Created, Event::Reminder] {
        let message = of(&leased(event), true).unwrap();
        assert!(!text(&message.payload).contains("1e400"));
        assert_eq!((message.answered_by, message.state), (None, WaitState::Open));
    }
}

#[test]
fn ids_are_written_so_that_they_read_back() {
    let text_of = r#"{"type":"wait.created","thread_id":"a\"b\\☃","question_id":42,"event_id":"e\"","question":0}"#;
    let asked = publish(Envelope::parse(Bytes::from_static(text_of.as_bytes())).unwrap());
    let mut store = Interpreter::new(rules());
    store.publish(&asked, at(0)).unwrap();
    store.cancel(store.waits()[0].id, at(1)).unwrap();
    let message = sent(&store, Event::Cancelled, "all");
    let value = json::parse(text(&message.payload)).unwrap();
    let member = |key| value.get(key).and_then(json::Json::as_str);
    assert_eq!(member("thread_id"), Some("a\"b\\☃"));
    assert_eq!(member("question_id"), Some("42"));
}
