//! Finding and listing.

use super::destinations::DestinationId;
use super::fail::{Done, Fail};
use super::rows::{self, wait_columns};
use super::unit::Shared;
use super::waits;
use crate::store::{Found, OutboxFilter, OutboxRow, WaitFilter, WaitQuery};
use answerback_contract::json::{self, Json};
use answerback_contract::{EventId, QuestionId, ThreadId};
use answerback_core::{Destination, Envelope, OutboxId, OutboxState, Wait, WaitId};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use std::sync::Arc;

/// At most so many threads are named to whoever meant one of them.
const MOST_THREADS: i64 = 100;
/// How many rows one read looks at, so that others get their turn between two.
pub(super) const PAGE: i64 = 500;

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

/// A page of a list: what was found in it, and where the next one starts.
pub(super) struct Page<T> {
    pub(super) found: Vec<T>,
    pub(super) next: Option<i64>,
}

/// Waits older than `before` that the filter lets through, newest first: at most `limit`, from at
/// most [`PAGE`] that the indices give.
pub(super) fn waits(
    conn: &Connection,
    shared: &Shared,
    filter: &WaitFilter,
    before: i64,
    limit: usize,
) -> Done<Page<Arc<Wait>>> {
    let only_open = !filter.states.is_empty() && !filter.states.iter().any(|s| s.is_over());
    // Said outright: left alone, the planner would rather sort all waits of the tenant.
    let index = match (&filter.thread_id, &filter.run_id) {
        (Some(_), _) => "INDEXED BY waits_identity",
        (None, None) if only_open => "INDEXED BY waits_open",
        _ => "NOT INDEXED",
    };
    let mut sql = format!(
        concat!("SELECT ", wait_columns!(), " FROM waits w {} WHERE tenant = ? AND id < ?"),
        index
    );
    let tenant = || Value::from(filter.tenant.as_str().to_owned());
    let mut values = vec![tenant(), Value::from(before)];
    if let Some(thread) = &filter.thread_id {
        sql.push_str(" AND thread_id = ?");
        values.push(Value::from(thread.as_str().to_owned()));
    }
    if let Some(run) = &filter.run_id {
        // Envelopes have no run of their own.
        sql.push_str(
            " AND id IN (SELECT id FROM waits WHERE tenant = ? AND run_id = ? UNION ALL \
             SELECT id FROM waits WHERE tenant = ? AND thread_id = ? AND run_id IS NULL)",
        );
        let run = || Value::from(run.clone());
        values.extend([tenant(), run(), tenant(), run()]);
    }
    if only_open {
        sql.push_str(" AND state <= 1");
    }
    if !filter.states.is_empty() {
        let codes: Vec<String> =
            filter.states.iter().map(|s| rows::wait_code(*s).to_string()).collect();
        sql.push_str(&format!(" AND state IN ({})", codes.join(",")));
    }
    if let Some(name) = &filter.announcer {
        let id = shared.destinations().id(&Destination::Announcer(name.clone()));
        let Some(id) = id else { return Ok(Page { found: Vec::new(), next: None }) };
        sql.push_str(
            " AND EXISTS (SELECT 1 FROM outbox o WHERE o.wait = w.id AND o.destination = ?)",
        );
        values.push(Value::from(id.0));
    }
    sql.push_str(" ORDER BY id DESC LIMIT ?");
    let page =
        if filter.tags.is_empty() { i64::try_from(limit).unwrap_or(PAGE).min(PAGE) } else { PAGE };
    values.push(Value::from(page));

    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(values))?;
    let (mut found, mut looked_at, mut last) = (Vec::new(), 0, None);
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let wait = rows::wait(row)?;
        looked_at += 1;
        last = Some(wait.id.0);
        if has_tags(&wait, &filter.tags)? {
            found.push(Arc::new(wait));
        }
    }
    // A short page was the last one.
    Ok(Page { found, next: last.filter(|_| looked_at == page) })
}

/// Whether a wait has these tags: compared as text, or as JSON text when the tag is no string.
fn has_tags(wait: &Wait, wanted: &[(String, String)]) -> Done<bool> {
    if wanted.is_empty() {
        return Ok(true);
    }
    let envelope = Envelope::parse(wait.envelope.clone())?;
    let Some(text) = envelope.tags_text() else { return Ok(false) };
    let members = json::members(text)?;
    for (name, value) in wanted {
        let Some(tag) = members.iter().rev().find(|m| m.key == *name) else { return Ok(false) };
        let same = match json::parse(tag.raw)? {
            Json::String(text) => text == *value,
            _ => tag.raw == value,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Announcements or deliveries older than `before`, newest first.
pub(super) fn outbox(
    conn: &Connection,
    shared: &Shared,
    filter: &OutboxFilter,
    before: i64,
    limit: usize,
) -> Done<Page<OutboxRow>> {
    let nothing = Page { found: Vec::new(), next: None };
    let wanted: Vec<(DestinationId, Destination)> = {
        let known = shared.destinations();
        let right = |d: &Destination| {
            d.is_announcer() == filter.announcements
                && filter.label.as_deref().is_none_or(|label| d.label() == label)
        };
        known.iter().filter(|(_, d)| right(d)).map(|(id, d)| (id, d.clone())).collect()
    };
    if wanted.is_empty() {
        return Ok(nothing);
    }
    if filter.state == Some(OutboxState::Queued) {
        let depths = shared.depths();
        if wanted.iter().all(|(id, _)| depths.queued(*id) == 0) {
            return Ok(nothing);
        }
    }
    let ids: Vec<String> = wanted.iter().map(|(id, _)| id.0.to_string()).collect();
    let (index, condition) = match (filter.wait, filter.state) {
        // Dead messages are few, or sorting them is the least trouble they are.
        (None, Some(OutboxState::Dead)) => ("INDEXED BY outbox_dead", "o.state = 3"),
        (_, Some(OutboxState::Dead)) => ("", "o.state = 3"),
        (_, Some(OutboxState::Queued)) => ("", "o.state <= 1"),
        (_, Some(OutboxState::Delivered)) => ("", "o.state = 2"),
        (_, Some(OutboxState::Withdrawn)) => ("", "o.state = 4"),
        (_, None) => ("", "1"),
    };
    let wait = if filter.wait.is_some() { "o.wait = ?4" } else { "?4 IS NULL" };
    let sql = format!(
        "SELECT o.id, o.wait, o.destination, w.thread_id, w.question_id, w.generation, o.event, \
         o.event_id, o.state, o.attempts, o.next_attempt_at, o.last_error, o.reason, o.queued_at, \
         o.finished_at FROM outbox o {index} CROSS JOIN waits w ON w.id = o.wait \
         WHERE o.id < ?2 AND {condition} AND {wait} AND o.destination IN ({}) AND w.tenant = ?1 \
         ORDER BY o.id DESC LIMIT ?3",
        ids.join(",")
    );
    let page = i64::try_from(limit).unwrap_or(PAGE).min(PAGE);
    let mut statement = conn.prepare(&sql)?;
    let mut rows =
        statement.query(params![filter.tenant.as_str(), before, page, filter.wait.map(|w| w.0)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(outbox_row(row, &wanted)?);
    }
    let last = found.last().map(|row: &OutboxRow| row.id.0);
    let full = i64::try_from(found.len()).is_ok_and(|n| n == page);
    Ok(Page { found, next: last.filter(|_| full) })
}

fn outbox_row(row: &rusqlite::Row<'_>, wanted: &[(DestinationId, Destination)]) -> Done<OutboxRow> {
    let destination = DestinationId(row.get(2)?);
    let destination = wanted
        .iter()
        .find(|(id, _)| *id == destination)
        .map(|(_, d)| d.clone())
        .ok_or_else(|| Fail::Corrupt("a message for an unknown destination".to_owned()))?;
    let state = rows::outbox_state(row.get(8)?)?;
    let event_id: Option<String> = row.get(7)?;
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
        next_attempt_at: rows::time_or_none(row, 10)?.filter(|_| state == OutboxState::Queued),
        last_error: row.get(11)?,
        reason: row.get(12)?,
        queued_at: rows::time(row, 13)?,
        finished_at: rows::time_or_none(row, 14)?,
    })
}
