//! The model: plain lists, walked from the start each time.

use super::HOLD;
use answerback::contract::{DedupeRest, Event, Time};
use answerback::core::{
    self, Destination, Op, OutboxState, Publish, PublishOutcome, Rules, Wait, WaitId, WaitRef,
};
use answerback::store::Settled;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) wait: i64,
    pub(super) destination: Destination,
    pub(super) event: Event,
    pub(super) order: Option<i64>,
    pub(super) state: OutboxState,
    /// Queued, and none of its order is before it.
    pub(super) ready: bool,
    pub(super) due: Time,
    pub(super) attempts: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: usize,
    pub(super) lease: u64,
    pub(super) destination: Destination,
    pub(super) order: Option<i64>,
    pub(super) until: Time,
}

/// Numbers are positions plus one.
pub(super) struct Model {
    pub(super) rules: Rules,
    pub(super) now: Time,
    pub(super) waits: Vec<Wait>,
    pub(super) events: BTreeSet<(String, String, String)>,
    pub(super) messages: Vec<Message>,
    pub(super) held: Vec<Held>,
    /// Whether a lease that ran out is lost only once the message is given out again, as where many
    /// daemons share a store and each looks for itself.
    pub(super) keeps_late: bool,
    /// Everything that happened, to which wait and when.
    pub(super) feed: Vec<(i64, Event, Time)>,
}

impl Model {
    pub(super) fn newest(&self, thread: &str, question: &str) -> Option<&Wait> {
        self.waits
            .iter()
            .rev()
            .find(|w| w.thread_id.as_str() == thread && w.question_id.as_str() == question)
    }

    pub(super) fn publish(&mut self, asked: &Publish) -> (PublishOutcome, DedupeRest) {
        let (thread, question) = (asked.envelope.thread_id(), asked.envelope.question_id());
        let seen = (
            thread.as_str().to_owned(),
            question.as_str().to_owned(),
            asked.event_id.as_str().to_owned(),
        );
        let newest = self.newest(thread.as_str(), question.as_str()).cloned();
        let is_waiting = |(n, m): &(usize, &Message)| {
            newest.as_ref().is_some_and(|wait| wait.id.0 == m.wait)
                && m.state == OutboxState::Queued
                && !m.destination.is_announcer()
                && !self.is_out(*n)
        };
        let waiting: Vec<Destination> = self
            .messages
            .iter()
            .enumerate()
            .filter(is_waiting)
            .map(|(_, m)| m.destination.clone())
            .collect();
        let (outcome, ops) = core::publish::decide(
            newest.as_ref(),
            self.events.contains(&seen),
            &waiting,
            asked,
            &self.rules,
            self.now,
            &mut crate::kit::fresh_event_id,
        )
        .unwrap();
        self.events.insert(seen);
        self.carry_out(ops);
        let newest = self.newest(thread.as_str(), question.as_str()).unwrap();
        (outcome, newest.rest.clone())
    }

    pub(super) fn carry_out(&mut self, ops: Vec<Op>) {
        let mut opened = None;
        for op in ops {
            match op {
                Op::Open(new) => {
                    let id = WaitId(i64::try_from(self.waits.len()).unwrap() + 1);
                    let rest = (1..)
                        .map(|n| DedupeRest::choice(&new.question_id, n))
                        .find(|rest| self.waits.iter().all(|w| w.rest != *rest))
                        .unwrap();
                    opened = Some(id);
                    self.waits.push(new.stored(id, rest));
                }
                Op::Close { wait, state, at, answer, note } => {
                    let kept = self.wait_mut(wait);
                    kept.state = state;
                    kept.closed_at = Some(at);
                    kept.answer = answer;
                    kept.note = note.or(kept.note.take());
                    for n in 0..self.messages.len() {
                        let message = &self.messages[n];
                        if message.wait == wait.0 && message.event.ends_with_the_wait() {
                            self.leave_queue(n, OutboxState::Withdrawn);
                        }
                    }
                }
                Op::TakeOver { wait, envelope } => {
                    self.wait_mut(wait).taken_over = Some(envelope);
                }
                Op::Remember { .. } => {}
                Op::Resent { wait, resends } => self.wait_mut(wait).resends = resends,
                Op::Record { wait, event, at, .. } => {
                    self.feed.push((referred(wait, opened).0, event, at));
                }
                Op::Send { wait, send } => {
                    let wait = referred(wait, opened);
                    let order = send.order.map(|key| key.0);
                    self.messages.push(Message {
                        wait: wait.0,
                        destination: send.destination,
                        event: send.event,
                        order,
                        state: OutboxState::Queued,
                        ready: !self.has_queued(order),
                        due: send.at,
                        attempts: 0,
                    });
                }
            }
        }
    }

    pub(super) fn wait_mut(&mut self, id: WaitId) -> &mut Wait {
        &mut self.waits[usize::try_from(id.0).unwrap() - 1]
    }

    pub(super) fn has_queued(&self, order: Option<i64>) -> bool {
        order.is_some()
            && self.messages.iter().any(|m| m.state == OutboxState::Queued && m.order == order)
    }

    /// Ends a queued message; the oldest of its order that is left comes next.
    pub(super) fn leave_queue(&mut self, n: usize, state: OutboxState) {
        if self.messages[n].state != OutboxState::Queued {
            return;
        }
        let (order, was_ready) = (self.messages[n].order, self.messages[n].ready);
        self.messages[n].state = state;
        self.messages[n].ready = false;
        let of_order = |m: &&mut Message| m.state == OutboxState::Queued && m.order == order;
        if order.is_some()
            && was_ready
            && let Some(next) = self.messages.iter_mut().find(of_order)
        {
            next.ready = true;
        }
    }

    /// Whether a message is out, as far as its store knows.
    pub(super) fn is_out(&self, n: usize) -> bool {
        self.held.iter().any(|held| held.id == n && (!self.keeps_late || held.until > self.now))
    }

    /// What a lane must be given: due, first in order, not out, the longest due first.
    pub(super) fn lease(&mut self, to: &Destination, limit: usize) -> Vec<usize> {
        if !self.keeps_late {
            self.held.retain(|held| held.destination != *to || held.until > self.now);
        }
        let mut due: Vec<(Time, usize)> = Vec::new();
        for (n, message) in self.messages.iter().enumerate() {
            let queued = message.ready && message.destination == *to && message.due <= self.now;
            if queued && !self.is_out(n) {
                due.push((message.due, n));
            }
        }
        due.sort_unstable();
        let mut given = Vec::new();
        for (_, n) in due {
            let order = self.messages[n].order;
            let out = |held: &Held| held.order == order && held.until > self.now;
            if given.len() < limit && !(order.is_some() && self.held.iter().any(out)) {
                let until = self.now.after(HOLD);
                self.held.retain(|held| held.id != n);
                self.held.push(Held { id: n, lease: 0, destination: to.clone(), order, until });
                given.push(n);
            }
        }
        given
    }

    pub(super) fn settle(&mut self, id: usize, lease: u64, how: &Settled) {
        let at = self.held.iter().position(|held| held.id == id && held.lease == lease);
        let message = &mut self.messages[id];
        let queued = message.state == OutboxState::Queued;
        if message.state == OutboxState::Withdrawn && *how == Settled::Delivered {
            message.state = OutboxState::Delivered;
            message.attempts += 1;
        }
        let Some(at) = at else { return };
        self.held.remove(at);
        if !queued {
            return;
        }
        if *how != Settled::Released {
            message.attempts += 1;
        }
        match how {
            Settled::Delivered => self.leave_queue(id, OutboxState::Delivered),
            Settled::Dead { .. } => self.leave_queue(id, OutboxState::Dead),
            Settled::RetryAt { at, .. } => message.due = *at,
            Settled::Released => {}
        }
    }

    pub(super) fn retry(&mut self, n: usize) -> bool {
        let Some(message) = self.messages.get(n) else { return false };
        let over = self.waits[usize::try_from(message.wait).unwrap() - 1].state.is_over();
        if message.state != OutboxState::Dead || (message.event.ends_with_the_wait() && over) {
            return false;
        }
        let ready = !self.has_queued(message.order);
        let now = self.now;
        let message = &mut self.messages[n];
        (message.state, message.ready, message.due, message.attempts) =
            (OutboxState::Queued, ready, now, 0);
        true
    }
}

fn referred(wait: WaitRef, opened: Option<WaitId>) -> WaitId {
    match wait {
        WaitRef::Existing(wait) => wait,
        WaitRef::Opened => opened.unwrap(),
    }
}
