//! What a seed's run shares: chance, faults, what happened, and what went wrong.

use crate::buses::Buses;
use crate::ledger::Ledger;
use crate::life::Life;
use crate::plan::Plan;
use crate::random::Random;
use crate::store::Trouble;
use answerback::contract::Time;
use answerback::core::{AnswerRequest, CancelOutcome, Leased, OutboxId, Publish, WaitId};
use answerback::store::{Answered, Published, Retried, Retry, Settlement};
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What the store has done, in the order in which it did it.
pub(crate) enum Logged {
    Publish(Publish, Time, Published),
    Answer(AnswerRequest, Time, Answered),
    Cancel(WaitId, Time, CancelOutcome),
    TimeOut(Time, Vec<WaitId>),
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) began: Instant,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) random: Random,
    /// Whether faults are injected; off for the end of each run.
    pub(crate) stormy: bool,
    pub(crate) ledger: Ledger,
    pub(crate) log: Vec<Logged>,
    pub(crate) buses: Buses,
    pub(crate) pulled: BTreeSet<WaitId>,
    /// Dead messages that were sent again: their order is that of their second life.
    pub(crate) revived: BTreeSet<OutboxId>,
    pub(crate) revived_all: bool,
    pub(crate) trace: Trace,
    pub(crate) calls: usize,
    /// How replicas hear of each other's commits.
    pub(crate) hints: Vec<watch::Sender<u64>>,
    wrong: Vec<String>,
}

/// What happened, as a hash; as text too when a seed is replayed.
pub(crate) struct Trace {
    began: Instant,
    hash: u64,
    pub(crate) lines: Option<Vec<String>>,
}

/// FNV-1a over whatever is written.
struct Hashing<'h>(&'h mut u64);

impl fmt::Write for Hashing<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            *self.0 = (*self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        Ok(())
    }
}

impl Trace {
    fn new(began: Instant, verbose: bool) -> Self {
        Self { began, hash: 0xCBF2_9CE4_8422_2325, lines: verbose.then(Vec::new) }
    }

    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        let at = self.began.elapsed().as_millis();
        writeln!(Hashing(&mut self.hash), "{at} {what}").unwrap();
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>7}.{:03} {what}", at / 1_000, at % 1_000));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

impl World {
    pub(crate) fn new(plan: Plan, verbose: bool) -> Self {
        let began = Instant::now();
        let state = State {
            random: Random::new(plan.seed, 1),
            stormy: true,
            ledger: Ledger::default(),
            log: Vec::new(),
            buses: Buses::default(),
            pulled: BTreeSet::new(),
            revived: BTreeSet::new(),
            revived_all: false,
            trace: Trace::new(began, verbose),
            calls: 0,
            hints: Vec::new(),
            wrong: Vec::new(),
        };
        Self { plan, began, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        self.state().trace.note(what);
    }

    pub(crate) fn wrong(&self, what: String) {
        self.state().wrong(what);
    }

    /// A stream of chance of its own, so that what it draws is not mixed up with other tasks'.
    pub(crate) fn chance_of(&self, stream: u64) -> Random {
        Random::new(self.plan.seed, stream)
    }

    /// Decides what happens to a call of the store.
    pub(crate) fn trouble(&self, life: &Life, name: &'static str) -> Trouble {
        let mut state = self.state();
        state.calls += 1;
        let stormy = state.stormy;
        let weather = &self.plan.weather;
        let random = &mut state.random;
        let delay = |random: &mut Random| {
            let millis = match random.below(1_000) {
                n if stormy && n < weather.very_slow => random.between(1_000, 90_000),
                n if stormy && n < weather.slow => random.between(50, 2_000),
                n if n < 700 => 0,
                _ => random.between(1, 3),
            };
            Duration::from_millis(millis)
        };
        let (before, after) = (delay(random), delay(random));
        let fails = stormy && random.chance(weather.store_fails);
        let forgets = stormy && !fails && random.chance(weather.store_forgets);
        let trouble = Trouble { before, after, fails, forgets };
        let (replica, run) = (life.replica, life.run);
        state.trace.note(format_args!(
            "r{replica}.{run} {name} {}+{}{}{}",
            before.as_millis(),
            after.as_millis(),
            if fails { " fails" } else { "" },
            if forgets { " forgets" } else { "" },
        ));
        trouble
    }
}

impl State {
    /// A promise is broken.
    pub(crate) fn wrong(&mut self, what: String) {
        self.trace.note(format_args!("WRONG: {what}"));
        self.wrong.push(what);
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.wrong.is_empty()
    }

    pub(crate) fn take_wrong(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wrong)
    }

    pub(crate) fn happened(&mut self, what: Logged) {
        match &what {
            Logged::Publish(asked, now, done) => self.trace.note(format_args!(
                "  publish {} {} at {now}: {:?}, queued {}",
                asked.envelope.thread_id(),
                asked.envelope.question_id(),
                done.outcome,
                done.queued.len()
            )),
            Logged::Answer(asked, now, done) => self.trace.note(format_args!(
                "  answer {} {} {} at {now}: {:?}",
                asked.answer.thread_id,
                asked.answer.question_id,
                asked.answer.generation,
                done.outcome
            )),
            Logged::Cancel(wait, now, done) => {
                self.trace.note(format_args!("  cancel {} at {now}: {done:?}", wait.0));
            }
            Logged::TimeOut(now, waits) => {
                if !waits.is_empty() {
                    self.trace.note(format_args!("  timed out at {now}: {waits:?}"));
                }
            }
        }
        self.log.push(what);
        for hints in &self.hints {
            if !self.stormy || self.random.chance(700) {
                hints.send_modify(|n| *n += 1);
            }
        }
    }

    pub(crate) fn granted(&mut self, message: &Leased, now: Time, until: Time) {
        self.trace.note(format_args!(
            "  leased {} {} {} {}",
            message.id.0,
            message.destination.label(),
            message.wait.thread_id,
            message.event
        ));
        for wrong in self.ledger.granted(message, now, until) {
            self.wrong(wrong);
        }
    }

    pub(crate) fn settled(&mut self, settlement: &Settlement) {
        let Settlement { id, lease, settled } = settlement;
        self.trace.note(format_args!("  settled {} {settled:?}", id.0));
        self.ledger.ended(*id, *lease);
    }

    pub(crate) fn retried(&mut self, what: &Retry, done: &Retried) {
        self.trace.note(format_args!("  retried {what:?}: {done:?}"));
        match (what, done) {
            (Retry::Announcement(id) | Retry::Delivery(id), Retried::Queued(..)) => {
                self.revived.insert(*id);
            }
            (Retry::Announcer(_), Retried::Queued(n, _)) if *n > 0 => self.revived_all = true,
            _ => {}
        }
    }
}
