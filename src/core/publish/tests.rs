use super::*;
use crate::matching::Matcher;
use crate::model::{Destination, Name, OutboxId, WaitId};
use crate::rules::AnnouncerRule;
use crate::testing::{Interpreter, envelope, publish};
use answerback_contract::{Bytes, Via};

fn at(ms: i64) -> Time {
    Time::from_millis(ms)
}

fn announcer(name: &str, events: &[Event], follows_state: bool) -> AnnouncerRule {
    AnnouncerRule {
        name: Name::new(name),
        tenant: TenantId::default_tenant(),
        matcher: Matcher::default(),
        events: events.to_vec(),
        follows_state,
        ordered: true,
    }
}

fn rules(republished: Republished) -> Rules {
    Rules {
        announcers: vec![announcer("all", &Event::ALL, false), announcer("row", &[], true)],
        republished,
        ..Rules::default()
    }
}

/// The decision in short: the outcome, and each operation as a few words.
fn in_short(decided: (PublishOutcome, Vec<Op>)) -> String {
    let of = |wait: WaitRef| match wait {
        WaitRef::Existing(_) => "",
        WaitRef::Opened => "new ",
    };
    let ops = decided.1.iter().map(|op| match op {
        Op::Open(new) => format!("open {} {}", new.generation, new.state),
        Op::Close { state, .. } => format!("close {state}"),
        Op::TakeOver { .. } => "take over".to_owned(),
        Op::Remember { .. } => "remember".to_owned(),
        Op::Resent { resends, .. } => format!("resent {resends}"),
        Op::Record { wait, event, .. } => format!("{}{}", of(*wait), event.transition()),
        Op::Send { wait, send } => {
            let repeat = if send.repeat > 0 { format!(" r{}", send.repeat) } else { String::new() };
            format!(
                "{}{}{repeat} > {}",
                of(*wait),
                send.event.transition(),
                send.destination.label()
            )
        }
    });
    let outcome = match decided.0 {
        PublishOutcome::New(generation) => format!("new {generation}"),
        PublishOutcome::Duplicate(generation) => format!("duplicate of {generation}"),
    };
    std::iter::once(outcome).chain(ops).collect::<Vec<_>>().join("; ")
}

fn decide_in_short(
    wait: Option<&Wait>,
    seen: bool,
    asked: &Publish,
    rules: &Rules,
    now: Time,
) -> String {
    let mut n = 0;
    let decided = decide(wait, seen, &[], asked, rules, now, &mut || {
        n += 1;
        EventId::new(&format!("minted-{n}")).unwrap()
    });
    in_short(decided.unwrap())
}

const DEADLINE: &str = r#""expires_at":"1970-01-01T00:01:40Z""#;

/// A wait for the question 1, asked at 0, with a deadline at 100 s.
fn wait(state: WaitState, answer: Option<GivenAnswer>, more: &str) -> Wait {
    let mut store = Interpreter::new(Rules::default());
    store.publish(&publish(envelope(&format!(r#""question":1,{DEADLINE}{more}"#))), at(0)).unwrap();
    let closed_at = state.is_over().then(|| at(1_000));
    Wait { state, answer, closed_at, ..store.waits()[0].clone() }
}

fn given(valid_until: Option<Time>) -> Option<GivenAnswer> {
    Some(GivenAnswer {
        value: Bytes::from_static(b"true"),
        valid_until,
        answered_at: at(1_000),
        answered_by: None,
        answered_via: Via::Api,
    })
}

const ANNOUNCED: &str = "new created; new created > all; new created > row";

/// The table of the contract: each row, both columns, under each `republished_after_answer`.
#[test]
fn every_row_and_column_of_the_table_holds() {
    use Republished::{AskAgain, Ignore, Resend};
    use WaitState::{Cancelled, Completed, Open, Pending, TimedOut, Unused};
    let next = format!("new 2; open 2 open; {ANNOUNCED}");
    let moved_on = format!(
        "new 2; close cancelled; cancelled; cancelled > all; cancelled > row; open 2 open; {ANNOUNCED}"
    );
    let taken_over = "duplicate of 1; remember; take over".to_owned();
    let resent = "duplicate of 1; remember; take over; resent 1; answered r1 > pull".to_owned();
    let ignored = "duplicate of 1; remember".to_owned();
    let answer = || given(None);
    let usable = || given(Some(at(5_001)));
    let stale = || given(Some(at(5_000)));
    let rows: Vec<(&str, Wait, [&String; 3])> = vec![
        // What the same question again gives, under resend, ask_again and ignore.
        ("open", wait(Open, None, ""), [&taken_over, &taken_over, &taken_over]),
        ("pending", wait(Pending, None, ""), [&taken_over, &taken_over, &taken_over]),
        ("completed", wait(Completed, answer(), ""), [&resent, &next, &ignored]),
        ("completed, still valid", wait(Completed, usable(), ""), [&resent, &next, &ignored]),
        ("completed, no longer valid", wait(Completed, stale(), ""), [&next, &next, &ignored]),
        ("timed out with a default", wait(TimedOut, answer(), ""), [&resent, &next, &ignored]),
        ("timed out with a stale default", wait(TimedOut, stale(), ""), [&next, &next, &ignored]),
        ("timed out without one", wait(TimedOut, None, ""), [&next, &next, &next]),
        ("cancelled", wait(Cancelled, None, ""), [&next, &next, &next]),
        ("unused", wait(Unused, None, ""), [&next, &next, &next]),
    ];
    let asked = |question: &str| {
        publish(envelope(&format!(r#""question":{question},"event_id":"fresh","expires_at":null"#)))
    };
    for (n, policy) in [Resend, AskAgain, Ignore].into_iter().enumerate() {
        let rules = rules(policy);
        let decide = |wait: Option<&Wait>, seen, question: &str| {
            decide_in_short(wait, seen, &asked(question), &rules, at(5_000))
        };
        assert_eq!(decide(None, false, "1"), format!("new 1; open 1 open; {ANNOUNCED}"));
        for (row, wait, same) in &rows {
            for spelling in ["1", "1.0", "10e-1"] {
                assert_eq!(
                    decide(Some(wait), false, spelling),
                    *same[n],
                    "{row}, same, {policy:?}"
                );
            }
            let differs = if wait.state.is_over() { &next } else { &moved_on };
            for question in ["2", "\"1\"", "null", "[1]"] {
                assert_eq!(
                    decide(Some(wait), false, question),
                    *differs,
                    "{row}, differs, {policy:?}"
                );
            }
            for question in ["1", "2"] {
                assert_eq!(decide(Some(wait), true, question), "duplicate of 1", "{row}, seen");
            }
        }
    }
}

#[test]
fn a_publish_that_comes_late_sees_the_deadline_first() {
    use Republished::{AskAgain, Ignore, Resend};
    let timed_out = "close timed-out; timed-out; timed-out > all; timed-out > row";
    let with_default = r#","default":false"#;
    for (policy, default, question, expected) in [
        // The default goes out once, to where the asker is now.
        (
            Resend,
            with_default,
            "1",
            format!("duplicate of 1; take over; {timed_out}; answered > pull; remember"),
        ),
        (
            AskAgain,
            with_default,
            "1",
            format!("new 2; {timed_out}; answered > pull; open 2 open; {ANNOUNCED}"),
        ),
        (
            Ignore,
            with_default,
            "1",
            format!("duplicate of 1; {timed_out}; answered > pull; remember"),
        ),
        (
            Resend,
            with_default,
            "2",
            format!("new 2; {timed_out}; answered > pull; open 2 open; {ANNOUNCED}"),
        ),
        (Resend, "", "1", format!("new 2; {timed_out}; open 2 open; {ANNOUNCED}")),
        (Resend, "", "2", format!("new 2; {timed_out}; open 2 open; {ANNOUNCED}")),
    ] {
        let wait = wait(WaitState::Open, None, default);
        let asked = publish(envelope(&format!(r#""question":{question},"event_id":"fresh""#)));
        let rules = rules(policy);
        for now in [100_000, 100_001, 900_000] {
            let got = decide_in_short(Some(&wait), false, &asked, &rules, at(now));
            assert_eq!(got, expected, "{policy:?} {default} {question} {now}");
        }
        let early = decide_in_short(Some(&wait), false, &asked, &rules, at(99_999));
        assert!(!early.contains("timed-out"), "{early}");
        // A redelivery has no effect, not even that of the deadline.
        let seen = decide_in_short(Some(&wait), true, &asked, &rules, at(100_000));
        assert_eq!(seen, "duplicate of 1");
    }
}

#[test]
fn a_question_that_is_late_already_is_never_announced_and_its_default_goes_out_once() {
    let rules = rules(Republished::Resend);
    let short = |members: &str, now| {
        let asked = publish(envelope(&format!(r#""question":1,{members}"#)));
        decide_in_short(None, false, &asked, &rules, at(now))
    };
    const LATE: &str = "new 1; open 1 timed-out; new created; new timed-out";
    let late = r#""expires_at":"1970-01-01T00:01:40Z""#;
    assert_eq!(short(late, 100_000), LATE);
    assert_eq!(
        short(&format!(r#"{late},"default":false"#), 100_000),
        format!("{LATE}; new answered > pull")
    );
    assert_eq!(short(&format!(r#"{late},"default":null"#), 100_001), LATE);
    assert_eq!(short(late, 99_999), format!("new 1; open 1 open; {ANNOUNCED}"));
    assert_eq!(
        short(r#""expires_at":"10240-08-20T13:56:04Z","default":1"#, 99_999),
        format!("new 1; open 1 open; {ANNOUNCED}")
    );
}

#[test]
fn the_first_deadline_holds_and_the_newest_reply_fields() {
    let mut store = Interpreter::new(Rules::default());
    let ask = |n: u32, expires: &str, reply_with: &str| {
        publish(envelope(&format!(
            r#""question":1,"event_id":"e{n}","expires_at":"{expires}","default":0,"reply_with":{reply_with}"#
        )))
    };
    let first = ask(1, "1970-01-01T00:00:10Z", r#"{"n":1,"answer":null}"#);
    store.publish(&first, at(0)).unwrap();
    store.publish(&ask(2, "1970-01-01T01:00:00Z", r#"{"n":2,"generation":1}"#), at(5_000)).unwrap();
    assert_eq!(store.waits()[0].expires_at, Some(at(10_000)));
    assert_eq!(store.waits()[0].envelope, first.envelope.text());
    // Neither redelivery changes anything, in either order.
    store.publish(&first, at(6_000)).unwrap();
    store.publish(&ask(2, "1970-01-01T02:00:00Z", r#"{"n":3}"#), at(6_000)).unwrap();
    assert_eq!(store.time_out(at(10_000)).unwrap(), [WaitId(0)]);
    let delivery = store.message(&store.outbox()[0]).unwrap();
    assert_eq!(delivery.payload, r#"{"n":2,"generation":1, "answer": 0}"#);
    store.delivered(OutboxId(0));
    // Again after the end: the newest reply fields once more.
    store.publish(&ask(3, "1970-01-01T02:00:00Z", r#"{"n":3}"#), at(20_000)).unwrap();
    let again = store.message(&store.outbox()[1]).unwrap();
    assert_eq!(again.payload, r#"{"n":3, "answer": 0}"#);
    assert_eq!(again.dedupe_key.as_str(), "wait.answered:q:r1");
    assert_eq!(again.at, at(10_000));
}

#[test]
fn an_answer_that_waits_to_be_sent_is_not_queued_again_for_the_same_place() {
    let mut store = Interpreter::new(Rules::default());
    let ask = |n: u32| {
        let members = format!(r#""question":1,"event_id":"e{n}","reply_with":{{"n":{n}}}"#);
        publish(envelope(&members))
    };
    let late = r#""question":1,"event_id":"e0","default":0,"expires_at":"1969-01-01T00:00:00Z""#;
    store.publish(&publish(envelope(late)), at(0)).unwrap();
    for n in 1..=50 {
        store.publish(&ask(n), at(1)).unwrap();
    }
    assert_eq!((store.outbox().len(), store.waits()[0].resends), (1, 0));
    // The one that waits takes the newest reply fields along.
    assert_eq!(store.message(&store.outbox()[0]).unwrap().payload, r#"{"n":50, "answer": 0}"#);
    // Each publish is remembered all the same.
    assert_eq!(
        store.publish(&ask(7), at(2)).unwrap(),
        PublishOutcome::Duplicate(Generation::FIRST)
    );
    store.delivered(OutboxId(0));
    store.publish(&ask(51), at(3)).unwrap();
    store.publish(&ask(52), at(3)).unwrap();
    assert_eq!((store.outbox().len(), store.waits()[0].resends), (2, 1));

    // For another place it is queued, also while it waits for the first.
    let elsewhere = [Destination::Route(Name::new("elsewhere"))];
    let wait = store.waits()[0].clone();
    let decided =
        decide(Some(&wait), false, &elsewhere, &ask(53), store.rules(), at(4), &mut || {
            EventId::new("minted").unwrap()
        });
    assert_eq!(
        in_short(decided.unwrap()),
        "duplicate of 1; remember; take over; resent 2; answered r2 > pull"
    );
}

#[test]
fn keys_are_given_once_across_threads_and_generations() {
    let mut store = Interpreter::new(rules(Republished::Resend));
    let ask = |thread: &str, question_id: &str, event: u32, question: u32| {
        let text = format!(
            r#"{{"type":"wait.created","thread_id":"{thread}","question_id":"{question_id}","event_id":"e{event}","question":{question}}}"#
        );
        publish(Envelope::parse(Bytes::from(text)).unwrap())
    };
    for (n, (thread, id, question)) in
        [("a", "q", 1), ("b", "q", 1), ("a", "q", 2), ("a", "q:2", 1), ("c", "q", 1)]
            .into_iter()
            .enumerate()
    {
        let event = u32::try_from(n).unwrap();
        let outcome = store.publish(&ask(thread, id, event, question), at(0)).unwrap();
        assert!(matches!(outcome, PublishOutcome::New(_)));
    }
    let rests: Vec<_> = store.waits().iter().map(|w| w.rest.as_str()).collect();
    assert_eq!(rests, ["q", "q:2", "q:3", "q:2:2", "q:4"]);
    // The same event id under another question is another publish.
    let other = ask("a", "p", 0, 1);
    assert!(matches!(store.publish(&other, at(0)).unwrap(), PublishOutcome::New(_)));
    // Another tenant's keys are its own.
    let mut foreign = ask("a", "q", 0, 1);
    foreign.tenant = TenantId::new("other").unwrap();
    assert_eq!(store.publish(&foreign, at(0)).unwrap(), PublishOutcome::New(Generation::FIRST));
    let last = store.waits().last().unwrap();
    assert_eq!((last.rest.as_str(), last.generation), ("q", Generation::FIRST));
}

#[test]
fn announcements_keep_a_threads_order_and_pulls_hold_nothing_back() {
    let mut store = Interpreter::new(rules(Republished::Resend));
    store.publish(&publish(envelope(r#""question":1,"event_id":"e1""#)), at(0)).unwrap();
    store
        .publish(
            &publish(envelope(
                r#""question":2,"event_id":"e2","expires_at":"1969-01-01T00:00:00Z","default":1"#,
            )),
            at(0),
        )
        .unwrap();
    let orders = |name: &str| {
        let of = |q: &&crate::testing::Queued| q.send.destination.label() == name;
        store.outbox().iter().filter(of).map(|q| q.send.order).collect::<Vec<_>>()
    };
    let (all, row, pull) = (orders("all"), orders("row"), orders("pull"));
    assert_eq!(all.len(), 2);
    assert!(all[0].is_some() && all[0] == all[1]);
    assert!(row[0].is_some() && row[0] == row[1] && row[0] != all[0]);
    assert_eq!(pull, [None]);
    assert!(matches!(store.outbox().last().unwrap().send.destination, Destination::Pull));
    // One event, one id, whoever is told; the created event has the envelope's own.
    let events: Vec<_> =
        store.outbox().iter().map(|q| (q.send.event, q.send.event_id.clone())).collect();
    assert_eq!(events[0], (Event::Created, None));
    assert!(events[2].1.is_some() && events[2] == events[3]);
}
