//! Long polls that wait for a wait's end, woken by name and not all at once.

use answerback_core::WaitId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

type Waiting = HashMap<WaitId, watch::Sender<()>>;

/// Who waits for the end of which wait. Cheap to clone.
#[derive(Clone, Default)]
pub struct Watchers(Arc<Mutex<Waiting>>);

/// One watcher of one wait.
pub struct Watch {
    wait: WaitId,
    ended: watch::Receiver<()>,
    all: Watchers,
}

impl Watchers {
    /// Watches from now on. Look at the wait *after* this, then [`Watch::ended`]: so no end goes
    /// unseen.
    #[must_use]
    pub fn watch(&self, wait: WaitId) -> Watch {
        let mut waiting = self.lock();
        let sender = waiting.entry(wait).or_insert_with(|| watch::Sender::new(()));
        Watch { wait, ended: sender.subscribe(), all: self.clone() }
    }

    /// A wait has ended, or may have.
    pub fn wake(&self, wait: WaitId) {
        let sender = self.lock().remove(&wait);
        if let Some(sender) = sender {
            sender.send_replace(());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Returns once the wait has ended, or may have, since the watch began.
    pub async fn ended(&mut self) {
        // A dropped sender woke us too: nobody else drops it.
        let _ = self.ended.changed().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut waiting = self.all.lock();
        // This receiver is still counted.
        if waiting.get(&self.wait).is_some_and(|sender| sender.receiver_count() <= 1) {
            waiting.remove(&self.wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_between_watching_and_waiting_is_seen() {
        let watchers = Watchers::default();
        let mut watch = watchers.watch(WaitId(1));
        watchers.wake(WaitId(1));
        watch.ended().await;
    }

    #[tokio::test]
    async fn nothing_is_left_behind() {
        let watchers = Watchers::default();
        let first = watchers.watch(WaitId(1));
        let mut second = watchers.watch(WaitId(1));
        drop(first);
        assert_eq!(watchers.lock().len(), 1);
        watchers.wake(WaitId(1));
        second.ended().await;
        drop(second);
        drop(watchers.watch(WaitId(2)));
        assert!(watchers.lock().is_empty());
    }
}
