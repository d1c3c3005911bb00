//! When to send again, and when to give up.

use crate::model::OutboxState;
use answerback_contract::{Outcome, Rejection, Time};
use std::time::Duration;

/// `retry` of an announcer or a route: exponential with full jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The first delay's upper bound.
    pub initial: Duration,
    /// Every delay's upper bound, `Retry-After` included.
    pub max: Duration,
    /// How long after it was queued a message is given up.
    pub max_age: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(300),
            max_age: Duration::from_secs(24 * 3_600),
        }
    }
}

/// What follows from an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Done.
    Delivered,
    /// Again, not before this instant.
    RetryAt(Time),
    /// Given up, for this reason code.
    Dead(&'static str),
}

impl Verdict {
    /// The state that the message is in then.
    #[must_use]
    pub fn state(&self) -> OutboxState {
        match self {
            Self::Delivered => OutboxState::Delivered,
            Self::RetryAt(_) => OutboxState::Queued,
            Self::Dead(_) => OutboxState::Dead,
        }
    }
}

impl Schedule {
    /// The delay after the `attempts`th attempt (from 1): uniform between zero and
    /// `initial × 2^(attempts-1)`, capped, but never below what the receiver asked for, capped too.
    ///
    /// `random` is uniform over all of `u64`.
    #[must_use]
    pub fn delay(&self, attempts: u32, asked: Option<Duration>, random: u64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(32);
        let ceiling = self
            .initial
            .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
            .min(self.max);
        let millis = u64::try_from(ceiling.as_millis()).unwrap_or(u64::MAX);
        // The high half of the product is uniform in 0..=millis, without a division's bias.
        let scaled = (u128::from(random) * (u128::from(millis) + 1)) >> 64;
        let own = Duration::from_millis(u64::try_from(scaled).unwrap_or(millis));
        own.max(asked.unwrap_or_default().min(self.max))
    }

    /// What follows from an attempt's outcome.
    #[must_use]
    pub fn judge(
        &self,
        outcome: &Outcome,
        attempts: u32,
        queued_at: Time,
        now: Time,
        random: u64,
    ) -> Verdict {
        match outcome {
            Outcome::Delivered => Verdict::Delivered,
            Outcome::Rejected { rejection, .. } => Verdict::Dead(rejection.code()),
            Outcome::Retry { after, .. } => {
                let at = now.after(self.delay(attempts, *after, random));
                if at >= queued_at.after(self.max_age) {
                    Verdict::Dead("max-age")
                } else {
                    Verdict::RetryAt(at)
                }
            }
        }
    }
}

/// Whether an outcome speaks against the destination as a whole, not against one message.
#[must_use]
pub fn blames_destination(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Retry { .. } | Outcome::Rejected { rejection: Rejection::Gone, .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delays_double_up_to_the_cap() {
        let s = Schedule::default();
        let most = |attempts| s.delay(attempts, None, u64::MAX);
        assert_eq!(most(1), Duration::from_millis(500));
        assert_eq!(most(2), Duration::from_secs(1));
        assert_eq!(most(8), Duration::from_secs(64));
        assert_eq!(most(60), Duration::from_secs(300));
        assert_eq!(s.delay(5, None, 0), Duration::ZERO);
    }

    #[test]
    fn what_the_receiver_asks_for_is_a_least_delay_up_to_the_cap() {
        let s = Schedule::default();
        assert_eq!(s.delay(1, Some(Duration::from_secs(30)), 0), Duration::from_secs(30));
        assert_eq!(s.delay(1, Some(Duration::from_secs(86_400)), 0), Duration::from_secs(300));
    }

    #[test]
    fn a_message_is_given_up_at_its_age_and_at_once_when_refused() {
        let s = Schedule::default();
        let queued = Time::from_millis(0);
        let late = queued.after(Duration::from_secs(24 * 3_600));
        assert_eq!(s.judge(&Outcome::retry("x"), 9, queued, late, 0), Verdict::Dead("max-age"));
        assert_eq!(s.judge(&Outcome::refused("x"), 1, queued, queued, 0), Verdict::Dead("refused"));
        assert_eq!(s.judge(&Outcome::Delivered, 1, queued, late, 0), Verdict::Delivered);
    }

    proptest! {
        #[test]
        fn a_delay_stays_within_its_bounds(attempts in 0_u32..200, asked in proptest::option::of(0_u64..10_000_000), random: u64) {
            let s = Schedule::default();
            let delay = s.delay(attempts, asked.map(Duration::from_millis), random);
            prop_assert!(delay <= s.max);
            if let Some(asked) = asked {
                prop_assert!(delay >= Duration::from_millis(asked).min(s.max));
            }
        }
    }
}
