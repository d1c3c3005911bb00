//! Destinations and the numbers that rows have for them.

use answerback_core::Destination;
use std::collections::HashMap;

/// A destination's number in this store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct DestinationId(pub(super) i64);

/// The `destinations` table, in memory. They are few.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    ids: HashMap<Destination, DestinationId>,
    known: HashMap<DestinationId, Destination>,
}

impl Destinations {
    pub(super) fn insert(&mut self, id: DestinationId, destination: Destination) {
        self.ids.insert(destination.clone(), id);
        self.known.insert(id, destination);
    }

    pub(super) fn id(&self, destination: &Destination) -> Option<DestinationId> {
        self.ids.get(destination).copied()
    }

    pub(super) fn get(&self, id: DestinationId) -> Option<&Destination> {
        self.known.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DestinationId, &Destination)> {
        self.known.iter().map(|(id, destination)| (*id, destination))
    }
}
