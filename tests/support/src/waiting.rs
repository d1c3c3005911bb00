//! Bounded waits.

use std::future::Future;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long a test waits for what must come. Long, for slow machines; reached only by a failure.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again, less and less often, until `ask` gives something; for facts that nobody
/// signals, such as a state behind an HTTP API.
///
/// # Panics
/// When [`PATIENCE`] is over, naming `what`.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, ask: impl FnMut() -> F) -> T {
    eventually_within(PATIENCE, what, ask).await
}

/// The same for what takes longer by its nature.
///
/// # Panics
/// When `patience` is over, naming `what`.
pub async fn eventually_within<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(Instant::now() < end, "not within {patience:?}: {what}");
        sleep(pause).await;
        pause = (pause * 3 / 2).min(Duration::from_millis(100));
    }
}

/// Holds whoever passes until it is opened; then it stays open. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed one.
    #[must_use]
    pub fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everybody pass.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn pass(&self) {
        // The sender lives in `self`, so this cannot end in an error.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}
