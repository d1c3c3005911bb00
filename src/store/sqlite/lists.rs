//! Finding and listing.
//!
//! A list is a walk over ids, newest first, and a look at each. Whatever is filtered for, one read
//! looks at [`PAGE`] rows at most, and one call of the store at [`MOST_LOOKED_AT`]: a filter that
//! fits nothing must not read a whole store before it says so. What was not looked at comes with
//! the next cursor.

use super::destinations::DestinationId;
use super::fail::{Done, Fail};
use super::rows::{self, wait_columns};
use super::unit::Shared;
use super::waits;
use crate::store::walk::{MOST_LOOKED_AT, PAGE, Page, Walk};
use crate::store::{Found, OutboxFilter, OutboxRow, WaitFilter, WaitQuery, tags};
use answerback_contract::{EventId, QuestionId, ThreadId};
use answerback_core::{Destination, OutboxId, OutboxState, Wait, WaitId};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use std::sync::Arc;

/// At most so many threads are named to whoever meant one of them.
const MOST_THREADS: i64 = 100;
/// Finds one wait.
pub(super) fn find(conn: &Connection, query: &WaitQuery) -> Done<Found> {
    let thread = match &query.thread_id {
        Some(thread) => thread.clone(),
        None => {
            let mut threads = threads(conn, query)?;
            match threads.len() {
                0 => return Ok(Found::None),
                1 => threads.remove(0),
                _ => return Ok(Found::Ambiguous(threads)),
            }
        }
    };
    let (tenant, question) = (&query.tenant, &query.question_id);
    let found = match query.generation {
        Some(generation) => waits::of_generation(conn, tenant, &thread, question, generation)?,
        None => waits::newest(conn, tenant, &thread, question)?,
    };
    Ok(found.map_or(Found::None, |wait| Found::One(Arc::new(wait))))
}

/// The threads that a question id stands in.
fn threads(conn: &Connection, query: &WaitQuery) -> Done<Vec<ThreadId>> {
    let mut statement = conn.prepare_cached(
        "SELECT DISTINCT thread_id FROM waits INDEXED BY waits_choice \
         WHERE tenant = ?1 AND question_id = ?2 AND (?3 IS NULL OR generation = ?3) LIMIT ?4",
    )?;
    let mut rows = statement.query(params![
        query.tenant.as_str(),
        query.question_id.as_str(),
        query.generation.map(|g| g.get()),
        MOST_THREADS
    ])?;
    let mut threads = Vec::new();
    while let Some(row) = rows.next()? {
        threads.push(rows::id(row, 0, ThreadId::new)?);
    }
    Ok(threads)
}

/// Looks at `ids`, of which at most `asked` were asked for, until `limit` is found.
fn page<T>(
    ids: &[i64],
    asked: usize,
    limit: usize,
    mut look: impl FnMut(i64) -> Done<Option<T>>,
) -> Done<Page<T>> {
    let mut page = Page::empty();
    for id in ids {
        if page.found.len() >= limit {
            break;
        }
        page.looked_at += 1;
        page.found.extend(look(*id)?);
    }
    let more = page.looked_at < ids.len() || ids.len() >= asked;
    page.next = page.looked_at.checked_sub(1).map(|last| ids[last]).filter(|_| more);
    Ok(page)
}

impl Walk {
    fn sql(self) -> &'static str {
        match self {
            Self::All => "SELECT id FROM waits NOT INDEXED WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
            Self::Open => {
                "SELECT id FROM waits INDEXED BY waits_open \
                 WHERE state <= 1 AND tenant = ?3 AND id < ?1 ORDER BY id DESC LIMIT ?2"
            }
            Self::Thread => {
                "SELECT id FROM waits INDEXED BY waits_identity \
                 WHERE tenant = ?3 AND thread_id = ?4 AND id < ?1 ORDER BY id DESC LIMIT ?2"
            }
            Self::Run => {
                "SELECT id FROM waits INDEXED BY waits_run \
                 WHERE run_id IS NOT NULL AND tenant = ?3 AND run_id = ?4 AND id < ?1 UNION ALL \
                 SELECT id FROM waits INDEXED BY waits_identity \
                 WHERE tenant = ?3 AND thread_id = ?4 AND id < ?1 ORDER BY id DESC LIMIT ?2"
            }
        }
    }

    fn ids(
        self,
        conn: &Connection,
        filter: &WaitFilter,
        before: i64,
        most: usize,
    ) -> Done<Vec<i64>> {
        let tenant = Value::from(filter.tenant.as_str().to_owned());
        let text = |text: Option<&str>| Value::from(text.map(str::to_owned));
        let mut values = vec![Value::from(before), Value::from(sql_limit(most))];
        match self {
            Self::All => {}
            Self::Open => values.push(tenant),
            Self::Thread => {
                values.extend([tenant, text(filter.thread_id.as_ref().map(ThreadId::as_str))]);
            }
            Self::Run => values.extend([tenant, text(filter.run_id.as_deref())]),
        }
        ids(conn, self.sql(), values)
    }
}

/// Waits older than `before` that the filter lets through, newest first.
pub(super) fn waits(
    conn: &Connection,
    shared: &Shared,
    filter: &WaitFilter,
    before: i64,
    limit: usize,
) -> Done<Page<Arc<Wait>>> {
    let Some((sql, mut values)) = look_up(shared, filter) else { return Ok(Page::empty()) };
    let unfiltered =
        filter.states.is_empty() && filter.announcer.is_none() && filter.tags.is_empty();
    let asked = if unfiltered { limit.min(PAGE) } else { PAGE };
    let ids = Walk::of(filter).ids(conn, filter, before, asked)?;
    let mut statement = conn.prepare_cached(&sql)?;
    page(&ids, asked, limit, |id| {
        values[0] = Value::from(id);
        let mut rows = statement.query(params_from_iter(&values))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let wait = rows::wait(row)?;
        Ok(tags::has(&wait, &filter.tags)?.then(|| Arc::new(wait)))
    })
}

/// The statement that reads a wait of the id that comes first, if the filter lets it through, but
/// for its tags. `None` when it can let none through.
fn look_up(shared: &Shared, filter: &WaitFilter) -> Option<(String, Vec<Value>)> {
    let text = |text: &str| Value::from(text.to_owned());
    let mut sql = String::from(concat!(
        "SELECT ",
        wait_columns!(),
        " FROM waits w WHERE w.id = ? AND w.tenant = ?"
    ));
    let mut values = vec![Value::Null, text(filter.tenant.as_str())];
    if let Some(thread) = &filter.thread_id {
        sql.push_str(" AND w.thread_id = ?");
        values.push(text(thread.as_str()));
    }
    if let Some(run) = &filter.run_id {
        sql.push_str(" AND coalesce(w.run_id, w.thread_id) = ?");
        values.push(text(run));
    }
    if !filter.states.is_empty() {
        let codes: Vec<String> =
            filter.states.iter().map(|s| rows::wait_code(*s).to_string()).collect();
        sql.push_str(&format!(" AND w.state IN ({})", codes.join(",")));
    }
    if let Some(name) = &filter.announcer {
        let id = shared.destinations().id(&Destination::Announcer(name.clone()))?;
        sql.push_str(
            " AND EXISTS (SELECT 1 FROM outbox o WHERE o.wait = w.id AND o.destination = ?)",
        );
        values.push(Value::from(id.0));
    }
    Some((sql, values))
}

fn ids(conn: &Connection, sql: &str, values: Vec<Value>) -> Done<Vec<i64>> {
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_map(params_from_iter(values), |row| row.get(0))?;
    Ok(found.collect::<Result<_, _>>()?)
}

pub(super) fn sql_limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// Where the candidates of a list of messages come from, newest first. Each takes the id before
/// which it starts and how many are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutboxWalk {
    All,
    /// Over those of a wait, which comes third.
    Wait,
    /// Over the dead ones of a destination, which comes third.
    Dead,
    /// Over all that is queued: for when that is little.
    Queued,
}

impl OutboxWalk {
    fn sql(self) -> &'static str {
        match self {
            Self::All => {
                "SELECT id FROM outbox NOT INDEXED WHERE id < ?1 ORDER BY id DESC LIMIT ?2"
            }
            Self::Wait => {
                "SELECT id FROM outbox INDEXED BY outbox_wait WHERE wait = ?3 AND id < ?1 \
                 ORDER BY id DESC LIMIT ?2"
            }
            Self::Dead => {
                "SELECT id FROM outbox INDEXED BY outbox_dead \
                 WHERE state = 3 AND destination = ?3 AND id < ?1 ORDER BY id DESC LIMIT ?2"
            }
            Self::Queued => {
                "SELECT id FROM outbox INDEXED BY outbox_due WHERE state = 1 AND id < ?1 UNION ALL \
                 SELECT id FROM outbox INDEXED BY outbox_order WHERE state <= 1 \
                 AND order_key IS NOT NULL AND state = 0 AND id < ?1 ORDER BY id DESC LIMIT ?2"
            }
        }
    }

    fn ids(self, conn: &Connection, before: i64, third: Option<i64>) -> Done<Vec<i64>> {
        let mut values = vec![Value::from(before), Value::from(sql_limit(PAGE))];
        values.extend(third.map(Value::from));
        ids(conn, self.sql(), values)
    }
}

/// Announcements or deliveries older than `before`, newest first.
pub(super) fn outbox(
    conn: &Connection,
    shared: &Shared,
    filter: &OutboxFilter,
    before: i64,
    limit: usize,
) -> Done<Page<OutboxRow>> {
    let is_wanted = |d: &Destination| {
        d.is_announcer() == filter.announcements
            && filter.label.as_deref().is_none_or(|label| d.label() == label)
    };
    let wanted: Vec<DestinationId> = {
        let known = shared.destinations();
        known.iter().filter(|(_, d)| is_wanted(d)).map(|(id, _)| id).collect()
    };
    let (queued, queued_here) = {
        let depths = shared.depths();
        (
            depths.all().map(|(_, n, _)| n).sum::<u64>(),
            wanted.iter().map(|id| depths.queued(*id)).sum::<u64>(),
        )
    };
    let few = usize::try_from(queued).is_ok_and(|n| n <= MOST_LOOKED_AT);
    let ids = match (filter.wait, filter.state) {
        _ if wanted.is_empty() => return Ok(Page::empty()),
        (Some(wait), _) => OutboxWalk::Wait.ids(conn, before, Some(wait.0))?,
        (None, Some(OutboxState::Queued)) if queued_here == 0 => return Ok(Page::empty()),
        (None, Some(OutboxState::Queued)) if few => OutboxWalk::Queued.ids(conn, before, None)?,
        (None, Some(OutboxState::Dead)) => {
            let mut all = Vec::new();
            for destination in &wanted {
                all.extend(OutboxWalk::Dead.ids(conn, before, Some(destination.0))?);
            }
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.truncate(PAGE);
            all
        }
        (None, _) => OutboxWalk::All.ids(conn, before, None)?,
    };
    let states = match filter.state {
        None => 0..=4,
        Some(OutboxState::Queued) => 0..=1,
        Some(OutboxState::Delivered) => rows::DELIVERED..=rows::DELIVERED,
        Some(OutboxState::Dead) => rows::DEAD..=rows::DEAD,
        Some(OutboxState::Withdrawn) => rows::WITHDRAWN..=rows::WITHDRAWN,
    };
    let mut statement = conn.prepare_cached(OUTBOX_LOOK_UP)?;
    page(&ids, PAGE, limit, |id| {
        let (tenant, least, most) = (filter.tenant.as_str(), states.start(), states.end());
        let mut rows = statement.query(params![id, tenant, least, most])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        // One that is named for the first time just now is not known here yet.
        let destination = shared.destinations().get(DestinationId(row.get(2)?)).cloned();
        destination.filter(|d| is_wanted(d)).map(|d| outbox_row(row, d)).transpose()
    })
}

const OUTBOX_LOOK_UP: &str = "SELECT o.id, o.wait, o.destination, w.thread_id, w.question_id, \
     w.generation, o.event, o.event_id, o.state, o.attempts, o.next_attempt_at, o.last_error, \
     o.reason, o.queued_at, o.finished_at FROM outbox o CROSS JOIN waits w ON w.id = o.wait \
     WHERE o.id = ?1 AND w.tenant = ?2 AND o.state BETWEEN ?3 AND ?4";

fn outbox_row(row: &rusqlite::Row<'_>, destination: Destination) -> Done<OutboxRow> {
    let state = rows::outbox_state(row.get(8)?)?;
    let event_id: Option<String> = row.get(7)?;
    // Of what the host comes for it is when the answer expires, which is no attempt.
    let is_due = state == OutboxState::Queued && destination != Destination::Pull;
    Ok(OutboxRow {
        id: OutboxId(row.get(0)?),
        wait: WaitId(row.get(1)?),
        destination,
        thread_id: rows::id(row, 3, ThreadId::new)?,
        question_id: rows::id(row, 4, QuestionId::new)?,
        generation: rows::generation(row, 5)?,
        event: rows::event(row.get(6)?)?,
        event_id: event_id
            .map(|id| EventId::new(&id))
            .transpose()
            .map_err(|_| Fail::Corrupt("an impossible event id".to_owned()))?,
        state,
        attempts: rows::number(row, 9)?,
        next_attempt_at: rows::time_or_none(row, 10)?.filter(|_| is_due),
        last_error: row.get(11)?,
        reason: row.get(12)?,
        queued_at: rows::time(row, 13)?,
        finished_at: rows::time_or_none(row, 14)?,
    })
}

#[cfg(test)]
mod tests;
