//! Who holds what: the leases that were given out, as the store should see them.

use answerback::contract::{ThreadId, Time};
use answerback::core::{Destination, Leased, OutboxId, WaitId};
use std::collections::{BTreeMap, BTreeSet};

/// What messages must not overtake each other in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    Announcements(Destination, ThreadId),
    Answers(ThreadId),
}

impl Line {
    pub(crate) fn of(message: &Leased) -> Option<Self> {
        let thread = message.wait.thread_id.clone();
        match &message.destination {
            Destination::Announcer(name) if crate::buses::is_ordered(name.as_str()) => {
                Some(Self::Announcements(message.destination.clone(), thread))
            }
            Destination::Announcer(_) | Destination::Pull => None,
            Destination::Route(_) | Destination::ReplyTo(_) => Some(Self::Answers(thread)),
        }
    }
}

struct Held {
    lease: u64,
    until: Time,
    line: Option<Line>,
}

#[derive(Default)]
pub(crate) struct Ledger {
    held: BTreeMap<OutboxId, Held>,
    waits: BTreeMap<OutboxId, WaitId>,
    /// Messages of which a lease ran out: only their attempts may overlap with others.
    pub(crate) lapsed: BTreeSet<OutboxId>,
}

impl Ledger {
    pub(crate) fn holds(&self, id: OutboxId, lease: u64) -> bool {
        self.held.get(&id).is_some_and(|held| held.lease == lease)
    }

    pub(crate) fn wait_of(&self, id: OutboxId) -> Option<WaitId> {
        self.waits.get(&id).copied()
    }

    /// A lease was given; what must not have been is told.
    pub(crate) fn granted(&mut self, message: &Leased, now: Time, until: Time) -> Vec<String> {
        let mut wrong = Vec::new();
        let (id, line) = (message.id, Line::of(message));
        self.waits.insert(id, message.wait.id);
        let rivals: Vec<OutboxId> = self
            .held
            .iter()
            .filter(|(other, held)| **other == id || (line.is_some() && held.line == line))
            .map(|(other, _)| *other)
            .collect();
        for rival in rivals {
            let Some(held) = self.held.remove(&rival) else { continue };
            if held.until > now {
                wrong.push(format!(
                    "message {} is given out at {now} though {} is held until {}",
                    id.0, rival.0, held.until
                ));
            }
            self.lapsed.insert(rival);
        }
        self.held.insert(id, Held { lease: message.lease, until, line });
        wrong
    }

    pub(crate) fn ended(&mut self, id: OutboxId, lease: u64) {
        if self.holds(id, lease) {
            self.held.remove(&id);
        }
    }

    /// What is held beyond an instant.
    pub(crate) fn held_beyond(&self, now: Time) -> Vec<(OutboxId, Time)> {
        let beyond = self.held.iter().filter(|(_, held)| held.until > now);
        beyond.map(|(id, held)| (*id, held.until)).collect()
    }
}
