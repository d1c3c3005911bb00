//! The feed of events: what happened to waits, in the order in which it was committed.
//!
//! There is one writer, so ids count up with the commits, and a reader that sees one sees all
//! before it.

use super::fail::{Done, Fail};
use super::lists::sql_limit;
use super::rows::{self, wait_columns};
use crate::store::walk::PAGE;
use crate::store::{FeedEvent, FeedRequest, Moved, Place};
use answerback_contract::{Event, EventId, ThreadId, Time};
use answerback_core::WaitId;
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;

/// Notes that something happened to a wait.
pub(super) fn record(
    conn: &Connection,
    wait: WaitId,
    event: Event,
    event_id: Option<&EventId>,
    at: Time,
) -> Done<()> {
    conn.prepare_cached("INSERT INTO events (wait, event, at, event_id) VALUES (?1,?2,?3,?4)")?
        .execute(params![
            wait.0,
            rows::event_code(event),
            at.millis(),
            event_id.map(EventId::as_str)
        ])?;
    Ok(())
}

/// The place of the newest event, forgotten ones included.
pub(super) fn end(conn: &Connection) -> Done<Place> {
    let newest: Option<i64> = conn
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'events'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(newest.map_or(Place::START, Place))
}

/// What one read of the feed found.
pub(super) struct Page {
    pub(super) events: Vec<FeedEvent>,
    pub(super) looked_at: usize,
    /// Of envelopes.
    pub(super) bytes: usize,
    pub(super) next: Place,
    pub(super) more: bool,
    /// The bytes that were asked for are reached.
    pub(super) full: bool,
}

const WALK: &str =
    "SELECT id, wait, event, at, event_id FROM events WHERE id > ?1 ORDER BY id LIMIT ?2";

/// Reads an event's wait, if it is wanted.
const LOOK_UP: &str = concat!(
    "SELECT ",
    wait_columns!(),
    " FROM waits w WHERE w.id = ?1 AND w.tenant = ?2 AND (?3 IS NULL OR w.thread_id = ?3)"
);

/// Looks at [`PAGE`] events after a place, for `limit` that are wanted, of `bytes` together unless
/// it is the first of all.
pub(super) fn feed(
    conn: &Connection,
    request: &FeedRequest,
    after: Place,
    limit: usize,
    bytes: usize,
    mut any: bool,
) -> Done<Page> {
    let mut page =
        Page { events: Vec::new(), looked_at: 0, bytes: 0, next: after, more: false, full: false };
    let mut events = conn.prepare_cached(WALK)?;
    let mut waits = conn.prepare_cached(LOOK_UP)?;
    let thread = request.thread_id.as_ref().map(ThreadId::as_str);
    let mut rows = events.query(params![after.0, sql_limit(PAGE)])?;
    while let Some(row) = rows.next()? {
        let place = Place(row.get(0)?);
        let id: i64 = row.get(1)?;
        let mut found = waits.query(params![id, request.tenant.as_str(), thread])?;
        if let Some(wait) = found.next()?.map(rows::wait).transpose()? {
            page.full = any && page.bytes + wait.envelope.len() > bytes;
            if page.full || page.events.len() >= limit {
                page.more = true;
                return Ok(page);
            }
            any = true;
            page.bytes += wait.envelope.len();
            page.events.push(FeedEvent {
                place,
                event: rows::event(row.get(2)?)?,
                event_id: row
                    .get::<_, Option<String>>(4)?
                    .map(|id| EventId::new(&id))
                    .transpose()
                    .map_err(|_| Fail::Corrupt("an impossible event id".to_owned()))?,
                at: rows::time(row, 3)?,
                wait: Arc::new(wait),
            });
        }
        page.next = place;
        page.looked_at += 1;
    }
    page.more = page.looked_at >= PAGE;
    Ok(page)
}

/// Says whose events come after a place.
pub(super) fn moved(conn: &Connection, after: Place, limit: usize) -> Done<Moved> {
    let mut statement =
        conn.prepare_cached("SELECT id, wait FROM events WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut rows = statement.query(params![after.0, sql_limit(limit)])?;
    let mut moved = Moved { waits: Vec::new(), next: after, more: false };
    while let Some(row) = rows.next()? {
        moved.next = Place(row.get(0)?);
        moved.waits.push(WaitId(row.get(1)?));
    }
    moved.more = moved.waits.len() >= limit;
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::open;
    use rusqlite::params_from_iter;
    use rusqlite::types::Value;

    #[test]
    fn the_feed_is_walked_by_places_and_waits_are_looked_up_by_ids() {
        let conn = open::prepare_memory().unwrap();
        let plan = |sql: &str| {
            let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let blanks = vec![Value::Null; statement.parameter_count()];
            let steps =
                statement.query_map(params_from_iter(blanks), |row| row.get::<_, String>(3));
            steps.unwrap().collect::<Result<Vec<_>, _>>().unwrap().join("\n")
        };
        assert_eq!(plan(WALK), "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)");
        assert_eq!(plan(LOOK_UP), "SEARCH w USING INTEGER PRIMARY KEY (rowid=?)");
    }
}
