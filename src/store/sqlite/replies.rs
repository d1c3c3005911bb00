//! Replies kept under an `Idempotency-Key`, and the probe.

use super::fail::{Done, Fail};
use super::rows;
use super::unit::Unit;
use crate::store::KeptReply;
use answerback_contract::Time;
use rusqlite::{Connection, params};
use std::time::Duration;

/// How long a reply counts (contract, section 3); a purge only frees its space.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);

/// The reply kept under a key.
pub(super) fn kept(conn: &Connection, scope: &str, now: Time) -> Done<Option<KeptReply>> {
    let mut statement = conn.prepare_cached(
        "SELECT body_hash, status, body FROM replies WHERE scope = ?1 AND kept_at > ?2",
    )?;
    let mut found = statement.query(params![scope, now.before(KEPT_FOR).millis()])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let status = u16::try_from(rows::number(row, 1)?)
        .map_err(|_| Fail::Corrupt("an impossible HTTP status".to_owned()))?;
    Ok(Some(KeptReply { body_hash: row.get(0)?, status, body: row.get(2)? }))
}

/// Keeps a reply, unless one is kept.
pub(super) fn keep(unit: &Unit<'_>, scope: &str, reply: &KeptReply, now: Time) -> Done<()> {
    unit.conn
        .prepare_cached(
            "INSERT INTO replies (scope, body_hash, status, body, kept_at) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (scope) DO UPDATE SET \
             body_hash = excluded.body_hash, status = excluded.status, body = excluded.body, \
             kept_at = excluded.kept_at WHERE kept_at <= ?6",
        )?
        .execute(params![
            scope,
            reply.body_hash,
            reply.status,
            reply.body,
            now.millis(),
            now.before(KEPT_FOR).millis()
        ])?;
    Ok(())
}

/// Writes something and reads it again.
pub(super) fn probe(unit: &Unit<'_>, now: Time) -> Done<()> {
    let read: i64 = unit
        .conn
        .prepare_cached(
            "INSERT INTO probe (id, at) VALUES (1, ?1) \
             ON CONFLICT (id) DO UPDATE SET at = excluded.at RETURNING at",
        )?
        .query_row([now.millis()], |row| row.get(0))?;
    if read == now.millis() { Ok(()) } else { Err(Fail::Corrupt("a probe".to_owned())) }
}
