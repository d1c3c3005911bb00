//! Random work on a store and on a model that is too simple to be wrong: both must say the same.
//!
//! The model asks the same core what follows and keeps it in plain lists, with no index, no cursor
//! and no cache. What is tried here is the store's own part: identities, dedupe keys, order,
//! leases, withdrawals, counts.

mod plain;

use crate::kit::{announcer, any_wait, ask, feed, open, open_postgres, outbox, route, tenant};
use answerback::contract::{EventId, Generation, Time, WaitState};
use answerback::core::{
    self, AnswerOutcome, Destination, Name, OutboxId, OutboxState, RouteRule, Rules, Wait, WaitId,
};
use answerback::store::sqlite::Location;
use answerback::store::{LeaseRequest, Retried, Retry, Settled, Settlement, Store};
use answerback_testkit::postgres::Database;
use plain::Model;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What is done; numbers pick among what there is.
#[derive(Clone, Debug)]
enum Step {
    Publish { thread: u8, question: u8, value: u8, event: u8, expires: Option<u8>, default: bool },
    Answer { thread: u8, question: u8, generation: u8, value: u8 },
    Cancel(u8),
    TimeOut(u8),
    Lease { to: u8, limit: u8 },
    Settle { which: u8, how: u8 },
    Retry(u8),
    RetryAll,
    Pulled(u8),
    Advance(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2_u8, 0..3_u8, 0..2_u8, 0..8_u8, proptest::option::of(0..6_u8), any::<bool>())
            .prop_map(|(thread, question, value, event, expires, default)| Step::Publish {
                thread, question, value, event, expires, default
            }),
        3 => (0..2_u8, 0..3_u8, 1..4_u8, 0..2_u8).prop_map(|(thread, question, generation, value)| {
            Step::Answer { thread, question, generation, value }
        }),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => (1..4_u8).prop_map(Step::TimeOut),
        6 => (0..4_u8, 1..4_u8).prop_map(|(to, limit)| Step::Lease { to, limit }),
        6 => (any::<u8>(), 0..4_u8).prop_map(|(which, how)| Step::Settle { which, how }),
        1 => any::<u8>().prop_map(Step::Retry),
        1 => Just(Step::RetryAll),
        1 => any::<u8>().prop_map(Step::Pulled),
        2 => (1..4_u8).prop_map(Step::Advance),
    ]
}

const HOLD: Duration = Duration::from_millis(30);
const TICK: Duration = Duration::from_millis(10);
/// `q:2` is a question's name and another question's second dedupe key.
const QUESTIONS: [&str; 3] = ["q", "q:2", "p"];
const THREADS: [&str; 2] = ["t", "u"];

fn rules() -> Rules {
    let mut rules = crate::kit::announcing(&["!ordered*", "loose"]);
    // Answers of thread t go by a route, the others are fetched.
    let mut matcher = core::matching::Matcher::default();
    matcher.thread_prefixes.push("t".to_owned());
    rules.routes.push(RouteRule { name: Name::new("r"), tenant: tenant(), matcher, pull: false });
    rules
}

fn destination(n: u8) -> Destination {
    match n {
        0 => announcer("ordered"),
        1 => announcer("loose"),
        2 => route("r"),
        _ => Destination::Pull,
    }
}

/// Where the store is.
enum Place {
    Sqlite(Location),
    Postgres(Database),
}

impl Place {
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(location) => Arc::new(open(location.clone(), rules())),
            Self::Postgres(database) => open_postgres(database.url(), rules()).await,
        }
    }
}

/// The store and the model, side by side. The model counts from one; the store's numbers only grow.
struct Both {
    place: Place,
    store: Arc<dyn Store>,
    model: Model,
    /// The store's numbers, in the order of the model's.
    waits: Vec<i64>,
    messages: Vec<i64>,
    /// Every lease ever given: also those that are over, to be settled in vain.
    leases: Vec<(usize, u64)>,
}

impl Both {
    async fn new(place: Place) -> Self {
        let start = Time::from_millis(1_000_000);
        let model = Model {
            rules: rules(),
            now: start,
            waits: Vec::new(),
            events: BTreeSet::new(),
            messages: Vec::new(),
            held: Vec::new(),
            feed: Vec::new(),
            keeps_late: matches!(place, Place::Postgres(_)),
        };
        let store = place.open().await;
        let (waits, messages, leases) = (Vec::new(), Vec::new(), Vec::new());
        Self { place, store, model, waits, messages, leases }
    }

    /// Another process: what one process alone remembers of leases is gone.
    async fn restart(&mut self) {
        self.store.close().await;
        self.store = self.place.open().await;
        if let Place::Sqlite(_) = self.place {
            self.model.held.clear();
        }
    }

    /// Learns the numbers of what is new.
    async fn learn(&mut self) {
        let waits = self.store.list_waits(any_wait()).await.unwrap().found;
        self.waits = waits.iter().rev().map(|wait| wait.id.0).collect();
        self.messages = outbox(&*self.store).await.iter().map(|row| row.id.0).collect();
        assert!(self.waits.is_sorted() && self.messages.is_sorted());
    }

    fn wait_id(&self, number: WaitId) -> WaitId {
        WaitId(self.waits[usize::try_from(number.0).unwrap() - 1])
    }

    fn wait_number(&self, id: WaitId) -> WaitId {
        let at = self.waits.binary_search(&id.0).unwrap();
        WaitId(i64::try_from(at).unwrap() + 1)
    }

    /// One past the last is a message that does not exist.
    fn message_id(&self, n: usize) -> OutboxId {
        OutboxId(self.messages.get(n).copied().unwrap_or(i64::MAX))
    }

    fn message_number(&self, id: OutboxId) -> usize {
        self.messages.binary_search(&id.0).unwrap()
    }

    async fn step(&mut self, step: &Step) {
        let now = self.model.now;
        match step {
            Step::Publish { thread, question, value, event, expires, default } => {
                let (thread, question) =
                    (THREADS[usize::from(*thread)], QUESTIONS[usize::from(*question)]);
                let mut asked = ask(thread, question).question(&value.to_string());
                if let Some(ticks) = expires {
                    asked = asked.expires(now.after(TICK * u32::from(*ticks)));
                }
                if *default {
                    asked = asked.with("default", "\"no\"");
                }
                let mut publish = asked.publish();
                if *event < 4 {
                    publish.event_id = EventId::new(&format!("e{event}")).unwrap();
                }
                let told = self.store.publish(vec![publish.clone()], now).await.unwrap();
                assert_eq!((told[0].outcome, told[0].rest.clone()), self.model.publish(&publish));
            }
            Step::Answer { thread, question, generation, value } => {
                let (thread, question) =
                    (THREADS[usize::from(*thread)], QUESTIONS[usize::from(*question)]);
                let mut request = crate::kit::answer(thread, question, &value.to_string());
                let generation = Generation::new(u32::from(*generation)).unwrap();
                request.answer.generation = generation;
                let told = self.store.answer(request.clone(), now).await.unwrap();
                let wait = self.model.waits.iter().find(|w| {
                    w.thread_id.as_str() == thread
                        && w.question_id.as_str() == question
                        && w.generation == generation
                });
                let ids = &mut crate::kit::fresh_event_id;
                let (outcome, ops) =
                    core::answer::decide(wait, &request, &self.model.rules, now, ids).unwrap();
                assert_eq!(told.outcome, outcome);
                assert_eq!(told.wait.is_none(), outcome == AnswerOutcome::NotFound);
                self.model.carry_out(ops);
            }
            Step::Cancel(which) => {
                self.learn().await;
                let Some(wait) = pick(&self.model.waits, *which) else { return };
                let told = self.store.cancel(self.wait_id(wait.id), now).await.unwrap().unwrap();
                let ids = &mut crate::kit::fresh_event_id;
                let (outcome, ops) = core::cancel(wait, &self.model.rules, now, ids).unwrap();
                assert_eq!(told.outcome, outcome);
                self.model.carry_out(ops);
            }
            Step::TimeOut(limit) => self.time_out(usize::from(*limit)).await,
            Step::Lease { to, limit } => {
                let to = destination(*to);
                self.lease(&to, usize::from(*limit)).await;
            }
            Step::Settle { which, how } => {
                let Some((id, lease)) = pick(&self.leases, *which).copied() else { return };
                let how = match how {
                    0 => Settled::Delivered,
                    1 => Settled::Released,
                    2 => Settled::Dead { reason: "refused", error: String::new() },
                    _ => Settled::RetryAt { at: now.after(TICK), error: String::new() },
                };
                self.model.settle(id, lease, &how);
                let id = self.message_id(id);
                let settlement = Settlement { id, lease, settled: how };
                self.store.settle(vec![settlement], now).await.unwrap();
            }
            Step::Retry(which) => {
                self.learn().await;
                let n = usize::from(*which) % (self.model.messages.len() + 1);
                let id = self.message_id(n);
                let announcement =
                    self.model.messages.get(n).is_none_or(|m| m.destination.is_announcer());
                let what = if announcement { Retry::Announcement(id) } else { Retry::Delivery(id) };
                let told = self.store.retry(tenant(), what, now).await.unwrap();
                assert_eq!(matches!(told, Retried::Queued(1, _)), self.model.retry(n));
            }
            Step::RetryAll => {
                let what = Retry::Announcer(Name::new("ordered"));
                let told = self.store.retry(tenant(), what, now).await.unwrap();
                let mut queued = 0;
                for n in 0..self.model.messages.len() {
                    let ordered = self.model.messages[n].destination == announcer("ordered");
                    queued += usize::from(ordered && self.model.retry(n));
                }
                assert!(matches!(told, Retried::Queued(n, _) if n == queued), "{told:?}");
            }
            Step::Pulled(which) => {
                self.learn().await;
                let Some(wait) = pick(&self.model.waits, *which) else { return };
                let id = wait.id;
                let told = self.store.pulled(self.wait_id(id), now).await.unwrap();
                let mut any = false;
                for n in 0..self.model.messages.len() {
                    let message = &mut self.model.messages[n];
                    if message.wait == id.0 && message.destination == Destination::Pull {
                        any = true;
                        if message.state == OutboxState::Queued {
                            message.attempts += 1;
                            self.model.leave_queue(n, OutboxState::Delivered);
                        }
                    }
                }
                assert_eq!(told, any);
            }
            Step::Advance(ticks) => self.model.now = now.after(TICK * u32::from(*ticks)),
        }
    }

    async fn time_out(&mut self, limit: usize) {
        let now = self.model.now;
        let told = self.store.time_out(limit, now).await.unwrap();
        let mut due: Vec<(Time, WaitId)> = self
            .model
            .waits
            .iter()
            .filter(|w| w.state == WaitState::Open)
            .filter_map(|w| w.expires_at.filter(|at| *at <= now).map(|at| (at, w.id)))
            .collect();
        due.sort_unstable();
        due.truncate(limit);
        self.learn().await;
        let ended: Vec<_> =
            told.waits.iter().map(|(id, at)| (*at, self.wait_number(*id))).collect();
        assert_eq!(ended, due);
        for (_, id) in due {
            let wait = self.model.wait_mut(id).clone();
            let ids = &mut crate::kit::fresh_event_id;
            let ops = core::deadline(&wait, &self.model.rules, now, ids).unwrap().unwrap();
            self.model.carry_out(ops);
        }
        let open = self.model.waits.iter().filter(|w| w.state == WaitState::Open);
        assert_eq!(told.next, open.filter_map(|w| w.expires_at).min());
    }

    async fn lease(&mut self, to: &Destination, limit: usize) {
        let now = self.model.now;
        if *to == Destination::Pull {
            return;
        }
        // Where a lease is a mark in the row, what one ran out of is due from then on, not from when it
        // was due first: which comes first then is not the model's to say, so all are asked for.
        let limit = if self.model.keeps_late { usize::from(u16::MAX) } else { limit };
        let request = LeaseRequest { destination: to.clone(), limit, bytes: 1 << 20, hold: HOLD };
        let told = self.store.lease(request, now).await.unwrap();
        let given = self.model.lease(to, limit);
        self.learn().await;
        let mut ids: Vec<usize> = told.messages.iter().map(|m| self.message_number(m.id)).collect();
        let mut given = given;
        if self.model.keeps_late {
            ids.sort_unstable();
            given.sort_unstable();
        }
        assert_eq!(ids, given, "to {to:?} at {now:?}");
        for message in told.messages {
            let id = self.message_number(message.id);
            assert_eq!(message.attempts, self.model.messages[id].attempts);
            assert_eq!(*message.wait, *self.wait_as_modelled(&message.wait));
            let held = self.model.held.iter_mut().find(|held| held.id == id).unwrap();
            held.lease = message.lease;
            self.leases.push((id, message.lease));
        }
    }

    /// The model's wait; ids of events are each side's own.
    fn wait_as_modelled(&self, told: &Wait) -> Box<Wait> {
        let number = self.wait_number(told.id);
        let wait = &self.model.waits[usize::try_from(number.0).unwrap() - 1];
        Box::new(Wait { id: told.id, event_id: told.event_id.clone(), ..wait.clone() })
    }

    async fn compare(&mut self) {
        self.learn().await;
        let mut waits = self.store.list_waits(any_wait()).await.unwrap().found;
        waits.reverse();
        assert_eq!(waits.len(), self.model.waits.len());
        for wait in waits {
            assert_eq!(*wait, *self.wait_as_modelled(&wait));
        }
        let told = feed(&*self.store, None).await;
        let told: Vec<_> =
            told.iter().map(|e| (self.wait_number(e.wait.id).0, e.event, e.at)).collect();
        assert_eq!(told, self.model.feed);
        let rows = outbox(&*self.store).await;
        assert_eq!(rows.len(), self.model.messages.len());
        let mut depths = BTreeMap::new();
        for (row, message) in rows.iter().zip(&self.model.messages) {
            assert_eq!((row.state, row.event), (message.state, message.event), "{row:?}");
            let wait = self.wait_number(row.wait).0;
            assert_eq!((wait, row.attempts), (message.wait, message.attempts), "{row:?}");
            assert_eq!(row.destination, message.destination);
            if message.state == OutboxState::Queued {
                let pulled = message.destination == Destination::Pull;
                assert_eq!(row.next_attempt_at, Some(message.due).filter(|_| !pulled));
                *depths.entry(row.destination.clone()).or_insert(0) += 1;
            }
        }
        let told = self.store.depths().await.unwrap();
        assert_eq!(
            told.into_iter().map(|d| (d.destination, d.queued)).collect::<BTreeMap<_, _>>(),
            depths
        );
    }

    /// Everything queued can be brought out: nothing is stuck.
    async fn drain(&mut self) {
        self.model.now = self.model.now.after(Duration::from_secs(10));
        loop {
            let mut any = false;
            for to in 0..3 {
                let from = self.leases.len();
                self.lease(&destination(to), 5).await;
                for (id, lease) in self.leases.split_off(from) {
                    any = true;
                    self.model.settle(id, lease, &Settled::Delivered);
                    let id = self.message_id(id);
                    let end = Settlement { id, lease, settled: Settled::Delivered };
                    self.store.settle(vec![end], self.model.now).await.unwrap();
                }
            }
            if !any {
                break;
            }
        }
        let depths = self.store.depths().await.unwrap();
        assert!(depths.iter().all(|d| d.destination == Destination::Pull), "{depths:?}");
    }
}

fn pick<T>(from: &[T], which: u8) -> Option<&T> {
    from.get(usize::from(which) % from.len().max(1))
}

/// Does all the steps, looking at everything now and then, and brings out all that is left.
async fn run(mut both: Both, steps: &[Step], restart_every: usize) {
    for (n, step) in steps.iter().enumerate() {
        both.step(step).await;
        if n % 10 == 0 {
            both.compare().await;
        }
        if n % restart_every == restart_every - 1 {
            both.restart().await;
            both.compare().await;
        }
    }
    both.compare().await;
    both.drain().await;
    both.compare().await;
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_store_does_what_a_simple_model_does(steps in prop::collection::vec(step(), 1..120)) {
        block_on(async {
            run(Both::new(Place::Sqlite(Location::Memory)).await, &steps, usize::MAX).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn so_does_a_file_that_is_closed_and_opened_again(
        steps in prop::collection::vec(step(), 60..120)
    ) {
        let directory = tempfile::TempDir::new().unwrap();
        let location = Location::File(directory.path().join("a.db"));
        block_on(async {
            run(Both::new(Place::Sqlite(location)).await, &steps, 25).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn so_does_a_postgresql_database_that_daemons_come_to_and_leave(
        steps in prop::collection::vec(step(), 40..100)
    ) {
        block_on(async {
            run(Both::new(Place::Postgres(Database::create())).await, &steps, 25).await;
        });
    }
}
