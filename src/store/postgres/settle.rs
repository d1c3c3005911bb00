//! How leases ended, for many messages in one round trip.

use super::batch::Work;
use super::connect::{Lent, Param};
use super::fail::Done;
use super::line::{self, Lines};
use super::rows;
use super::shared::Shared;
use crate::store::destinations::DestinationId;
use crate::store::{Settled, Settlement};
use answerback_contract::Time;
use answerback_core::Destination;
use std::collections::HashSet;
use tokio_postgres::types::Type;

/// An error's text is cut to so many characters.
const MOST_OF_AN_ERROR: usize = 1_000;

/// Records how leases ended.
pub(super) struct Settling;

/// What stands for [`Settled`] in the statements.
const DELIVERED: i16 = 0;
const RETRY: i16 = 1;
const DEAD: i16 = 2;
const RELEASED: i16 = 3;

impl Work for Settling {
    type Job = (Vec<Settlement>, Time);
    type Reply = Vec<Destination>;

    fn bytes((batch, _): &Self::Job) -> usize {
        // Errors are the only long thing.
        256 * batch.len()
    }

    async fn carry_out(shared: &Shared, lent: &Lent, jobs: &[Self::Job]) -> Done<Vec<Self::Reply>> {
        let all: Vec<&Settlement> = jobs.iter().flat_map(|(batch, _)| batch).collect();
        let now = jobs.iter().map(|(_, now)| *now).max().unwrap_or(Time::from_millis(0));
        let due = settle(lent, &all, now).await?;
        let due = shared.named(&due).await?;
        Ok(jobs.iter().map(|_| due.clone()).collect())
    }
}

async fn settle(lent: &Lent, settlements: &[&Settlement], now: Time) -> Done<Vec<DestinationId>> {
    let ids: Vec<i64> = settlements.iter().map(|s| s.id.0).collect();
    let leases: Vec<i64> =
        settlements.iter().map(|s| i64::try_from(s.lease).unwrap_or(-1)).collect();
    let (mut hows, mut ats, mut reasons, mut errors) = (vec![], vec![], vec![], vec![]);
    for settlement in settlements {
        let (how, at, reason, error) = match &settlement.settled {
            Settled::Delivered => (DELIVERED, None, None, None),
            Settled::RetryAt { at, error } => (RETRY, Some(at.millis()), None, Some(cut(error))),
            Settled::Dead { reason, error } => (DEAD, None, Some(*reason), Some(cut(error))),
            Settled::Released => (RELEASED, None, None, None),
        };
        hows.push(how);
        ats.push(at);
        reasons.push(reason);
        errors.push(error);
    }
    let now_ms = now.millis();
    let params: [Param<'_>; 7] = [
        (&ids, Type::INT8_ARRAY),
        (&leases, Type::INT8_ARRAY),
        (&hows, Type::INT2_ARRAY),
        (&ats, Type::INT8_ARRAY),
        (&reasons, Type::TEXT_ARRAY),
        (&errors, Type::TEXT_ARRAY),
        (&now_ms, Type::INT8),
    ];
    let lock =
        lent.query("SELECT id FROM outbox WHERE id = ANY($1) ORDER BY id FOR UPDATE", &params[..1]);
    let queued = lent.query(
        "UPDATE outbox o SET \
           state = CASE s.how WHEN 0 THEN 2 WHEN 2 THEN 3 ELSE 1 END, \
           attempts = o.attempts + CASE s.how WHEN 3 THEN 0 ELSE 1 END, \
           finished_at = CASE WHEN s.how IN (0, 2) THEN $7 END, \
           reason = s.reason, last_error = coalesce(s.error, o.last_error), \
           next_attempt_at = coalesce(s.at, o.next_attempt_at), \
           due_at = CASE s.how WHEN 1 THEN s.at WHEN 3 THEN o.next_attempt_at ELSE o.due_at END, \
           leased_until = 0 \
         FROM unnest($1::BIGINT[], $2::BIGINT[], $3::SMALLINT[], $4::BIGINT[], $5::TEXT[], \
           $6::TEXT[]) AS s (id, lease, how, at, reason, error) \
         WHERE o.id = s.id AND o.state = 1 AND o.lease = s.lease AND o.leased_until > 0 \
         RETURNING o.id, o.destination, o.order_key, s.how",
        &params,
    );
    let (_, _, queued) = futures::try_join!(lent.begin(), lock, queued)?;
    let mut due = Vec::new();
    let mut matched = HashSet::with_capacity(queued.len());
    // Where another message may be waiting in line.
    let mut lines = Vec::new();
    for row in &queued {
        let id: i64 = rows::get(row, 0)?;
        matched.insert(id);
        match rows::get::<i16>(row, 3)? {
            RELEASED => due.push(DestinationId(rows::get(row, 1)?)),
            DELIVERED | DEAD if rows::get::<Option<i64>>(row, 2)?.is_some() => lines.push(id),
            _ => {}
        }
    }
    if matched.len() < ids.len() {
        lines.extend(ids.iter().filter(|id| !matched.contains(id)));
        due.extend(settle_withdrawn(lent, &ids, &leases, &hows, now).await?);
    }
    if !lines.is_empty() {
        let promoted = line::promote(lent, Lines::Left, &lines, now).await?;
        due.extend(promoted.iter().map(|p| p.destination));
    }
    lent.commit().await?;
    Ok(due)
}

/// A message was sent although its wait was over meanwhile: that is what happened. And whoever waits
/// for it in its line may go on: gives where to.
async fn settle_withdrawn(
    lent: &Lent,
    ids: &[i64],
    leases: &[i64],
    hows: &[i16],
    now: Time,
) -> Done<Vec<DestinationId>> {
    let now_ms = now.millis();
    let params: [Param<'_>; 4] = [
        (&ids, Type::INT8_ARRAY),
        (&leases, Type::INT8_ARRAY),
        (&hows, Type::INT2_ARRAY),
        (&now_ms, Type::INT8),
    ];
    let withdrawn = lent.query(
        "UPDATE outbox o SET \
           state = CASE s.how WHEN 0 THEN 2 ELSE o.state END, \
           attempts = o.attempts + CASE s.how WHEN 0 THEN 1 ELSE 0 END, \
           finished_at = CASE s.how WHEN 0 THEN $4 ELSE o.finished_at END, \
           leased_until = CASE WHEN o.lease = s.lease THEN 0 ELSE o.leased_until END \
         FROM unnest($1::BIGINT[], $2::BIGINT[], $3::SMALLINT[]) AS s (id, lease, how) \
         WHERE o.id = s.id AND o.state = 4 AND (o.lease = s.lease OR s.how = 0)",
        &params,
    );
    let let_go = lent.query(
        "UPDATE outbox o SET due_at = o.next_attempt_at, held_by = NULL \
         WHERE o.held_by IS NOT NULL AND o.held_by = ANY($1) AND o.state = 1 \
         AND (SELECT r.leased_until FROM outbox r WHERE r.id = o.held_by) = 0 \
         RETURNING o.destination",
        &params[..1],
    );
    let (_, let_go) = futures::try_join!(withdrawn, let_go)?;
    let_go.iter().map(|row| Ok(DestinationId(rows::get(row, 0)?))).collect()
}

fn cut(error: &str) -> String {
    let error = match error.char_indices().nth(MOST_OF_AN_ERROR) {
        Some((at, _)) => &error[..at],
        None => error,
    };
    rows::text(error)
}
