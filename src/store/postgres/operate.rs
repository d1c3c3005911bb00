//! What operators and hosts do to messages, and what there is to know about queues.

use super::connect::{Lent, Param};
use super::fail::Done;
use super::line::{self, Lines};
use super::rows;
use super::shared::Shared;
use crate::store::codes::{self, DEAD};
use crate::store::destinations::DestinationId;
use crate::store::{Depth, Retried, Retry};
use answerback_contract::{TenantId, Time};
use answerback_core::{Destination, OutboxId, OutboxState, WaitId};
use futures::FutureExt as _;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// How many messages one transaction may requeue or retire.
const CHUNK: i64 = 500;

/// Marks the pull deliveries of a wait as delivered; `false` when it has none.
pub(super) async fn pulled(shared: &Shared, wait: WaitId, now: Time) -> Done<bool> {
    let Some(pull) = shared.look_up(&Destination::Pull).await? else { return Ok(false) };
    let (wait, now) = (wait.0, now.millis());
    shared
        .link
        .transaction(move |lent| {
            async move {
                let params: [Param<'_>; 3] =
                    [(&wait, Type::INT8), (&pull.0, Type::INT8), (&now, Type::INT8)];
                let any = lent.query_once(
                    "SELECT 1 FROM outbox WHERE wait = $1 AND destination = $2 LIMIT 1",
                    &params[..2],
                );
                // They stand in no line: nobody waits for them.
                let fetched = lent.query_once(
                    "UPDATE outbox SET state = 2, attempts = attempts + 1, finished_at = $3 \
                     WHERE wait = $1 AND destination = $2 AND state <= 1",
                    &params,
                );
                let (_, any, _, ()) =
                    futures::try_join!(lent.begin(), any, fetched, lent.commit())?;
                Ok(!any.is_empty())
            }
            .boxed()
        })
        .await
}

/// Queues dead messages again.
pub(super) async fn retry(
    shared: &Shared,
    tenant: TenantId,
    what: Retry,
    now: Time,
) -> Done<Retried> {
    let (id, announcement) = match what {
        Retry::Announcement(id) => (id, true),
        Retry::Delivery(id) => (id, false),
        Retry::Announcer(name) => {
            return retry_all(shared, tenant, Destination::Announcer(name), now).await;
        }
    };
    let tenant = Arc::new(tenant);
    let done = shared
        .link
        .transaction({
            let tenant = Arc::clone(&tenant);
            move |lent| {
                let tenant = Arc::clone(&tenant);
                async move { retry_one(lent, &tenant, id, announcement, now).await }.boxed()
            }
        })
        .await?;
    let Some((state, destination)) = done else { return Ok(Retried::NotFound) };
    let named = shared.named(&[destination]).await?;
    if named.iter().any(Destination::is_announcer) != announcement {
        return Ok(Retried::NotFound);
    }
    Ok(match state {
        None => Retried::Queued(1, named),
        Some(state) => Retried::NotRetryable(state),
    })
}

/// A message that an operator wants sent again, with its wait's state.
struct DeadRow {
    id: i64,
    destination: DestinationId,
    state: i16,
    order: Option<i64>,
    event: i16,
    wait_state: i16,
    valid_until: Option<i64>,
}

impl DeadRow {
    /// From `o.id, o.destination, o.state, o.order_key, o.event, w.state, w.valid_until`.
    fn read(row: &Row) -> Done<Self> {
        Ok(Self {
            id: rows::get(row, 0)?,
            destination: DestinationId(rows::get(row, 1)?),
            state: rows::get(row, 2)?,
            order: rows::get(row, 3)?,
            event: rows::get(row, 4)?,
            wait_state: rows::get(row, 5)?,
            valid_until: rows::get(row, 6)?,
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

/// Queues one dead message again: gives where to, and its state when that cannot be.
async fn retry_one(
    lent: &Lent,
    tenant: &TenantId,
    id: OutboxId,
    announcement: bool,
    now: Time,
) -> Done<Option<(Option<OutboxState>, DestinationId)>> {
    let params: [Param<'_>; 2] = [(&id.0, Type::INT8), (&tenant.as_str(), Type::TEXT)];
    let found = lent.query_once(
        "SELECT o.id, o.destination, o.state, o.order_key, o.event, w.state, w.valid_until, d.kind \
         FROM outbox o JOIN waits w ON w.id = o.wait JOIN destinations d ON d.id = o.destination \
         WHERE o.id = $1 AND w.tenant = $2 FOR UPDATE OF o",
        &params,
    );
    let (_, found) = futures::try_join!(lent.begin(), found)?;
    let Some(row) = found.first() else {
        lent.commit().await?;
        return Ok(None);
    };
    let kind: &str = rows::get(row, 7)?;
    let ours = (kind == "announcer") == announcement;
    let row = DeadRow::read(row)?;
    let may = ours
        && i64::from(row.state) == DEAD
        && !row.is_pointless()?
        && (announcement || !row.has_lapsed(now));
    if may {
        requeue(lent, std::slice::from_ref(&row), now).await?;
    }
    lent.commit().await?;
    let state = if may { None } else { codes::outbox_state(row.state.into()) };
    Ok(Some((state, row.destination)))
}

/// Queues all dead messages of a destination again, a bounded number a transaction, and wakes it.
async fn retry_all(
    shared: &Shared,
    tenant: TenantId,
    destination: Destination,
    now: Time,
) -> Done<Retried> {
    let Some(id) = shared.look_up(&destination).await? else {
        return Ok(Retried::Queued(0, Vec::new()));
    };
    let tenant = Arc::new(tenant);
    let (mut queued, mut after) = (0, Some(0));
    while let Some(from) = after {
        let tenant = Arc::clone(&tenant);
        let (some, next) = shared
            .link
            .transaction(move |lent| {
                let tenant = Arc::clone(&tenant);
                async move { retry_some(lent, &tenant, id, from, now).await }.boxed()
            })
            .await?;
        queued += some;
        after = next;
    }
    set_paused(shared, destination.clone(), false).await?;
    let woken = if queued > 0 { vec![destination] } else { Vec::new() };
    Ok(Retried::Queued(queued, woken))
}

/// Gives how many were queued again, and the last one looked at when there may be more.
async fn retry_some(
    lent: &Lent,
    tenant: &TenantId,
    destination: DestinationId,
    after: i64,
    now: Time,
) -> Done<(usize, Option<i64>)> {
    let params: [Param<'_>; 4] = [
        (&destination.0, Type::INT8),
        (&after, Type::INT8),
        (&CHUNK, Type::INT8),
        (&tenant.as_str(), Type::TEXT),
    ];
    let found = lent.query_once(
        "SELECT o.id, o.destination, o.state, o.order_key, o.event, w.state, w.valid_until, \
         w.tenant = $4 FROM outbox o JOIN waits w ON w.id = o.wait \
         WHERE o.state = 3 AND o.destination = $1 AND o.id > $2 \
         ORDER BY o.id LIMIT $3 FOR UPDATE OF o",
        &params,
    );
    let (_, found) = futures::try_join!(lent.begin(), found)?;
    let mut again = Vec::with_capacity(found.len());
    let mut last = None;
    for row in &found {
        let ours: bool = rows::get(row, 7)?;
        let row = DeadRow::read(row)?;
        last = Some(row.id);
        if ours && !row.is_pointless()? {
            again.push(row);
        }
    }
    requeue(lent, &again, now).await?;
    lent.commit().await?;
    let more = i64::try_from(found.len()).is_ok_and(|n| n == CHUNK);
    Ok((again.len(), last.filter(|_| more)))
}

/// Messages that are queued again line up: each waits while another one of its order key is due, and
/// goes before those that wait with it.
async fn requeue(lent: &Lent, messages: &[DeadRow], now: Time) -> Done<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = messages.iter().map(|m| m.id).collect();
    let now_ms = now.millis();
    // All get behind; then the oldest of each line moves up where nobody is READY.
    let params: [Param<'_>; 2] = [(&ids, Type::INT8_ARRAY), (&now_ms, Type::INT8)];
    lent.query_once(
        "UPDATE outbox SET state = CASE WHEN order_key IS NULL THEN 1 ELSE 0 END, attempts = 0, \
         queued_at = $2, next_attempt_at = $2, due_at = $2, finished_at = NULL, reason = NULL, \
         leased_until = 0, held_by = NULL WHERE id = ANY($1)",
        &params,
    )
    .await?;
    let mut orders: Vec<i64> = messages.iter().filter_map(|m| m.order).collect();
    orders.sort_unstable();
    orders.dedup();
    line::settle_lines(lent, orders, &ids, now).await
}

/// Declares dead what is queued for announcers and routes that are gone.
pub(super) async fn retire(shared: &Shared, present: Vec<Destination>, now: Time) -> Done<u64> {
    shared.refresh().await?;
    let mut retired = 0;
    for (id, destination) in shared.all() {
        let reason = match destination {
            _ if present.contains(&destination) => continue,
            Destination::Announcer(_) => "announcer-removed",
            Destination::Route(_) => "route-removed",
            Destination::ReplyTo(_) | Destination::Pull => continue,
        };
        loop {
            let some = shared
                .link
                .transaction(move |lent| {
                    async move { retire_some(lent, id, reason, now).await }.boxed()
                })
                .await?;
            retired += some;
            if some == 0 {
                break;
            }
        }
    }
    Ok(retired)
}

async fn retire_some(lent: &Lent, id: DestinationId, reason: &str, now: Time) -> Done<u64> {
    let now_ms = now.millis();
    let params: [Param<'_>; 4] =
        [(&id.0, Type::INT8), (&CHUNK, Type::INT8), (&now_ms, Type::INT8), (&reason, Type::TEXT)];
    // Those that wait behind messages of other destinations come last; this is rare.
    let gone = lent.query_once(
        "UPDATE outbox o SET state = 3, finished_at = $3, reason = $4, leased_until = 0 \
         FROM (SELECT id FROM outbox WHERE state = 1 AND destination = $1 \
               ORDER BY due_at, id LIMIT $2 FOR UPDATE) due WHERE o.id = due.id RETURNING o.id",
        &params,
    );
    let (_, gone) = futures::try_join!(lent.begin(), gone)?;
    let mut gone = gone.iter().map(|row| rows::get(row, 0)).collect::<Done<Vec<i64>>>()?;
    if gone.is_empty() {
        let behind = lent
            .query_once(
                "UPDATE outbox o SET state = 3, finished_at = $3, reason = $4 \
                 FROM (SELECT id FROM outbox WHERE state = 0 AND destination = $1 \
                       ORDER BY id LIMIT $2 FOR UPDATE) due WHERE o.id = due.id RETURNING o.id",
                &params,
            )
            .await?;
        gone = behind.iter().map(|row| rows::get(row, 0)).collect::<Done<Vec<i64>>>()?;
    }
    line::promote(lent, Lines::Left, &gone, now).await?;
    lent.commit().await?;
    Ok(u64::try_from(gone.len()).unwrap_or(u64::MAX))
}

/// Stops giving out leases for a destination, or goes on.
pub(super) async fn set_paused(
    shared: &Shared,
    destination: Destination,
    paused: bool,
) -> Done<()> {
    shared.intern([&destination]).await?;
    let Some(id) = shared.id(&destination) else { return Ok(()) };
    shared
        .link
        .read(move |lent| {
            async move {
                lent.query_once(
                    "UPDATE destinations SET paused = $2 WHERE id = $1",
                    &[(&id.0, Type::INT8), (&paused, Type::BOOL)],
                )
                .await
            }
            .boxed()
        })
        .await?;
    Ok(())
}

/// The destinations that are paused.
pub(super) async fn paused(shared: &Shared) -> Done<Vec<Destination>> {
    let found = shared
        .link
        .read(|lent| lent.query_once("SELECT id FROM destinations WHERE paused", &[]).boxed())
        .await?;
    let ids = found.iter().map(|row| Ok(DestinationId(rows::get(row, 0)?)));
    shared.named(&ids.collect::<Done<Vec<_>>>()?).await
}

/// Where anything is queued for.
pub(super) async fn destinations(shared: &Shared) -> Done<Vec<Destination>> {
    let found = shared
        .link
        .read(|lent| {
            lent.query_once(
                "SELECT d.id FROM destinations d WHERE \
                 EXISTS (SELECT 1 FROM outbox o WHERE o.state = 1 AND o.destination = d.id)",
                &[],
            )
            .boxed()
        })
        .await?;
    // What waits behind another one makes its destination known when it moves up.
    let ids = found.iter().map(|row| Ok(DestinationId(rows::get(row, 0)?)));
    shared.named(&ids.collect::<Done<Vec<_>>>()?).await
}

/// How much is queued where.
pub(super) async fn depths(shared: &Shared) -> Done<Vec<Depth>> {
    let found = shared
        .link
        .read(|lent| {
            lent.query_once(
                "SELECT destination, sum(queued)::BIGINT, min(oldest) FROM ( \
                   SELECT destination, count(*) AS queued, min(queued_at) AS oldest FROM outbox \
                   WHERE state = 1 GROUP BY destination \
                   UNION ALL \
                   SELECT destination, count(*), min(queued_at) FROM outbox \
                   WHERE state = 0 GROUP BY destination) parts \
                 GROUP BY destination ORDER BY destination",
                &[],
            )
            .boxed()
        })
        .await?;
    let mut depths = Vec::with_capacity(found.len());
    for row in &found {
        let id = DestinationId(rows::get(row, 0)?);
        if shared.get(id).is_none() {
            shared.refresh().await?;
        }
        let Some(destination) = shared.get(id) else { continue };
        let queued = u64::try_from(rows::get::<i64>(row, 1)?).unwrap_or(0);
        depths.push(Depth { destination, queued, oldest: rows::time_or_none(row, 2)? });
    }
    Ok(depths)
}
