//! Whatever happens in whatever order: the decisions, carried out, do what a plain reading of the
//! contract does ([`reading`]), and some things hold after every step.

mod reading;

use crate::matching::Matcher;
use crate::model::{Destination, Name, OutboxState, WaitId};
use crate::testing::{Interpreter, Queued};
use crate::{
    AnnouncerRule, Answer, AnswerOutcome, AnswerRequest, CancelOutcome, Envelope, Publish,
    PublishOutcome, Republished, RouteRule, Rules, Wait,
};
use answerback_contract::{Bytes, Event, EventId, TenantId, Time, Via, WaitState};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use reading::{Again, Asked, Reading, Said};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    Publish(Asked),
    /// What the `n`th publish so far asked, asked afresh.
    AskAgain(prop::sample::Index),
    /// The `n`th publish so far once more, as a source redelivers it.
    Redeliver(prop::sample::Index),
    Answer(Said),
    Cancel(prop::sample::Index),
    /// Time passes, and a sweep comes by or does not.
    Pass {
        ms: i64,
        sweep: bool,
    },
    /// A queued message arrives.
    Deliver(prop::sample::Index),
}

const TENANTS: [&str; 2] = ["default", "other"];
const THREADS: [&str; 2] = ["t", "u"];
/// The second is the key that the first gets as its second choice.
const QUESTION_IDS: [&str; 2] = ["q", "q:2"];

fn pick(from: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(from)
}

fn identity() -> impl Strategy<Value = (&'static str, &'static str, &'static str)> {
    // Mostly one question, so that things happen to it.
    let often = |from: &'static [&'static str]| prop_oneof![8 => Just(from[0]), 1 => pick(from)];
    (often(&TENANTS), often(&THREADS), often(&QUESTION_IDS))
}

fn asked() -> impl Strategy<Value = Asked> {
    (
        identity(),
        // Spellings of three questions.
        prop::sample::select(vec![
            (0, "{\"a\":1,\"b\":2}"),
            (0, "{ \"b\":2.0, \"a\":1 }"),
            (1, "null"),
            (2, "false"),
        ]),
        option::of(pick(&["false", "{\"action\":\"reject\"}", "0.10"])),
        option::of(prop_oneof![Just(2_000_i64), Just(60_000)]),
        option::weighted(
            0.7,
            prop_oneof![Just(0_i64), Just(-1), Just(1), -5_000_i64..0, 0_i64..20_000],
        ),
    )
        .prop_map(|(id, (question, spelt), default, ttl, expires_in)| Asked {
            tenant: id.0,
            thread: id.1,
            question_id: id.2,
            question,
            spelt,
            default,
            ttl,
            expires_in,
        })
}

fn said() -> impl Strategy<Value = Said> {
    (
        identity(),
        option::of(1_u32..4),
        prop::sample::select(vec![
            (0, "true"),
            (1, "1"),
            (1, "1.0"),
            (2, "null"),
            (3, "false"),
            (4, "0.1"),
        ]),
        option::weighted(0.3, prop_oneof![Just(0_i64), Just(-1), Just(1), 0_i64..10_000]),
    )
        .prop_map(|(id, generation, (value, spelt), valid_for)| Said {
            tenant: id.0,
            thread: id.1,
            question_id: id.2,
            generation,
            value,
            spelt,
            valid_for,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let any_index = any::<prop::sample::Index>;
    prop_oneof![
        3 => asked().prop_map(Step::Publish),
        4 => any_index().prop_map(Step::AskAgain),
        2 => any_index().prop_map(Step::Redeliver),
        4 => said().prop_map(Step::Answer),
        1 => any_index().prop_map(Step::Cancel),
        3 => (prop_oneof![Just(1_i64), 0_i64..10_000], any::<bool>())
            .prop_map(|(ms, sweep)| Step::Pass { ms, sweep }),
        2 => any_index().prop_map(Step::Deliver),
    ]
}

fn rules(again: Again) -> Rules {
    let announcer = |name: &str, tenant: &str, events: &[Event], follows_state| AnnouncerRule {
        name: Name::new(name),
        tenant: TenantId::new(tenant).unwrap(),
        matcher: Matcher::default(),
        events: events.to_vec(),
        follows_state,
        ordered: false,
    };
    Rules {
        announcers: vec![
            announcer("all", "default", &Event::ALL, false),
            announcer("plain", "default", &[Event::Created], false),
            announcer("row", "default", &[], true),
            announcer("foreign", "other", &[Event::Created, Event::Answered], false),
        ],
        routes: vec![RouteRule {
            name: Name::new("host"),
            tenant: TenantId::default_tenant(),
            matcher: Matcher::default(),
            pull: false,
        }],
        republished: match again {
            Again::Resend => Republished::Resend,
            Again::Ask => Republished::AskAgain,
            Again::Ignore => Republished::Ignore,
        },
        ..Rules::default()
    }
}

/// What the reading calls it, as the daemon gets it. `n` is the publish's number.
fn publish(asked: &Asked, n: usize, now: i64) -> Publish {
    let Asked { thread, question_id, spelt, default, ttl, expires_in, .. } = asked;
    let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
    let expires = or_null(expires_in.map(|ms| format!("\"{}\"", Time::from_millis(now + ms))));
    let ttl = or_null(ttl.map(|ms| format!("\"PT{}S\"", ms / 1_000)));
    let default = default.unwrap_or("null");
    let text = format!(
        r#"{{"type":"wait.created","event_id":"e{n}","thread_id":"{thread}","question_id":"{question_id}","question":{spelt},"default":{default},"answer_ttl":{ttl},"expires_at":{expires},"reply_with":{{"n":{n},"answer":null}}}}"#
    );
    Publish {
        tenant: TenantId::new(asked.tenant).unwrap(),
        envelope: Envelope::parse(Bytes::from(text)).unwrap(),
        event_id: EventId::new(&format!("e{n}")).unwrap(),
    }
}

fn answer(said: &Said, now: i64) -> AnswerRequest {
    let Said { thread, question_id, generation, spelt, valid_for, .. } = said;
    let generation = generation.map_or(String::new(), |n| format!(r#","generation":{n}"#));
    let until = valid_for
        .map_or(String::new(), |ms| format!(r#","valid_until":"{}""#, Time::from_millis(now + ms)));
    let text = format!(
        r#"{{"thread_id":"{thread}","question_id":"{question_id}","answer":{spelt}{generation}{until}}}"#
    );
    AnswerRequest {
        tenant: TenantId::new(said.tenant).unwrap(),
        answer: Answer::parse(&Bytes::from(text)).unwrap(),
        answered_by: None,
        via: Via::Api,
    }
}

fn publish_in_words(outcome: PublishOutcome) -> String {
    match outcome {
        PublishOutcome::New(generation) => format!("new {generation}"),
        PublishOutcome::Duplicate(_) => "duplicate".to_owned(),
    }
}

fn answer_in_words(outcome: AnswerOutcome) -> String {
    match outcome {
        AnswerOutcome::Accepted => "accepted".to_owned(),
        AnswerOutcome::AcceptedAgain => "accepted again".to_owned(),
        AnswerOutcome::NotFound => "no such wait".to_owned(),
        AnswerOutcome::Closed { state, .. } => format!("closed: {state}"),
        AnswerOutcome::Expired => "expired".to_owned(),
        AnswerOutcome::ActionNotAllowed => "action not allowed".to_owned(),
    }
}

fn cancel_in_words(outcome: CancelOutcome) -> String {
    match outcome {
        CancelOutcome::Cancelled => "cancelled".to_owned(),
        CancelOutcome::Closed(state) => format!("closed: {state}"),
    }
}

/// Every message so far in words, answers with their text, and where each wait stands.
fn in_words(store: &Interpreter) -> (Vec<String>, Vec<String>) {
    let mut sent: Vec<_> = store
        .outbox()
        .iter()
        .map(|queued| {
            let message = store.message(queued).unwrap();
            let to = queued.send.destination.label().to_owned();
            let text = match (queued.send.event, queued.send.destination.is_announcer()) {
                (Event::Answered, false) => String::from_utf8(message.payload.to_vec()).unwrap(),
                _ => String::new(),
            };
            let tenant = &store.wait(queued.wait).unwrap().tenant;
            format!("{tenant} {} > {to} {text}", message.dedupe_key)
        })
        .collect();
    sent.sort();
    let waits = store
        .waits()
        .iter()
        .map(|w| {
            let answer = w.answer.as_ref().map(|a| String::from_utf8(a.value.to_vec()).unwrap());
            format!("{} {} {} {} {:?}", w.tenant, w.thread_id, w.rest.as_str(), w.state, answer)
        })
        .collect();
    (sent, waits)
}

/// What must hold whatever the reading says.
fn check_invariants(before: &[Wait], before_outbox: &[Queued], store: &Interpreter) {
    for (old, new) in before.iter().zip(store.waits()) {
        // A wait that is over stays as it ended; only where its answer is sent again may change.
        if old.state.is_over() {
            let settled =
                Wait { taken_over: new.taken_over.clone(), resends: new.resends, ..old.clone() };
            assert_eq!(&settled, new);
        }
        assert_eq!(
            (&old.envelope, &old.expires_at, &old.rest),
            (&new.envelope, &new.expires_at, &new.rest)
        );
    }
    for (old, new) in before_outbox.iter().zip(store.outbox()) {
        assert_eq!(old.send, new.send);
        if old.state != OutboxState::Queued {
            assert_eq!(old.state, new.state, "what ended stays ended");
        }
    }
    let mut rests = BTreeSet::new();
    let mut open = BTreeSet::new();
    for wait in store.waits() {
        assert!(rests.insert((&wait.tenant, &wait.rest)), "one key, one wait");
        assert_eq!(wait.state.is_over(), wait.closed_at.is_some());
        if wait.state == WaitState::Open {
            assert!(open.insert((&wait.tenant, &wait.thread_id, &wait.question_id)));
            assert_eq!(wait.answer, None);
        }
    }
    let mut keys = BTreeSet::new();
    let mut created: BTreeMap<(WaitId, &Destination), u32> = BTreeMap::new();
    for queued in store.outbox() {
        let wait = store.wait(queued.wait).unwrap();
        let key = store.message(queued).unwrap().dedupe_key;
        assert!(keys.insert((&wait.tenant, &queued.send.destination, key)), "{queued:?}");
        if queued.state == OutboxState::Withdrawn {
            assert!(matches!(queued.send.event, Event::Created | Event::Reminder));
            assert!(wait.state.is_over());
        }
        if queued.send.event == Event::Created {
            *created.entry((queued.wait, &queued.send.destination)).or_default() += 1;
            assert!(wait.state == WaitState::Open || queued.state != OutboxState::Queued);
        }
    }
    for wait in store.waits() {
        let events: Vec<_> =
            store.events().iter().filter(|e| e.wait == wait.id).map(|e| e.event).collect();
        let end = match wait.state {
            WaitState::Completed => Some(Event::Answered),
            WaitState::TimedOut => Some(Event::TimedOut),
            WaitState::Cancelled => Some(Event::Cancelled),
            WaitState::Pending | WaitState::Open | WaitState::Unused => None,
        };
        let expected: Vec<_> = std::iter::once(Event::Created).chain(end).collect();
        assert_eq!(events, expected, "each event is recorded once");
        let told = created.iter().filter(|((id, _), _)| *id == wait.id).collect::<Vec<_>>();
        // Late already when it was asked: announced to nobody.
        let stillborn = wait.closed_at == Some(wait.created_at)
            && wait.expires_at.is_some_and(|at| at <= wait.created_at);
        let announcers = if wait.tenant.as_str() == "default" { 3 } else { 1 };
        assert_eq!(told.len(), if stillborn { 0 } else { announcers });
        assert!(told.iter().all(|(_, times)| **times == 1));
        let deliveries: Vec<_> = store
            .outbox()
            .iter()
            .filter(|q| q.wait == wait.id && !q.send.destination.is_announcer())
            .map(|q| q.send.repeat)
            .collect();
        // The answer, or the default, goes out once, and once more for each time it is asked for.
        let expected =
            if wait.answer.is_some() { (0..=wait.resends).collect() } else { Vec::new() };
        assert_eq!(deliveries, expected);
    }
}

fn run(again: Again, steps: Vec<Step>) {
    let mut store = Interpreter::new(rules(again));
    let mut reading = Reading::new(again);
    let mut published: Vec<(Asked, Publish)> = Vec::new();
    let mut now = 1_000_000_000;
    for step in steps {
        let before = (store.waits().to_vec(), store.outbox().to_vec());
        let at = Time::from_millis(now);
        let asked = match &step {
            Step::Publish(asked) => Some(asked.clone()),
            Step::AskAgain(index) if !published.is_empty() => {
                Some(published[index.index(published.len())].0.clone())
            }
            _ => None,
        };
        if let Some(asked) = asked {
            let n = published.len();
            let sent = publish(&asked, n, now);
            let outcome = store.publish(&sent, at).unwrap();
            assert_eq!(publish_in_words(outcome), reading.publish(&asked, n, now), "{step:?}");
            published.push((asked, sent));
        }
        match &step {
            Step::Redeliver(index) if !published.is_empty() => {
                let (_, sent) = &published[index.index(published.len())];
                let outcome = store.publish(sent, at).unwrap();
                assert_eq!(publish_in_words(outcome), "duplicate");
                assert_eq!(before.0, store.waits());
                assert_eq!(before.1.len(), store.outbox().len());
            }
            Step::Answer(said) => {
                let outcome = store.answer(&answer(said, now), at).unwrap();
                assert_eq!(answer_in_words(outcome), reading.answer(said, now), "{step:?}");
            }
            Step::Cancel(index) if !before.0.is_empty() => {
                let n = index.index(before.0.len());
                let outcome = store.cancel(before.0[n].id, at).unwrap();
                assert_eq!(cancel_in_words(outcome), reading.cancel(n, now), "{step:?}");
            }
            Step::Pass { ms, sweep } => {
                now += ms;
                if *sweep {
                    let ended = store.time_out(Time::from_millis(now)).unwrap();
                    assert_eq!(ended.len(), reading.sweep(now), "{step:?}");
                }
            }
            Step::Deliver(index) if !before.1.is_empty() => {
                let queued = &before.1[index.index(before.1.len())];
                store.delivered(queued.id);
                if queued.state == OutboxState::Queued && !queued.send.destination.is_announcer() {
                    reading.arrived(usize::try_from(queued.wait.0).unwrap());
                }
            }
            _ => {}
        }
        let (sent, waits) = in_words(&store);
        assert_eq!(waits, reading.waits_in_words(), "{step:?}");
        assert_eq!(sent, reading.sent_in_words(), "{step:?}");
        check_invariants(&before.0, &before.1, &store);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn decisions_do_what_the_contract_reads(
        again in prop::sample::select(vec![Again::Resend, Again::Ask, Again::Ignore]),
        steps in vec(step(), 1..40),
    ) {
        run(again, steps);
    }
}
