//! What every operation of the store has at hand.

use super::connect::Link;
use super::fail::{Done, Fail};
use super::{hashes, rows};
use crate::store::destinations::{DestinationId, Destinations};
use crate::store::sqlite::Mint;
use answerback_contract::EventId;
use answerback_core::{Destination, Rules};
use futures::FutureExt as _;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use tokio_postgres::types::Type;

/// Shared by all operations.
pub(super) struct Shared {
    pub(super) link: Link,
    pub(super) rules: Arc<Rules>,
    mint: Mint,
    known: RwLock<Destinations>,
}

impl Shared {
    pub(super) fn new(link: Link, rules: Arc<Rules>, mint: Mint) -> Self {
        Self { link, rules, mint, known: RwLock::default() }
    }

    /// A fresh id of an event.
    pub(super) fn mint(&self) -> EventId {
        (self.mint)()
    }

    fn known(&self) -> RwLockReadGuard<'_, Destinations> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a destination, as far as this daemon has met it.
    pub(super) fn id(&self, destination: &Destination) -> Option<DestinationId> {
        self.known().id(destination)
    }

    /// The number of a destination, looked up where this daemon has not met it; `None` when no
    /// daemon ever had anything for it.
    pub(super) async fn look_up(&self, destination: &Destination) -> Done<Option<DestinationId>> {
        if let Some(id) = self.id(destination) {
            return Ok(Some(id));
        }
        self.refresh().await?;
        Ok(self.id(destination))
    }

    /// Reads all destinations: other daemons add some.
    pub(super) async fn refresh(&self) -> Done<()> {
        let found = self
            .link
            .read(|lent| {
                lent.query("SELECT id, kind, name FROM destinations ORDER BY id", &[]).boxed()
            })
            .await?;
        let mut all = Vec::with_capacity(found.len());
        for row in &found {
            let (kind, name): (&str, &str) = (rows::get(row, 1)?, rows::get(row, 2)?);
            let destination = Destination::kept(kind, name)
                .ok_or_else(|| Fail::Corrupt(format!("an unknown kind of destination `{kind}`")))?;
            all.push((DestinationId(rows::get(row, 0)?), destination));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for (id, destination) in all {
            known.insert(id, destination);
        }
        Ok(())
    }

    /// Gives numbers to destinations that have none yet, in a transaction of its own: a number that
    /// nothing is queued for does no harm.
    pub(super) async fn intern<'d>(
        &self,
        destinations: impl IntoIterator<Item = &'d Destination>,
    ) -> Done<()> {
        let mut fresh: Vec<&Destination> = {
            let known = self.known();
            destinations.into_iter().filter(|d| known.id(d).is_none()).collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
        // In one order everywhere, so that two daemons at the same never block each other.
        fresh.sort_by_key(|d| hashes::destination(d));
        fresh.dedup();
        let part = |n: usize| -> Arc<Vec<String>> {
            let of = |d: &&Destination| {
                let (kind, name) = d.parts();
                if n == 0 { kind.to_owned() } else { rows::text(name) }
            };
            Arc::new(fresh.iter().map(of).collect())
        };
        let (kinds, names) = (part(0), part(1));
        let keys = Arc::new(
            fresh.iter().map(|d| hashes::destination(d).to_vec()).collect::<Vec<Vec<u8>>>(),
        );
        self.link
            .read(move |lent| {
                let (kinds, names, keys) = (kinds.clone(), names.clone(), keys.clone());
                async move {
                    lent.query(
                        "INSERT INTO destinations (kind, name, hash) \
                         SELECT kind, name, hash FROM unnest($1::TEXT[], $2::TEXT[], $3::BYTEA[]) \
                         AS fresh (kind, name, hash) ON CONFLICT (hash) DO NOTHING",
                        &[
                            (&*kinds, Type::TEXT_ARRAY),
                            (&*names, Type::TEXT_ARRAY),
                            (&*keys, Type::BYTEA_ARRAY),
                        ],
                    )
                    .await
                }
                .boxed()
            })
            .await?;
        self.refresh().await
    }

    /// The destination of a number, if this daemon has met it; else see [`Self::refresh`].
    pub(super) fn get(&self, id: DestinationId) -> Option<Destination> {
        self.known().get(id).cloned()
    }

    /// All that this daemon has met.
    pub(super) fn all(&self) -> Vec<(DestinationId, Destination)> {
        self.known().iter().map(|(id, destination)| (id, destination.clone())).collect()
    }

    /// The destinations of these numbers, each once, in order.
    pub(super) async fn named(&self, ids: &[DestinationId]) -> Done<Vec<Destination>> {
        let mut distinct: Vec<DestinationId> = Vec::new();
        for id in ids {
            if !distinct.contains(id) {
                distinct.push(*id);
            }
        }
        if distinct.iter().any(|id| self.known().get(*id).is_none()) {
            self.refresh().await?;
        }
        Ok(distinct.into_iter().filter_map(|id| self.get(id)).collect())
    }
}
