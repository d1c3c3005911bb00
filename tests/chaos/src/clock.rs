//! The run's own time, and the clock that a replica's can be set apart from it by.
//!
//! A step of a clock is what NTP does to a machine: the wall clock jumps, sleeps go on. So only
//! `now` is shifted, by a number that stands in a small file.

use answerback::clock::{Clock, SystemClock};
use answerback::contract::Time;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Names the file with a replica's offset, in the replica's environment.
pub const OFFSET_FILE: &str = "CHAOS_CLOCK_OFFSET";

/// Bytes of the offset: always so many, so that it is overwritten in one write.
const WIDTH: usize = 20;

/// Microseconds since the run began.
pub type At = u64;

/// The run's time: monotonic, and tied to the wall clock once.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    began: Instant,
    began_ms: i64,
}

impl Watch {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { began: Instant::now(), began_ms: SystemClock.now().millis() }
    }

    /// The wall clock's milliseconds since 1970 when the run began.
    #[must_use]
    pub fn began_ms(&self) -> i64 {
        self.began_ms
    }

    /// Microseconds since then.
    #[must_use]
    pub fn now(&self) -> At {
        At::try_from(self.began.elapsed().as_micros()).unwrap_or(At::MAX)
    }

    /// The true wall clock, for deadlines of envelopes.
    #[must_use]
    pub fn wall(&self) -> Time {
        Time::from_millis(self.began_ms + i64::try_from(self.now() / 1_000).unwrap_or(0))
    }

    /// That moment of the run.
    #[must_use]
    pub fn instant(&self, at: At) -> Instant {
        self.began + Duration::from_micros(at)
    }
}

/// Writes a replica's offset.
#[derive(Clone, Debug)]
pub struct OffsetFile(PathBuf);

impl OffsetFile {
    /// In `folder`; the offset is 0.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let file = Self(folder.join("clock"));
        file.set(0)?;
        Ok(file)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// From now on the replica's clock is so many milliseconds off.
    ///
    /// # Errors
    /// What the file system says.
    pub fn set(&self, millis: i64) -> io::Result<()> {
        let file = File::options().create(true).truncate(false).write(true).open(&self.0)?;
        file.write_all_at(format!("{millis:>WIDTH$}").as_bytes(), 0)
    }
}

/// The system's clock and what the file says.
#[derive(Debug)]
pub struct SteppedClock(File);

impl SteppedClock {
    /// By this file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    fn offset(&self) -> i64 {
        let mut text = [b' '; WIDTH];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        std::str::from_utf8(&text[..read]).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Time {
        Time::from_millis(SystemClock.now().millis() + self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replicas_clock_follows_its_file_forward_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = OffsetFile::create(folder.path()).unwrap();
        let clock = SteppedClock::open(file.path()).unwrap();
        let offset = || clock.now().millis() - SystemClock.now().millis();
        assert!((-50..50).contains(&offset()));
        file.set(90_000).unwrap();
        assert!((89_950..90_050).contains(&offset()));
        file.set(-7).unwrap();
        assert_eq!(clock.offset(), -7);
    }
}
