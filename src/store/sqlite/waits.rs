//! What happens to waits: read what is known, ask the core, carry out what it says.

use super::destinations::DestinationId;
use super::fail::Done;
use super::forgotten;
use super::rows::{self, wait_columns};
use super::unit::Unit;
use crate::store::{Answered, Cancelled, Published, TimedOut};
use answerback_contract::{
    DedupeRest, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, WaitState,
};
use answerback_core::{
    AnswerRequest, Destination, Op, Publish, PublishOutcome, Wait, WaitId, WaitRef, answer, cancel,
    deadline, publish,
};
use rusqlite::{Connection, OptionalExtension, params};

impl Unit<'_> {
    /// Takes one question in.
    pub(super) fn publish(&mut self, asked: &Publish, now: Time) -> Done<Published> {
        let envelope = &asked.envelope;
        let (thread, question) = (envelope.thread_id(), envelope.question_id());
        let mut newest = newest(self.conn, &asked.tenant, thread, question)?;
        let mut seen = false;
        if newest.is_none() {
            newest = forgotten::remembered(self, asked, now)?;
        }
        if newest.is_some() {
            seen = self.is_seen(&asked.tenant, thread, question, &asked.event_id)?;
        }
        let waiting = match &newest {
            Some(wait) if !seen && wait.answer.is_some() => self.waiting_deliveries(wait.id)?,
            _ => Vec::new(),
        };
        let rules = self.shared.rules.clone();
        let mint = self.shared.mint.clone();
        let (outcome, ops) =
            publish::decide(newest.as_ref(), seen, &waiting, asked, &rules, now, &mut || mint())?;
        let carried = self.carry_out(&ops, now)?;
        let mut published = Published {
            outcome,
            rest: DedupeRest::choice(question, 1),
            queued: self.named(&carried.queued),
            expires_at: None,
            lapses_at: carried.lapses_at,
            closed: ops.iter().find_map(closed),
            unmatched: false,
        };
        match carried.opened {
            Some((_, choice)) => {
                published.rest = DedupeRest::choice(question, choice);
                published.expires_at = envelope.expires_at();
                published.unmatched = opened_open(&ops) && !ops.iter().any(announces);
            }
            None => {
                if let Some(wait) = newest {
                    published.rest = wait.rest;
                }
            }
        }
        debug_assert_eq!(
            matches!(outcome, PublishOutcome::New(_)),
            carried.opened.is_some(),
            "a new wait and only that is stored"
        );
        Ok(published)
    }

    /// Where a wait's answer is queued for and has not been taken up to be sent.
    fn waiting_deliveries(&self, wait: WaitId) -> Done<Vec<Destination>> {
        let queued = self
            .conn
            .prepare_cached(
                "SELECT id, destination FROM outbox INDEXED BY outbox_wait \
                 WHERE wait = ?1 AND state <= 1",
            )?
            .query_map([wait.0], |row| Ok((row.get(0)?, DestinationId(row.get(1)?))))?
            .collect::<Result<Vec<(i64, DestinationId)>, _>>()?;
        let lanes = self.shared.lanes();
        let free: Vec<_> =
            queued.into_iter().filter(|(id, _)| lanes.is_free(*id)).map(|(_, to)| to).collect();
        drop(lanes);
        let mut waiting = self.named(&free);
        waiting.retain(|to| !to.is_announcer());
        Ok(waiting)
    }

    /// Whether an event id was seen under any generation of a question.
    fn is_seen(
        &self,
        tenant: &TenantId,
        thread: &ThreadId,
        question: &QuestionId,
        event_id: &EventId,
    ) -> Done<bool> {
        let seen = self
            .conn
            .prepare_cached(
                "SELECT 1 FROM waits w \
                 WHERE tenant = ?1 AND thread_id = ?2 AND question_id = ?3 \
                 AND (event_id = ?4 OR EXISTS \
                   (SELECT 1 FROM publishes p WHERE p.wait = w.id AND p.event_id = ?4)) LIMIT 1",
            )?
            .exists(params![
                tenant.as_str(),
                thread.as_str(),
                question.as_str(),
                event_id.as_str()
            ])?;
        Ok(seen || forgotten::is_seen(self, tenant, thread, question, event_id)?)
    }

    /// Takes an answer.
    pub(super) fn answer(&mut self, request: &AnswerRequest, now: Time) -> Done<Answered> {
        let told = &request.answer;
        let wait = of_generation(
            self.conn,
            &request.tenant,
            &told.thread_id,
            &told.question_id,
            told.generation,
        )?;
        let rules = self.shared.rules.clone();
        let mint = self.shared.mint.clone();
        let (outcome, ops) = answer::decide(wait.as_ref(), request, &rules, now, &mut || mint())?;
        let carried = self.carry_out(&ops, now)?;
        Ok(Answered {
            outcome,
            wait: wait.map(|w| w.id),
            queued: self.named(&carried.queued),
            lapses_at: carried.lapses_at,
        })
    }

    /// Withdraws a wait.
    pub(super) fn cancel(&mut self, wait: WaitId, now: Time) -> Done<Option<Cancelled>> {
        let Some(wait) = self.wait(wait)? else { return Ok(None) };
        let rules = self.shared.rules.clone();
        let mint = self.shared.mint.clone();
        let (outcome, ops) = cancel(&wait, &rules, now, &mut || mint())?;
        let carried = self.carry_out(&ops, now)?;
        Ok(Some(Cancelled { outcome, queued: self.named(&carried.queued) }))
    }

    /// Ends waits whose deadline is reached, and answers that no host came for in time.
    pub(super) fn time_out(&mut self, limit: usize, now: Time) -> Done<TimedOut> {
        let due = self
            .conn
            .prepare_cached(
                "SELECT id FROM waits WHERE state = 1 AND expires_at <= ?1 \
                 ORDER BY expires_at, id LIMIT ?2",
            )?
            .query_map(params![now.millis(), i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
                row.get(0)
            })?
            .collect::<Result<Vec<i64>, _>>()?;
        let rules = self.shared.rules.clone();
        let mint = self.shared.mint.clone();
        let mut ended = TimedOut::default();
        let mut queued = Vec::new();
        for id in due {
            let Some(wait) = self.wait(WaitId(id))? else { continue };
            let Some(ops) = deadline(&wait, &rules, now, &mut || mint())? else { continue };
            for destination in self.carry_out(&ops, now)?.queued {
                if !queued.contains(&destination) {
                    queued.push(destination);
                }
            }
            ended.waits.push((wait.id, wait.expires_at.unwrap_or(now)));
        }
        ended.queued = self.named(&queued);
        ended.lapsed = self.lapse(limit, now)?;
        let next = [next_deadline(self.conn)?, self.next_lapse()?];
        ended.next = next.into_iter().flatten().min();
        Ok(ended)
    }
}

/// The wait that an operation ends.
fn closed(op: &Op) -> Option<WaitId> {
    match op {
        Op::Close { wait, .. } => Some(*wait),
        _ => None,
    }
}

fn opened_open(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::Open(wait) if wait.state == WaitState::Open))
}

/// Whether an operation tells an announcer of the wait that was opened.
fn announces(op: &Op) -> bool {
    matches!(op, Op::Send { wait: WaitRef::Opened, send }
        if send.event == Event::Created && matches!(send.destination, Destination::Announcer(_)))
}

/// The newest generation of a question.
pub(super) fn newest(
    conn: &Connection,
    tenant: &TenantId,
    thread: &ThreadId,
    question: &QuestionId,
) -> Done<Option<Wait>> {
    let mut statement = conn.prepare_cached(concat!(
        "SELECT ",
        wait_columns!(),
        " FROM waits w WHERE tenant = ?1 AND thread_id = ?2 AND question_id = ?3 \
         ORDER BY generation DESC LIMIT 1"
    ))?;
    let mut rows = statement.query(params![tenant.as_str(), thread.as_str(), question.as_str()])?;
    rows.next()?.map(rows::wait).transpose()
}

/// One generation of a question.
pub(super) fn of_generation(
    conn: &Connection,
    tenant: &TenantId,
    thread: &ThreadId,
    question: &QuestionId,
    generation: Generation,
) -> Done<Option<Wait>> {
    let mut statement = conn.prepare_cached(concat!(
        "SELECT ",
        wait_columns!(),
        " FROM waits w \
         WHERE tenant = ?1 AND thread_id = ?2 AND question_id = ?3 AND generation = ?4"
    ))?;
    let mut rows = statement.query(params![
        tenant.as_str(),
        thread.as_str(),
        question.as_str(),
        generation.get()
    ])?;
    rows.next()?.map(rows::wait).transpose()
}

/// The earliest deadline of an open wait.
pub(super) fn next_deadline(conn: &Connection) -> Done<Option<Time>> {
    let next: Option<i64> = conn
        .prepare_cached(
            "SELECT expires_at FROM waits WHERE state = 1 AND expires_at IS NOT NULL \
             ORDER BY expires_at LIMIT 1",
        )?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(next.map(Time::from_millis))
}
