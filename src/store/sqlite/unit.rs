//! A unit of work: what happens within one transaction, and what follows in memory once it is
//! committed.

use super::depths::Depths;
use super::destinations::{DestinationId, Destinations};
use super::events;
use super::fail::{Done, Fail};
use super::lanes::{Lanes, Place};
use super::rows::{self, BEHIND, DELIVERED, NEVER, READY, WITHDRAWN, wait_columns};
use answerback_contract::{DedupeRest, EventId, QuestionId, TenantId, Time, WaitState};
use answerback_core::{Destination, GivenAnswer, NewWait, Op, Rules, Send, Wait, WaitId, WaitRef};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Gives a fresh id each time.
pub type Mint = Arc<dyn Fn() -> EventId + std::marker::Send + Sync>;

/// What the writer and the readers know beside the file.
pub(super) struct Shared {
    pub(super) rules: Arc<Rules>,
    pub(super) mint: Mint,
    destinations: RwLock<Destinations>,
    lanes: Mutex<Lanes>,
    depths: Mutex<Depths>,
    /// Whether any wait was ever forgotten: spares most stores the look-ups.
    pub(super) forgot: AtomicBool,
}

impl Shared {
    pub(super) fn new(
        rules: Arc<Rules>,
        mint: Mint,
        destinations: Destinations,
        lanes: Lanes,
        depths: Depths,
        forgot: bool,
    ) -> Self {
        Self {
            rules,
            mint,
            destinations: RwLock::new(destinations),
            lanes: Mutex::new(lanes),
            depths: Mutex::new(depths),
            forgot: AtomicBool::new(forgot),
        }
    }

    // A panic under one of these locks leaves counts and cursors that the next full scan or start
    // corrects; refusing all work for it would be worse.
    pub(super) fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn depths(&self) -> MutexGuard<'_, Depths> {
        self.depths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn destinations(&self) -> RwLockReadGuard<'_, Destinations> {
        self.destinations.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a commit's effects be seen.
    pub(super) fn apply(&self, effects: Effects) {
        if !effects.interned.is_empty() {
            let mut known = self.destinations.write().unwrap_or_else(PoisonError::into_inner);
            for (id, destination) in effects.interned {
                known.insert(id, destination);
            }
        }
        let mut depths = self.depths();
        for (destination, queued_at) in effects.queued {
            depths.add(destination, queued_at, 1);
        }
        for (destination, queued_at) in effects.unqueued {
            depths.remove(destination, queued_at);
        }
        drop(depths);
        let mut lanes = self.lanes();
        for (id, lease) in effects.ended {
            lanes.ended(id, lease);
        }
        for (destination, place) in effects.due {
            lanes.due(destination, place);
        }
        for (destination, paused) in effects.paused {
            lanes.set_paused(destination, paused);
        }
    }
}

/// What a transaction changes beside the file.
#[derive(Default)]
pub(super) struct Effects {
    interned: Vec<(DestinationId, Destination)>,
    queued: Vec<(DestinationId, Time)>,
    unqueued: Vec<(DestinationId, Time)>,
    due: Vec<(DestinationId, Place)>,
    ended: Vec<(i64, u64)>,
    paused: Vec<(DestinationId, bool)>,
}

/// What carrying out a list of [`Op`]s did.
#[derive(Default)]
pub(super) struct Carried {
    /// The wait that was opened, and its choice of dedupe rest.
    pub(super) opened: Option<(WaitId, u32)>,
    /// Where something was queued for or became due, each once.
    pub(super) queued: Vec<DestinationId>,
    /// When the first answer lapses that was queued for its host to come for.
    pub(super) lapses_at: Option<Time>,
}

impl Carried {
    /// The wait that an operation is about.
    fn referred(&self, wait: WaitRef) -> Done<WaitId> {
        match (wait, self.opened) {
            (WaitRef::Existing(wait), _) | (WaitRef::Opened, Some((wait, _))) => Ok(wait),
            (WaitRef::Opened, None) => Err(Fail::Corrupt("something of no wait".to_owned())),
        }
    }

    fn queued(&mut self, destination: DestinationId) {
        if !self.queued.contains(&destination) {
            self.queued.push(destination);
        }
    }
}

/// One transaction's work.
pub(super) struct Unit<'c> {
    pub(super) conn: &'c Connection,
    pub(super) shared: &'c Shared,
    pub(super) effects: Effects,
}

/// A queued message that is about to leave the queue.
#[derive(Clone, Copy)]
pub(super) struct QueuedRow {
    pub(super) id: i64,
    pub(super) destination: DestinationId,
    pub(super) state: i64,
    pub(super) order: Option<i64>,
    pub(super) queued_at: Time,
}

impl<'c> Unit<'c> {
    pub(super) fn new(conn: &'c Connection, shared: &'c Shared) -> Self {
        Self { conn, shared, effects: Effects::default() }
    }

    /// Does what the core decided, in order.
    pub(super) fn carry_out(&mut self, ops: &[Op], now: Time) -> Done<Carried> {
        let mut carried = Carried::default();
        for op in ops {
            match op {
                Op::Open(wait) => carried.opened = Some(self.open(wait)?),
                Op::Close { wait, state, at, answer, note } => {
                    self.close(*wait, *state, *at, answer.as_ref(), note.as_deref())?;
                    self.withdraw(*wait, now, &mut carried)?;
                }
                Op::TakeOver { wait, envelope } => {
                    self.conn
                        .prepare_cached("UPDATE waits SET taken_over = ?2 WHERE id = ?1")?
                        .execute(params![wait.0, &envelope[..]])?;
                }
                Op::Remember { wait, event_id } => {
                    self.conn
                        .prepare_cached(
                            "INSERT OR IGNORE INTO publishes (wait, event_id) VALUES (?1, ?2)",
                        )?
                        .execute(params![wait.0, event_id.as_str()])?;
                }
                Op::Resent { wait, resends } => {
                    self.conn
                        .prepare_cached("UPDATE waits SET resends = ?2 WHERE id = ?1")?
                        .execute(params![wait.0, resends])?;
                }
                Op::Record { wait, event, event_id, at } => {
                    let wait = carried.referred(*wait)?;
                    events::record(self.conn, wait, *event, event_id.as_ref(), *at)?;
                }
                Op::Send { wait, send } => {
                    let wait = carried.referred(*wait)?;
                    let due = self.due_at(wait, send)?;
                    let destination = self.queue(wait, send, due)?;
                    carried.queued(destination);
                    if send.destination == Destination::Pull && due != NEVER {
                        let at = Time::from_millis(due);
                        carried.lapses_at =
                            Some(carried.lapses_at.map_or(at, |first| first.min(at)));
                    }
                }
            }
        }
        Ok(carried)
    }

    fn open(&mut self, wait: &NewWait) -> Done<(WaitId, u32)> {
        let choice = self.free_choice(&wait.tenant, &wait.question_id)?;
        let run = (*wait.run_id != *wait.thread_id.as_str()).then_some(&*wait.run_id);
        let answer = wait.answer.as_ref();
        self.conn
            .prepare_cached(
                "INSERT INTO waits (tenant, thread_id, question_id, generation, choice, run_id, \
                 state, event_id, created_at, expires_at, closed_at, valid_until, answered_at, \
                 answered_by, answered_via, note, answer, envelope) VALUES \
                 (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)",
            )?
            .execute(params![
                wait.tenant.as_str(),
                wait.thread_id.as_str(),
                wait.question_id.as_str(),
                wait.generation.get(),
                choice,
                run,
                rows::wait_code(wait.state),
                wait.event_id.as_str(),
                wait.created_at.millis(),
                wait.expires_at.map(Time::millis),
                wait.closed_at.map(Time::millis),
                answer.and_then(|a| a.valid_until).map(Time::millis),
                answer.map(|a| a.answered_at.millis()),
                answer.and_then(|a| a.answered_by.as_deref()),
                answer.map(|a| a.answered_via.name()),
                wait.note.as_deref(),
                answer.map(|a| &a.value[..]),
                &wait.envelope[..],
            ])?;
        Ok((WaitId(self.conn.last_insert_rowid()), choice))
    }

    fn close(
        &self,
        wait: WaitId,
        state: WaitState,
        at: Time,
        answer: Option<&GivenAnswer>,
        note: Option<&str>,
    ) -> Done<()> {
        self.conn
            .prepare_cached(
                "UPDATE waits SET state = ?2, closed_at = ?3, valid_until = ?4, answered_at = ?5, \
                 answered_by = ?6, answered_via = ?7, answer = ?8, note = coalesce(?9, note) \
                 WHERE id = ?1",
            )?
            .execute(params![
                wait.0,
                rows::wait_code(state),
                at.millis(),
                answer.and_then(|a| a.valid_until).map(Time::millis),
                answer.map(|a| a.answered_at.millis()),
                answer.and_then(|a| a.answered_by.as_deref()),
                answer.map(|a| a.answered_via.name()),
                answer.map(|a| &a.value[..]),
                note,
            ])?;
        Ok(())
    }

    /// Withdraws the queued messages that end with their wait.
    fn withdraw(&mut self, wait: WaitId, now: Time, carried: &mut Carried) -> Done<()> {
        let mut found = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(
                "SELECT id, destination, state, order_key, queued_at, event FROM outbox \
                 WHERE wait = ?1 AND state <= 1",
            )?;
            let mut rows = statement.query([wait.0])?;
            while let Some(row) = rows.next()? {
                if rows::event(row.get(5)?)?.ends_with_the_wait() {
                    found.push(QueuedRow::read(row)?);
                }
            }
        }
        for row in found {
            self.conn
                .prepare_cached("UPDATE outbox SET state = 4, finished_at = ?2 WHERE id = ?1")?
                .execute(params![row.id, now.millis()])?;
            debug_assert_eq!(WITHDRAWN, 4);
            if let Some(next) = self.left_queue(row)? {
                carried.queued(next);
            }
        }
        Ok(())
    }

    /// When something has to be done about a message: that it is sent, or, of what its host comes
    /// for, that it dies because the answer is valid no longer.
    fn due_at(&self, wait: WaitId, send: &Send) -> Done<i64> {
        if send.destination != Destination::Pull {
            return Ok(send.at.millis());
        }
        let until: Option<i64> = self
            .conn
            .prepare_cached("SELECT valid_until FROM waits WHERE id = ?1")?
            .query_row([wait.0], |row| row.get(0))?;
        Ok(until.unwrap_or(NEVER))
    }

    /// Puts a message into the queue.
    fn queue(&mut self, wait: WaitId, send: &Send, due: i64) -> Done<DestinationId> {
        let destination = self.intern(&send.destination)?;
        let order = send.order.map(|key| key.0);
        let state = self.state_in_line(order)?;
        self.conn
            .prepare_cached(
                "INSERT INTO outbox (wait, destination, event, repeat, state, order_key, \
                 queued_at, next_attempt_at, event_id) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)",
            )?
            .execute(params![
                wait.0,
                destination.0,
                rows::event_code(send.event),
                send.repeat,
                state,
                order,
                send.at.millis(),
                due,
                send.event_id.as_ref().map(EventId::as_str),
            ])?;
        let id = self.conn.last_insert_rowid();
        self.effects.queued.push((destination, send.at));
        if state == READY {
            self.effects.due.push((destination, Place { due, id }));
        }
        Ok(destination)
    }

    /// Whether a message that is queued now is due, or has others of its order key before it.
    pub(super) fn state_in_line(&self, order: Option<i64>) -> Done<i64> {
        let Some(order) = order else { return Ok(READY) };
        let others = self
            .conn
            .prepare_cached(
                "SELECT 1 FROM outbox INDEXED BY outbox_order \
                 WHERE state <= 1 AND order_key IS NOT NULL AND order_key = ?1 LIMIT 1",
            )?
            .exists([order])?;
        Ok(if others { BEHIND } else { READY })
    }

    /// A row that was queued no longer is: the next of its order key is due. Gives where to.
    pub(super) fn left_queue(&mut self, row: QueuedRow) -> Done<Option<DestinationId>> {
        self.effects.unqueued.push((row.destination, row.queued_at));
        match row.order {
            Some(order) if row.state == READY => self.next_in_line(order),
            _ => Ok(None),
        }
    }

    /// Makes the oldest queued row of an order key due; none of them is.
    fn next_in_line(&mut self, order: i64) -> Done<Option<DestinationId>> {
        let next = self
            .conn
            .prepare_cached(
                "SELECT id, destination, next_attempt_at FROM outbox INDEXED BY outbox_order \
                 WHERE state <= 1 AND order_key IS NOT NULL AND order_key = ?1 \
                 ORDER BY id LIMIT 1",
            )?
            .query_row([order], |row| {
                Ok((row.get(0)?, DestinationId(row.get(1)?), row.get::<_, i64>(2)?))
            })
            .optional()?;
        let Some((id, destination, due)) = next else { return Ok(None) };
        self.conn.prepare_cached("UPDATE outbox SET state = 1 WHERE id = ?1")?.execute([id])?;
        self.effects.due.push((destination, Place { due, id }));
        Ok(Some(destination))
    }

    /// A row is queued again.
    pub(super) fn queued_again(&mut self, row: QueuedRow) {
        self.effects.queued.push((row.destination, row.queued_at));
        if row.state == READY {
            self.became_due(row.destination, row.id, row.queued_at);
        }
    }

    /// A queued row is due at an instant.
    pub(super) fn became_due(&mut self, destination: DestinationId, id: i64, at: Time) {
        self.effects.due.push((destination, Place { due: at.millis(), id }));
    }

    /// A lease is over once this is committed.
    pub(super) fn lease_ended(&mut self, id: i64, lease: u64) {
        self.effects.ended.push((id, lease));
    }

    pub(super) fn pause(&mut self, destination: DestinationId, paused: bool) -> Done<()> {
        self.conn
            .prepare_cached("UPDATE destinations SET paused = ?2 WHERE id = ?1")?
            .execute(params![destination.0, paused])?;
        self.effects.paused.push((destination, paused));
        Ok(())
    }

    /// The number of a destination, if it has one.
    pub(super) fn known(&self, destination: &Destination) -> Option<DestinationId> {
        let known = self.shared.destinations().id(destination);
        let fresh = || self.effects.interned.iter().find(|(_, d)| d == destination);
        known.or_else(|| fresh().map(|(id, _)| *id))
    }

    /// The number of a destination, given to it now if it has none.
    pub(super) fn intern(&mut self, destination: &Destination) -> Done<DestinationId> {
        if let Some(id) = self.known(destination) {
            return Ok(id);
        }
        let (kind, name) = destination.parts();
        self.conn
            .prepare_cached("INSERT INTO destinations (kind, name) VALUES (?1, ?2)")?
            .execute([kind, name])?;
        let id = DestinationId(self.conn.last_insert_rowid());
        self.effects.interned.push((id, destination.clone()));
        Ok(id)
    }

    /// The destinations of these numbers.
    pub(super) fn named(&self, ids: &[DestinationId]) -> Vec<Destination> {
        let known = self.shared.destinations();
        let fresh = &self.effects.interned;
        ids.iter()
            .filter_map(|id| {
                let new = || fresh.iter().find(|(i, _)| i == id).map(|(_, d)| d);
                known.get(*id).or_else(new).cloned()
            })
            .collect()
    }

    pub(super) fn wait(&self, id: WaitId) -> Done<Option<Wait>> {
        let mut statement = self.conn.prepare_cached(concat!(
            "SELECT ",
            wait_columns!(),
            " FROM waits w WHERE id = ?1"
        ))?;
        let mut rows = statement.query([id.0])?;
        rows.next()?.map(rows::wait).transpose()
    }

    /// The first free choice of dedupe rest for a question: one key, one wait, also among those
    /// that were forgotten.
    ///
    /// Counts up from 1. A question id that very many threads share would make that long, so past
    /// a few it goes on from the highest one given.
    fn free_choice(&self, tenant: &TenantId, question: &QuestionId) -> Done<u32> {
        const COUNTED: u32 = 8;
        let mut n = 1;
        while self.is_taken(tenant, question, n)? {
            n += 1;
            if n == COUNTED {
                let highest: Option<u32> = self
                    .conn
                    .prepare_cached(
                        "SELECT max(choice) FROM waits WHERE tenant = ?1 AND question_id = ?2",
                    )?
                    .query_row([tenant.as_str(), question.as_str()], |row| row.get(0))?;
                n = n.max(highest.unwrap_or(0).saturating_add(1));
            }
        }
        Ok(n)
    }

    /// Whether some wait has the text that is this question's `n`th choice. Another question may
    /// have it: `q:2` is the second choice of `q` and the first of a question called `q:2`.
    fn is_taken(&self, tenant: &TenantId, question: &QuestionId, n: u32) -> Done<bool> {
        let rest = DedupeRest::choice(question, n);
        let mut statement = self.conn.prepare_cached(
            "SELECT 1 FROM waits WHERE tenant = ?1 AND question_id = ?2 AND choice = ?3",
        )?;
        if statement.exists(params![tenant.as_str(), question.as_str(), n])? {
            return Ok(true);
        }
        if n > 1 && statement.exists(params![tenant.as_str(), rest.as_str(), 1])? {
            return Ok(true);
        }
        if let Some((shorter, m)) = counted(rest.as_str())
            && n == 1
            && statement.exists(params![tenant.as_str(), shorter, m])?
        {
            return Ok(true);
        }
        if !self.shared.forgot.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let hash = crate::store::hashes::key(tenant, &rest);
        Ok(self.conn.prepare_cached("SELECT 1 FROM forgotten WHERE hash = ?1")?.exists([hash])?)
    }
}

/// Splits `<id>:<n>` where that is how an `n`th choice is written.
fn counted(rest: &str) -> Option<(&str, u32)> {
    let (id, digits) = rest.rsplit_once(':')?;
    let n = digits.parse::<u32>().ok()?;
    (n > 1 && n.to_string() == digits && !id.is_empty()).then_some((id, n))
}

impl QueuedRow {
    /// From `id, destination, state, order_key, queued_at`.
    pub(super) fn read(row: &rusqlite::Row<'_>) -> Done<Self> {
        let state = row.get(2)?;
        debug_assert!(state < DELIVERED);
        Ok(Self {
            id: row.get(0)?,
            destination: DestinationId(row.get(1)?),
            state,
            order: row.get(3)?,
            queued_at: rows::time(row, 4)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn only_what_a_choice_would_write_is_taken_apart() {
        assert_eq!(counted("q:2"), Some(("q", 2)));
        assert_eq!(counted("a:b:31"), Some(("a:b", 31)));
        for plain in ["q", "q:1", "q:0", "q:02", "q:+2", "q:", ":2", "q:99999999999", "q:x"] {
            assert_eq!(counted(plain), None, "{plain}");
        }
    }
}
