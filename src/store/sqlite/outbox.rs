//! What becomes of messages: settled, retried, retired, fetched by the host.

use super::destinations::DestinationId;
use super::fail::Done;
use super::rows::{self, DEAD, DELIVERED, NEVER, READY, WITHDRAWN};
use super::unit::{QueuedRow, Unit};
use crate::store::{Retried, Settled, Settlement};
use answerback_contract::{TenantId, Time};
use answerback_core::{Destination, OutboxId, WaitId};
use rusqlite::{OptionalExtension, params};

/// An error's text is cut to so many characters.
const MOST_OF_AN_ERROR: usize = 1_000;

/// How many messages one transaction may requeue or retire.
pub(super) const CHUNK: i64 = 500;

impl Unit<'_> {
    /// Records how leases ended; gives where something is due because of it.
    pub(super) fn settle(&mut self, batch: &[Settlement], now: Time) -> Done<Vec<Destination>> {
        let mut due = Vec::new();
        for settlement in batch {
            if let Some(destination) = self.settle_one(settlement, now)?
                && !due.contains(&destination)
            {
                due.push(destination);
            }
        }
        Ok(self.named(&due))
    }

    fn settle_one(&mut self, s: &Settlement, now: Time) -> Done<Option<DestinationId>> {
        let id = s.id.0;
        let hold = self.shared.lanes().holds(id, s.lease);
        let Some(hold) = hold else {
            if s.settled == Settled::Delivered {
                self.delivered_though_withdrawn(id, now)?;
            }
            return Ok(None);
        };
        self.lease_ended(id, s.lease);
        let row = QueuedRow {
            id,
            destination: hold.destination,
            state: READY,
            order: hold.order,
            queued_at: hold.queued_at,
        };
        match &s.settled {
            Settled::Delivered if self.finish(id, DELIVERED, None, None, now)? => {
                return self.left_queue(row);
            }
            Settled::Dead { reason, error }
                if self.finish(id, DEAD, Some(reason), Some(error), now)? =>
            {
                return self.left_queue(row);
            }
            Settled::RetryAt { at, error } if self.put_off(id, *at, error)? => {
                self.became_due(hold.destination, id, *at);
                return Ok(None);
            }
            Settled::Released if self.is_due(id)? => {
                self.became_due(hold.destination, id, Time::from_millis(hold.place.due));
                return Ok(Some(hold.destination));
            }
            _ => {}
        }
        // It left the queue while it was out; what comes after it waited for this lease to end.
        if s.settled == Settled::Delivered {
            self.delivered_though_withdrawn(id, now)?;
        }
        hold.order.map_or(Ok(None), |order| self.due_in_line(order))
    }

    /// Ends a queued row; `false` when it is queued no longer.
    fn finish(
        &self,
        id: i64,
        state: i64,
        reason: Option<&str>,
        error: Option<&str>,
        now: Time,
    ) -> Done<bool> {
        let changed = self
            .conn
            .prepare_cached(
                "UPDATE outbox SET state = ?2, attempts = attempts + 1, finished_at = ?3, \
                 reason = ?4, last_error = coalesce(?5, last_error) \
                 WHERE id = ?1 AND state = 1",
            )?
            .execute(params![id, state, now.millis(), reason, error.map(cut)])?;
        Ok(changed == 1)
    }

    /// Puts a queued row off after a failed attempt; `false` when it is queued no longer.
    fn put_off(&self, id: i64, at: Time, error: &str) -> Done<bool> {
        let changed = self
            .conn
            .prepare_cached(
                "UPDATE outbox SET attempts = attempts + 1, next_attempt_at = ?2, last_error = ?3 \
                 WHERE id = ?1 AND state = 1",
            )?
            .execute(params![id, at.millis(), cut(error)])?;
        Ok(changed == 1)
    }

    fn is_due(&self, id: i64) -> Done<bool> {
        Ok(self
            .conn
            .prepare_cached("SELECT 1 FROM outbox WHERE id = ?1 AND state = 1")?
            .exists([id])?)
    }

    /// A message was sent although its wait was over meanwhile: that is what happened.
    fn delivered_though_withdrawn(&self, id: i64, now: Time) -> Done<()> {
        self.conn
            .prepare_cached(
                "UPDATE outbox SET state = ?2, attempts = attempts + 1, finished_at = ?3 \
                 WHERE id = ?1 AND state = ?4",
            )?
            .execute(params![id, DELIVERED, now.millis(), WITHDRAWN])?;
        Ok(())
    }

    /// Where the due message of an order key goes.
    fn due_in_line(&self, order: i64) -> Done<Option<DestinationId>> {
        let found = self
            .conn
            .prepare_cached(
                "SELECT destination FROM outbox INDEXED BY outbox_order \
                 WHERE state <= 1 AND order_key IS NOT NULL AND order_key = ?1 AND state = 1",
            )?
            .query_row([order], |row| row.get(0))
            .optional()?;
        Ok(found.map(DestinationId))
    }

    /// Marks the pull deliveries of a wait as delivered.
    pub(super) fn pulled(&mut self, wait: WaitId, now: Time) -> Done<bool> {
        let Some(pull) = self.known(&Destination::Pull) else { return Ok(false) };
        let mut found = Vec::new();
        let mut any = false;
        {
            let mut statement = self.conn.prepare_cached(
                "SELECT id, destination, state, order_key, queued_at FROM outbox \
                 WHERE wait = ?1 AND destination = ?2",
            )?;
            let mut rows = statement.query(params![wait.0, pull.0])?;
            while let Some(row) = rows.next()? {
                any = true;
                if row.get::<_, i64>(2)? <= READY {
                    found.push(QueuedRow::read(row)?);
                }
            }
        }
        for row in found {
            self.conn
                .prepare_cached(
                    "UPDATE outbox SET state = 2, attempts = attempts + 1, finished_at = ?2 \
                     WHERE id = ?1",
                )?
                .execute(params![row.id, now.millis()])?;
            self.left_queue(row)?;
        }
        Ok(any)
    }

    /// Declares pull deliveries dead whose answers are valid no longer, `limit` at most: gives how
    /// many. Their place in the queue is when that is.
    pub(super) fn lapse(&mut self, limit: usize, now: Time) -> Done<u64> {
        let Some(pull) = self.known(&Destination::Pull) else { return Ok(0) };
        let mut found = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(
                "SELECT o.id, o.destination, o.state, o.order_key, o.queued_at, w.valid_until \
                 FROM outbox o INDEXED BY outbox_due CROSS JOIN waits w ON w.id = o.wait \
                 WHERE o.state = 1 AND o.destination = ?1 AND o.next_attempt_at <= ?2 \
                 ORDER BY o.next_attempt_at LIMIT ?3",
            )?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![pull.0, now.millis(), limit])?;
            while let Some(row) = rows.next()? {
                found.push((QueuedRow::read(row)?, row.get::<_, Option<i64>>(5)?));
            }
        }
        let mut lapsed = 0;
        for (row, until) in found {
            if until.is_some_and(|until| until <= now.millis()) {
                self.conn
                    .prepare_cached(
                        "UPDATE outbox SET state = 3, finished_at = ?2, reason = 'answer-expired' \
                         WHERE id = ?1",
                    )?
                    .execute(params![row.id, now.millis()])?;
                self.left_queue(row)?;
                lapsed += 1;
            } else {
                // Queued before places in the queue meant this.
                self.conn
                    .prepare_cached("UPDATE outbox SET next_attempt_at = ?2 WHERE id = ?1")?
                    .execute(params![row.id, until.unwrap_or(NEVER)])?;
            }
        }
        Ok(lapsed)
    }

    /// When the next pull delivery lapses.
    pub(super) fn next_lapse(&self) -> Done<Option<Time>> {
        let Some(pull) = self.known(&Destination::Pull) else { return Ok(None) };
        let next: Option<i64> = self
            .conn
            .prepare_cached(
                "SELECT next_attempt_at FROM outbox INDEXED BY outbox_due \
                 WHERE state = 1 AND destination = ?1 ORDER BY next_attempt_at LIMIT 1",
            )?
            .query_row([pull.0], |row| row.get(0))
            .optional()?;
        Ok(next.filter(|at| *at != NEVER).map(Time::from_millis))
    }

    /// Queues one dead message again.
    pub(super) fn retry_one(
        &mut self,
        tenant: &TenantId,
        id: OutboxId,
        announcement: bool,
        now: Time,
    ) -> Done<Retried> {
        let found = self
            .conn
            .prepare_cached(
                "SELECT o.id, o.destination, o.state, o.order_key, o.event, w.state, \
                 w.valid_until FROM outbox o JOIN waits w ON w.id = o.wait \
                 WHERE o.id = ?1 AND w.tenant = ?2",
            )?
            .query_row(params![id.0, tenant.as_str()], DeadRow::read)
            .optional()?;
        let Some(row) = found else { return Ok(Retried::NotFound) };
        let destination = self.named(&[row.destination]);
        if destination.iter().any(Destination::is_announcer) != announcement {
            return Ok(Retried::NotFound);
        }
        if row.state != DEAD || row.is_pointless()? || (!announcement && row.has_lapsed(now)) {
            return Ok(Retried::NotRetryable(rows::outbox_state(row.state)?));
        }
        self.requeue(&row, now)?;
        Ok(Retried::Queued(1, destination))
    }

    /// Queues dead messages of a destination again, from the message after `after` on: gives how
    /// many, and the last one that was looked at when there may be more.
    pub(super) fn retry_some(
        &mut self,
        tenant: &TenantId,
        destination: DestinationId,
        after: i64,
        now: Time,
    ) -> Done<(usize, Option<i64>)> {
        let found = self
            .conn
            .prepare_cached(
                "SELECT o.id, o.destination, o.state, o.order_key, o.event, w.state, \
                 w.valid_until, w.tenant = ?2 \
                 FROM outbox o INDEXED BY outbox_dead CROSS JOIN waits w ON w.id = o.wait \
                 WHERE o.state = 3 AND o.destination = ?1 AND o.id > ?3 ORDER BY o.id LIMIT ?4",
            )?
            .query_map(params![destination.0, tenant.as_str(), after, CHUNK], |row| {
                Ok((DeadRow::read(row)?, row.get::<_, bool>(7)?))
            })?
            .collect::<Result<Vec<_>, _>>()?;
        let last = found.last().map(|(row, _)| row.id);
        let more = i64::try_from(found.len()).is_ok_and(|n| n == CHUNK);
        let mut queued = 0;
        for (row, ours) in found {
            if ours && !row.is_pointless()? {
                self.requeue(&row, now)?;
                queued += 1;
            }
        }
        Ok((queued, last.filter(|_| more)))
    }

    /// A message that is queued again lines up: it waits while another one of its order key is
    /// due, and goes before those that wait with it.
    fn requeue(&mut self, row: &DeadRow, now: Time) -> Done<()> {
        let state = self.state_in_line(row.order)?;
        self.conn
            .prepare_cached(
                "UPDATE outbox SET state = ?2, attempts = 0, queued_at = ?3, next_attempt_at = ?3, \
                 finished_at = NULL, reason = NULL WHERE id = ?1",
            )?
            .execute(params![row.id, state, now.millis()])?;
        self.queued_again(QueuedRow {
            id: row.id,
            destination: row.destination,
            state,
            order: row.order,
            queued_at: now,
        });
        Ok(())
    }

    /// Declares queued messages of a destination dead; gives how many, [`CHUNK`] at most.
    pub(super) fn retire_some(
        &mut self,
        destination: DestinationId,
        reason: &str,
        now: Time,
    ) -> Done<u64> {
        let mut found = self.queued_rows(
            "SELECT id, destination, state, order_key, queued_at FROM outbox INDEXED BY outbox_due \
             WHERE state = 1 AND destination = ?1 LIMIT ?2",
            destination,
        )?;
        if found.is_empty() {
            // What is left waits for messages of other destinations; this is rare.
            found = self.queued_rows(
                "SELECT id, destination, state, order_key, queued_at FROM outbox \
                 INDEXED BY outbox_order \
                 WHERE state <= 1 AND order_key IS NOT NULL AND destination = ?1 LIMIT ?2",
                destination,
            )?;
        }
        let mut retired = 0;
        for row in found {
            let changed = self
                .conn
                .prepare_cached(
                    "UPDATE outbox SET state = 3, finished_at = ?2, reason = ?3 \
                     WHERE id = ?1 AND state <= 1",
                )?
                .execute(params![row.id, now.millis(), reason])?;
            if changed == 1 {
                self.left_queue(row)?;
                retired += 1;
            }
        }
        Ok(retired)
    }

    fn queued_rows(&self, sql: &str, destination: DestinationId) -> Done<Vec<QueuedRow>> {
        let mut found = Vec::new();
        let mut statement = self.conn.prepare_cached(sql)?;
        let mut rows = statement.query(params![destination.0, CHUNK])?;
        while let Some(row) = rows.next()? {
            found.push(QueuedRow::read(row)?);
        }
        Ok(found)
    }
}

/// A message that an operator wants sent again, with its wait's state.
struct DeadRow {
    id: i64,
    destination: DestinationId,
    state: i64,
    order: Option<i64>,
    event: i64,
    wait_state: i64,
    valid_until: Option<i64>,
}

impl DeadRow {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            destination: DestinationId(row.get(1)?),
            state: row.get(2)?,
            order: row.get(3)?,
            event: row.get(4)?,
            wait_state: row.get(5)?,
            valid_until: row.get(6)?,
        })
    }

    /// Whether its answer may be used no longer.
    fn has_lapsed(&self, now: Time) -> bool {
        self.valid_until.is_some_and(|until| until <= now.millis())
    }

    /// Whether it would only tell of a question that is no longer asked.
    fn is_pointless(&self) -> Done<bool> {
        Ok(rows::event(self.event)?.ends_with_the_wait()
            && rows::wait_state(self.wait_state)?.is_over())
    }
}

fn cut(error: &str) -> &str {
    match error.char_indices().nth(MOST_OF_AN_ERROR) {
        Some((at, _)) => &error[..at],
        None => error,
    }
}
