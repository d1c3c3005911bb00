//! One measured run: receivers and daemon up, load, everything announced, held against the ledger,
//! daemon down.

use crate::clock::epoch_millis;
use crate::daemon::{Daemon, free_address, sum};
use crate::envelope::{Number, first_number};
use crate::figures::{Figures, Usage};
use crate::kafka::Topic;
use crate::ledger::{Ledger, Witness};
use crate::load::{self, Load, Pace};
use crate::postgres::Store;
use crate::settings::{Announcer, configuration};
use crate::stubs::{Receiver, Receivers};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks at what has arrived.
const LOOK: Duration = Duration::from_millis(20);

/// Between two looks at metrics or a broker, which cost those who answer.
const ASK: Duration = Duration::from_millis(200);

/// Without anything new for so long, what is missing counts as missing.
const STALLED: Duration = Duration::from_secs(30);

/// A way to announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Way {
    /// A stub of AWS SQS.
    Sqs,
    /// A stub of AWS SNS.
    Sns,
    /// A stub of AWS DynamoDB.
    DynamoDb,
    /// A stub of a webhook's receiver.
    Webhook,
    /// A real broker.
    Kafka,
    /// The daemon's log.
    #[value(skip)]
    Log,
}

impl Way {
    /// All that leave the machine in earnest.
    pub(crate) const FIVE: [Self; 5] =
        [Self::Sqs, Self::Sns, Self::DynamoDb, Self::Webhook, Self::Kafka];

    /// The announcer's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqs => "sqs",
            Self::Sns => "sns",
            Self::DynamoDb => "dynamodb",
            Self::Webhook => "webhook",
            Self::Kafka => "kafka",
            Self::Log => "log",
        }
    }

    const fn witness(self) -> Witness {
        match self {
            Self::Kafka => Witness::Broker,
            Self::Log => Witness::Log,
            Self::Sqs | Self::Sns | Self::DynamoDb | Self::Webhook => Witness::Stub,
        }
    }
}

/// How a destination is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Death {
    /// Nobody listens on its port.
    Refused,
    /// Connections are taken and nothing is ever said.
    Hanging,
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its line in the table.
    pub(crate) name: String,
    /// Where the daemon announces to.
    pub(crate) ways: Vec<Way>,
    /// The one of them that is dead.
    pub(crate) dead: Option<(Way, Death)>,
    /// When requests are sent.
    pub(crate) pace: Pace,
    /// Ends after so many waits …
    pub(crate) waits: Number,
    /// … or after this time.
    pub(crate) time: Duration,
}

/// What all runs share.
pub(crate) struct Setting<'a> {
    /// The daemon's binary.
    pub(crate) binary: &'a Path,
    /// Connections of the generator.
    pub(crate) connections: usize,
    /// Threads of the generator.
    pub(crate) threads: usize,
    /// The broker, where a run needs one.
    pub(crate) brokers: Option<&'a str>,
    /// How many daemons share the work.
    pub(crate) replicas: usize,
}

/// Where daemons of a run keep what they know, and write.
pub(crate) struct Place {
    /// Its own.
    pub(crate) directory: PathBuf,
    /// Fresh at first.
    pub(crate) store: Store,
}

impl Place {
    /// Starts a daemon there, in a subdirectory if it has a name.
    pub(crate) async fn start(
        &self,
        binary: &Path,
        name: &str,
        announcers: &[Announcer],
    ) -> Result<Daemon> {
        let directory = self.directory.join(name);
        std::fs::create_dir_all(&directory)?;
        let address = free_address()?;
        let text = configuration(address, &self.store, announcers);
        Daemon::start(binary, &directory, address, &self.store, &text).await
    }
}

/// Destinations that are up, and the daemon's settings for them.
struct Destinations {
    ledger: Arc<Ledger>,
    announcers: Vec<Announcer>,
    topic: Option<Topic>,
    _receivers: Receivers,
}

impl Destinations {
    async fn start(
        ways: &[Way],
        dead: Option<(Way, Death)>,
        brokers: Option<&str>,
    ) -> Result<Self> {
        let is_dead = |way: Way| dead.is_some_and(|(which, _)| which == way);
        let living: Vec<_> = ways.iter().copied().filter(|way| !is_dead(*way)).collect();
        let witnesses: Vec<_> = living.iter().map(|way| (way.name(), way.witness())).collect();
        let ledger = Arc::new(Ledger::new(&witnesses));
        let stubs = living.iter().filter_map(|&way| Some((way, stub(way, &ledger)?)));
        let (stubbed, mut receivers): (Vec<_>, Vec<_>) = stubs.unzip();
        // The last, so that the addresses of the others keep their places.
        if let Some((_, Death::Hanging)) = dead {
            receivers.push(Receiver::Silent);
        }
        let receivers = Receivers::start(receivers, &ledger)?;
        let topic = if living.contains(&Way::Kafka) {
            let name = format!("answerback-bench-{}", epoch_millis());
            Some(Topic::create(brokers.context("no broker")?, name).await?)
        } else {
            None
        };
        let mut announcers = Vec::new();
        for &way in ways {
            let address = match (dead, stubbed.iter().position(|one| *one == way)) {
                (Some((which, Death::Hanging)), _) if which == way => {
                    receivers.addresses().last().copied().context("no silent receiver")?
                }
                (_, Some(place)) => receivers.addresses()[place],
                // Nobody listens there: for the dead one.
                (_, None) => free_address()?,
            };
            let kafka = topic.as_ref().zip(brokers).filter(|_| way == Way::Kafka);
            announcers.push(announcer(way, address, kafka));
        }
        Ok(Self { ledger, announcers, topic, _receivers: receivers })
    }
}

fn stub(way: Way, ledger: &Ledger) -> Option<Receiver> {
    let destination = ledger.destination(way.name())?;
    match way {
        Way::Sqs => Some(Receiver::Sqs(destination)),
        Way::Sns => Some(Receiver::Sns(destination)),
        Way::DynamoDb => Some(Receiver::DynamoDb(destination)),
        Way::Webhook => Some(Receiver::Webhook(destination)),
        Way::Kafka | Way::Log => None,
    }
}

fn announcer(way: Way, address: SocketAddr, kafka: Option<(&Topic, &str)>) -> Announcer {
    match way {
        Way::Sqs => Announcer::Sqs(address),
        Way::Sns => Announcer::Sns(address),
        Way::DynamoDb => Announcer::DynamoDb(address),
        Way::Webhook => Announcer::Webhook(address),
        Way::Log => Announcer::Log,
        Way::Kafka => match kafka {
            Some((topic, brokers)) => {
                Announcer::Kafka { brokers: brokers.to_owned(), topic: topic.name.clone() }
            }
            None => Announcer::Kafka { brokers: address.to_string(), topic: "waits".to_owned() },
        },
    }
}

/// A daemon that has nothing to do, with announcers and receivers that could.
pub(crate) struct Idle {
    /// The daemon.
    pub(crate) daemon: Daemon,
    /// What its receivers got.
    pub(crate) ledger: Arc<Ledger>,
    topic: Option<Topic>,
    _receivers: Receivers,
}

impl Idle {
    /// Starts it.
    pub(crate) async fn start(setting: &Setting<'_>, ways: &[Way], place: &Place) -> Result<Self> {
        let up = Destinations::start(ways, None, setting.brokers).await?;
        let daemon = place.start(setting.binary, "", &up.announcers).await?;
        let Destinations { ledger, topic, _receivers, .. } = up;
        Ok(Self { daemon, ledger, topic, _receivers })
    }

    /// Ends it.
    pub(crate) async fn stop(self) -> Result<()> {
        self.daemon.stop().await?;
        match self.topic {
            Some(topic) => topic.delete().await,
            None => Ok(()),
        }
    }
}

/// Runs a plan.
pub(crate) async fn run(plan: &Plan, setting: &Setting<'_>, place: &Place) -> Result<Figures> {
    let up = Destinations::start(&plan.ways, plan.dead, setting.brokers).await?;
    let ledger = &up.ledger;
    let epoch = epoch_millis() - i64::from(ledger.clock.micros() / 1000);
    let mut daemons = Daemons(Vec::new());
    for replica in 0..setting.replicas {
        let name = if replica == 0 { String::new() } else { format!("replica-{replica}") };
        daemons.0.push(place.start(setting.binary, &name, &up.announcers).await?);
    }

    let bar = bar(&plan.name);
    let (cpu_before, threads_before) = (daemons.cpu_seconds()?, daemons.cpu_by_thread()?);
    let running = load::start(
        Load {
            targets: daemons.0.iter().map(|daemon| daemon.address).collect(),
            connections: setting.connections,
            threads: setting.threads,
            pace: plan.pace,
            waits: plan.waits,
            time: plan.time,
        },
        ledger,
    );
    let began = running.began();
    while !running.is_finished() {
        show(&bar, plan, ledger, began);
        sleep(LOOK).await;
    }
    let faults = running.join().with_context(|| daemons.tails())?;
    bar.set_message("waiting until all is announced");
    drain(ledger, up.topic.as_ref()).await?;
    let dead = plan.dead.map(|(way, _)| way.name());
    let queue_empty = settle(&daemons, dead).await?;
    let usage =
        Usage { cpu_seconds: daemons.cpu_seconds()? - cpu_before, peak_kib: daemons.peak_kib()? };
    let threads = daemons.cpu_by_thread()?;
    bar.set_message("checking what arrived");
    if let (Some(topic), Some(destination)) = (&up.topic, ledger.destination("kafka")) {
        topic.read(ledger, &destination, epoch)?;
    }
    if let Some(destination) = ledger.destination("log") {
        for daemon in &daemons.0 {
            for line in daemon.log()?.split(|byte| *byte == b'\n') {
                if let Some(number) = first_number(line) {
                    destination.arrived(Some(number), 0);
                }
            }
        }
    }
    for daemon in daemons.0 {
        daemon.stop().await?;
    }
    if let Some(topic) = up.topic {
        topic.delete().await?;
    }
    bar.finish_and_clear();
    let mut figures = Figures::of(plan.name.clone(), ledger, began, faults, usage);
    figures.queue_empty = queue_empty;
    figures.note_threads(&threads_before, threads);
    Ok(figures)
}

/// Those of a run, all on one store.
struct Daemons(Vec<Daemon>);

impl Daemons {
    fn cpu_seconds(&self) -> Result<f64> {
        self.0.iter().map(Daemon::cpu_seconds).sum()
    }

    fn cpu_by_thread(&self) -> Result<BTreeMap<String, f64>> {
        let mut all = BTreeMap::new();
        for daemon in &self.0 {
            for (name, seconds) in daemon.cpu_by_thread()? {
                *all.entry(name).or_default() += seconds;
            }
        }
        Ok(all)
    }

    /// Of the one that has most.
    fn peak_kib(&self) -> Result<u64> {
        self.0.iter().try_fold(0, |most, daemon| Ok(most.max(daemon.peak_kib()?)))
    }

    fn tails(&self) -> String {
        self.0.iter().map(Daemon::tail).collect::<Vec<_>>().join("\n")
    }
}

/// A load on something that announces nothing.
pub(crate) async fn run_bare(
    plan: &Plan,
    setting: &Setting<'_>,
    target: SocketAddr,
    usage: impl FnOnce() -> Result<Usage>,
) -> Result<Figures> {
    let ledger = Arc::new(Ledger::new(&[]));
    let (connections, threads) = (setting.connections, setting.threads);
    let (pace, waits, time) = (plan.pace, plan.waits, plan.time);
    let bar = bar(&plan.name);
    let targets = vec![target];
    let running = load::start(Load { targets, connections, threads, pace, waits, time }, &ledger);
    let began = running.began();
    while !running.is_finished() {
        show(&bar, plan, &ledger, began);
        sleep(LOOK).await;
    }
    let faults = running.join()?;
    bar.finish_and_clear();
    Ok(Figures::of(plan.name.clone(), &ledger, began, faults, usage()?))
}

/// A bar on a terminal, nothing elsewhere.
pub(crate) fn bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::new(1000);
    if let Ok(style) = ProgressStyle::with_template("{prefix:24} [{bar:30}] {elapsed:>4} {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_owned());
    bar
}

fn show(bar: &ProgressBar, plan: &Plan, ledger: &Ledger, began: u32) {
    let spent = f64::from(ledger.clock.micros().saturating_sub(began)) / 1e6;
    let by_time = spent / plan.time.as_secs_f64();
    let by_count = f64::from(ledger.claimed()) / f64::from(plan.waits.max(1));
    bar.set_position((by_time.max(by_count).min(1.0) * 1000.0) as u64);
    bar.set_message(format!(
        "{} accepted, {} announced",
        ledger.accepted(),
        ledger.received_everywhere()
    ));
}

/// Waits until every accepted wait is wherever it should be, or nothing comes any more.
async fn drain(ledger: &Ledger, topic: Option<&Topic>) -> Result<()> {
    let wanted = u64::from(ledger.accepted());
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let mut got = u64::from(ledger.received_everywhere());
        let mut rest = LOOK;
        if got >= wanted
            && let Some(topic) = topic
        {
            got = topic.count()?;
            rest = ASK;
        }
        if got >= wanted || since.elapsed() > STALLED {
            return Ok(());
        }
        if got != last {
            (last, since) = (got, Instant::now());
        }
        sleep(rest).await;
    }
}

/// Waits until the daemons have recorded what was received: the queue is empty but for the dead
/// announcer's, as each of them sees it. `None` when their metrics do not say.
async fn settle(daemons: &Daemons, dead: Option<&str>) -> Result<Option<bool>> {
    const DEPTH: &str = "answerback_queue_depth";
    let (mut last, mut since) = (f64::MAX, Instant::now());
    loop {
        let mut left: f64 = 0.0;
        for daemon in &daemons.0 {
            let metrics = daemon.metrics().await?;
            let Some(all) = sum(&metrics, DEPTH, "") else { return Ok(None) };
            let label = |name| format!("announcer=\"{name}\"");
            let of_dead = dead.and_then(|name| sum(&metrics, DEPTH, &label(name)));
            left = left.max(all - of_dead.unwrap_or(0.0));
        }
        if left <= 0.0 {
            return Ok(Some(true));
        }
        if since.elapsed() > STALLED {
            return Ok(Some(false));
        }
        if left != last {
            (last, since) = (left, Instant::now());
        }
        sleep(ASK).await;
    }
}
