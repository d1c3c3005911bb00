//! For tests, of this crate and of stores: an [`Interpreter`] carries decisions out on plain vectors,
//! and refuses lists of [`Op`]s that no store could carry out.

use crate::model::{Leased, NewWait, Op, OutboxId, OutboxState, Send, Wait, WaitId, WaitRef};
use crate::{
    AnswerOutcome, AnswerRequest, CancelOutcome, Envelope, Publish, PublishOutcome, Refusal, Rules,
    answer, cancel, deadline, message, publish as publishing,
};
use answerback_contract::{
    Bytes, DedupeRest, Event, EventId, Generation, Message, QuestionId, TenantId, ThreadId, Time,
    WaitState,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a step gives, or what is wrong with the decision.
pub type Step<T> = Result<T, String>;

/// A message that was queued.
#[derive(Clone, Debug)]
pub struct Queued {
    /// Its number.
    pub id: OutboxId,
    /// Of which wait.
    pub wait: WaitId,
    /// What.
    pub send: Send,
    /// Where it stands.
    pub state: OutboxState,
}

/// Something that happened to a wait.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Which wait.
    pub wait: WaitId,
    /// What.
    pub event: Event,
    /// Its id; `None` for the envelope's own.
    pub event_id: Option<EventId>,
    /// When.
    pub at: Time,
}

/// The least store: everything in memory, one caller, nothing ever forgotten.
pub struct Interpreter {
    rules: Rules,
    waits: Vec<Wait>,
    seen: BTreeSet<(TenantId, ThreadId, QuestionId, EventId)>,
    outbox: Vec<Queued>,
    events: Vec<Recorded>,
    minted: u64,
}

impl Interpreter {
    /// Empty.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            waits: Vec::new(),
            seen: BTreeSet::new(),
            outbox: Vec::new(),
            events: Vec::new(),
            minted: 0,
        }
    }

    /// What it decides by.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Every wait, oldest first.
    #[must_use]
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// Every message, oldest first.
    #[must_use]
    pub fn outbox(&self) -> &[Queued] {
        &self.outbox
    }

    /// Everything that happened, in order.
    #[must_use]
    pub fn events(&self) -> &[Recorded] {
        &self.events
    }

    /// Takes a question in.
    ///
    /// # Errors
    /// What is wrong with the decision.
    pub fn publish(&mut self, asked: &Publish, now: Time) -> Step<PublishOutcome> {
        let (thread, question) = (asked.envelope.thread_id(), asked.envelope.question_id());
        let newest = self
            .waits
            .iter()
            .filter(|w| {
                (&w.tenant, &w.thread_id, &w.question_id) == (&asked.tenant, thread, question)
            })
            .max_by_key(|w| w.generation)
            .cloned();
        let event = asked.event_id.clone();
        let seen =
            self.seen.contains(&(asked.tenant.clone(), thread.clone(), question.clone(), event));
        let waiting: Vec<_> = self
            .outbox
            .iter()
            .filter(|q| q.state == OutboxState::Queued && !q.send.destination.is_announcer())
            .filter(|q| newest.as_ref().is_some_and(|wait| wait.id == q.wait))
            .map(|q| q.send.destination.clone())
            .collect();
        let decided = self.decide(|rules, ids| {
            publishing::decide(newest.as_ref(), seen, &waiting, asked, rules, now, ids)
        })?;
        let opened = decided.1.iter().any(|op| matches!(op, Op::Open(_)));
        if opened != matches!(decided.0, PublishOutcome::New(_)) {
            return Err("a wait is stored exactly when the outcome says so".to_owned());
        }
        self.carry_out(decided)
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// What is wrong with the decision.
    pub fn answer(&mut self, request: &AnswerRequest, now: Time) -> Step<AnswerOutcome> {
        let told = &request.answer;
        let wait = self
            .waits
            .iter()
            .find(|w| {
                (&w.tenant, &w.thread_id, &w.question_id, w.generation)
                    == (&request.tenant, &told.thread_id, &told.question_id, told.generation)
            })
            .cloned();
        let decided =
            self.decide(|rules, ids| answer::decide(wait.as_ref(), request, rules, now, ids))?;
        self.carry_out(decided)
    }

    /// Withdraws a wait.
    ///
    /// # Errors
    /// What is wrong with the decision, or that there is no such wait.
    pub fn cancel(&mut self, wait: WaitId, now: Time) -> Step<CancelOutcome> {
        let wait = self.wait(wait)?.clone();
        let decided = self.decide(|rules, ids| cancel(&wait, rules, now, ids))?;
        self.carry_out(decided)
    }

    /// Ends every wait that is due, and says which.
    ///
    /// # Errors
    /// What is wrong with the decision.
    pub fn time_out(&mut self, now: Time) -> Step<Vec<WaitId>> {
        let mut ended = Vec::new();
        for wait in self.waits.clone() {
            let (due, ops) = self.decide(|rules, ids| {
                let ops = deadline(&wait, rules, now, ids)?;
                Ok((ops.is_some(), ops.unwrap_or_default()))
            })?;
            self.carry_out((due, ops))?;
            if due {
                ended.push(wait.id);
            }
        }
        Ok(ended)
    }

    /// Notes that a queued message arrived.
    pub fn delivered(&mut self, id: OutboxId) {
        for queued in &mut self.outbox {
            if queued.id == id && queued.state == OutboxState::Queued {
                queued.state = OutboxState::Delivered;
            }
        }
    }

    /// The message as a lane would send it now.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn message(&self, queued: &Queued) -> Step<Message> {
        let leased = Leased {
            id: queued.id,
            lease: 0,
            destination: queued.send.destination.clone(),
            event: queued.send.event,
            repeat: queued.send.repeat,
            event_id: queued.send.event_id.clone(),
            attempts: 0,
            queued_at: queued.send.at,
            wait: Arc::new(self.wait(queued.wait)?.clone()),
        };
        message::of(&leased, false).map_err(|e| e.to_string())
    }

    /// The wait of that number.
    ///
    /// # Errors
    /// When there is none.
    pub fn wait(&self, id: WaitId) -> Step<&Wait> {
        self.waits.iter().find(|w| w.id == id).ok_or_else(|| format!("no wait {id:?}"))
    }

    fn decide<T>(
        &mut self,
        decide: impl FnOnce(&Rules, &mut dyn FnMut() -> EventId) -> Result<T, Refusal>,
    ) -> Step<T> {
        let minted = &mut self.minted;
        let mut ids = || {
            *minted += 1;
            fresh_event_id(*minted)
        };
        decide(&self.rules, &mut ids).map_err(|e| e.to_string())
    }

    fn carry_out<T>(&mut self, (outcome, ops): (T, Vec<Op>)) -> Step<T> {
        let mut opened = None;
        for op in ops {
            match op {
                Op::Open(wait) => {
                    if opened.is_some() {
                        return Err("two waits stored by one decision".to_owned());
                    }
                    opened = Some(self.open(wait)?);
                }
                Op::Close { wait, state, at, answer, note } => {
                    let closed = self.wait_mut(wait)?;
                    if closed.state.is_over() || !state.is_over() {
                        return Err(format!("{} closed as {state}", closed.state));
                    }
                    closed.state = state;
                    closed.closed_at = Some(at);
                    closed.answer = answer;
                    closed.note = note.or(closed.note.take());
                    for queued in self.outbox.iter_mut().filter(|q| q.wait == wait) {
                        let pointless = queued.send.event.ends_with_the_wait();
                        if pointless && queued.state == OutboxState::Queued {
                            queued.state = OutboxState::Withdrawn;
                        }
                    }
                }
                Op::TakeOver { wait, envelope } => {
                    self.wait_mut(wait)?.taken_over = Some(envelope);
                }
                Op::Remember { wait, event_id } => {
                    let wait = self.wait(wait)?;
                    let seen = (
                        wait.tenant.clone(),
                        wait.thread_id.clone(),
                        wait.question_id.clone(),
                        event_id,
                    );
                    if !self.seen.insert(seen) {
                        return Err("a publish remembered twice".to_owned());
                    }
                }
                Op::Resent { wait, resends } => {
                    let wait = self.wait_mut(wait)?;
                    if resends != wait.resends + 1 {
                        return Err(format!("resent {} and then {resends}", wait.resends));
                    }
                    wait.resends = resends;
                }
                Op::Record { wait, event, event_id, at } => {
                    let wait = referred(wait, opened)?;
                    self.record(Recorded { wait, event, event_id, at })?;
                }
                Op::Send { wait, send } => {
                    let wait = referred(wait, opened)?;
                    self.check_told(wait, &send)?;
                    let id = OutboxId(i64::try_from(self.outbox.len()).unwrap_or(i64::MAX));
                    self.outbox.push(Queued { id, wait, send, state: OutboxState::Queued });
                }
            }
        }
        Ok(outcome)
    }

    /// Takes an event down that fits where its wait stands and what happened to it before.
    fn record(&mut self, recorded: Recorded) -> Step<()> {
        let Recorded { wait, event, .. } = &recorded;
        let state = self.wait(*wait)?.state;
        let before: Vec<_> =
            self.events.iter().filter(|e| e.wait == *wait).map(|e| e.event).collect();
        let fits = match event {
            Event::Created => before.is_empty(),
            Event::Answered => before == [Event::Created] && state == WaitState::Completed,
            Event::TimedOut => before == [Event::Created] && state == WaitState::TimedOut,
            Event::Cancelled => before == [Event::Created] && state == WaitState::Cancelled,
            Event::Reminder => false,
        };
        if !fits || recorded.event_id.is_some() != (*event != Event::Created) {
            return Err(format!("{recorded:?} after {before:?} of a wait that is {state}"));
        }
        self.events.push(recorded);
        Ok(())
    }

    /// What announcers are told of was recorded, under the same id.
    fn check_told(&self, wait: WaitId, send: &Send) -> Step<()> {
        let is_it = |e: &Recorded| {
            (e.wait, e.event, &e.event_id, e.at) == (wait, send.event, &send.event_id, send.at)
        };
        if send.destination.is_announcer() && !self.events.iter().any(is_it) {
            return Err(format!("{send:?} tells of what was not recorded"));
        }
        Ok(())
    }

    fn open(&mut self, wait: NewWait) -> Step<WaitId> {
        let of_question = |w: &&Wait| {
            (&w.tenant, &w.thread_id, &w.question_id)
                == (&wait.tenant, &wait.thread_id, &wait.question_id)
        };
        let before = self.waits.iter().filter(of_question).map(|w| w.generation).max();
        if wait.generation != before.map_or(Generation::FIRST, Generation::next) {
            return Err(format!("generation {} after {before:?}", wait.generation));
        }
        if self.waits.iter().filter(of_question).any(|w| !w.state.is_over()) {
            return Err("a second open wait of one question".to_owned());
        }
        let over = wait.state.is_over();
        if over != wait.closed_at.is_some() || (wait.answer.is_some() && !over) {
            return Err(format!("a wait that starts {} with the end of another", wait.state));
        }
        let rest = (1..)
            .map(|n| DedupeRest::choice(&wait.question_id, n))
            .find(|rest| !self.waits.iter().any(|w| w.tenant == wait.tenant && w.rest == *rest))
            .ok_or("no dedupe key is free")?;
        let id = WaitId(i64::try_from(self.waits.len()).unwrap_or(i64::MAX));
        self.seen.insert((
            wait.tenant.clone(),
            wait.thread_id.clone(),
            wait.question_id.clone(),
            wait.event_id.clone(),
        ));
        self.waits.push(wait.stored(id, rest));
        Ok(id)
    }

    fn wait_mut(&mut self, id: WaitId) -> Step<&mut Wait> {
        self.waits.iter_mut().find(|w| w.id == id).ok_or_else(|| format!("no wait {id:?}"))
    }
}

fn referred(wait: WaitRef, opened: Option<WaitId>) -> Step<WaitId> {
    match wait {
        WaitRef::Existing(wait) => Ok(wait),
        WaitRef::Opened => opened.ok_or_else(|| "something of no wait".to_owned()),
    }
}

/// An id that no other `number` gives, of a ULID's shape.
fn fresh_event_id(number: u64) -> EventId {
    let text = ulid::Ulid::from_parts(number, 0).to_string();
    EventId::new(&text).unwrap_or_else(|_| unreachable!("a ULID is an id"))
}

/// An envelope of thread `t` and question `q` with these further members, such as
/// `"question":1,"default":2`.
///
/// # Panics
/// When it would be refused.
#[must_use]
#[expect(clippy::panic, reason = "a test that asks for nonsense has failed")]
pub fn envelope(members: &str) -> Envelope {
    let text = format!(r#"{{"type":"wait.created","thread_id":"t","question_id":"q",{members}}}"#);
    match Envelope::parse(Bytes::from(text)) {
        Ok(envelope) => envelope,
        Err(refusal) => panic!("{refusal}"),
    }
}

/// A publish of the default tenant, under the envelope's own event id or else `e`.
///
/// # Panics
/// Never.
#[must_use]
pub fn publish(envelope: Envelope) -> Publish {
    let event_id = match (envelope.event_id(), EventId::new("e")) {
        (Some(id), _) => id.clone(),
        (None, id) => id.unwrap_or_else(|_| unreachable!("`e` is an id")),
    };
    Publish { tenant: TenantId::default_tenant(), envelope, event_id }
}
