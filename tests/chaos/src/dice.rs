//! Randomness that a seed repeats.

use std::time::Duration;

/// SplitMix64: small, and good enough to choose faults by.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// For one purpose of a run: `what` keeps purposes apart, so that one more roll here changes
    /// nothing there.
    #[must_use]
    pub fn new(seed: u64, what: &str) -> Self {
        let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
        for byte in what.bytes() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let mut dice = Self(state);
        dice.roll();
        dice
    }

    /// Any number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to `below`, without it.
    pub fn below(&mut self, below: u64) -> u64 {
        self.roll() % below.max(1)
    }

    /// An index into something of so many.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// From `least` to `most` milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// The same as a duration.
    pub fn pause(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.millis(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_rolls_and_purposes_differ() {
        let rolls = |seed, what| {
            let mut dice = Dice::new(seed, what);
            [dice.roll(), dice.roll(), dice.roll()]
        };
        assert_eq!(rolls(1, "faults"), rolls(1, "faults"));
        assert_ne!(rolls(1, "faults"), rolls(2, "faults"));
        assert_ne!(rolls(1, "faults"), rolls(1, "load"));
    }
}
