//! Taking messages that are due: one statement, whatever is queued behind them.

use super::connect::{Lent, Param};
use super::fail::Done;
use super::rows::{self, wait_columns};
use crate::store::destinations::DestinationId;
use crate::store::{Lease, LeaseRequest};
use answerback_contract::{EventId, Time};
use answerback_core::{Leased, OutboxId, Wait};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::types::Type;

/// Gives a lane its next messages. What another daemon is just taking is left to it.
pub(super) async fn lease(
    lent: &Lent,
    destination: DestinationId,
    request: &LeaseRequest,
    now: Time,
) -> Done<Lease> {
    // One more is looked at, to know whether there is more.
    let limit = i64::try_from(request.limit).unwrap_or(i64::MAX - 1);
    let bytes = i64::try_from(request.bytes).unwrap_or(i64::MAX);
    let until = now.after(request.hold).millis();
    let now_ms = now.millis();
    let params: [Param<'_>; 5] = [
        (&destination.0, Type::INT8),
        (&now_ms, Type::INT8),
        (&limit, Type::INT8),
        (&bytes, Type::INT8),
        (&until, Type::INT8),
    ];
    let taken = lent.query(
        concat!(
            "WITH due AS MATERIALIZED (SELECT o.id, o.due_at, \
                 (SELECT w.bytes FROM waits w WHERE w.id = o.wait) AS bytes \
               FROM outbox o WHERE o.state = 1 AND o.destination = $1 AND o.due_at <= $2 \
               AND NOT EXISTS (SELECT 1 FROM destinations d WHERE d.id = $1 AND d.paused) \
               ORDER BY o.due_at, o.id LIMIT $3 + 1 FOR UPDATE OF o SKIP LOCKED), \
             counted AS (SELECT id, due_at, \
               sum(bytes) OVER (ORDER BY due_at, id) AS up_to, \
               row_number() OVER (ORDER BY due_at, id) AS nth FROM due) \
             UPDATE outbox o SET lease = o.lease + 1, leased_until = $5, due_at = $5, \
               held_by = NULL \
             FROM waits w \
             WHERE w.id = o.wait AND o.id = ANY(ARRAY(SELECT c.id FROM counted c \
               WHERE c.nth <= $3 AND (c.up_to <= $4 OR c.nth = 1))) \
             RETURNING o.id, o.lease, o.event, o.repeat, o.event_id, o.attempts, o.queued_at, \
               o.next_attempt_at, (SELECT count(*) FROM due), ",
            wait_columns!()
        ),
        &params,
    );
    let next = lent.query(
        "SELECT due_at FROM outbox WHERE state = 1 AND destination = $1 \
         AND NOT EXISTS (SELECT 1 FROM destinations d WHERE d.id = $1 AND d.paused) \
         ORDER BY due_at, id LIMIT 1",
        &params[..1],
    );
    let (_, taken, next, ()) = futures::try_join!(lent.begin(), taken, next, lent.commit())?;
    let mut messages = Vec::with_capacity(taken.len());
    let mut waits: HashMap<i64, Arc<Wait>> = HashMap::new();
    let mut due = 0;
    for row in &taken {
        let wait_id: i64 = rows::get(row, FIRST_OF_WAIT)?;
        let wait = match waits.get(&wait_id) {
            Some(wait) => wait.clone(),
            None => {
                let wait = Arc::new(rows::wait(row, FIRST_OF_WAIT)?);
                waits.insert(wait_id, wait.clone());
                wait
            }
        };
        due = rows::get(row, 8)?;
        let since: i64 = rows::get(row, 7)?;
        let message = Leased {
            id: OutboxId(rows::get(row, 0)?),
            lease: u64::try_from(rows::get::<i64>(row, 1)?).unwrap_or(0),
            destination: request.destination.clone(),
            event: rows::event(rows::get(row, 2)?)?,
            repeat: rows::number(row, 3)?,
            event_id: rows::id_or_none(row, 4, EventId::new)?,
            attempts: rows::number(row, 5)?,
            queued_at: rows::time(row, 6)?,
            wait,
        };
        messages.push((since, message));
    }
    messages.sort_unstable_by_key(|(since, message)| (*since, message.id.0));
    let taken = i64::try_from(messages.len()).unwrap_or(i64::MAX);
    let next_due = if taken < due {
        // No more room; whoever asks again gets it.
        Some(now)
    } else {
        next.first().map(|row| rows::time(row, 0)).transpose()?
    };
    Ok(Lease { messages: messages.into_iter().map(|(_, message)| message).collect(), next_due })
}

/// Where the wait's columns begin in what a lease reads.
const FIRST_OF_WAIT: usize = 9;
