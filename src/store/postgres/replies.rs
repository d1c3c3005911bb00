//! Replies kept under an `Idempotency-Key`, and the probe.

use super::fail::{Done, Fail};
use super::shared::Shared;
use super::{hashes, rows};
use crate::store::KeptReply;
use answerback_contract::Time;
use futures::FutureExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::types::Type;

/// How long a reply counts (contract, section 3); a purge only frees its space.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);

/// The reply kept under a key.
pub(super) async fn kept(shared: &Shared, scope: String, now: Time) -> Done<Option<KeptReply>> {
    let hash = hashes::scope(&scope);
    let since = now.before(KEPT_FOR).millis();
    let found = shared
        .link
        .read(move |lent| {
            async move {
                lent.query(
                    "SELECT body_hash, status, body FROM replies \
                     WHERE scope_hash = $1 AND kept_at > $2",
                    &[(&&hash[..], Type::BYTEA), (&since, Type::INT8)],
                )
                .await
            }
            .boxed()
        })
        .await?;
    let Some(row) = found.first() else { return Ok(None) };
    let body_hash = <[u8; 32]>::try_from(rows::get::<&[u8]>(row, 0)?)
        .map_err(|_| Fail::Corrupt("an impossible hash of a body".to_owned()))?;
    let status = u16::try_from(rows::number(row, 1)?)
        .map_err(|_| Fail::Corrupt("an impossible HTTP status".to_owned()))?;
    Ok(Some(KeptReply { body_hash, status, body: rows::get::<&[u8]>(row, 2)?.to_vec() }))
}

/// Keeps a reply, unless one is kept.
pub(super) async fn keep(shared: &Shared, scope: String, reply: KeptReply, now: Time) -> Done<()> {
    let hash = hashes::scope(&scope);
    let (now, since) = (now.millis(), now.before(KEPT_FOR).millis());
    let reply = Arc::new(reply);
    shared
        .link
        .read(move |lent| {
            let reply = Arc::clone(&reply);
            async move {
                lent.query(
                    "INSERT INTO replies (scope_hash, body_hash, status, body, kept_at) \
                     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (scope_hash) DO UPDATE SET \
                     body_hash = excluded.body_hash, status = excluded.status, \
                     body = excluded.body, kept_at = excluded.kept_at \
                     WHERE replies.kept_at <= $6",
                    &[
                        (&&hash[..], Type::BYTEA),
                        (&&reply.body_hash[..], Type::BYTEA),
                        (&i32::from(reply.status), Type::INT4),
                        (&&reply.body[..], Type::BYTEA),
                        (&now, Type::INT8),
                        (&since, Type::INT8),
                    ],
                )
                .await
            }
            .boxed()
        })
        .await?;
    Ok(())
}

/// Writes something and reads it again.
pub(super) async fn probe(shared: &Shared, now: Time) -> Done<()> {
    let now = now.millis();
    let read = shared
        .link
        .read(move |lent| {
            async move {
                lent.query(
                    "INSERT INTO probe (id, at) VALUES (1, $1) \
                     ON CONFLICT (id) DO UPDATE SET at = excluded.at RETURNING at",
                    &[(&now, Type::INT8)],
                )
                .await
            }
            .boxed()
        })
        .await?;
    let read: Option<i64> = read.first().map(|row| rows::get(row, 0)).transpose()?;
    if read == Some(now) { Ok(()) } else { Err(Fail::Corrupt("a probe".to_owned())) }
}
