//! Taking messages that are due: a read, and a mark in memory.

use super::destinations::DestinationId;
use super::fail::Done;
use super::lanes::{Hold, Offer, Place};
use super::rows::{self, wait_columns};
use super::unit::Shared;
use crate::store::{Lease, LeaseRequest};
use answerback_contract::{EventId, Time};
use answerback_core::{Leased, OutboxId, Wait, WaitId};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::sync::Arc;

/// Gives a lane its next messages. Of one lane there is one such call at a time.
pub(super) fn lease(
    conn: &Connection,
    shared: &Shared,
    destination: DestinationId,
    request: &LeaseRequest,
    now: Time,
) -> Done<Lease> {
    // Before the snapshot: what commits from here on is reported to this lease.
    let Some(from) = shared.lanes().begin(destination, now) else { return Ok(Lease::default()) };
    let mut scan = Scan {
        conn,
        shared,
        destination,
        request,
        now,
        lease: Lease::default(),
        waits: HashMap::new(),
        bytes: 0,
        seen: None,
        blocked: false,
        blocked_until: None,
    };
    let done = scan.snapshot(from);
    let Scan { mut lease, seen, blocked_until, .. } = scan;
    let mut lanes = shared.lanes();
    let slipped_in = lanes.end(destination, seen);
    if let Err(fail) = done {
        for message in &lease.messages {
            lanes.undo(message.id.0, message.lease);
        }
        return Err(fail);
    }
    for at in [slipped_in, blocked_until, lanes.first_expiry(destination)].into_iter().flatten() {
        lease.next_due = Some(lease.next_due.map_or(at, |next| next.min(at)));
    }
    Ok(lease)
}

struct Scan<'s> {
    conn: &'s Connection,
    shared: &'s Shared,
    destination: DestinationId,
    request: &'s LeaseRequest,
    now: Time,
    lease: Lease,
    waits: HashMap<i64, Arc<Wait>>,
    bytes: usize,
    /// Up to here nothing is left but what waits for another of its order key.
    seen: Option<Place>,
    blocked: bool,
    blocked_until: Option<Time>,
}

impl Scan<'_> {
    fn snapshot(&mut self, from: Place) -> Done<()> {
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        self.conn.prepare_cached("BEGIN")?.execute([])?;
        let done = self.scan(from);
        let ended = self.conn.prepare_cached("COMMIT").and_then(|mut s| s.execute([]));
        done?;
        ended?;
        Ok(())
    }

    fn scan(&mut self, from: Place) -> Done<()> {
        let mut due = self.conn.prepare_cached(
            "SELECT next_attempt_at, id FROM outbox INDEXED BY outbox_due \
             WHERE state = 1 AND destination = ?1 AND next_attempt_at >= ?2 \
             AND (next_attempt_at > ?2 OR id > ?3) AND next_attempt_at <= ?4 \
             ORDER BY next_attempt_at, id",
        )?;
        let mut rows =
            due.query(params![self.destination.0, from.due, from.id, self.now.millis()])?;
        while let Some(row) = rows.next()? {
            let place = Place { due: row.get(0)?, id: row.get(1)? };
            if self.shared.lanes().is_free(place.id) && !self.take(place)? {
                // No more room; whoever asks again gets it.
                self.lease.next_due = Some(self.now);
                return Ok(());
            }
            if !self.blocked {
                self.seen = Some(place);
            }
        }
        drop(rows);
        self.lease.next_due = self.next_due()?;
        Ok(())
    }

    /// When the next message that is not due yet will be.
    fn next_due(&self) -> Done<Option<Time>> {
        let next: Option<i64> = self
            .conn
            .prepare_cached(
                "SELECT next_attempt_at FROM outbox INDEXED BY outbox_due \
                 WHERE state = 1 AND destination = ?1 AND next_attempt_at > ?2 \
                 ORDER BY next_attempt_at LIMIT 1",
            )?
            .query_row(params![self.destination.0, self.now.millis()], |row| row.get(0))
            .optional()?;
        Ok(next.map(Time::from_millis))
    }

    /// Takes one message, if no other lease has it; `false` when there is no room for it.
    fn take(&mut self, place: Place) -> Done<bool> {
        let full = self.lease.messages.len() >= self.request.limit;
        if full || (self.bytes >= self.request.bytes && !self.lease.messages.is_empty()) {
            return Ok(false);
        }
        let mut found = self.conn.prepare_cached(
            "SELECT wait, event, repeat, attempts, order_key, queued_at, event_id FROM outbox \
             WHERE id = ?1",
        )?;
        let mut rows = found.query([place.id])?;
        let Some(row) = rows.next()? else { return Ok(true) };
        let wait = self.wait(row.get(0)?)?;
        let bytes = wait.envelope.len() + wait.taken_over.as_ref().map_or(0, |text| text.len());
        let fits = self.bytes + bytes <= self.request.bytes;
        if !fits && !self.lease.messages.is_empty() {
            return Ok(false);
        }
        let queued_at = rows::time(row, 5)?;
        let event_id = match row.get_ref(6)?.as_str_or_null().unwrap_or_default() {
            Some(_) => Some(rows::id(row, 6, EventId::new)?),
            None => None,
        };
        let (event, repeat) = (rows::event(row.get(1)?)?, rows::number(row, 2)?);
        let attempts = rows::number(row, 3)?;
        let hold = Hold {
            place,
            destination: self.destination,
            queued_at,
            order: row.get(4)?,
            until: self.now.after(self.request.hold),
        };
        let offer = self.shared.lanes().offer(hold, self.now);
        match offer {
            Offer::Taken(lease) => {
                self.bytes += bytes;
                self.lease.messages.push(Leased {
                    id: OutboxId(place.id),
                    lease,
                    destination: self.request.destination.clone(),
                    event,
                    repeat,
                    event_id,
                    attempts,
                    queued_at,
                    wait,
                });
            }
            Offer::Blocked(until) => {
                self.blocked = true;
                self.blocked_until = Some(self.blocked_until.map_or(until, |at| at.min(until)));
            }
            Offer::Gone => {}
        }
        Ok(true)
    }

    fn wait(&mut self, id: i64) -> Done<Arc<Wait>> {
        if let Some(wait) = self.waits.get(&id) {
            return Ok(wait.clone());
        }
        let mut statement = self.conn.prepare_cached(concat!(
            "SELECT ",
            wait_columns!(),
            " FROM waits w WHERE id = ?1"
        ))?;
        let mut rows = statement.query([id])?;
        let row = rows.next()?.ok_or_else(|| {
            super::fail::Fail::Corrupt(format!("a message of wait {id}, which is not there"))
        })?;
        let wait = Arc::new(rows::wait(row)?);
        debug_assert_eq!(wait.id, WaitId(id));
        self.waits.insert(id, wait.clone());
        Ok(wait)
    }
}
