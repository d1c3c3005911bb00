//! One run of a replica, from its start until it is killed or stopped.
//!
//! Killing is told from the outside only: from that instant on, no call of the replica reaches the
//! store, no message leaves it, and no reply comes back. Its tasks are not ended but never go on;
//! the runtime drops them with everything else at the end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(crate) struct Life {
    /// Which replica, and which of its runs.
    pub(crate) replica: usize,
    pub(crate) run: u32,
    ended: CancellationToken,
    /// Whether it ever stood still: then it may do things long after it decided to.
    stood_still: AtomicBool,
    /// Stands still until then, as if stopped by a signal or cut off from everything.
    frozen: Mutex<Option<Instant>>,
}

impl Life {
    pub(crate) fn new(replica: usize, run: u32) -> Self {
        Self {
            replica,
            run,
            ended: CancellationToken::new(),
            stood_still: AtomicBool::new(false),
            frozen: Mutex::new(None),
        }
    }

    pub(crate) fn kill(&self) {
        self.ended.cancel();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Returns once it is killed.
    pub(crate) async fn over(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn freeze(&self, until: Instant) {
        self.stood_still.store(true, Ordering::Relaxed);
        *self.frozen.lock().unwrap() = Some(until);
    }

    pub(crate) fn ever_stood_still(&self) -> bool {
        self.stood_still.load(Ordering::Relaxed)
    }

    /// Goes on after so long, not while it is frozen, and never once it is over.
    pub(crate) async fn pass(&self, after: Duration) {
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        loop {
            let frozen = *self.frozen.lock().unwrap();
            match frozen {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => break,
            }
        }
        if self.is_over() {
            std::future::pending::<()>().await;
        }
    }
}
