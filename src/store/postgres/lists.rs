//! Finding and listing.
//!
//! A list is a walk over ids, newest first, and a look at each. Whatever is filtered for, one
//! statement looks at [`PAGE`] rows at most and reads [`PAGE_BYTES`] about, and one call of the store
//! looks at [`MOST_LOOKED_AT`]: a filter that fits nothing must not read a whole store before it says
//! so. What was not looked at comes with the next cursor.

use super::carry;
use super::fail::Done;
use super::hashes;
use super::rows::{self, wait_columns};
use super::shared::Shared;
use super::statement::{Statement, Value};
use crate::store::codes::{BEHIND, DEAD, DELIVERED, READY, WITHDRAWN};
use crate::store::destinations::DestinationId;
use crate::store::walk::{MOST_LOOKED_AT, PAGE, Page, Walk, Walked};
use crate::store::{Found, Listed, OutboxFilter, OutboxRow, WaitFilter, WaitQuery, tags};
use answerback_contract::{EventId, QuestionId, ThreadId};
use answerback_core::{Destination, OutboxId, OutboxState, Wait, WaitId};
use std::sync::Arc;
use tokio_postgres::Row;

/// At most so many threads are named to whoever meant one of them.
const MOST_THREADS: usize = 100;
/// At most about so many bytes of envelopes does one statement give.
pub(super) const PAGE_BYTES: i64 = 4 << 20;
/// Finds one wait.
pub(super) async fn find(shared: &Shared, query: WaitQuery) -> Done<Found> {
    let thread = match &query.thread_id {
        Some(thread) => thread.clone(),
        None => {
            let mut threads = threads(shared, &query).await?;
            match threads.len() {
                0 => return Ok(Found::None),
                1 => threads.remove(0),
                _ => return Ok(Found::Ambiguous(threads)),
            }
        }
    };
    let identity = hashes::identity(&query.tenant, &thread, &query.question_id);
    let mut statement = Statement::new(
        concat!("SELECT ", wait_columns!(), " FROM waits w WHERE w.identity = $1"),
        vec![Value::Blob(identity.to_vec())],
    );
    if let Some(generation) = query.generation {
        statement.push(" AND w.generation = ");
        statement.bind(generation_value(generation.get()));
    }
    statement.push(" ORDER BY w.generation DESC LIMIT 1");
    let found = statement.read(&shared.link).await?;
    let wait = found.first().map(|row| rows::wait(row, 0)).transpose()?;
    Ok(wait.map_or(Found::None, |wait| Found::One(Arc::new(wait))))
}

/// The threads that a question id stands in.
async fn threads(shared: &Shared, query: &WaitQuery) -> Done<Vec<ThreadId>> {
    let question = hashes::question(&query.tenant, &query.question_id);
    let mut statement = Statement::new(
        "SELECT DISTINCT thread_id FROM waits WHERE question_hash = $1",
        vec![Value::Blob(question.to_vec())],
    );
    if let Some(generation) = query.generation {
        statement.push(" AND generation = ");
        statement.bind(generation_value(generation.get()));
    }
    statement.push(" LIMIT ");
    statement.bind(Value::count(MOST_THREADS));
    let found = statement.read(&shared.link).await?;
    found.iter().map(|row| rows::id(row, 0, ThreadId::new)).collect()
}

fn generation_value(generation: u32) -> Value {
    Value::Int4(i32::try_from(generation).unwrap_or(i32::MAX))
}

/// The columns that a page's rows begin with: how many ids it looked at, and the last of them.
const PAGE_COLUMNS: usize = 2;

/// Reads the rows of a page for which at most `asked` ids were looked at, until `limit` is
/// found. The column `id` has a row's id, NULL in the single row of a page that has none.
fn read_page<T>(
    rows: &[Row],
    asked: usize,
    limit: usize,
    id: usize,
    mut look: impl FnMut(&Row) -> Done<Option<T>>,
) -> Done<Page<T>> {
    let Some(first) = rows.first() else { return Ok(Page::empty()) };
    let looked_at = usize::try_from(rows::get::<i64>(first, 0)?).unwrap_or(usize::MAX);
    let Some(last) = rows::get::<Option<i64>>(first, 1)? else { return Ok(Page::empty()) };
    let full = looked_at >= asked;
    let mut found = Vec::new();
    for row in rows {
        let Some(id) = rows::get::<Option<i64>>(row, id)? else { continue };
        found.extend(look(row)?);
        if found.len() >= limit {
            let more = full || id > last;
            return Ok(Page { found, looked_at, next: more.then_some(id) });
        }
    }
    Ok(Page { found, looked_at, next: full.then_some(last) })
}

/// The ids of a page.
fn ids(walk: Walk, filter: &WaitFilter, before: i64, asked: usize) -> Statement {
    let mut ids = Statement::new("", Vec::new());
    let end = |ids: &mut Statement| {
        ids.push(" AND id < ");
        ids.bind(Value::Int(before));
        ids.push(" ORDER BY id DESC LIMIT ");
        ids.bind(Value::count(asked));
    };
    let of_thread = |ids: &mut Statement, thread: &str| {
        ids.push("SELECT id FROM waits WHERE ");
        // A run that is no thread's id is none's run.
        match ThreadId::new(thread) {
            Ok(thread) => in_thread(ids, hashes::thread(&filter.tenant, &thread)),
            Err(_) => ids.push("FALSE"),
        }
        end(ids);
    };
    match walk {
        Walk::All => {
            ids.push("SELECT id FROM waits WHERE TRUE");
            end(&mut ids);
        }
        Walk::Open => {
            ids.push("SELECT id FROM waits WHERE state <= 1");
            end(&mut ids);
        }
        Walk::Thread => {
            let thread = filter.thread_id.as_ref().map_or("", ThreadId::as_str);
            of_thread(&mut ids, thread);
        }
        Walk::Run => {
            let run = filter.run_id.as_deref().unwrap_or_default();
            ids.push("SELECT id FROM ((SELECT id FROM waits WHERE run_hash = ");
            ids.bind(Value::Blob(hashes::run(&filter.tenant, run).to_vec()));
            end(&mut ids);
            ids.push(") UNION ALL (");
            of_thread(&mut ids, run);
            ids.push(")) AS both_ways WHERE TRUE");
            end(&mut ids);
        }
    }
    ids
}

/// The condition that finds all waits of a thread by their identities.
fn in_thread(statement: &mut Statement, thread: [u8; 8]) {
    statement.push("identity >= ");
    statement.bind(Value::Blob(thread.to_vec()));
    if let Some(end) = u64::from_be_bytes(thread).checked_add(1) {
        statement.push(" AND identity < ");
        statement.bind(Value::Blob(end.to_be_bytes().to_vec()));
    }
}

/// Lists waits.
pub(super) async fn waits(shared: &Shared, filter: WaitFilter) -> Done<Listed<Arc<Wait>, WaitId>> {
    let announcer = match &filter.announcer {
        None => None,
        Some(name) => match shared.look_up(&Destination::Announcer(name.clone())).await? {
            Some(id) => Some(id),
            None => return Ok(Listed { found: Vec::new(), next: None }),
        },
    };
    let mut walked = Walked::start(filter.before.map(|id| id.0), filter.limit);
    while let Some((from, left)) = walked.goes_on() {
        walked.add(waits_page(shared, &filter, announcer, from, left).await?);
    }
    Ok(walked.listed(WaitId))
}

async fn waits_page(
    shared: &Shared,
    filter: &WaitFilter,
    announcer: Option<DestinationId>,
    before: i64,
    limit: usize,
) -> Done<Page<Arc<Wait>>> {
    let unfiltered = filter.states.is_empty() && announcer.is_none() && filter.tags.is_empty();
    let asked = if unfiltered { limit.min(PAGE) } else { PAGE };
    let mut page = ids(Walk::of(filter), filter, before, asked);
    page.prepend("WITH page AS MATERIALIZED (");
    // What one envelope after the other adds up to is known before any is read.
    page.push(
        "), fitting AS (SELECT w.*, sum(w.bytes) OVER (ORDER BY w.id DESC) AS up_to, \
         count(*) OVER () AS fit FROM page JOIN waits w ON w.id = page.id WHERE w.tenant = ",
    );
    page.bind(Value::Text(filter.tenant.as_str().to_owned()));
    if let Some(thread) = &filter.thread_id {
        page.push(" AND w.thread_id = ");
        page.bind(Value::Text(thread.as_str().to_owned()));
    }
    if let Some(run) = &filter.run_id {
        page.push(" AND coalesce(w.run_id, w.thread_id) = ");
        page.bind(Value::Text(rows::text(run)));
    }
    if !filter.states.is_empty() {
        let states = filter.states.iter().map(|state| carry::state(*state)).collect();
        page.push(" AND w.state = ANY(");
        page.bind(Value::Smalls(states));
        page.push(")");
    }
    if let Some(id) = announcer {
        page.push(" AND EXISTS (SELECT 1 FROM outbox o WHERE o.wait = w.id AND o.destination = ");
        page.bind(Value::Int(id.0));
        page.push(")");
    }
    page.push(concat!(
        ") SELECT p.looked_at, p.last, w.fit, ",
        wait_columns!(),
        " FROM (SELECT count(*) AS looked_at, min(id) AS last FROM page) AS p LEFT JOIN \
         (SELECT * FROM fitting WHERE up_to <= "
    ));
    page.bind(Value::Int(PAGE_BYTES));
    page.push(" OR up_to = bytes ORDER BY id DESC LIMIT ");
    page.bind(Value::count(if filter.tags.is_empty() { limit } else { PAGE }));
    page.push(") AS w ON TRUE ORDER BY w.id DESC");
    let found = page.read(&shared.link).await?;
    let id = PAGE_COLUMNS + 1;
    let mut last = None;
    let mut page = read_page(&found, asked, limit, id, |row| {
        let wait = rows::wait(row, id)?;
        last = Some(wait.id.0);
        let fits = tags::has(&wait, &filter.tags)?;
        Ok(fits.then(|| Arc::new(wait)))
    })?;
    // Cut for its bytes: it goes on after what was read.
    if let (Some(last), Some(row)) = (last, found.first())
        && page.found.len() < limit
        && rows::get::<i64>(row, PAGE_COLUMNS)? > i64::try_from(found.len()).unwrap_or(i64::MAX)
    {
        page.next = Some(last);
    }
    Ok(page)
}

/// Where the candidates of a list of messages come from, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutboxWalk {
    All,
    /// Over those of a wait.
    Wait(WaitId),
    /// Over the dead ones of destinations.
    Dead,
    /// Over all that is queued for destinations, or waits behind others: for when that is little.
    Queued,
}

impl OutboxWalk {
    fn ids(self, wanted: &[i64], before: i64) -> Statement {
        let values = vec![Value::Int(before), Value::count(PAGE)];
        let of = |sql: &str, third: Value| {
            let mut values = values.clone();
            values.push(third);
            Statement::new(sql, values)
        };
        match self {
            Self::All => Statement::new(
                "SELECT id FROM outbox WHERE id < $1 ORDER BY id DESC LIMIT $2",
                values,
            ),
            Self::Wait(wait) => of(
                "SELECT id FROM outbox WHERE wait = $3 AND id < $1 ORDER BY id DESC LIMIT $2",
                Value::Int(wait.0),
            ),
            Self::Dead => of(
                "SELECT o.id FROM unnest($3::BIGINT[]) AS d (id) CROSS JOIN LATERAL \
                 (SELECT id FROM outbox WHERE state = 3 AND destination = d.id AND id < $1 \
                  ORDER BY id DESC LIMIT $2) AS o ORDER BY o.id DESC LIMIT $2",
                Value::Ints(wanted.to_vec()),
            ),
            Self::Queued => of(
                "SELECT id FROM ((SELECT id FROM outbox WHERE state = 1 \
                   AND destination = ANY($3) AND id < $1 ORDER BY id DESC LIMIT $2) UNION ALL \
                  (SELECT id FROM outbox WHERE state = 0 AND id < $1 ORDER BY id DESC LIMIT $2)) \
                 AS queued ORDER BY id DESC LIMIT $2",
                Value::Ints(wanted.to_vec()),
            ),
        }
    }
}

/// Lists announcements or deliveries.
pub(super) async fn outbox(
    shared: &Shared,
    filter: OutboxFilter,
) -> Done<Listed<OutboxRow, OutboxId>> {
    // Other daemons may have named some.
    shared.refresh().await?;
    let is_wanted = |d: &Destination| {
        d.is_announcer() == filter.announcements
            && filter.label.as_deref().is_none_or(|label| d.label() == label)
    };
    let wanted: Vec<i64> =
        shared.all().into_iter().filter(|(_, d)| is_wanted(d)).map(|(id, _)| id.0).collect();
    if wanted.is_empty() {
        return Ok(Listed { found: Vec::new(), next: None });
    }
    let walk = match (filter.wait, filter.state) {
        (Some(wait), _) => OutboxWalk::Wait(wait),
        (None, Some(OutboxState::Queued)) if few_queued(shared, &wanted).await? => {
            OutboxWalk::Queued
        }
        (None, Some(OutboxState::Dead)) => OutboxWalk::Dead,
        (None, _) => OutboxWalk::All,
    };
    let mut walked = Walked::start(filter.before.map(|id| id.0), filter.limit);
    while let Some((from, left)) = walked.goes_on() {
        walked.add(outbox_page(shared, &filter, walk, &wanted, from, left).await?);
    }
    Ok(walked.listed(OutboxId))
}

/// Whether walking over what is queued is less than walking over all.
async fn few_queued(shared: &Shared, wanted: &[i64]) -> Done<bool> {
    let found = Statement::new(
        "SELECT (SELECT count(*) FROM (SELECT 1 FROM outbox \
           WHERE state = 1 AND destination = ANY($1) LIMIT $2) AS ready), \
         (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE state = 0 LIMIT $2) AS behind)",
        vec![Value::Ints(wanted.to_vec()), Value::count(MOST_LOOKED_AT)],
    )
    .read(&shared.link)
    .await?;
    let Some(row) = found.first() else { return Ok(true) };
    let queued = rows::get::<i64>(row, 0)?.max(rows::get(row, 1)?);
    Ok(usize::try_from(queued).is_ok_and(|n| n < MOST_LOOKED_AT))
}

async fn outbox_page(
    shared: &Shared,
    filter: &OutboxFilter,
    walk: OutboxWalk,
    wanted: &[i64],
    before: i64,
    limit: usize,
) -> Done<Page<OutboxRow>> {
    let mut page = walk.ids(wanted, before);
    page.prepend("WITH page AS MATERIALIZED (");
    page.push(
        ") SELECT p.looked_at, p.last, f.* \
         FROM (SELECT count(*) AS looked_at, min(id) AS last FROM page) AS p LEFT JOIN \
         (SELECT o.id, o.wait, o.destination, w.thread_id, w.question_id, w.generation, o.event, \
          o.event_id, o.state, o.attempts, o.next_attempt_at, o.last_error, o.reason, \
          o.queued_at, o.finished_at \
          FROM page JOIN outbox o ON o.id = page.id JOIN waits w ON w.id = o.wait \
          WHERE w.tenant = ",
    );
    page.bind(Value::Text(filter.tenant.as_str().to_owned()));
    page.push(" AND o.destination = ANY(");
    page.bind(Value::Ints(wanted.to_vec()));
    page.push(")");
    page.push(" AND o.state BETWEEN ");
    let (first, last) = match filter.state {
        None => (BEHIND, WITHDRAWN),
        Some(OutboxState::Queued) => (BEHIND, READY),
        Some(OutboxState::Delivered) => (DELIVERED, DELIVERED),
        Some(OutboxState::Dead) => (DEAD, DEAD),
        Some(OutboxState::Withdrawn) => (WITHDRAWN, WITHDRAWN),
    };
    page.bind(Value::Int(first));
    page.push(" AND ");
    page.bind(Value::Int(last));
    page.push(" ORDER BY o.id DESC LIMIT ");
    page.bind(Value::count(limit));
    page.push(") AS f ON TRUE ORDER BY f.id DESC");
    let found = page.read(&shared.link).await?;
    read_page(&found, PAGE, limit, PAGE_COLUMNS, |row| {
        let id = DestinationId(rows::get(row, PAGE_COLUMNS + 2)?);
        // One that is named for the first time just now is not wanted.
        shared.get(id).map(|destination| outbox_row(row, PAGE_COLUMNS, destination)).transpose()
    })
}

fn outbox_row(row: &Row, from: usize, destination: Destination) -> Done<OutboxRow> {
    let state = rows::outbox_state(rows::get(row, from + 8)?)?;
    // Of what the host comes for it is when the answer expires, which is no attempt.
    let is_due = state == OutboxState::Queued && destination != Destination::Pull;
    Ok(OutboxRow {
        id: OutboxId(rows::get(row, from)?),
        wait: WaitId(rows::get(row, from + 1)?),
        destination,
        thread_id: rows::id(row, from + 3, ThreadId::new)?,
        question_id: rows::id(row, from + 4, QuestionId::new)?,
        generation: rows::generation(row, from + 5)?,
        event: rows::event(rows::get(row, from + 6)?)?,
        event_id: rows::id_or_none(row, from + 7, EventId::new)?,
        state,
        attempts: rows::number(row, from + 9)?,
        next_attempt_at: rows::time_or_none(row, from + 10)?.filter(|_| is_due),
        last_error: rows::get(row, from + 11)?,
        reason: rows::get(row, from + 12)?,
        queued_at: rows::time(row, from + 13)?,
        finished_at: rows::time_or_none(row, from + 14)?,
    })
}
