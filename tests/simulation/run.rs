//! One seed's run: a load under a storm, then calm, then the judgement.

use crate::afterglow;
use crate::buses::{ANNOUNCERS, rules};
use crate::load::{Ask, Front, More, envelope, instant};
use crate::oracle::{Rest, judge};
use crate::plan::Plan;
use crate::random::Random;
use crate::replica::Replica;
use crate::store::run_now;
use crate::world::World;
use answerback::clock::Clock;
use answerback::contract::{EventId, WaitState};
use answerback::core::{Destination, OutboxState};
use answerback::store::Store;
use answerback::store::sqlite::{Location, SqliteOptions, SqliteStore};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, sleep_until, timeout};

/// Whatever hangs longer than this hangs for ever.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Longer than any call of the store takes.
const SLOWEST: Duration = Duration::from_secs(185);

/// Leases of replicas that were killed run out, a clock that is ahead or not.
const LONGEST_HOLD: Duration = Duration::from_secs(120);

/// What came of a seed.
pub(crate) struct Report {
    pub(crate) hash: u64,
    pub(crate) wrong: Vec<String>,
    pub(crate) lines: Vec<String>,
    pub(crate) calls: usize,
    pub(crate) arrivals: usize,
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Remembers panics by thread: tasks keep theirs to themselves.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            usual(panic);
        }));
    });
}

/// Runs a seed on this thread.
pub(crate) fn run(seed: u64, verbose: bool) -> Report {
    catch_panics();
    PANICS.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let mut report = runtime.block_on(LocalSet::new().run_until(simulate(seed, verbose)));
    report.wrong.extend(PANICS.take());
    report
}

async fn simulate(seed: u64, verbose: bool) -> Report {
    let plan = Plan::of(seed);
    let world = Arc::new(World::new(plan, verbose));
    world.note(format_args!("{:?}", world.plan));
    let minted = AtomicU64::new(0);
    let mint = move || {
        EventId::new(&format!("minted-{}", minted.fetch_add(1, Ordering::Relaxed))).unwrap()
    };
    let options = SqliteOptions {
        location: Location::Memory,
        rules: Arc::new(rules(&world.plan)),
        mint: Arc::new(mint),
    };
    let store = Arc::new(SqliteStore::open(options).unwrap());
    let replicas: Vec<_> =
        (0..world.plan.replicas).map(|n| Arc::new(Replica::new(n, &world, &store))).collect();
    if world.plan.hints {
        world.state().hints = replicas.iter().map(|replica| replica.hints()).collect();
    }
    for replica in &replicas {
        replica.start().await;
    }
    let front = Arc::new(Front {
        world: Arc::clone(&world),
        replicas: replicas.clone(),
        told: Mutex::default(),
    });

    let upheaval = upheaval(&front);
    let (clients, hosts) = load(&front);
    sleep(Duration::from_millis(world.plan.span)).await;
    world.state().stormy = false;
    world.note(format_args!("the storm is over"));
    all(&world, upheaval, "replicas to come back").await;
    all(&world, clients, "clients").await;
    come_to_rest(&front, &store, hosts).await;
    if world.state().is_sound() {
        afterglow::afterglow(&front).await;
        empty(&world, &store).await;
    }
    rest_and_judge(&front, &store).await;

    run_now(store.close());
    let mut state = world.state();
    let wrong = state.take_wrong();
    Report {
        hash: state.trace.hash(),
        wrong,
        lines: state.trace.lines.take().unwrap_or_default(),
        calls: state.calls,
        arrivals: state.buses.arrivals.len(),
    }
}

/// Waits for tasks, which must end.
async fn all(world: &World, mut tasks: JoinSet<()>, whom: &str) {
    let ended = timeout(PATIENCE, async {
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done {
                world.wrong(format!("{whom}: {error}"));
            }
        }
    });
    if ended.await.is_err() {
        world.wrong(format!("waited in vain for {whom}"));
    }
}

/// Kills, freezes, stops replicas and sets their clocks, at instants of the seed.
fn upheaval(front: &Arc<Front>) -> JoinSet<()> {
    let plan = &front.world.plan;
    let mut random = front.world.chance_of(2);
    let mut tasks = JoinSet::new();
    let events = [plan.kills, plan.freezes, plan.clock_steps, plan.restarts];
    for (kind, times) in events.into_iter().enumerate() {
        for _ in 0..times {
            let replica = Arc::clone(random.pick(&front.replicas));
            let at = Duration::from_millis(random.below(plan.span));
            let mut random = Random::new(random.next(), 0);
            tasks.spawn_local(async move {
                sleep(at).await;
                match kind {
                    0 => {
                        replica.kill();
                        sleep(Duration::from_millis(random.below(10_000))).await;
                        replica.start().await;
                    }
                    1 => {
                        let long = Duration::from_millis(random.between(500, 100_000));
                        replica.freeze(long);
                        sleep(long).await;
                    }
                    2 => replica.step_clock(&mut random),
                    _ => {
                        let grace = Duration::from_millis(random.between(100, 10_000));
                        replica.stop(grace).await;
                        replica.start().await;
                    }
                }
            });
        }
    }
    tasks
}

/// Starts the clients: those that end by themselves, and the hosts, which wait for ends of waits.
fn load(front: &Arc<Front>) -> (JoinSet<()>, JoinSet<()>) {
    let plan = &front.world.plan;
    let mut random = front.world.chance_of(3);
    let (mut clients, mut hosts) = (JoinSet::new(), JoinSet::new());
    let threads = ["r0", "r1", "p0", "u0", "u1"];
    let questions = ["q", "q:2"];
    let mut client = 10_000;
    for n in 0..plan.publishes {
        let thread = *random.pick(&threads);
        let question = *random.pick(&questions);
        let more = More {
            event_id: random.chance(600).then(|| format!("event-{n}")),
            expires_at: random.chance(350).then(|| {
                let millis = random.between(0, 40_000);
                instant(&front.world, i64::try_from(millis).unwrap() - 2_000)
            }),
            default: random.chance(600).then(|| 1_000 + n),
            answer_ttl: random.chance(150).then(|| random.between(5, 60)),
        };
        let ask = envelope(thread, question, random.below(3), &more);
        client += 1;
        clients.spawn_local(asker(Arc::clone(front), ask.clone(), client));
        for _ in 0..random.below(3) {
            client += 1;
            clients.spawn_local(approver(Arc::clone(front), ask.clone(), client));
        }
        if random.chance(400) {
            client += 1;
            hosts.spawn_local(host(Arc::clone(front), ask.clone(), client));
        }
        if random.chance(120) {
            client += 1;
            clients.spawn_local(operator(Arc::clone(front), ask, client));
        }
    }
    (clients, hosts)
}

/// Asks, and often asks again, the same or under the same id.
async fn asker(front: Arc<Front>, ask: Ask, client: u64) {
    let mut random = front.world.chance_of(client);
    sleep(Duration::from_millis(random.below(front.world.plan.span))).await;
    front.publish(&mut random, &ask).await;
    while random.chance(300) {
        sleep(Duration::from_millis(random.below(10_000))).await;
        front.publish(&mut random, &ask).await;
    }
}

async fn approver(front: Arc<Front>, ask: Ask, client: u64) {
    let mut random = front.world.chance_of(client);
    sleep(Duration::from_millis(random.below(front.world.plan.span))).await;
    let generation = if random.chance(700) { 1 } else { random.between(2, 3) };
    let value = random.below(3);
    front.answer(&mut random, &ask, generation, value).await;
}

async fn host(front: Arc<Front>, ask: Ask, client: u64) {
    let mut random = front.world.chance_of(client);
    sleep(Duration::from_millis(random.below(front.world.plan.span))).await;
    let patience = Duration::from_millis(random.between(1_000, 19_000));
    front.host(&mut random, &ask, patience, client % 1_000).await;
}

async fn operator(front: Arc<Front>, ask: Ask, client: u64) {
    let mut random = front.world.chance_of(client);
    sleep(Duration::from_millis(random.below(front.world.plan.span))).await;
    if random.chance(400) {
        front.cancel(&mut random, &ask).await;
    } else {
        front.operate(&mut random).await;
    }
}

/// Lets everything come to its end: paused announcers are woken, open waits answered, and what is
/// queued goes out.
async fn come_to_rest(front: &Arc<Front>, store: &SqliteStore, hosts: JoinSet<()>) {
    let world = &front.world;
    let mut random = world.chance_of(4);
    // Past all deadlines and the pauses of breakers, on the slowest clock too, and past the slowest
    // call that began in the storm.
    sleep_until(world.began + Duration::from_secs(75)).await;
    sleep(if world.plan.weather.very_slow > 0 { SLOWEST } else { Duration::from_secs(40) }).await;
    // Not before: a pause that is still being stored would outlast it.
    for (name, _) in ANNOUNCERS {
        front.wake(&mut random, name).await;
    }
    for wait in Rest::of(store).waits.values() {
        if wait.state == WaitState::Open {
            let ask = Ask {
                thread: wait.thread_id.to_string(),
                question: wait.question_id.to_string(),
                text: String::new(),
            };
            front.answer(&mut random, &ask, u64::from(wait.generation.get()), 7).await;
        }
    }
    all(world, hosts, "hosts").await;
    empty(world, store).await;
}

/// Waits until nothing is queued but what hosts have to come for.
async fn empty(world: &World, store: &SqliteStore) {
    let emptied = timeout(PATIENCE, async {
        loop {
            let depths = run_now(store.depths()).unwrap();
            if depths.iter().all(|d| d.destination == Destination::Pull || d.queued == 0) {
                break;
            }
            sleep(Duration::from_secs(5)).await;
        }
    });
    if emptied.await.is_err() {
        let rest = Rest::of(store);
        let left = rest
            .rows
            .values()
            .filter(|row| row.state == OutboxState::Queued && row.destination != Destination::Pull);
        world.wrong(format!("still queued: {:?}", left.collect::<Vec<_>>()));
    }
}

/// Stops all replicas, which must leave nothing behind, and looks at what there is.
async fn rest_and_judge(front: &Arc<Front>, store: &SqliteStore) {
    let world = &front.world;
    let now = front.replicas.iter().map(|replica| replica.clock.now()).min().unwrap();
    for replica in &front.replicas {
        if !replica.stop(Duration::from_secs(30)).await {
            world.wrong(format!("r{} does not come to its end", replica.index));
        }
    }
    let held = world.state().ledger.held_beyond(now.after(LONGEST_HOLD));
    if !held.is_empty() {
        world.wrong(format!("held when all is done: {held:?}"));
    }
    let rest = Rest::of(store);
    let told = front.told.lock().unwrap();
    for wrong in judge(world, &rest, &told, now) {
        world.wrong(wrong);
    }
}
