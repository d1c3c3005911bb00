//! Which messages are out with a lane, in memory.
//!
//! One process has the file, so a lease need not be written: after a crash nothing is leased. What
//! makes that safe is the order of things. A lease reads a snapshot and marks what it takes; what
//! commits in between reports here, and is not given out from the older snapshot.
//!
//! Invariants:
//! 1. A message is in `holds` once, so no two leases have it.
//! 2. Of an order key at most one message is held, also when the one that is held was withdrawn
//!    meanwhile: what comes after it must not overtake it on the wire.
//! 3. Every due message that is not held lies behind its lane's cursor, or the lane's next lease
//!    starts from the beginning.

use super::destinations::DestinationId;
use answerback_contract::Time;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// However sure of its cursor, a lane looks at everything again after so long.
const FULL_SCAN_EVERY: Duration = Duration::from_secs(1);

/// Where a message stands in its lane's queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    /// When it is due, in milliseconds.
    pub(super) due: i64,
    /// Its number.
    pub(super) id: i64,
}

impl Place {
    /// Before everything.
    pub(super) const START: Self = Self { due: i64::MIN, id: i64::MIN };

    fn just_before(self) -> Self {
        Self { id: self.id - 1, ..self }
    }
}

/// A message that a lane has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// Where it stood.
    pub(super) place: Place,
    /// Its lane.
    pub(super) destination: DestinationId,
    /// When it was queued.
    pub(super) queued_at: Time,
    /// What must not overtake it.
    pub(super) order: Option<i64>,
    /// Until when the lane has it.
    pub(super) until: Time,
}

/// What became of an offered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Offer {
    /// The lane has it, under this lease.
    Taken(u64),
    /// Another lease has it, or it was settled just now.
    Gone,
    /// One of the same order key is out until then.
    Blocked(Time),
}

#[derive(Debug, Default)]
struct Lane {
    /// Everything up to here is held or over.
    cursor: Option<Place>,
    looked_at_all: Option<Time>,
    expiries: BTreeSet<(Time, i64)>,
    reading: Option<Reading>,
    paused: bool,
}

/// What happened while a lease was reading its snapshot.
#[derive(Debug, Default)]
struct Reading {
    ended: HashSet<i64>,
    lowered: Option<Place>,
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: HashMap<DestinationId, Lane>,
    holds: HashMap<i64, (u64, Hold)>,
    /// By order key: the message that is out, and until when.
    out: HashMap<i64, (i64, Time)>,
    next_lease: u64,
}

impl Lanes {
    /// `first_lease` differs from start to start, so that no lease of an earlier one is honoured.
    pub(super) fn new(first_lease: u64) -> Self {
        Self {
            lanes: HashMap::new(),
            holds: HashMap::new(),
            out: HashMap::new(),
            next_lease: first_lease,
        }
    }

    /// Begins a lease, before its snapshot is taken: gives where to scan from, or `None` while the
    /// lane is paused. A lane has one lease under way at a time.
    pub(super) fn begin(&mut self, destination: DestinationId, now: Time) -> Option<Place> {
        let lane = self.lanes.entry(destination).or_default();
        if lane.paused {
            return None;
        }
        while let Some((until, id)) = lane.expiries.first().copied()
            && until <= now
        {
            lane.expiries.pop_first();
            if let Some((_, hold)) = self.holds.remove(&id) {
                lane.cursor = lane.cursor.map(|at| at.min(hold.place.just_before()));
                free_order(&mut self.out, id, &hold);
            }
        }
        lane.reading = Some(Reading::default());
        let fresh = lane.looked_at_all.is_some_and(|at| now < at.after(FULL_SCAN_EVERY));
        if !fresh {
            lane.cursor = None;
            lane.looked_at_all = Some(now);
        }
        Some(lane.cursor.unwrap_or(Place::START))
    }

    /// Whether a message may be offered at all: cheap, for scanning.
    pub(super) fn is_free(&self, id: i64) -> bool {
        !self.holds.contains_key(&id)
    }

    /// Takes a message for the lease that is under way.
    pub(super) fn offer(&mut self, hold: Hold, now: Time) -> Offer {
        let id = hold.place.id;
        let lane = self.lanes.entry(hold.destination).or_default();
        let ended = lane.reading.as_ref().is_some_and(|r| r.ended.contains(&id));
        if ended || self.holds.contains_key(&id) {
            return Offer::Gone;
        }
        if let Some(order) = hold.order {
            match self.out.get(&order) {
                Some((_, until)) if *until > now => return Offer::Blocked(*until),
                _ => self.out.insert(order, (id, hold.until)),
            };
        }
        let lease = self.next_lease;
        self.next_lease = self.next_lease.wrapping_add(1);
        lane.expiries.insert((hold.until, id));
        self.holds.insert(id, (lease, hold));
        Offer::Taken(lease)
    }

    /// Ends a lease that has looked at everything up to `seen`. Gives when something became due
    /// that its snapshot may not have had.
    pub(super) fn end(&mut self, destination: DestinationId, seen: Option<Place>) -> Option<Time> {
        let lane = self.lanes.entry(destination).or_default();
        let reading = lane.reading.take().unwrap_or_default();
        if let Some(seen) = seen {
            lane.cursor = Some(lane.cursor.map_or(seen, |at| at.max(seen)));
        }
        if let Some(lowered) = reading.lowered {
            lane.cursor = lane.cursor.map(|at| at.min(lowered.just_before()));
        }
        reading.lowered.map(|place| Time::from_millis(place.due))
    }

    /// Whether a lease still holds a message.
    pub(super) fn holds(&self, id: i64, lease: u64) -> Option<Hold> {
        self.holds.get(&id).filter(|(held, _)| *held == lease).map(|(_, hold)| *hold)
    }

    /// A lease is over, as was just committed.
    pub(super) fn ended(&mut self, id: i64, lease: u64) {
        let Some((held, hold)) = self.holds.get(&id).copied() else { return };
        if held != lease {
            return;
        }
        self.holds.remove(&id);
        free_order(&mut self.out, id, &hold);
        let lane = self.lanes.entry(hold.destination).or_default();
        lane.expiries.remove(&(hold.until, id));
        if let Some(reading) = &mut lane.reading {
            reading.ended.insert(id);
        }
    }

    /// A lease that nobody came to know of is undone.
    pub(super) fn undo(&mut self, id: i64, lease: u64) {
        if let Some(hold) = self.holds(id, lease) {
            self.ended(id, lease);
            self.due(hold.destination, hold.place);
        }
    }

    /// A message is due at that place, as was just committed.
    pub(super) fn due(&mut self, destination: DestinationId, place: Place) {
        let lane = self.lanes.entry(destination).or_default();
        lane.cursor = lane.cursor.map(|at| at.min(place.just_before()));
        if let Some(reading) = &mut lane.reading {
            reading.lowered = Some(reading.lowered.map_or(place, |at| at.min(place)));
        }
    }

    /// When the first lease of a lane runs out.
    pub(super) fn first_expiry(&self, destination: DestinationId) -> Option<Time> {
        let lane = self.lanes.get(&destination)?;
        lane.expiries.first().map(|(until, _)| *until)
    }

    pub(super) fn set_paused(&mut self, destination: DestinationId, paused: bool) {
        self.lanes.entry(destination).or_default().paused = paused;
    }

    pub(super) fn paused(&self) -> Vec<DestinationId> {
        self.lanes.iter().filter(|(_, lane)| lane.paused).map(|(id, _)| *id).collect()
    }
}

fn free_order(out: &mut HashMap<i64, (i64, Time)>, id: i64, hold: &Hold) {
    if let Some(order) = hold.order
        && out.get(&order).is_some_and(|(holder, _)| *holder == id)
    {
        out.remove(&order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: DestinationId = DestinationId(1);
    const OTHER: DestinationId = DestinationId(2);

    fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    fn hold(destination: DestinationId, id: i64, order: Option<i64>) -> Hold {
        let place = Place { due: 10, id };
        Hold { place, destination, queued_at: at(10), order, until: at(1_000) }
    }

    fn taken(offer: Offer) -> u64 {
        match offer {
            Offer::Taken(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_is_held_once_until_its_lease_runs_out() {
        let mut lanes = Lanes::new(7);
        assert_eq!(lanes.begin(LANE, at(20)), Some(Place::START));
        let lease = taken(lanes.offer(hold(LANE, 1, None), at(20)));
        assert_eq!(lanes.offer(hold(LANE, 1, None), at(20)), Offer::Gone);
        lanes.end(LANE, Some(Place { due: 10, id: 1 }));
        assert_eq!(lanes.begin(LANE, at(30)), Some(Place { due: 10, id: 1 }));
        assert!(!lanes.is_free(1));
        lanes.end(LANE, None);
        assert_eq!(lanes.first_expiry(LANE), Some(at(1_000)));
        let from = lanes.begin(LANE, at(1_000)).unwrap();
        assert!(from < Place { due: 10, id: 1 });
        assert!(lanes.holds(1, lease).is_none());
        assert_ne!(taken(lanes.offer(hold(LANE, 1, None), at(1_000))), lease);
    }

    #[test]
    fn what_is_settled_while_a_lease_reads_is_not_given_out_from_its_old_snapshot() {
        let mut lanes = Lanes::new(0);
        lanes.begin(LANE, at(20));
        let lease = taken(lanes.offer(hold(LANE, 1, None), at(20)));
        lanes.end(LANE, None);
        lanes.begin(LANE, at(20));
        lanes.ended(1, lease);
        assert_eq!(lanes.offer(hold(LANE, 1, None), at(20)), Offer::Gone);
        lanes.end(LANE, None);
        lanes.begin(LANE, at(20));
        assert_ne!(lanes.offer(hold(LANE, 1, None), at(20)), Offer::Gone);
    }

    #[test]
    fn what_becomes_due_while_a_lease_reads_is_not_left_behind_its_cursor() {
        let mut lanes = Lanes::new(0);
        lanes.begin(LANE, at(20));
        lanes.due(LANE, Place { due: 5, id: 9 });
        assert_eq!(lanes.end(LANE, Some(Place { due: 10, id: 3 })), Some(at(5)));
        assert!(lanes.begin(LANE, at(20)).unwrap() < Place { due: 5, id: 9 });
        lanes.end(LANE, Some(Place { due: 10, id: 3 }));
        lanes.due(LANE, Place { due: 6, id: 1 });
        assert!(lanes.begin(LANE, at(20)).unwrap() < Place { due: 6, id: 1 });
    }

    #[test]
    fn an_order_key_is_out_in_one_lane_at_a_time() {
        let mut lanes = Lanes::new(0);
        lanes.begin(LANE, at(20));
        lanes.begin(OTHER, at(20));
        let lease = taken(lanes.offer(hold(LANE, 1, Some(5)), at(20)));
        assert_eq!(lanes.offer(hold(OTHER, 2, Some(5)), at(20)), Offer::Blocked(at(1_000)));
        lanes.ended(1, lease);
        taken(lanes.offer(hold(OTHER, 2, Some(5)), at(20)));
        // The end of the first must not free the second.
        lanes.ended(1, lease);
        assert_eq!(lanes.offer(hold(LANE, 3, Some(5)), at(20)), Offer::Blocked(at(1_000)));
    }

    #[test]
    fn a_paused_lane_gives_nothing() {
        let mut lanes = Lanes::new(0);
        lanes.set_paused(LANE, true);
        assert_eq!(lanes.begin(LANE, at(20)), None);
        assert_eq!(lanes.paused(), vec![LANE]);
        lanes.set_paused(LANE, false);
        assert!(lanes.begin(LANE, at(20)).is_some());
    }
}
