//! Which faults when: derived from the seed and nothing else, so that a seed repeats a run's faults.
//!
//! Faults come in *lanes*: within one they follow each other, lanes overlap freely. So one replica
//! is never killed while it is stopped, but is stopped while the database restarts under another
//! whose clock is wrong.

use crate::dice::Dice;
use serde::{Deserialize, Serialize};

/// Where messages arrive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize, Serialize)]
pub enum Place {
    /// A webhook that is told of new waits: the approvers.
    Hook,
    /// A webhook that is told of every event.
    Life,
    /// A topic of Kafka.
    Stream,
    /// The host behind a configured route.
    Host,
    /// The host that envelopes name.
    ReplyTo,
}

impl Place {
    /// Those that the harness serves by HTTP.
    pub const SERVED: [Self; 4] = [Self::Hook, Self::Life, Self::Host, Self::ReplyTo];

    /// Its path, and its name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hook => "hook",
            Self::Life => "life",
            Self::Stream => "stream",
            Self::Host => "host",
            Self::ReplyTo => "reply",
        }
    }
}

/// What goes wrong.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub enum Fault {
    /// `kill -9`; started again when the fault ends.
    Kill {
        /// Which replica.
        replica: usize,
    },
    /// SIGSTOP, then SIGCONT.
    Stop {
        /// Which replica.
        replica: usize,
    },
    /// Connections to the database are cut and refused.
    Cut {
        /// Which replica.
        replica: usize,
    },
    /// Every piece that comes from or goes to the database is late.
    Slow {
        /// Which replica.
        replica: usize,
        /// By so much.
        millis: u64,
    },
    /// Connections to the database stay, but nothing comes through.
    Stall {
        /// Which replica.
        replica: usize,
    },
    /// The database stops: in good order, or by an immediate end. Started when the fault ends.
    Database {
        /// Without a chance to do anything.
        immediate: bool,
    },
    /// The clock is set; and back when the fault ends.
    Step {
        /// Which replica.
        replica: usize,
        /// By so many milliseconds.
        millis: i64,
    },
    /// A receiver refuses everything.
    Down {
        /// Which.
        place: Place,
    },
    /// A receiver takes connections and never answers.
    Hang {
        /// Which.
        place: Place,
    },
}

impl Fault {
    /// Its kind, for counting.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill -9",
            Self::Stop { .. } => "SIGSTOP",
            Self::Cut { .. } => "database connections cut",
            Self::Slow { .. } => "database connections slow",
            Self::Stall { .. } => "database connections stalled",
            Self::Database { immediate: false } => "database restarted",
            Self::Database { immediate: true } => "database killed",
            Self::Step { millis, .. } if *millis < 0 => "clock set back",
            Self::Step { .. } => "clock set forward",
            Self::Down { .. } => "receiver refuses",
            Self::Hang { .. } => "receiver hangs",
        }
    }

    /// The replica that it is about.
    #[must_use]
    pub fn replica(&self) -> Option<usize> {
        match self {
            Self::Kill { replica }
            | Self::Stop { replica }
            | Self::Cut { replica }
            | Self::Slow { replica, .. }
            | Self::Stall { replica }
            | Self::Step { replica, .. } => Some(*replica),
            Self::Database { .. } | Self::Down { .. } | Self::Hang { .. } => None,
        }
    }
}

/// A fault that is to be.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Planned {
    /// Milliseconds after the beginning.
    pub at: u64,
    /// Milliseconds that it lasts.
    pub lasts: u64,
    /// Which.
    pub fault: Fault,
}

/// What a schedule is made for.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Daemons.
    pub replicas: usize,
    /// Milliseconds with faults; each ends before they are over.
    pub millis: u64,
    /// Whether there is a database to stop and connections to it.
    pub database: bool,
    /// How long a lease holds, in milliseconds; stops that outlast it are made when there is time.
    pub lease: u64,
}

/// The faults of a seed, by their beginnings.
#[must_use]
pub fn schedule(seed: u64, extent: Extent) -> Vec<Planned> {
    let mut all = Vec::new();
    for replica in 0..extent.replicas {
        lane(&mut all, seed, &format!("process {replica}"), extent, (4_000, 14_000), |dice| {
            match dice.below(100) {
                0..55 => (Fault::Kill { replica }, dice.millis(50, 3_000)),
                55..94 => (Fault::Stop { replica }, dice.millis(100, 6_000)),
                _ => (Fault::Stop { replica }, extent.lease + dice.millis(1_000, 6_000)),
            }
        });
        lane(&mut all, seed, &format!("clock {replica}"), extent, (6_000, 20_000), |dice| {
            let far = i64::try_from(extent.lease).unwrap_or(0) + 5_000;
            let millis = match dice.below(6) {
                0 => -far,
                1 => far,
                2 => -i64::try_from(dice.millis(50, 1_000)).unwrap_or(0),
                3 => i64::try_from(dice.millis(50, 1_000)).unwrap_or(0),
                4 => -i64::try_from(dice.millis(1_000, 20_000)).unwrap_or(0),
                _ => i64::try_from(dice.millis(1_000, 20_000)).unwrap_or(0),
            };
            (Fault::Step { replica, millis }, dice.millis(500, 15_000))
        });
        if extent.database {
            lane(&mut all, seed, &format!("link {replica}"), extent, (3_000, 12_000), |dice| {
                match dice.below(4) {
                    0 => (Fault::Cut { replica }, dice.millis(1, 100)),
                    1 => (Fault::Cut { replica }, dice.millis(500, 5_000)),
                    2 => {
                        let millis = dice.millis(5, 400);
                        (Fault::Slow { replica, millis }, dice.millis(500, 6_000))
                    }
                    _ => (Fault::Stall { replica }, dice.millis(300, 12_000)),
                }
            });
        }
    }
    if extent.database {
        lane(&mut all, seed, "database", extent, (12_000, 40_000), |dice| {
            (Fault::Database { immediate: dice.percent(60) }, dice.millis(100, 4_000))
        });
    }
    for place in Place::SERVED {
        let name = format!("receiver {}", place.name());
        lane(&mut all, seed, &name, extent, (6_000, 25_000), |dice| match dice.percent(60) {
            true => (Fault::Down { place }, dice.millis(200, 5_000)),
            false => (Fault::Hang { place }, dice.millis(200, 4_000)),
        });
    }
    all.sort_by_key(|planned| planned.at);
    all
}

/// One lane: a pause between `least` and `most`, a fault, and again. What would not end in time is
/// left out.
fn lane(
    all: &mut Vec<Planned>,
    seed: u64,
    name: &str,
    extent: Extent,
    (least, most): (u64, u64),
    mut fault: impl FnMut(&mut Dice) -> (Fault, u64),
) {
    let mut dice = Dice::new(seed, name);
    // In a short run the first fault must not be the last.
    let mut at = dice.millis(least / 4, most / 2);
    loop {
        let (fault, lasts) = fault(&mut dice);
        if at >= extent.millis {
            return;
        }
        if at + lasts < extent.millis {
            all.push(Planned { at, lasts, fault });
            at += lasts;
        }
        at += dice.millis(least, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const EXTENT: Extent = Extent { replicas: 3, millis: 660_000, database: true, lease: 62_000 };

    #[test]
    fn the_seed_alone_makes_the_schedule() {
        assert_eq!(schedule(7, EXTENT), schedule(7, EXTENT));
        assert_ne!(schedule(7, EXTENT), schedule(8, EXTENT));
    }

    #[test]
    fn a_long_run_has_every_kind_and_a_stop_longer_than_a_lease() {
        for seed in 1..=5 {
            let faults = schedule(seed, EXTENT);
            let kinds: BTreeSet<_> = faults.iter().map(|p| p.fault.kind()).collect();
            assert_eq!(kinds.len(), 11, "seed {seed}: {kinds:?}");
            assert!(
                faults
                    .iter()
                    .any(|p| { matches!(p.fault, Fault::Stop { .. }) && p.lasts > EXTENT.lease }),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn faults_end_in_time_and_a_lane_does_not_overlap_itself() {
        let faults = schedule(3, EXTENT);
        assert!(faults.iter().all(|p| p.at + p.lasts < EXTENT.millis));
        for replica in 0..3 {
            let mut until = 0;
            for planned in faults.iter().filter(|p| {
                p.fault.replica() == Some(replica)
                    && matches!(p.fault, Fault::Kill { .. } | Fault::Stop { .. })
            }) {
                assert!(planned.at >= until);
                until = planned.at + planned.lasts;
            }
        }
    }

    #[test]
    fn without_a_database_server_none_is_stopped() {
        let faults = schedule(1, Extent { database: false, ..EXTENT });
        assert!(faults.iter().all(|p| !matches!(
            p.fault,
            Fault::Database { .. } | Fault::Cut { .. } | Fault::Slow { .. } | Fault::Stall { .. }
        )));
    }
}
