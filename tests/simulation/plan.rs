//! What a seed decides beforehand: how many replicas, which weather, which bounds.

use crate::random::Random;
use answerback::core::Republished;
use answerback::core::breaker::Threshold;
use answerback::core::retry::Schedule;
use std::time::Duration;

/// How often things go wrong while it storms, in thousandths.
#[derive(Clone, Debug)]
pub(crate) struct Weather {
    pub(crate) store_fails: u64,
    pub(crate) store_forgets: u64,
    /// Out of a thousand calls this many take up to two seconds, of these `very_slow` far longer.
    pub(crate) slow: u64,
    pub(crate) very_slow: u64,
    /// Attempts that do not simply work.
    pub(crate) bus_trouble: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) replicas: usize,
    /// One replica that has the store for itself, and looks for nobody else's commits.
    pub(crate) alone: bool,
    /// Whether replicas tell each other that they committed something. Such a hint may be lost.
    pub(crate) hints: bool,
    pub(crate) weather: Weather,
    pub(crate) kills: u64,
    pub(crate) freezes: u64,
    pub(crate) clock_steps: u64,
    pub(crate) restarts: u64,
    pub(crate) publishes: u64,
    /// How long the load and the storm last, in milliseconds.
    pub(crate) span: u64,
    pub(crate) attempt_timeout: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) schedule: Schedule,
    pub(crate) breaker: Threshold,
    pub(crate) republished: Republished,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let weather = match random.below(6) {
            // Without faults everything has to be right at once.
            0 => {
                Weather { store_fails: 0, store_forgets: 0, slow: 0, very_slow: 0, bus_trouble: 0 }
            }
            n => Weather {
                store_fails: *random.pick(&[0, 5, 20, 100]),
                store_forgets: *random.pick(&[0, 5, 20, 60]),
                slow: *random.pick(&[5, 20, 60]),
                very_slow: if n == 1 { 4 } else { 0 },
                bus_trouble: *random.pick(&[0, 50, 200, 500]),
            },
        };
        let calm = weather.slow == 0;
        let upheaval = |random: &mut Random, most: u64| {
            if calm { 0 } else { random.below(most + 1) }
        };
        let replicas = random.between(1, 3).try_into().unwrap();
        Self {
            seed,
            replicas,
            alone: replicas == 1 && random.chance(700),
            hints: random.chance(700),
            kills: upheaval(&mut random, 3),
            freezes: upheaval(&mut random, 2),
            clock_steps: upheaval(&mut random, 3),
            restarts: upheaval(&mut random, 1),
            publishes: random.between(5, 16),
            span: random.between(5_000, 60_000),
            attempt_timeout: Duration::from_millis(random.between(1_000, 5_000)),
            max_in_flight: random.between(1, 4).try_into().unwrap(),
            schedule: Schedule {
                initial: Duration::from_millis(*random.pick(&[50, 500])),
                max: Duration::from_secs(10),
                max_age: Duration::from_secs(*random.pick(&[30, 3_600, 3_600])),
            },
            breaker: Threshold {
                failures: *random.pick(&[2, 5, 10]),
                pause: Duration::from_secs(1),
                max_pause: Duration::from_secs(8),
            },
            republished: *random.pick(&[
                Republished::Resend,
                Republished::Resend,
                Republished::AskAgain,
                Republished::Ignore,
            ]),
            weather,
        }
    }
}
