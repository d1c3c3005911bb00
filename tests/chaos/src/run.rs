//! One run: set up, load under faults, a quiet time, and the judgement.

use crate::aftermath;
use crate::clock::Watch;
use crate::database::Store;
use crate::history::{History, Injected, Recorder, Span};
use crate::inject::Victims;
use crate::load::{Bodies, Client, Load, World};
use crate::oracle;
use crate::receivers::Receivers;
use crate::replica::Replica;
use crate::report::{About, Report};
use crate::schedule::{Extent, Fault, schedule};
use crate::setup::{LEASE, Settings};
use crate::stream;
use answerback_testkit::kafka;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// How long a replica may take to be ready when nothing is wrong.
const READY: Duration = Duration::from_secs(60);

/// After the last lease and the last retry: how long the rest may take.
const MARGIN: Duration = Duration::from_secs(60);

/// Longer than an approver takes to begin with what it was told.
const LINGER: Duration = Duration::from_secs(2);

/// What a run is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What repeats the faults.
    pub seed: u64,
    /// How long faults are injected.
    pub time: Duration,
    /// Daemons.
    pub replicas: usize,
    /// Questions a second.
    pub rate: u64,
    /// Whether the replicas share PostgreSQL; else one of them has a file.
    pub postgres: bool,
    /// The broker, `host:port`.
    pub kafka: Option<String>,
    /// Whether readers follow the feed of events.
    pub feed: bool,
    /// Whether leases are ended by setting all clocks, after the faults, instead of by waiting.
    pub hurry: bool,
    /// The daemon.
    pub binary: PathBuf,
    /// Where the run's files go.
    pub folder: PathBuf,
}

/// Where a run is, for a progress line.
pub type Progress<'p> = &'p (dyn Fn(&Recorder, &str) + Sync);

/// Runs it.
///
/// # Errors
/// When the harness fails; violations are in the report.
pub async fn run(plan: &Plan, progress: Progress<'_>) -> Result<(Report, History)> {
    let watch = Watch::start();
    let recorder = Recorder::new(watch.began_ms());
    let store = Arc::new(match plan.postgres {
        true => Store::postgres(plan.replicas).await,
        false => Store::sqlite(&plan.folder),
    });
    let bodies = Bodies::default();
    let (news, questions) = mpsc::channel(10_000);
    let receivers =
        Receivers::start(plan.seed, watch, recorder.clone(), bodies.clone(), news).await?;
    let receivers = Arc::new(receivers);
    let topic = kafka::fresh_topic("chaos");
    let mut background = JoinSet::new();
    if let Some(brokers) = &plan.kafka {
        kafka::create_topic(brokers, &topic, stream::PARTITIONS).await;
        let consumer = stream::open(brokers, &topic)?;
        background.spawn(stream::follow(consumer, watch, recorder.clone(), bodies.clone()));
    }
    let replicas = start(plan, &store, &receivers.url(), &topic, watch, &recorder).await?;
    let keepers = Arc::clone(&replicas);
    for number in 0..replicas.len() {
        let replicas = Arc::clone(&keepers);
        background.spawn(async move { replicas[number].keep_running().await });
    }
    let client = Client::new(replicas.iter().map(Replica::url));
    let (over, is_over) = watch::channel(false);
    let world = World {
        client: client.clone(),
        watch,
        recorder: recorder.clone(),
        bodies,
        reply_to: format!("{}/reply", receivers.url()).into(),
        seed: plan.seed,
        rate: plan.rate,
        over: is_over,
        room: World::rooms(),
        numbers: Arc::new(AtomicU64::new(0)),
    };
    let mut load = Load::start(world, questions, plan.feed);
    let victims = Victims {
        replicas: Arc::clone(&replicas),
        store: Arc::clone(&store),
        receivers: Arc::clone(&receivers),
        watch,
        recorder: recorder.clone(),
    };
    let before = watch.now() / 1_000;
    let extent = Extent {
        replicas: plan.replicas,
        millis: u64::try_from(plan.time.as_millis())?,
        database: store.is_served(),
        lease: u64::try_from(LEASE.as_millis())?,
    };
    let mut faults = schedule(plan.seed, extent);
    faults.iter_mut().for_each(|planned| planned.at += before);
    let until = watch.instant((before + extent.millis) * 1_000);
    let suffering = async {
        victims.suffer(faults).await?;
        tokio::time::sleep_until(until).await;
        anyhow::Ok(())
    };
    let ticking = async {
        loop {
            progress(&recorder, "faults");
            sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::select! {
        suffered = suffering => suffered?,
        () = ticking => {}
    }
    receivers.calm();
    over.send_replace(true);
    progress(&recorder, "quiet");
    let quiet_since = Instant::now();
    for (number, replica) in replicas.iter().enumerate() {
        ensure!(replica.ready(READY).await, "replica {number} is not ready when all is well");
    }
    load.finish().await;
    if plan.hurry {
        hurry(&replicas, watch, &recorder)?;
    }
    // What is announced late is answered late, and that settles, too.
    while settle(plan, &client, watch, &recorder, progress).await {
        let before = recorder.with(|h| done(h));
        sleep(LINGER).await;
        load.finish().await;
        if recorder.with(|h| done(h)) == before {
            break;
        }
    }
    progress(&recorder, "reading what is stored");
    let (waits, rows) = (aftermath::waits(&client, 0).await?, aftermath::rows(&client, 0).await?);
    if plan.feed {
        feed_read(&recorder, waits.len()).await;
    }
    load.stop().await;
    background.shutdown().await;
    for replica in replicas.iter() {
        replica.kill().await;
    }
    std::fs::write(plan.folder.join("postgres.log"), store.log().await)?;
    let history = recorder.with(|h| {
        h.waits = waits;
        h.rows = rows;
        h.unknown = client.unknown();
        std::mem::take(h)
    });
    let judgement = oracle::judge(&history);
    let about = About {
        seed: plan.seed,
        seconds: plan.time.as_secs(),
        settled_after: quiet_since.elapsed().as_secs(),
        replicas: plan.replicas,
    };
    Ok((Report::new(about, &history, judgement), history))
}

async fn start(
    plan: &Plan,
    store: &Store,
    receivers: &str,
    topic: &str,
    watch: Watch,
    recorder: &Recorder,
) -> Result<Arc<Vec<Replica>>> {
    let mut replicas = Vec::new();
    for number in 0..plan.replicas {
        let settings = Settings {
            receivers,
            kafka: plan.kafka.as_deref(),
            topic,
            store_url: store.url(number),
        };
        let (binary, folder) = (&plan.binary, &plan.folder);
        let replica = Replica::prepare(number, binary, folder, &settings, watch, recorder.clone())?;
        replica.start().await?;
        replicas.push(replica);
    }
    for (number, replica) in replicas.iter().enumerate() {
        ensure!(
            replica.ready(READY).await,
            "replica {number} does not start; see its log in {}",
            plan.folder.display()
        );
    }
    Ok(Arc::new(replicas))
}

/// Sets all clocks past every lease and retry: so that a short run need not wait for them.
fn hurry(replicas: &[Replica], watch: Watch, recorder: &Recorder) -> Result<()> {
    let lease = i64::try_from(LEASE.as_millis())?;
    // What was leased by a clock that was a lease ahead is over then, too.
    let millis = 2 * lease + 10_000;
    let begin = watch.now();
    for (replica, process) in replicas.iter().enumerate() {
        process.set_clock(millis)?;
        let span = Span { begin, end: u64::MAX };
        let fault = Fault::Step { replica, millis };
        recorder.with(|h| h.faults.push(Injected { span, fault }));
    }
    Ok(())
}

/// How much was done and received so far.
fn done(history: &History) -> usize {
    history.answers.len() + history.cancels.len() + history.pulls.len() + history.arrivals.len()
}

/// Waits until everything that was queued has gone out and every near deadline has been kept; `false`
/// when that takes too long, which is written down.
async fn settle(
    plan: &Plan,
    client: &Client,
    watch: Watch,
    recorder: &Recorder,
    progress: Progress<'_>,
) -> bool {
    let lease = if plan.hurry { Duration::ZERO } else { 2 * LEASE };
    let bound = Instant::now() + lease + MARGIN;
    loop {
        let now = watch.wall().millis();
        let left = async {
            let queued = aftermath::queued(client, 0).await?;
            let deadlines = aftermath::open_deadlines(client, 0).await?;
            anyhow::Ok((queued, deadlines.into_iter().filter(|at| *at < now + 60_000).count()))
        };
        let left = left.await;
        if matches!(left, Ok((0, 0))) {
            return true;
        }
        let left = match left {
            Ok((queued, open)) => format!("{queued} queued, {open} waits with a near deadline"),
            Err(error) => format!("{error:#}"),
        };
        progress(recorder, &format!("quiet: {left}"));
        if Instant::now() > bound {
            recorder.with(|h| h.unsettled = Some(left));
            return false;
        }
        sleep(Duration::from_millis(300)).await;
    }
}

/// Waits until the readers of the feed hear nothing new.
async fn feed_read(recorder: &Recorder, waits: usize) {
    let bound = Instant::now() + MARGIN;
    let mut last = 0;
    while Instant::now() < bound {
        sleep(Duration::from_secs(4)).await;
        let told = recorder.with(|h| h.fed.len());
        if told == last && told >= waits {
            break;
        }
        last = told;
    }
    recorder.with(|h| h.feed_ended = true);
}

/// Writes a history down, to be judged again.
///
/// # Errors
/// What the file system says.
pub fn keep(history: &History, folder: &Path) -> Result<()> {
    let file = std::fs::File::create(folder.join("history.json"))?;
    serde_json::to_writer(std::io::BufWriter::new(file), history).context("the history")
}

/// Reads a history that was kept.
///
/// # Errors
/// What the file system says, or why it cannot be read.
pub fn kept(folder: &Path) -> Result<History> {
    let text = std::fs::read(folder.join("history.json"))?;
    serde_json::from_slice(&text).context("the history cannot be read")
}
