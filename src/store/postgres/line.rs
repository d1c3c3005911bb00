//! The queue, and the lines in it: of an order key one message is due at a time.
//!
//! The database itself keeps the first half of the invariant: a unique index lets one message of a
//! key be READY. For the second half, that one is whenever any waits behind it, whoever adds one
//! behind holds a lock on the READY one until it is committed, and whoever ends the READY one looks
//! for the next in a later statement, which sees what was added before it got the lock.

use super::connect::{Lent, Param};
use super::fail::{Done, Fail};
use super::rows;
use crate::store::codes::{BEHIND, READY, event_code};
use crate::store::destinations::DestinationId;
use answerback_contract::{Event, EventId, Time};
use answerback_core::WaitId;
use std::collections::HashSet;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// How often a message tries for the head of its line before the transaction is done anew.
const TRIES: usize = 10;

/// A message to be queued.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) id: i64,
    pub(super) wait: WaitId,
    pub(super) destination: DestinationId,
    pub(super) event: Event,
    pub(super) repeat: u32,
    pub(super) event_id: Option<EventId>,
    pub(super) order: Option<i64>,
    pub(super) at: Time,
    /// When something has to be done about it.
    pub(super) due: i64,
}

/// Queues messages, in the order of their ids.
pub(super) async fn enqueue(lent: &Lent, messages: &[Queued], now: Time) -> Done<()> {
    let mut heads = Vec::new();
    let mut rest: Vec<&Queued> = Vec::new();
    let mut keys = HashSet::new();
    for message in messages {
        match message.order {
            Some(key) if !keys.insert(key) => rest.push(message),
            _ => heads.push(message),
        }
    }
    for _ in 0..TRIES {
        let asked: Vec<i64> = heads.iter().filter_map(|m| m.order).collect();
        let ready = insert_ready(lent, &heads);
        let won: HashSet<i64> = if asked.is_empty() {
            ready.await?.into_iter().collect()
        } else {
            // One that is READY already was held back when it became so: it does not matter then.
            futures::try_join!(ready, hold_back(lent, &asked, now))?.0.into_iter().collect()
        };
        let lost: Vec<i64> = asked.into_iter().filter(|key| !won.contains(key)).collect();
        if lost.is_empty() {
            return insert_behind(lent, &rest).await;
        }
        // Whoever is READY stays so until this is committed.
        let held = lock_heads(lent, &lost).await?;
        let (behind, again): (Vec<&Queued>, Vec<&Queued>) = heads
            .into_iter()
            .filter(|m| m.order.is_some_and(|key| !won.contains(&key)))
            .partition(|m| m.order.is_some_and(|key| held.contains(&key)));
        rest.extend(behind);
        rest.sort_by_key(|m| m.id);
        heads = again;
        if heads.is_empty() {
            return insert_behind(lent, &rest).await;
        }
    }
    Err(Fail::Conflict)
}

/// Inserts messages as READY, but for those whose order key has a READY one; gives the keys of those
/// that made it.
async fn insert_ready(lent: &Lent, messages: &[&Queued]) -> Done<Vec<i64>> {
    let rows = insert(
        lent,
        messages,
        READY,
        "ORDER BY order_key \
         ON CONFLICT (order_key) WHERE state = 1 AND order_key IS NOT NULL DO NOTHING \
         RETURNING order_key",
    )
    .await?;
    let mut keys = Vec::new();
    for row in &rows {
        keys.extend(rows::get::<Option<i64>>(row, 0)?);
    }
    Ok(keys)
}

async fn insert_behind(lent: &Lent, messages: &[&Queued]) -> Done<()> {
    insert(lent, messages, BEHIND, "").await?;
    Ok(())
}

async fn insert(lent: &Lent, messages: &[&Queued], state: i64, then: &str) -> Done<Vec<Row>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "INSERT INTO outbox (id, wait, destination, event, repeat, event_id, order_key, queued_at, \
         next_attempt_at, due_at, state) \
         SELECT id, wait, destination, event, repeat, event_id, order_key, at, due, due, {state} \
         FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::SMALLINT[], $5::INTEGER[], \
         $6::TEXT[], $7::BIGINT[], $8::BIGINT[], $9::BIGINT[]) AS fresh \
         (id, wait, destination, event, repeat, event_id, order_key, at, due) {then}"
    );
    let column = |of: fn(&Queued) -> i64| -> Vec<i64> { messages.iter().map(|m| of(m)).collect() };
    let ids = column(|m| m.id);
    let waits = column(|m| m.wait.0);
    let destinations = column(|m| m.destination.0);
    let events: Vec<i16> = messages.iter().map(|m| event(m.event)).collect();
    let repeats: Vec<i32> =
        messages.iter().map(|m| i32::try_from(m.repeat).unwrap_or(i32::MAX)).collect();
    let event_ids: Vec<Option<&str>> =
        messages.iter().map(|m| m.event_id.as_ref().map(EventId::as_str)).collect();
    let orders: Vec<Option<i64>> = messages.iter().map(|m| m.order).collect();
    let ats = column(|m| m.at.millis());
    let dues = column(|m| m.due);
    lent.query(
        &sql,
        &[
            (&ids, Type::INT8_ARRAY),
            (&waits, Type::INT8_ARRAY),
            (&destinations, Type::INT8_ARRAY),
            (&events, Type::INT2_ARRAY),
            (&repeats, Type::INT4_ARRAY),
            (&event_ids, Type::TEXT_ARRAY),
            (&orders, Type::INT8_ARRAY),
            (&ats, Type::INT8_ARRAY),
            (&dues, Type::INT8_ARRAY),
        ],
    )
    .await
}

/// What stands in `outbox.event` and `events.event`.
pub(super) fn event(event: Event) -> i16 {
    i16::try_from(event_code(event)).unwrap_or(i16::MAX)
}

/// READY messages of these keys wait while one of their line is out that was withdrawn meanwhile:
/// what comes after it must not overtake it.
async fn hold_back(lent: &Lent, keys: &[i64], now: Time) -> Done<()> {
    lent.query(
        "UPDATE outbox o SET due_at = greatest(o.due_at, r.leased_until), held_by = r.id \
         FROM outbox r WHERE o.state = 1 AND o.order_key IS NOT NULL AND o.order_key = ANY($1) \
         AND o.leased_until = 0 \
         AND r.state = 4 AND r.leased_until > 0 AND r.leased_until > $2 \
         AND r.order_key = o.order_key",
        &[(&keys, Type::INT8_ARRAY), (&now.millis(), Type::INT8)],
    )
    .await?;
    Ok(())
}

/// Whose lines [`promote`] looks at.
pub(super) enum Lines {
    /// Those of all messages of the waits in the first parameter.
    Waits,
    /// Those of the messages in the first parameter, as far as they are queued no longer.
    Left,
    /// Those of the messages in the first parameter, which got behind.
    Behind,
}

/// A message that moved up to the head of its line.
pub(super) struct Promoted {
    pub(super) destination: DestinationId,
    pub(super) order: i64,
}

/// Whose line has a READY message: nobody ends that one before this transaction is over.
pub(super) async fn lock_heads(lent: &Lent, orders: &[i64]) -> Done<HashSet<i64>> {
    lent.query(
        "SELECT order_key FROM outbox \
         WHERE state = 1 AND order_key IS NOT NULL AND order_key = ANY($1) \
         ORDER BY id FOR UPDATE",
        &[(&orders, Type::INT8_ARRAY)],
    )
    .await?
    .iter()
    .map(|row| rows::get(row, 0))
    .collect()
}

/// Messages of these lines were put behind. Sees to it that each line has a READY one that stays
/// until this transaction is over.
pub(super) async fn settle_lines(
    lent: &Lent,
    mut orders: Vec<i64>,
    ids: &[i64],
    now: Time,
) -> Done<()> {
    for _ in 0..TRIES {
        if orders.is_empty() {
            return Ok(());
        }
        let heads = lock_heads(lent, &orders).await?;
        orders.retain(|order| !heads.contains(order));
        if orders.is_empty() {
            return Ok(());
        }
        let promoted = promote(lent, Lines::Behind, ids, now).await?;
        orders.retain(|order| !promoted.iter().any(|p| p.order == *order));
    }
    Err(Fail::Conflict)
}

/// Makes the oldest message of each line READY that has none any more. Gives where they go.
pub(super) async fn promote(
    lent: &Lent,
    lines: Lines,
    ids: &[i64],
    now: Time,
) -> Done<Vec<Promoted>> {
    let of_lines = match lines {
        Lines::Waits => {
            "SELECT DISTINCT o.order_key FROM unnest($1::BIGINT[]) AS i (id) CROSS JOIN LATERAL \
             (SELECT o.order_key FROM outbox o WHERE o.wait = i.id \
              AND o.order_key IS NOT NULL OFFSET 0) o"
        }
        Lines::Left => {
            "SELECT DISTINCT order_key FROM outbox \
             WHERE id = ANY($1) AND state >= 2 AND order_key IS NOT NULL"
        }
        Lines::Behind => {
            "SELECT DISTINCT order_key FROM outbox WHERE id = ANY($1) AND order_key IS NOT NULL"
        }
    };
    // What a withdrawn message that is still out holds back, and nothing that a planner could join by
    // reading all that is queued: only look-ups, for as many lines as there are.
    let out = "FROM outbox r WHERE r.state = 4 AND r.leased_until > 0 AND r.leased_until > $2 \
         AND r.order_key = o.order_key";
    let sql = format!(
        "UPDATE outbox o SET state = 1, \
         due_at = greatest(o.next_attempt_at, coalesce((SELECT max(r.leased_until) {out}), 0)), \
         held_by = (SELECT r.id {out} ORDER BY r.leased_until DESC LIMIT 1) \
         WHERE o.id = ANY(ARRAY(SELECT (SELECT b.id FROM outbox b \
             WHERE b.state = 0 AND b.order_key = k.order_key ORDER BY b.id LIMIT 1) \
           FROM ({of_lines}) k \
           WHERE (SELECT count(*) FROM outbox r WHERE r.state = 1 \
             AND r.order_key IS NOT NULL AND r.order_key = k.order_key) = 0)) \
         AND o.state < 1 RETURNING o.destination, o.order_key"
    );
    let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&now.millis(), Type::INT8)];
    let found = lent.query(&sql, &params).await?;
    let promoted = |row| {
        Ok(Promoted { destination: DestinationId(rows::get(row, 0)?), order: rows::get(row, 1)? })
    };
    found.iter().map(promoted).collect()
}
