//! Beside a store that another daemon writes.

use super::*;
use crate::clock::SystemClock;
use crate::store::StoreError;
use answerback_core::WaitId;
use futures::FutureExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::watch;

const NEVER: Duration = Duration::from_secs(86_400);
const OFTEN: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_millis(2);

/// What another daemon has committed: a wait an event. A place is the number of events up to it.
#[derive(Default)]
struct Shared {
    waits: Mutex<Vec<WaitId>>,
    looks: AtomicUsize,
    failing: AtomicBool,
}

impl Shared {
    fn works(&self) -> StoreResult<()> {
        if self.failing.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("for a test".to_owned()));
        }
        Ok(())
    }

    fn fails(&self, fails: bool) {
        self.failing.store(fails, Ordering::SeqCst);
    }

    fn commit(&self, waits: impl IntoIterator<Item = i64>) {
        self.waits.lock().unwrap().extend(waits.into_iter().map(WaitId));
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Events for Arc<Shared> {
    async fn end(&self) -> StoreResult<Place> {
        self.works()?;
        Ok(Place(i64::try_from(self.waits.lock().unwrap().len()).unwrap()))
    }

    async fn moved(&self, after: Place) -> StoreResult<Moved> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.works()?;
        let after = usize::try_from(after.0).unwrap();
        let waits = self.waits.lock().unwrap();
        // Small steps: a look has to go on until it is at the end.
        let next = waits.len().min(after + 2);
        Ok(Moved {
            waits: waits[after..next].to_vec(),
            next: Place(i64::try_from(next).unwrap()),
            more: next < waits.len(),
        })
    }
}

struct Bench {
    shared: Arc<Shared>,
    watchers: Watchers,
    hints: watch::Sender<u64>,
}

/// One who never looks without a hint, or looks all the time.
fn follower(look_every: Duration) -> (Bench, Follower<Arc<Shared>>) {
    let (hints, received) = watch::channel(0);
    // Who looks all the time goes as soon as nobody waits.
    let linger = if look_every == OFTEN { Duration::ZERO } else { LINGER };
    let (shared, watchers) = (Arc::new(Shared::default()), Watchers::default());
    let others = Others { look_every, hints: received };
    let follower = Follower {
        events: shared.clone(),
        others,
        clock: Arc::new(SystemClock),
        watchers: watchers.clone(),
        linger,
    };
    (Bench { shared, watchers, hints }, follower)
}

fn following(look_every: Duration) -> Bench {
    let (bench, follower) = follower(look_every);
    tokio::spawn(follower.run());
    bench
}

impl Bench {
    fn hint(&self) {
        self.hints.send_modify(|n| *n += 1);
    }

    /// Watches a wait once the follower follows: coming wakes everybody once.
    async fn settled(&self, wait: i64) -> crate::intake::Watch {
        self.watchers.watch(WaitId(wait)).ended().await;
        self.watchers.watch(WaitId(wait))
    }
}

#[tokio::test]
async fn a_hint_wakes_whom_it_concerns_and_nobody_else() {
    let bench = following(NEVER);
    // Held: the follower goes on following.
    let mut second = bench.watchers.watch(WaitId(2));
    second.ended().await;
    let mut second = bench.watchers.watch(WaitId(2));
    let mut first = bench.watchers.watch(WaitId(1));
    bench.shared.commit([7, 8, 9, 1, 7]);
    bench.hint();
    first.ended().await;
    assert!(second.ended().now_or_never().is_none());
    bench.shared.commit([2]);
    bench.hint();
    second.ended().await;
}

#[tokio::test]
async fn without_a_hint_it_is_found_all_the_same() {
    let bench = following(SOON);
    let mut watch = bench.settled(1).await;
    bench.shared.commit([1]);
    watch.ended().await;
    // Nor does it need anybody who could give hints.
    let mut watch = bench.watchers.watch(WaitId(1));
    drop(bench.hints);
    bench.shared.commit([1]);
    watch.ended().await;
}

#[tokio::test]
async fn what_happened_as_somebody_came_is_not_missed() {
    let bench = following(NEVER);
    // Looked at before the event, and the follower reads the end of the feed after it.
    let mut watch = bench.watchers.watch(WaitId(1));
    bench.shared.commit([1]);
    watch.ended().await;
    assert_eq!(bench.shared.looks(), 0, "coming alone wakes");
}

#[tokio::test]
async fn streams_are_told_of_every_event() {
    let bench = following(NEVER);
    let mut events = bench.watchers.events();
    // Once for coming.
    events.more().await;
    bench.shared.commit([5]);
    bench.hint();
    events.more().await;
    assert!(events.more().now_or_never().is_none());
}

#[tokio::test]
async fn while_nobody_waits_nothing_is_read() {
    let (bench, mut follower) = follower(OFTEN);
    bench.shared.commit([1, 2, 3]);
    bench.hint();
    follower.attend().await;
    assert_eq!(bench.shared.looks(), 0);
    // Whoever comes and goes again takes the following along.
    let mut watch = bench.watchers.watch(WaitId(1));
    tokio::join!(follower.attend(), async {
        bench.shared.commit([1]);
        watch.ended().await;
    });
    let looks = bench.shared.looks();
    assert!(follower.run().now_or_never().is_none());
    assert_eq!(bench.shared.looks(), looks);
}

#[tokio::test]
async fn one_who_is_woken_in_vain_and_comes_back_is_not_woken_for_that() {
    let bench = following(NEVER);
    let mut woken = 0;
    let mut poll = async |wait: i64| {
        bench.watchers.watch(WaitId(wait)).ended().await;
        woken += 1;
    };
    poll(1).await;
    for _ in 0..100 {
        assert!(poll(1).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(woken, 1, "for coming, once");
}

#[tokio::test]
async fn a_store_that_fails_is_asked_again() {
    let bench = following(SOON);
    bench.shared.fails(true);
    let mut watch = bench.watchers.watch(WaitId(1));
    tokio::task::yield_now().await;
    assert!(watch.ended().now_or_never().is_none());
    bench.shared.fails(false);
    watch.ended().await;
    let mut watch = bench.watchers.watch(WaitId(1));
    bench.shared.fails(true);
    bench.shared.commit([1]);
    while bench.shared.looks() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(watch.ended().now_or_never().is_none());
    bench.shared.fails(false);
    watch.ended().await;
}
