//! How much is queued where, counted as it changes, so that asking costs nothing.

use super::destinations::DestinationId;
use answerback_contract::Time;
use std::collections::{BTreeMap, HashMap};

/// More buckets than this a destination, and they are made twice as wide.
const MOST_BUCKETS: usize = 4_096;

/// Counts what is queued by destination and by when it was queued.
///
/// The age is kept in buckets of a second, wider for destinations with a long backlog, so the
/// oldest is known to within a bucket: about a four-thousandth of the backlog's span.
#[derive(Debug, Default)]
pub(super) struct Depths(HashMap<DestinationId, Buckets>);

#[derive(Debug)]
struct Buckets {
    width: i64,
    counts: BTreeMap<i64, Bucket>,
    total: u64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    count: u64,
    oldest: Time,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { width: 1_000, counts: BTreeMap::new(), total: 0 }
    }
}

impl Buckets {
    fn add(&mut self, queued_at: Time, count: u64) {
        let key = queued_at.millis().div_euclid(self.width);
        let bucket = self.counts.entry(key).or_insert(Bucket { count: 0, oldest: queued_at });
        bucket.count += count;
        bucket.oldest = bucket.oldest.min(queued_at);
        self.total += count;
        if self.counts.len() > MOST_BUCKETS {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.width *= 2;
        let mut wider = BTreeMap::<i64, Bucket>::new();
        for bucket in self.counts.values() {
            let key = bucket.oldest.millis().div_euclid(self.width);
            let into = wider.entry(key).or_insert(Bucket { count: 0, oldest: bucket.oldest });
            into.count += bucket.count;
            into.oldest = into.oldest.min(bucket.oldest);
        }
        self.counts = wider;
    }

    fn remove(&mut self, queued_at: Time) {
        self.total = self.total.saturating_sub(1);
        let key = queued_at.millis().div_euclid(self.width);
        if let Some(bucket) = self.counts.get_mut(&key) {
            bucket.count = bucket.count.saturating_sub(1);
            if bucket.count == 0 {
                self.counts.remove(&key);
            }
        }
    }
}

impl Depths {
    pub(super) fn add(&mut self, destination: DestinationId, queued_at: Time, count: u64) {
        self.0.entry(destination).or_default().add(queued_at, count);
    }

    pub(super) fn remove(&mut self, destination: DestinationId, queued_at: Time) {
        if let Some(buckets) = self.0.get_mut(&destination) {
            buckets.remove(queued_at);
            if buckets.total == 0 {
                self.0.remove(&destination);
            }
        }
    }

    /// How many are queued for a destination.
    pub(super) fn queued(&self, destination: DestinationId) -> u64 {
        self.0.get(&destination).map_or(0, |buckets| buckets.total)
    }

    /// Every destination with something queued, how much, and since when about.
    pub(super) fn all(&self) -> impl Iterator<Item = (DestinationId, u64, Option<Time>)> + '_ {
        self.0.iter().map(|(destination, buckets)| {
            let oldest = buckets.counts.values().next().map(|bucket| bucket.oldest);
            (*destination, buckets.total, oldest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(depths: &Depths) -> Option<(u64, Option<Time>)> {
        depths.all().next().map(|(_, queued, oldest)| (queued, oldest))
    }

    #[test]
    fn the_oldest_goes_and_the_next_oldest_is_told() {
        let (lane, mut depths) = (DestinationId(1), Depths::default());
        let at = |ms| Time::from_millis(ms);
        depths.add(lane, at(5_500), 1);
        depths.add(lane, at(9_000), 2);
        assert_eq!(one(&depths), Some((3, Some(at(5_500)))));
        depths.remove(lane, at(5_500));
        assert_eq!(one(&depths), Some((2, Some(at(9_000)))));
        depths.remove(lane, at(9_000));
        depths.remove(lane, at(9_000));
        assert_eq!(one(&depths), None);
        assert_eq!(depths.queued(lane), 0);
    }

    #[test]
    fn a_long_backlog_needs_few_buckets_and_still_counts_down_to_nothing() {
        let (lane, mut depths) = (DestinationId(1), Depths::default());
        let times = || (0..50_000).map(|n| Time::from_millis(n * 1_700));
        for at in times() {
            depths.add(lane, at, 1);
        }
        let (queued, oldest) = one(&depths).unwrap();
        assert_eq!((queued, oldest), (50_000, Some(Time::from_millis(0))));
        assert!(depths.0[&lane].counts.len() <= MOST_BUCKETS);
        for at in times().take(49_999) {
            depths.remove(lane, at);
        }
        let (queued, oldest) = one(&depths).unwrap();
        assert_eq!(queued, 1);
        let off = oldest.unwrap().until(Time::from_millis(49_999 * 1_700));
        assert!(off.as_millis() <= u128::try_from(depths.0[&lane].width).unwrap());
        depths.remove(lane, Time::from_millis(49_999 * 1_700));
        assert!(one(&depths).is_none());
    }
}
