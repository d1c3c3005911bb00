//! Time as the figures need it: microseconds since a run began.

use std::time::Duration;
use tokio::time::Instant;

/// Started once a run, copied to whoever stamps something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts at zero.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Since the start.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// Microseconds since the start. Stays at its largest value after 71 minutes; no run is so long.
    pub(crate) fn micros(self) -> u32 {
        u32::try_from(self.elapsed().as_micros()).unwrap_or(u32::MAX - 1)
    }
}

/// Sleeps with the kernel's precision of some 50 µs. The runtime's timers tick in whole
/// milliseconds, which is more than the latencies that an open loop is there to measure.
#[expect(clippy::disallowed_methods, reason = "a pacer's very task is to wait for time")]
pub(crate) fn sleep_precisely(time: Duration) {
    std::thread::sleep(time);
}

/// Milliseconds since the epoch, to place a broker's own timestamps on a stopwatch.
#[expect(clippy::disallowed_methods, reason = "the only look at the wall clock in this crate")]
pub(crate) fn epoch_millis() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
