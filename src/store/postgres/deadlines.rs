//! Deadlines: every daemon looks for them, whoever locks a wait first ends it.

use super::answer::{self, Told};
use super::carry::{Ids, most_messages};
use super::connect::{Lent, Param};
use super::fail::Done;
use super::rows::{self, wait_columns};
use super::shared::Shared;
use crate::store::TimedOut;
use crate::store::codes::NEVER;
use answerback_contract::Time;
use answerback_core::{Destination, Op, Wait, deadline};
use tokio_postgres::types::Type;

/// Ends waits whose deadline is reached, and answers that no host came for in time.
pub(super) async fn time_out(
    shared: &Shared,
    lent: &Lent,
    limit: usize,
    now: Time,
) -> Done<Told<TimedOut>> {
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let params: [Param<'_>; 2] = [(&now.millis(), Type::INT8), (&most, Type::INT8)];
    // What others have locked they deal with.
    let due = lent.query_once(
        concat!(
            "SELECT ",
            wait_columns!(),
            " FROM waits w WHERE w.state = 1 AND w.expires_at IS NOT NULL AND w.expires_at <= $1 \
             ORDER BY w.expires_at, w.id LIMIT $2 FOR UPDATE SKIP LOCKED"
        ),
        &params,
    );
    let (_, due) = futures::try_join!(lent.begin(), due)?;
    let pull = shared.id(&Destination::Pull).map_or(-1, |id| id.0);
    let lapsed = lapse(lent, pull, limit, now).await?;
    let mut decided: Vec<(Wait, Vec<Op>)> = Vec::with_capacity(due.len());
    for row in &due {
        let wait = rows::wait(row, 0)?;
        if let Some(ops) = deadline(&wait, &shared.rules, now, &mut || shared.mint())? {
            decided.push((wait, ops));
        }
    }
    let (_, mut ids) = Ids::draw(lent, 0, decided.len() * most_messages(shared)).await?;
    let all = decided.iter().map(|(wait, ops)| (Some(wait), ops.as_slice()));
    let (carried, events) = answer::write(shared, lent, &mut ids, all, now).await?;
    let queued: Vec<_> = carried.iter().flat_map(|carried| carried.queued.clone()).collect();
    let waits = decided.iter().map(|(wait, _)| (wait.id, wait.expires_at.unwrap_or(now))).collect();
    let next = next(lent, shared).await?;
    Ok((TimedOut { waits, queued: shared.named(&queued).await?, lapsed, next }, events))
}

/// Declares pull deliveries dead whose answers are valid no longer; gives how many.
async fn lapse(lent: &Lent, pull: i64, limit: usize, now: Time) -> Done<u64> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let lapsed = lent
        .query_once(
            "UPDATE outbox o SET state = 3, finished_at = $2, reason = 'answer-expired' \
             FROM (SELECT id FROM outbox WHERE state = 1 AND destination = $1 AND due_at <= $2 \
               ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED) late \
             WHERE o.id = late.id RETURNING 1",
            &[(&pull, Type::INT8), (&now.millis(), Type::INT8), (&limit, Type::INT8)],
        )
        .await?;
    Ok(u64::try_from(lapsed.len()).unwrap_or(u64::MAX))
}

/// The earliest deadline of an open wait, or end of an answer that waits for its host.
async fn next(lent: &Lent, shared: &Shared) -> Done<Option<Time>> {
    let pull = shared.id(&Destination::Pull).map_or(-1, |id| id.0);
    let params: [Param<'_>; 1] = [(&pull, Type::INT8)];
    let lapse = lent.query_once(
        "SELECT due_at FROM outbox WHERE state = 1 AND destination = $1 \
         ORDER BY due_at, id LIMIT 1",
        &params,
    );
    let (deadline, lapse) = futures::try_join!(next_deadline(lent), lapse)?;
    let lapse = lapse.first().map(|row| rows::get::<i64>(row, 0)).transpose()?;
    let lapse = lapse.filter(|at| *at != NEVER).map(Time::from_millis);
    Ok([deadline, lapse].into_iter().flatten().min())
}

/// The earliest deadline of an open wait.
pub(super) async fn next_deadline(lent: &Lent) -> Done<Option<Time>> {
    let found = lent
        .query_once(
            "SELECT expires_at FROM waits WHERE state = 1 AND expires_at IS NOT NULL \
             ORDER BY expires_at, id LIMIT 1",
            &[],
        )
        .await?;
    found.first().map(|row| rows::time(row, 0)).transpose()
}
