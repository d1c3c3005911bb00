//! A small history that keeps every promise, for tests to break.

use super::{Violation, judge};
use crate::clock::At;
use crate::history::{
    Accepted, Answer, Arrival, Fed, FinalRow, FinalWait, History, Publish, Reply, Span, Verdict,
    WaitKey,
};
use crate::schedule::Place;
use crate::text::Text;

/// When the run of a fixture began.
const BEGAN_MS: i64 = 1_000_000;

pub(super) struct Fixture {
    pub(super) history: History,
    question: Text,
}

impl Fixture {
    /// One question, announced everywhere, answered and delivered.
    pub(super) fn answered() -> Self {
        Self::named("q-1")
    }

    pub(super) fn named(question: &str) -> Self {
        let mut fixture = Self {
            history: History { began_ms: BEGAN_MS, ..History::default() },
            question: question.into(),
        };
        let body: Text = format!(
            "{{\"type\":\"wait.created\",\"thread_id\":\"r-1\",\"question_id\":\"{question}\",\
             \"event_id\":\"e-{question}\",\"question\":9007199254740993}}"
        )
        .into();
        let wait = fixture.wait();
        fixture.history.publishes.push(Publish {
            span: Span { begin: 100_000, end: 110_000 },
            replica: 0,
            thread: wait.thread.clone(),
            question: wait.question.clone(),
            event_id: format!("e-{question}").into(),
            body: body.clone(),
            variant: 1,
            keyed: false,
            deadline: None,
            default: None,
            reply: Reply::Ok(Accepted {
                generation: 1,
                dedupe_key: format!("wait.created:{question}").into(),
                duplicate: false,
            }),
        });
        for place in [Place::Hook, Place::Life, Place::Stream] {
            fixture.arrived(place, "wait.created", 200_000, &body, None);
            fixture.row(place.name(), false, "wait.created");
        }
        let text: Text = "{\"yes\":1}".into();
        fixture.history.answers.push(Answer {
            span: Span { begin: 500_000, end: 510_000 },
            replica: 1,
            wait: wait.clone(),
            text: text.clone(),
            value: text.clone(),
            reply: Reply::Ok(()),
        });
        fixture.arrived(Place::Life, "wait.answered", 600_000, "{}", None);
        fixture.row("life", false, "wait.answered");
        fixture.arrived(Place::Host, "wait.answered", 600_000, "{}", Some((&text, "api")));
        fixture.row("host", true, "wait.answered");
        fixture.history.waits.push(FinalWait {
            wait,
            state: "completed".into(),
            dedupe_key: format!("wait.created:{question}").into(),
            event_id: format!("e-{question}").into(),
            via: Some("api".into()),
        });
        fixture
    }

    /// The same with a deadline of a second that is not met by an answer.
    pub(super) fn defaulted() -> Self {
        let mut fixture = Self::answered();
        let h = &mut fixture.history;
        h.answers.clear();
        h.publishes[0].deadline = Some(BEGAN_MS + 1_000);
        h.publishes[0].default = Some("false".into());
        h.waits[0].state = "timed-out".into();
        h.waits[0].via = Some("default".into());
        for arrival in &mut h.arrivals {
            if arrival.answer.is_some() {
                arrival.answer = Some("false".into());
                arrival.via = Some("default".into());
                arrival.span = Span { begin: 1_100_000, end: 1_110_000 };
            }
        }
        h.arrivals.retain(|a| a.answer.is_some() || &*a.event == "wait.created");
        h.rows.retain(|row| row.delivery || &*row.event == "wait.created");
        fixture
    }

    /// An answered question and a reader of the feed.
    pub(super) fn fed() -> Self {
        let mut fixture = Self::answered();
        let wait = fixture.wait();
        for (n, event) in ["wait.created", "wait.answered"].into_iter().enumerate() {
            let (id, wait) = (format!("{}", n + 1).into(), wait.clone());
            fixture.history.fed.push(Fed {
                at: 700_000,
                reader: 0,
                replica: 0,
                id,
                event: event.into(),
                wait,
            });
        }
        fixture.history.feed_ended = true;
        fixture
    }

    /// Takes the answer back.
    pub(super) fn leave_open(&mut self) {
        let h = &mut self.history;
        h.answers.clear();
        h.arrivals.retain(|a| &*a.event == "wait.created");
        h.rows.retain(|row| &*row.event == "wait.created");
        h.waits[0].state = "open".into();
        h.waits[0].via = None;
    }

    /// Everything by so much later.
    pub(super) fn later(mut self, by: At) -> Self {
        let move_on = |span: &mut Span| *span = Span { begin: span.begin + by, end: span.end + by };
        let h = &mut self.history;
        h.publishes.iter_mut().for_each(|p| move_on(&mut p.span));
        h.answers.iter_mut().for_each(|a| move_on(&mut a.span));
        h.arrivals.iter_mut().for_each(|a| move_on(&mut a.span));
        self
    }

    pub(super) fn append(&mut self, other: Self) {
        let (h, mut o) = (&mut self.history, other.history);
        h.publishes.append(&mut o.publishes);
        h.answers.append(&mut o.answers);
        h.arrivals.append(&mut o.arrivals);
        h.waits.append(&mut o.waits);
        h.rows.append(&mut o.rows);
        h.fed.append(&mut o.fed);
    }

    /// What the host was told first.
    pub(super) fn delivery(&self) -> &Arrival {
        self.history.arrivals.iter().find(|arrival| arrival.answer.is_some()).unwrap()
    }

    fn wait(&self) -> WaitKey {
        WaitKey { thread: "r-1".into(), question: self.question.clone(), generation: 1 }
    }

    fn arrived(
        &mut self,
        place: Place,
        event: &str,
        at: At,
        body: &str,
        answer: Option<(&str, &str)>,
    ) {
        let wait = self.wait();
        self.history.arrivals.push(Arrival {
            span: Span { begin: at, end: at + 10_000 },
            place,
            replica: (place != Place::Stream).then_some(0),
            event: event.into(),
            dedupe_key: format!("{event}:{}", self.question).into(),
            thread: wait.thread,
            question: wait.question,
            generation: answer.is_none().then_some(1),
            event_id: format!("e-{}", self.question).into(),
            body: body.into(),
            answer: answer.map(|(text, _)| text.into()),
            via: answer.map(|(_, via)| via.into()),
            verdict: Verdict::Took,
            offset: (place == Place::Stream).then_some((0, i64::try_from(at).unwrap())),
        });
    }

    fn row(&mut self, name: &str, delivery: bool, event: &str) {
        self.history.rows.push(FinalRow {
            name: name.into(),
            delivery,
            wait: self.wait(),
            event: event.into(),
            state: "delivered".into(),
            reason: "".into(),
        });
    }
}

/// The history keeps every promise.
#[track_caller]
pub(super) fn fine(fixture: &Fixture) {
    assert_eq!(judge(&fixture.history).violations, Vec::<Violation>::new());
}

/// The history breaks this promise, and the judge says so.
#[track_caller]
pub(super) fn broken(fixture: &Fixture, rule: &str) {
    let violations = judge(&fixture.history).violations;
    assert!(violations.iter().any(|v| v.rule == rule), "not found: {rule}; {violations:#?}");
}
