//! Who waits for something to happen: long polls for the end of one wait, woken by name and not all
//! at once, and streams for any event.

use answerback_core::WaitId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, watch};

type Waiting = BTreeMap<WaitId, watch::Sender<()>>;

/// Who waits for the end of which wait, and who for any event. Cheap to clone.
#[derive(Clone, Default)]
pub struct Watchers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    events: watch::Sender<()>,
    /// Somebody came.
    attended: Notify,
}

/// One watcher of one wait.
pub struct Watch {
    wait: WaitId,
    ended: watch::Receiver<()>,
    all: Watchers,
}

/// One who follows all events.
pub struct Events(watch::Receiver<()>);

impl Watchers {
    /// Watches from now on. Look at the wait *after* this, then [`Watch::ended`]: so no end goes
    /// unseen.
    #[must_use]
    pub fn watch(&self, wait: WaitId) -> Watch {
        let ended = {
            let mut waiting = self.lock();
            waiting.entry(wait).or_insert_with(|| watch::Sender::new(())).subscribe()
        };
        self.0.attended.notify_one();
        Watch { wait, ended, all: self.clone() }
    }

    /// Follows all events from now on. Read the feed *after* this, then [`Events::more`].
    #[must_use]
    pub fn events(&self) -> Events {
        let events = self.0.events.subscribe();
        self.0.attended.notify_one();
        Events(events)
    }

    /// A wait has ended, or may have.
    pub fn wake(&self, wait: WaitId) {
        let sender = self.lock().remove(&wait);
        if let Some(sender) = sender {
            sender.send_replace(());
        }
    }

    /// Something happened to some wait, and is committed.
    pub fn happened(&self) {
        self.0.events.send_replace(());
    }

    /// Anything may have happened to any wait.
    pub(super) fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.lock());
        for sender in waiting.into_values() {
            sender.send_replace(());
        }
        self.happened();
    }

    /// Whether anybody waits for anything.
    pub(super) fn anybody(&self) -> bool {
        self.0.events.receiver_count() > 0 || !self.lock().is_empty()
    }

    /// Returns once somebody waits for something.
    pub(super) async fn attended(&self) {
        while !self.anybody() {
            self.0.attended.notified().await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events {
    /// What happened so far was looked at, or is about to be.
    pub fn seen(&mut self) {
        self.0.borrow_and_update();
    }

    /// Returns once something has happened since the last time this returned.
    pub async fn more(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody is left whom anything could happen to.
            std::future::pending::<()>().await;
        }
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
        // Whoever was woken may find another one's place here. This receiver is still counted.
        let is_last = |sender: &watch::Sender<()>| {
            sender.receiver_count() <= 1 && sender.subscribe().same_channel(&self.ended)
        };
        if waiting.get(&self.wait).is_some_and(is_last) {
            waiting.remove(&self.wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn an_end_between_watching_and_waiting_is_seen() {
        let watchers = Watchers::default();
        let mut watch = watchers.watch(WaitId(1));
        watchers.wake(WaitId(1));
        watch.ended().await;
    }

    #[tokio::test]
    async fn one_who_was_woken_leaves_the_next_one_in_place() {
        let watchers = Watchers::default();
        let mut first = watchers.watch(WaitId(1));
        watchers.wake(WaitId(1));
        first.ended().await;
        let mut second = watchers.watch(WaitId(1));
        drop(first);
        assert!(second.ended().now_or_never().is_none());
        watchers.wake(WaitId(1));
        second.ended().await;
    }

    #[tokio::test]
    async fn followers_of_all_events_are_told_of_what_comes_after_they_came() {
        let watchers = Watchers::default();
        watchers.happened();
        assert!(!watchers.anybody());
        let mut events = watchers.events();
        assert!(watchers.anybody());
        assert!(events.more().now_or_never().is_none());
        watchers.happened();
        watchers.happened();
        events.more().await;
        assert!(events.more().now_or_never().is_none());
        drop(events);
        assert!(!watchers.anybody());
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
