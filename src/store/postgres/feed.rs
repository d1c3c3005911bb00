//! What happened to waits, in the order in which it was committed.
//!
//! Numbers that are drawn before a commit become visible out of order, so they order nothing. Places
//! are given afterwards, to commits that everybody sees, by whoever comes by first, one at a time:
//! what was read once never gets anything before it. Of two commits that are visible, the one that
//! followed from the other has the higher number, since that is drawn after every lock was got; so
//! numbers do order what is placed in one go.

use super::connect::{Lent, Param};
use super::fail::Done;
use super::rows::{self, wait_columns};
use super::shared::Shared;
use crate::store::{Feed, FeedEvent, FeedRequest, Moved, Place};
use answerback_contract::{Event, EventId, Time};
use answerback_core::{Wait, WaitId};
use futures::FutureExt as _;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::types::Type;

/// Commits that get their places in one transaction.
const PLACED_AT_ONCE: i64 = 5_000;
/// Commits that one read looks at, and their events at about.
const MOST_COMMITS: i64 = 500;
const MOST_EVENTS: i64 = 4_000;

/// Gives places to what is committed and has none.
pub(super) async fn place(shared: &Shared) -> Done<()> {
    loop {
        let unplaced = shared
            .link
            .read(|lent| {
                lent.query_once(
                    "SELECT 1 FROM commits WHERE last_place IS NULL ORDER BY id LIMIT 1",
                    &[],
                )
                .boxed()
            })
            .await?;
        if unplaced.is_empty() {
            return Ok(());
        }
        let placed = shared.link.transaction(|lent| place_some(lent).boxed()).await?;
        if placed < PLACED_AT_ONCE {
            return Ok(());
        }
    }
}

async fn place_some(lent: &Lent) -> Done<i64> {
    // One at a time; the next statement sees all that was visible when the lock was got.
    let lock = lent.query_once("SELECT last FROM feed WHERE id = 1 FOR UPDATE", &[]);
    let params: [Param<'_>; 1] = [(&PLACED_AT_ONCE, Type::INT8)];
    let placed = lent.query_once(
        "WITH fresh AS (SELECT id, events FROM commits WHERE last_place IS NULL \
           ORDER BY id LIMIT $1), \
         counted AS (SELECT fresh.id, fresh.events, \
           feed.last + sum(fresh.events) OVER (ORDER BY fresh.id) AS up_to \
           FROM fresh, feed WHERE feed.id = 1), \
         placed AS (UPDATE commits c SET first_place = p.up_to - p.events + 1, \
           last_place = p.up_to FROM counted p WHERE c.id = p.id RETURNING 1) \
         SELECT count(*) FROM placed",
        &params,
    );
    let moved = lent.query_once(
        "UPDATE feed SET last = greatest(last, coalesce((SELECT last_place FROM commits \
         WHERE last_place IS NOT NULL ORDER BY last_place DESC LIMIT 1), 0)) WHERE id = 1",
        &[],
    );
    let (_, _, placed, _, ()) =
        futures::try_join!(lent.begin(), lock, placed, moved, lent.commit())?;
    placed.first().map_or(Ok(0), |row| rows::get(row, 0))
}

/// The last place there is.
pub(super) async fn end(shared: &Shared) -> Done<Place> {
    place(shared).await?;
    let found = shared
        .link
        .read(|lent| lent.query_once("SELECT last FROM feed WHERE id = 1", &[]).boxed())
        .await?;
    found.first().map_or(Ok(Place::START), |row| Ok(Place(rows::get(row, 0)?)))
}

/// Commits after a place, a bounded number of them.
struct Looked {
    commits: Vec<i64>,
    next: Place,
    more: bool,
}

async fn look(lent: &Lent, after: Place) -> Done<Looked> {
    let found = lent
        .query_once(
            "SELECT id, events, last_place FROM commits \
             WHERE last_place IS NOT NULL AND last_place > $1 ORDER BY last_place LIMIT $2",
            &[(&after.0, Type::INT8), (&MOST_COMMITS, Type::INT8)],
        )
        .await?;
    let mut looked = Looked { commits: Vec::new(), next: after, more: false };
    let mut events = 0;
    for row in &found {
        if events >= MOST_EVENTS {
            looked.more = true;
            return Ok(looked);
        }
        events += i64::from(rows::get::<i32>(row, 1)?);
        looked.commits.push(rows::get(row, 0)?);
        looked.next = Place(rows::get(row, 2)?);
    }
    looked.more = i64::try_from(found.len()).is_ok_and(|n| n == MOST_COMMITS);
    Ok(looked)
}

/// Reads on from a place.
pub(super) async fn feed(shared: &Shared, request: FeedRequest) -> Done<Feed> {
    place(shared).await?;
    let request = Arc::new(request);
    shared
        .link
        .read(move |lent| {
            let request = Arc::clone(&request);
            async move { read(lent, &request).await }.boxed()
        })
        .await
}

/// An event whose wait is not read yet.
struct Told {
    place: Place,
    event: Event,
    event_id: Option<EventId>,
    at: Time,
    wait: i64,
}

async fn read(lent: &Lent, request: &FeedRequest) -> Done<Feed> {
    let Looked { commits, mut next, mut more } = look(lent, request.after).await?;
    if commits.is_empty() {
        return Ok(Feed { events: Vec::new(), next, more });
    }
    let thread = request.thread_id.as_ref().map(|thread| thread.as_str());
    let limit = i64::try_from(request.limit.saturating_add(1)).unwrap_or(i64::MAX);
    let found = lent
        .query_once(
            "SELECT c.first_place + e.nth, e.event, e.event_id, e.at, e.wait, w.bytes \
             FROM commits c JOIN events e ON e.commit_id = c.id JOIN waits w ON w.id = e.wait \
             WHERE c.id = ANY($1) AND e.commit_id = ANY($1) AND c.first_place + e.nth > $2 AND w.tenant = $3 \
             AND ($4::TEXT IS NULL OR w.thread_id = $4) \
             ORDER BY c.last_place, e.nth LIMIT $5",
            &[
                (&commits, Type::INT8_ARRAY),
                (&request.after.0, Type::INT8),
                (&request.tenant.as_str(), Type::TEXT),
                (&thread, Type::TEXT),
                (&limit, Type::INT8),
            ],
        )
        .await?;
    let mut told: Vec<Told> = Vec::with_capacity(found.len());
    let mut bytes = 0_usize;
    for row in &found {
        bytes += usize::try_from(rows::get::<i32>(row, 5)?).unwrap_or(0);
        if told.len() == request.limit || (bytes > request.bytes && !told.is_empty()) {
            next = told.last().map_or(request.after, |last| last.place);
            more = true;
            break;
        }
        told.push(Told {
            place: Place(rows::get(row, 0)?),
            event: rows::event(rows::get(row, 1)?)?,
            event_id: rows::id_or_none(row, 2, EventId::new)?,
            at: rows::time(row, 3)?,
            wait: rows::get(row, 4)?,
        });
    }
    let waits = waits(lent, &told).await?;
    let events = told
        .into_iter()
        // One that was forgotten between the two reads.
        .filter_map(|t| {
            let Told { place, event, event_id, at, wait } = t;
            Some(FeedEvent { place, event, event_id, at, wait: waits.get(&wait)?.clone() })
        })
        .collect();
    Ok(Feed { events, next, more })
}

async fn waits(lent: &Lent, told: &[Told]) -> Done<HashMap<i64, Arc<Wait>>> {
    let mut ids: Vec<i64> = told.iter().map(|t| t.wait).collect();
    ids.sort_unstable();
    ids.dedup();
    let found = lent
        .query_once(
            concat!("SELECT ", wait_columns!(), " FROM waits w WHERE w.id = ANY($1)"),
            &[(&ids, Type::INT8_ARRAY)],
        )
        .await?;
    found
        .iter()
        .map(|row| {
            let wait = rows::wait(row, 0)?;
            Ok((wait.id.0, Arc::new(wait)))
        })
        .collect()
}

/// Which waits something happened to after a place.
pub(super) async fn moved(shared: &Shared, after: Place, limit: usize) -> Done<Moved> {
    place(shared).await?;
    shared.link.read(move |lent| moved_after(lent, after, limit).boxed()).await
}

async fn moved_after(lent: &Lent, after: Place, limit: usize) -> Done<Moved> {
    let Looked { commits, mut next, mut more } = look(lent, after).await?;
    if commits.is_empty() {
        return Ok(Moved { waits: Vec::new(), next, more });
    }
    let most = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let found = lent
        .query_once(
            "SELECT c.first_place + e.nth, e.wait \
             FROM commits c JOIN events e ON e.commit_id = c.id \
             WHERE c.id = ANY($1) AND e.commit_id = ANY($1) AND c.first_place + e.nth > $2 \
             ORDER BY c.last_place, e.nth LIMIT $3",
            &[(&commits, Type::INT8_ARRAY), (&after.0, Type::INT8), (&most, Type::INT8)],
        )
        .await?;
    let mut waits = Vec::with_capacity(found.len());
    for row in &found {
        if waits.len() == limit {
            more = true;
            break;
        }
        waits.push(WaitId(rows::get(row, 1)?));
        if found.len() > limit {
            next = Place(rows::get(row, 0)?);
        }
    }
    Ok(Moved { waits, next, more })
}
