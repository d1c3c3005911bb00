//! Forgetting waits, and what must be remembered of them: dedupe keys stay given, publishes stay
//! seen, generations go on counting (contract, section 2).

use super::destinations::DestinationId;
use super::fail::Done;
use super::rows;
use super::unit::{QueuedRow, Unit};
use crate::store::hashes::{self, Hash};
use crate::store::{Retention, remembered};
use answerback_contract::{DedupeRest, EventId, Generation, QuestionId, TenantId, ThreadId, Time};
use answerback_core::{Destination, Publish, Wait};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::atomic::Ordering;

/// Whether a publish of a question whose wait is forgotten was seen.
pub(super) fn is_seen(
    unit: &Unit<'_>,
    tenant: &TenantId,
    thread: &ThreadId,
    question: &QuestionId,
    id: &EventId,
) -> Done<bool> {
    if !unit.shared.forgot.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let hash = hashes::event(tenant, thread, question, id.as_str());
    Ok(unit.conn.prepare_cached("SELECT 1 FROM forgotten WHERE hash = ?1")?.exists([hash])?)
}

/// What is still known of a question whose waits are all forgotten.
pub(super) fn remembered(unit: &Unit<'_>, asked: &Publish, now: Time) -> Done<Option<Wait>> {
    if !unit.shared.forgot.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let (thread, question) = (asked.envelope.thread_id(), asked.envelope.question_id());
    let mut statement =
        unit.conn.prepare_cached("SELECT generation, choice FROM forgotten WHERE hash = ?1")?;
    let mut found = statement.query([hashes::remembered(&asked.tenant, thread, question)])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let (generation, choice) = (rows::generation(row, 0)?, rows::number(row, 1)?);
    Ok(Some(remembered::wait(asked, generation, choice, now)))
}

/// Which waits are due to be forgotten: ended long enough ago, nothing on its way any more, and
/// nothing dead that must still be kept. Pull deliveries that nobody came for go with their wait.
pub(super) fn candidates(
    conn: &Connection,
    pull: Option<DestinationId>,
    retention: Retention,
    limit: usize,
    now: Time,
) -> Done<Vec<i64>> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM waits w WHERE closed_at IS NOT NULL AND closed_at <= ?1 AND NOT EXISTS \
           (SELECT 1 FROM outbox o WHERE o.wait = w.id AND \
             ((o.state <= 1 AND o.destination <> ?2) OR (o.state = 3 AND o.finished_at > ?3))) \
         ORDER BY closed_at LIMIT ?4",
    )?;
    let found = statement.query_map(
        params![
            now.before(retention.closed).millis(),
            pull.map_or(-1, |id| id.0),
            now.before(retention.dead).millis(),
            i64::try_from(limit).unwrap_or(i64::MAX)
        ],
        |row| row.get(0),
    )?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// What forgetting one wait needs to know of it.
struct Going {
    tenant: TenantId,
    thread: ThreadId,
    question: QuestionId,
    generation: Generation,
    choice: u32,
    event_id: String,
}

impl Unit<'_> {
    /// Forgets these of the [`candidates`], as far as they still are some.
    pub(super) fn forget(&mut self, waits: &[i64], now: Time) -> Done<u64> {
        let pull = self.shared.destinations().id(&Destination::Pull);
        let mut forgotten = 0;
        for id in waits {
            let Some(going) = self.going(*id)? else { continue };
            // A delivery may have been queued since: the question was published again.
            let busy = self
                .conn
                .prepare_cached(
                    "SELECT 1 FROM outbox WHERE wait = ?1 AND state <= 1 AND destination <> ?2",
                )?
                .exists(params![id, pull.map_or(-1, |p| p.0)])?;
            if busy {
                continue;
            }
            self.shared.forgot.store(true, Ordering::Relaxed);
            self.remember(*id, &going, now)?;
            self.drop_rows(*id)?;
            forgotten += 1;
        }
        Ok(forgotten)
    }

    fn going(&self, id: i64) -> Done<Option<Going>> {
        let mut statement = self.conn.prepare_cached(
            "SELECT tenant, thread_id, question_id, generation, choice, event_id FROM waits \
             WHERE id = ?1 AND closed_at IS NOT NULL",
        )?;
        let mut found = statement.query([id])?;
        let Some(row) = found.next()? else { return Ok(None) };
        Ok(Some(Going {
            tenant: rows::id(row, 0, TenantId::new)?,
            thread: rows::id(row, 1, ThreadId::new)?,
            question: rows::id(row, 2, QuestionId::new)?,
            generation: rows::generation(row, 3)?,
            choice: rows::number(row, 4)?,
            event_id: row.get(5)?,
        }))
    }

    fn remember(&self, id: i64, going: &Going, now: Time) -> Done<()> {
        let Going { tenant, thread, question, generation, choice, event_id } = going;
        let mut seen = self
            .conn
            .prepare_cached("SELECT event_id FROM publishes WHERE wait = ?1")?
            .query_map([id], |row| row.get::<_, String>(0))?
            .collect::<Result<Vec<_>, _>>()?;
        seen.push(event_id.clone());
        let mut memories: Vec<Hash> =
            seen.iter().map(|e| hashes::event(tenant, thread, question, e)).collect();
        memories.push(hashes::key(tenant, &DedupeRest::choice(question, *choice)));
        memories.push(hashes::remembered(tenant, thread, question));
        // Of an identity the newest generation counts, whichever is forgotten last.
        let mut insert = self.conn.prepare_cached(
            "INSERT INTO forgotten (hash, generation, choice, at) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (hash) DO UPDATE SET at = excluded.at, \
             choice = iif(excluded.generation > generation, excluded.choice, choice), \
             generation = max(excluded.generation, generation)",
        )?;
        for hash in memories {
            insert.execute(params![hash, generation.get(), choice, now.millis()])?;
        }
        Ok(())
    }

    fn drop_rows(&mut self, id: i64) -> Done<()> {
        let mut queued = Vec::new();
        {
            let mut statement = self.conn.prepare_cached(
                "SELECT id, destination, state, order_key, queued_at FROM outbox \
                 WHERE wait = ?1 AND state <= 1",
            )?;
            let mut rows = statement.query([id])?;
            while let Some(row) = rows.next()? {
                queued.push(QueuedRow::read(row)?);
            }
        }
        self.conn.prepare_cached("DELETE FROM outbox WHERE wait = ?1")?.execute([id])?;
        for row in queued {
            self.left_queue(row)?;
        }
        self.conn.prepare_cached("DELETE FROM events WHERE wait = ?1")?.execute([id])?;
        self.conn.prepare_cached("DELETE FROM publishes WHERE wait = ?1")?.execute([id])?;
        self.conn.prepare_cached("DELETE FROM waits WHERE id = ?1")?.execute([id])?;
        Ok(())
    }

    /// Forgets what was remembered of forgotten waits, and replies; gives whether there may be
    /// more of either.
    pub(super) fn forget_memories(
        &self,
        retention: Retention,
        limit: usize,
        now: Time,
    ) -> Done<bool> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let memories = self
            .conn
            .prepare_cached(
                "DELETE FROM forgotten WHERE hash IN \
                 (SELECT hash FROM forgotten WHERE at <= ?1 ORDER BY at LIMIT ?2)",
            )?
            .execute(params![now.before(retention.tombstones).millis(), limit])?;
        let replies = self
            .conn
            .prepare_cached(
                "DELETE FROM replies WHERE rowid IN \
                 (SELECT rowid FROM replies WHERE kept_at <= ?1 ORDER BY kept_at LIMIT ?2)",
            )?
            .execute(params![now.before(retention.replies).millis(), limit])?;
        let full = |n: usize| i64::try_from(n).is_ok_and(|n| n >= limit);
        Ok(full(memories) || full(replies))
    }

    /// Gives pages that forgetting left empty back to the file system, a bounded number at a time.
    pub(super) fn give_back_pages(&self) -> Done<()> {
        let mut statement = self.conn.prepare_cached("PRAGMA incremental_vacuum(500)")?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    }
}

/// Whether anything was ever forgotten.
pub(super) fn any(conn: &Connection) -> Done<bool> {
    Ok(conn.query_row("SELECT 1 FROM forgotten LIMIT 1", [], |_| Ok(())).optional()?.is_some())
}
