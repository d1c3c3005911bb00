//! Stops asking a destination that is down, so that a dead one costs next to nothing.

use answerback_contract::Time;
use std::time::Duration;

/// `breaker` of an announcer or a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// So many failures in a row open it.
    pub failures: u32,
    /// How long it stays open the first time; doubled each time the trial fails.
    pub pause: Duration,
    /// The longest pause.
    pub max_pause: Duration,
}

impl Default for Threshold {
    fn default() -> Self {
        Self { failures: 10, pause: Duration::from_secs(1), max_pause: Duration::from_secs(30) }
    }
}

/// How many messages may be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowance {
    /// As many as the lane wants.
    All,
    /// One, to find out.
    Trial,
    /// None before this instant.
    NoneUntil(Time),
    /// None: a trial is under way.
    AwaitTrial,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Time, pause: Duration },
    HalfOpen { pause: Duration },
}

/// One destination's breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breaker {
    threshold: Threshold,
    state: State,
}

impl Breaker {
    /// Closed: everything may pass.
    #[must_use]
    pub fn new(threshold: Threshold) -> Self {
        Self { threshold, state: State::Closed { failures: 0 } }
    }

    /// How many messages may be sent now. [`Allowance::Trial`] is given once per pause.
    pub fn allow(&mut self, now: Time) -> Allowance {
        match self.state {
            State::Closed { .. } => Allowance::All,
            State::Open { until, pause } if until <= now => {
                self.state = State::HalfOpen { pause };
                Allowance::Trial
            }
            State::Open { until, .. } => Allowance::NoneUntil(until),
            State::HalfOpen { .. } => Allowance::AwaitTrial,
        }
    }

    /// The trial found nothing to send: another may be had at once.
    pub fn trial_unused(&mut self, now: Time) {
        if let State::HalfOpen { pause } = self.state {
            self.state = State::Open { until: now, pause };
        }
    }

    /// The destination answered as it should.
    pub fn succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    /// The destination failed.
    pub fn failed(&mut self, now: Time) {
        self.state = match self.state {
            State::Closed { failures } if failures + 1 < self.threshold.failures => {
                State::Closed { failures: failures + 1 }
            }
            State::Closed { .. } => {
                State::Open { until: now.after(self.threshold.pause), pause: self.threshold.pause }
            }
            State::HalfOpen { pause } => {
                let pause = pause.saturating_mul(2).min(self.threshold.max_pause);
                State::Open { until: now.after(pause), pause }
            }
            // Attempts that were under way when it opened.
            open @ State::Open { .. } => open,
        };
    }

    /// Whether it holds messages back.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_try_after_the_pause() {
        let mut b = Breaker::new(Threshold {
            failures: 3,
            pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(3),
        });
        b.failed(at(0));
        b.failed(at(0));
        b.succeeded();
        b.failed(at(0));
        b.failed(at(0));
        assert_eq!(b.allow(at(0)), Allowance::All);
        b.failed(at(0));
        assert_eq!(b.allow(at(999)), Allowance::NoneUntil(at(1_000)));
        assert_eq!(b.allow(at(1_000)), Allowance::Trial);
        assert_eq!(b.allow(at(1_000)), Allowance::AwaitTrial);
        b.failed(at(1_000));
        assert_eq!(b.allow(at(1_000)), Allowance::NoneUntil(at(3_000)));
        assert_eq!(b.allow(at(3_000)), Allowance::Trial);
        b.failed(at(3_000));
        assert_eq!(b.allow(at(3_000)), Allowance::NoneUntil(at(6_000)), "the pause is capped");
        assert_eq!(b.allow(at(6_000)), Allowance::Trial);
        b.succeeded();
        assert_eq!(b.allow(at(6_000)), Allowance::All);
    }

    #[test]
    fn an_unused_trial_is_not_lost() {
        let mut b = Breaker::new(Threshold { failures: 1, ..Threshold::default() });
        b.failed(at(0));
        assert_eq!(b.allow(at(2_000)), Allowance::Trial);
        b.trial_unused(at(2_000));
        assert_eq!(b.allow(at(2_000)), Allowance::Trial);
    }
}
