//! What must have come of what the store did: the same operations, one after the other, decided by
//! the same core and carried out on plain lists.

use crate::world::Logged;
use answerback::contract::{DedupeRest, Event, EventId, Time, WaitState};
use answerback::core::{
    self, Destination, Op, Publish, PublishOutcome, Rules, Wait, WaitId, WaitRef,
};
use answerback::store::Published;
use std::collections::BTreeSet;

/// A message that must be in the outbox: of which wait, where to, and what.
pub(crate) type Sent = (i64, Destination, &'static str);

pub(crate) struct Replay {
    rules: Rules,
    minted: u64,
    /// The wait of number n is at n - 1.
    pub(crate) waits: Vec<Wait>,
    seen: BTreeSet<(String, String, String)>,
    pub(crate) sent: Vec<Sent>,
    pub(crate) feed: Vec<(i64, Event, Time)>,
    pub(crate) wrong: Vec<String>,
}

impl Replay {
    pub(crate) fn of(rules: Rules, log: &[Logged]) -> Self {
        let mut replay = Self {
            rules,
            minted: 0,
            waits: Vec::new(),
            seen: BTreeSet::new(),
            sent: Vec::new(),
            feed: Vec::new(),
            wrong: Vec::new(),
        };
        for logged in log {
            replay.again(logged);
        }
        replay
    }

    fn again(&mut self, logged: &Logged) {
        match logged {
            Logged::Publish(asked, now, done) => self.publish(asked, *now, done),
            Logged::Answer(request, now, done) => {
                let told = &request.answer;
                let wait = self.waits.iter().find(|w| {
                    w.thread_id == told.thread_id
                        && w.question_id == told.question_id
                        && w.generation == told.generation
                });
                let wait = wait.cloned();
                let (outcome, ops) = self.decide(|rules, ids| {
                    core::answer::decide(wait.as_ref(), request, rules, *now, ids).unwrap()
                });
                self.same("answer", &outcome, &done.outcome);
                self.same("the wait of an answer", &wait.map(|w| w.id), &done.wait);
                self.carry_out(ops);
            }
            Logged::Cancel(wait, now, done) => {
                let wait = self.wait(*wait).clone();
                let (outcome, ops) =
                    self.decide(|rules, ids| core::cancel(&wait, rules, *now, ids).unwrap());
                self.same("cancel", &outcome, done);
                self.carry_out(ops);
            }
            Logged::TimeOut(now, done) => {
                let mut due = Vec::new();
                for wait in self.waits.clone() {
                    let ops =
                        self.decide(|rules, ids| core::deadline(&wait, rules, *now, ids).unwrap());
                    if ops.is_some() {
                        due.push(wait);
                    }
                }
                // The longest due first.
                due.sort_by_key(|wait| (wait.expires_at, wait.id));
                let ids: Vec<WaitId> = due.iter().map(|wait| wait.id).collect();
                self.same("time_out", &ids, done);
                for wait in due {
                    let ops =
                        self.decide(|rules, ids| core::deadline(&wait, rules, *now, ids).unwrap());
                    self.carry_out(ops.unwrap());
                }
            }
        }
    }

    fn publish(&mut self, asked: &Publish, now: Time, done: &Published) {
        let (thread, question) = (asked.envelope.thread_id(), asked.envelope.question_id());
        let seen = (thread.to_string(), question.to_string(), asked.event_id.to_string());
        let newest = self
            .waits
            .iter()
            .rev()
            .find(|w| w.thread_id == *thread && w.question_id == *question)
            .cloned();
        // Whether a stored answer still waits to go out is not known here. An answer is queued once
        // more exactly when the store says so.
        let mut waiting = Vec::new();
        let duplicate = matches!(done.outcome, PublishOutcome::Duplicate(_));
        if duplicate && done.queued.is_empty() {
            waiting = self.sent.iter().map(|(_, to, ..)| to.clone()).collect();
            waiting.push(Destination::Pull);
            waiting.push(crate::load::answers_go(thread.as_str(), question.as_str()));
        }
        let seen_before = self.seen.contains(&seen);
        let (outcome, ops) = self.decide(|rules, ids| {
            let newest = newest.as_ref();
            core::publish::decide(newest, seen_before, &waiting, asked, rules, now, ids).unwrap()
        });
        self.same("publish", &outcome, &done.outcome);
        self.seen.insert(seen);
        self.carry_out(ops);
        let rest = self
            .waits
            .iter()
            .rev()
            .find(|w| w.thread_id == *thread && w.question_id == *question)
            .map(|w| w.rest.clone());
        self.same("dedupe rest", &rest.as_ref(), &Some(&done.rest));
    }

    fn decide<T>(&mut self, decide: impl FnOnce(&Rules, &mut dyn FnMut() -> EventId) -> T) -> T {
        let minted = &mut self.minted;
        let mut ids = || {
            *minted += 1;
            EventId::new(&format!("replayed-{minted}")).unwrap()
        };
        decide(&self.rules, &mut ids)
    }

    fn carry_out(&mut self, ops: Vec<Op>) {
        let mut opened = None;
        for op in ops {
            let number = |wait: WaitRef| match wait {
                WaitRef::Existing(wait) => wait.0,
                WaitRef::Opened => opened.unwrap(),
            };
            match op {
                Op::Open(new) => {
                    let id = i64::try_from(self.waits.len()).unwrap() + 1;
                    let rest = (1..)
                        .map(|n| DedupeRest::choice(&new.question_id, n))
                        .find(|rest| self.waits.iter().all(|w| w.rest != *rest))
                        .unwrap();
                    opened = Some(id);
                    self.waits.push(new.stored(WaitId(id), rest));
                }
                Op::Close { wait, state, at, answer, note } => {
                    let was = self.wait(wait).state;
                    if was != WaitState::Open {
                        self.wrong.push(format!("wait {} is {was} and ends again", wait.0));
                    }
                    let kept = self.wait(wait);
                    (kept.state, kept.closed_at, kept.answer) = (state, Some(at), answer);
                    kept.note = note.or(kept.note.take());
                }
                Op::TakeOver { wait, envelope } => self.wait(wait).taken_over = Some(envelope),
                Op::Remember { .. } => {}
                Op::Resent { wait, resends } => self.wait(wait).resends = resends,
                Op::Record { wait, event, at, .. } => self.feed.push((number(wait), event, at)),
                Op::Send { wait, send } => {
                    let wait = number(wait);
                    self.sent.push((wait, send.destination, send.event.transition()));
                }
            }
        }
    }

    fn wait(&mut self, id: WaitId) -> &mut Wait {
        &mut self.waits[usize::try_from(id.0).unwrap() - 1]
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, core: &T, store: &T) {
        if core != store {
            self.wrong.push(format!("{what}: {core:?} follows, the store says {store:?}"));
        }
    }
}
