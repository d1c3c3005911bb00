//! Forgetting waits, and what must be remembered of them: dedupe keys stay given, publishes stay
//! seen, generations go on counting (contract, section 2).
//!
//! Every daemon does it; what one has locked the others leave to it.

use super::connect::{Lent, Param};
use super::fail::Done;
use super::hashes::{self, Hash};
use super::rows;
use super::shared::Shared;
use crate::store::Retention;
use answerback_contract::{DedupeRest, QuestionId, TenantId, ThreadId, Time};
use answerback_core::Destination;
use futures::FutureExt as _;
use std::collections::{HashMap, HashSet};
use tokio_postgres::types::Type;

/// Forgets what is old; gives how many waits were forgotten.
pub(super) async fn purge(
    shared: &Shared,
    retention: Retention,
    limit: usize,
    now: Time,
) -> Done<u64> {
    let pull = shared.look_up(&Destination::Pull).await?.map_or(-1, |id| id.0);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let forgotten = shared
        .link
        .transaction(move |lent| {
            async move { forget(lent, pull, retention, limit, now).await }.boxed()
        })
        .await?;
    for (sql, before) in [
        (
            "DELETE FROM forgotten WHERE hash = ANY(ARRAY(\
             SELECT hash FROM forgotten WHERE at <= $1 ORDER BY at LIMIT $2))",
            now.before(retention.tombstones).millis(),
        ),
        (
            "DELETE FROM replies WHERE scope_hash = ANY(ARRAY(\
             SELECT scope_hash FROM replies WHERE kept_at <= $1 ORDER BY kept_at LIMIT $2))",
            now.before(retention.replies).millis(),
        ),
    ] {
        loop {
            let gone = shared
                .link
                .read(move |lent| {
                    async move {
                        let counted =
                            format!("WITH gone AS ({sql} RETURNING 1) SELECT count(*) FROM gone");
                        lent.query_once(&counted, &[(&before, Type::INT8), (&limit, Type::INT8)])
                            .await
                    }
                    .boxed()
                })
                .await?;
            let gone: i64 = gone.first().map_or(Ok(0), |row| rows::get(row, 0))?;
            if gone < limit {
                break;
            }
        }
    }
    Ok(forgotten)
}

/// Forgets waits that ended long enough ago, that nothing is on its way for any more, and of which
/// nothing dead must still be kept. Pull deliveries that nobody came for go with their wait.
async fn forget(lent: &Lent, pull: i64, retention: Retention, limit: i64, now: Time) -> Done<u64> {
    let closed = now.before(retention.closed).millis();
    let dead = now.before(retention.dead).millis();
    let params: [Param<'_>; 4] =
        [(&closed, Type::INT8), (&pull, Type::INT8), (&dead, Type::INT8), (&limit, Type::INT8)];
    let going = lent.query_once(
        "SELECT w.id, w.tenant, w.thread_id, w.question_id, w.generation, w.choice, w.event_id \
         FROM waits w WHERE w.closed_at IS NOT NULL AND w.closed_at <= $1 AND NOT EXISTS \
           (SELECT 1 FROM outbox o WHERE o.wait = w.id AND \
             ((o.state <= 1 AND o.destination <> $2) OR (o.state = 3 AND o.finished_at > $3))) \
         ORDER BY w.closed_at, w.id LIMIT $4 FOR UPDATE OF w SKIP LOCKED",
        &params,
    );
    let (_, going) = futures::try_join!(lent.begin(), going)?;
    let ids = going.iter().map(|row| rows::get(row, 0)).collect::<Done<Vec<i64>>>()?;
    // A delivery may have been queued before the lock was got: the question was published again.
    let busy_params: [Param<'_>; 3] =
        [(&ids, Type::INT8_ARRAY), (&pull, Type::INT8), (&dead, Type::INT8)];
    let busy = lent.query_once(
        "SELECT DISTINCT wait FROM outbox WHERE wait = ANY($1) AND \
         ((state <= 1 AND destination <> $2) OR (state = 3 AND finished_at > $3))",
        &busy_params,
    );
    let publishes = lent.query_once(
        "SELECT wait, event_hash FROM publishes WHERE wait = ANY($1)",
        &busy_params[..1],
    );
    let (busy, publishes) = futures::try_join!(busy, publishes)?;
    let busy: HashSet<i64> = busy.iter().map(|row| rows::get(row, 0)).collect::<Done<_>>()?;
    let mut memories: HashMap<Vec<u8>, (i32, i32)> = HashMap::new();
    let mut generations = HashMap::new();
    for row in &going {
        let id: i64 = rows::get(row, 0)?;
        if busy.contains(&id) {
            continue;
        }
        let tenant = rows::id(row, 1, TenantId::new)?;
        let thread = rows::id(row, 2, ThreadId::new)?;
        let question = rows::id(row, 3, QuestionId::new)?;
        let what = (rows::get(row, 4)?, rows::get(row, 5)?);
        let event_id: &str = rows::get(row, 6)?;
        let rest = DedupeRest::choice(&question, rows::number(row, 5)?);
        let own: [Hash; 3] = [
            hashes::event(&tenant, &thread, &question, event_id),
            hashes::key(&tenant, &rest),
            hashes::remembered(&tenant, &thread, &question),
        ];
        for hash in own {
            // Of an identity the newest generation counts.
            let known = memories.entry(hash.to_vec()).or_insert(what);
            *known = (*known).max(what);
        }
        generations.insert(id, what);
    }
    for row in &publishes {
        if let Some(what) = generations.get(&rows::get(row, 0)?) {
            memories.insert(rows::get::<&[u8]>(row, 1)?.to_vec(), *what);
        }
    }
    let ids: Vec<i64> = generations.into_keys().collect();
    if ids.is_empty() {
        lent.commit().await?;
        return Ok(0);
    }
    remember(lent, memories, now).await?;
    drop_rows(lent, &ids).await?;
    lent.commit().await?;
    Ok(u64::try_from(ids.len()).unwrap_or(u64::MAX))
}

async fn remember(lent: &Lent, memories: HashMap<Vec<u8>, (i32, i32)>, now: Time) -> Done<()> {
    let mut memories: Vec<(Vec<u8>, (i32, i32))> = memories.into_iter().collect();
    memories.sort_unstable();
    let hash: Vec<&[u8]> = memories.iter().map(|(hash, _)| &hash[..]).collect();
    let generation: Vec<i32> = memories.iter().map(|(_, (generation, _))| *generation).collect();
    let choice: Vec<i32> = memories.iter().map(|(_, (_, choice))| *choice).collect();
    lent.query_once(
        "INSERT INTO forgotten (hash, generation, choice, at) \
         SELECT hash, generation, choice, $4 \
         FROM unnest($1::BYTEA[], $2::INTEGER[], $3::INTEGER[]) AS m (hash, generation, choice) \
         ON CONFLICT (hash) DO UPDATE SET at = excluded.at, \
         choice = CASE WHEN excluded.generation > forgotten.generation \
           THEN excluded.choice ELSE forgotten.choice END, \
         generation = greatest(excluded.generation, forgotten.generation)",
        &[
            (&hash, Type::BYTEA_ARRAY),
            (&generation, Type::INT4_ARRAY),
            (&choice, Type::INT4_ARRAY),
            (&now.millis(), Type::INT8),
        ],
    )
    .await?;
    Ok(())
}

async fn drop_rows(lent: &Lent, ids: &[i64]) -> Done<()> {
    let params: [Param<'_>; 1] = [(&ids, Type::INT8_ARRAY)];
    let outbox = lent.query_once("DELETE FROM outbox WHERE wait = ANY($1)", &params);
    let publishes = lent.query_once("DELETE FROM publishes WHERE wait = ANY($1)", &params);
    let events =
        lent.query_once("DELETE FROM events WHERE wait = ANY($1) RETURNING commit_id", &params);
    let waits = lent.query_once("DELETE FROM waits WHERE id = ANY($1)", &params);
    let (_, _, events, _) = futures::try_join!(outbox, publishes, events, waits)?;
    let commits = events.iter().map(|row| rows::get(row, 0)).collect::<Done<Vec<i64>>>()?;
    lent.query_once(
        "DELETE FROM commits c WHERE c.id = ANY($1) AND c.last_place IS NOT NULL \
         AND NOT EXISTS (SELECT 1 FROM events e WHERE e.commit_id = c.id)",
        &[(&commits, Type::INT8_ARRAY)],
    )
    .await?;
    Ok(())
}
