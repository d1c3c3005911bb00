//! What can be measured, and what follows from the figures.

use crate::bare::Bare;
use crate::envelope::Number;
use crate::figures::{Figures, Usage};
use crate::kafka::Broker;
use crate::ledger::CAPACITY;
use crate::load::Pace;
use crate::polls::{self, check_files};
use crate::postgres::{Kind, Stores, claiming};
use crate::process;
use crate::run::{Death, Idle, Place, Plan, Setting, Way, bar, run, run_bare};
use crate::settings::Announcer;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The length of a run that ends by its count of waits.
const UNTIL_COUNTED: Duration = Duration::from_secs(1800);

/// Before an idle daemon is looked at: what a start leaves to do.
const CALM: Duration = Duration::from_secs(3);

/// Between two looks at what has gone out.
const LOOK: Duration = Duration::from_millis(5);

/// So many messages are few.
const FEW: Number = 20_000;

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// Durable accepting with the log announcer only, beside a bare handler.
    Accept,
    /// The bare handler alone: what the generator and the machine can do.
    Bare,
    /// One webhook.
    Webhook,
    /// SQS, SNS, DynamoDB, a webhook and Kafka.
    FanOut,
    /// The fan-out at half of a rate: --rate, else of what it has just reached.
    HalfLoad,
    /// One webhook at 500 waits a second.
    Latency,
    /// The fan-out with one of the five dead, beside one without.
    DeadOne,
    /// A daemon with nothing to do.
    Idle,
    /// Many hosts that wait for their answers.
    LongPolls,
    /// A start with many open waits stored.
    Start,
    /// What claiming costs on PostgreSQL with a million messages queued, beside few. Only by its name.
    PostgresBacklog,
}

impl Scenario {
    /// All, in their order; `Accept` has the bare handler in it.
    pub(crate) const ALL: [Self; 9] = [
        Self::Accept,
        Self::Webhook,
        Self::FanOut,
        Self::HalfLoad,
        Self::Latency,
        Self::DeadOne,
        Self::Idle,
        Self::LongPolls,
        Self::Start,
    ];
}

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Choices {
    /// The daemon's binary.
    pub(crate) binary: PathBuf,
    /// The length of a run.
    pub(crate) time: Duration,
    /// Ends runs earlier, after so many waits.
    pub(crate) waits: Option<Number>,
    /// Connections of the generator.
    pub(crate) connections: usize,
    /// Threads of the generator.
    pub(crate) threads: usize,
    /// Waits accepted and not yet received everywhere, at most.
    pub(crate) window: u32,
    /// The full rate for `half-load`.
    pub(crate) rate: Option<f64>,
    /// The rate for `latency`.
    pub(crate) latency_rate: f64,
    /// The dead one.
    pub(crate) dead: Way,
    /// How it is dead.
    pub(crate) death: Death,
    /// Waits to queue for it.
    pub(crate) queued: Number,
    /// Messages to queue for `postgres-backlog`.
    pub(crate) backlog: Number,
    /// Where daemons keep everything.
    pub(crate) store: Kind,
    /// How many of them share it in `accept`.
    pub(crate) replicas: usize,
    /// Idle connections of `long-polls`.
    pub(crate) polls: Number,
    /// Waits stored for `start`.
    pub(crate) stored: Number,
    /// A running broker.
    pub(crate) kafka: Option<String>,
    /// Whether each run's store stays.
    pub(crate) keep: bool,
}

/// A figure that is no column.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// Its name for programs.
    pub(crate) name: String,
    /// The figure.
    pub(crate) value: f64,
    /// In words.
    #[serde(skip)]
    pub(crate) text: String,
}

/// What came of it all.
#[derive(Default, Serialize)]
pub(crate) struct Results {
    /// A line a run.
    pub(crate) runs: Vec<Figures>,
    /// What else was found.
    pub(crate) findings: Vec<Finding>,
}

impl Results {
    fn find(&mut self, name: &str, value: f64, text: String) {
        self.findings.push(Finding { name: name.to_owned(), value, text });
    }

    /// Whether every wait of every run is where it belongs.
    pub(crate) fn hold(&self) -> bool {
        self.runs.iter().all(Figures::holds)
    }
}

/// Measures, one scenario after the other.
pub(crate) struct Session {
    choices: Choices,
    directory: PathBuf,
    count: u32,
    stores: Stores,
    broker: Option<Broker>,
    /// So far.
    pub(crate) results: Results,
    fan_out: Option<f64>,
}

impl Session {
    /// For runs whose stores go into `directory`.
    pub(crate) fn new(choices: Choices, directory: &Path) -> Self {
        let broker = choices.kafka.clone().map(Broker::at);
        let directory = directory.to_owned();
        let results = Results::default();
        let stores = Stores::new(choices.store.clone());
        Self { choices, directory, count: 0, stores, broker, results, fan_out: None }
    }

    /// Measures one scenario.
    pub(crate) async fn measure(&mut self, scenario: Scenario) -> Result<()> {
        match scenario {
            Scenario::Accept => self.accept().await,
            Scenario::Bare => self.bare().await.map(drop),
            Scenario::Webhook => self.simple("webhook", &[Way::Webhook]).await.map(drop),
            Scenario::FanOut => self.fan_out("fan-out").await.map(drop),
            Scenario::HalfLoad => self.half_load().await,
            Scenario::Latency => self.latency().await,
            Scenario::DeadOne => self.dead_one().await,
            Scenario::Idle => self.idle().await,
            Scenario::LongPolls => self.long_polls().await,
            Scenario::Start => self.start().await,
            Scenario::PostgresBacklog => self.backlog().await,
        }
    }

    fn plan(&self, name: &str, ways: &[Way], pace: Pace) -> Plan {
        Plan {
            name: name.to_owned(),
            ways: ways.to_vec(),
            dead: None,
            pace,
            waits: self.choices.waits.unwrap_or(CAPACITY),
            time: self.choices.time,
        }
    }

    async fn fresh_place(&mut self) -> Result<Place> {
        self.count += 1;
        let directory = self.directory.join(format!("run-{}", self.count));
        std::fs::create_dir(&directory)?;
        Ok(Place { directory, store: self.stores.fresh().await? })
    }

    fn clear(&self, place: Place) -> Result<()> {
        if !self.choices.keep {
            std::fs::remove_dir_all(place.directory)?;
        }
        Ok(())
    }

    fn setting(&self) -> Setting<'_> {
        Setting {
            binary: &self.choices.binary,
            connections: self.choices.connections,
            threads: self.choices.threads,
            brokers: self.broker.as_ref().map(|broker| broker.address.as_str()),
            replicas: 1,
        }
    }

    /// Runs a plan; its store is gone afterwards.
    async fn run(&mut self, plan: &Plan) -> Result<Figures> {
        self.run_by(1, plan).await
    }

    async fn run_by(&mut self, replicas: usize, plan: &Plan) -> Result<Figures> {
        let place = self.fresh_place().await?;
        let figures = self.run_in(replicas, plan, &place).await?;
        self.clear(place)?;
        Ok(figures)
    }

    async fn run_in(&mut self, replicas: usize, plan: &Plan, place: &Place) -> Result<Figures> {
        let dead = plan.dead.map(|(way, _)| way);
        if plan.ways.contains(&Way::Kafka) && dead != Some(Way::Kafka) && self.broker.is_none() {
            self.broker = Some(Broker::start(&self.directory)?);
        }
        let figures = run(plan, &Setting { replicas, ..self.setting() }, place)
            .await
            .with_context(|| format!("run {}", plan.name))?;
        self.results.runs.push(figures.clone());
        Ok(figures)
    }

    async fn simple(&mut self, name: &str, ways: &[Way]) -> Result<Figures> {
        let plan = self.plan(name, ways, Pace::Window(self.choices.window));
        self.run(&plan).await
    }

    async fn fan_out(&mut self, name: &str) -> Result<f64> {
        let rate = self.simple(name, &Way::FIVE).await?.announced_per_second.unwrap_or(0.0);
        self.fan_out = Some(rate);
        Ok(rate)
    }

    async fn accept(&mut self) -> Result<()> {
        let plan = self.plan("accept", &[Way::Log], Pace::Closed);
        let durable = self.run(&plan).await?.accepted_per_second;
        let ratio = durable / self.bare().await?.max(1.0);
        let text = format!("durable accepting reaches {:.0} % of the bare handler", ratio * 100.0);
        self.results.find("accept_to_bare_ratio", ratio, text);
        let replicas = self.choices.replicas;
        if replicas > 1 {
            let name = format!("accept, {replicas} replicas");
            let plan = self.plan(&name, &[Way::Log], Pace::Closed);
            let together = self.run_by(replicas, &plan).await?.accepted_per_second;
            let ratio = together / durable.max(1.0);
            let text =
                format!("{replicas} replicas together reach {:.0} % of one alone", ratio * 100.0);
            self.results.find("replicas_to_one_ratio", ratio, text);
        }
        Ok(())
    }

    async fn bare(&mut self) -> Result<f64> {
        let server = Bare::start().await?;
        let pid = server.pid().context("the bare handler has ended")?;
        let plan = self.plan("bare handler", &[], Pace::Closed);
        let usage = || {
            let cpu_seconds = process::cpu_seconds(pid)?;
            Ok(Usage { cpu_seconds, peak_kib: process::peak_kib(pid)? })
        };
        let figures = run_bare(&plan, &self.setting(), server.address, usage).await?;
        server.stop().await?;
        let rate = figures.accepted_per_second;
        self.results.runs.push(figures);
        Ok(rate)
    }

    async fn half_load(&mut self) -> Result<()> {
        let full = match (self.choices.rate, self.fan_out) {
            (Some(rate), _) | (None, Some(rate)) => rate,
            (None, None) => self.fan_out("fan-out").await?,
        };
        let half = (full / 2.0).max(1.0);
        let name = format!("half-load, {half:.0}/s");
        let plan = self.plan(&name, &Way::FIVE, Pace::Open(half));
        self.run(&plan).await.map(drop)
    }

    async fn latency(&mut self) -> Result<()> {
        let rate = self.choices.latency_rate;
        let plan = self.plan(&format!("latency, {rate:.0}/s"), &[Way::Webhook], Pace::Open(rate));
        self.run(&plan).await.map(drop)
    }

    async fn dead_one(&mut self) -> Result<()> {
        let (way, death) = (self.choices.dead, self.choices.death);
        let alive = self.fan_out("five, all alive").await?;
        let how = match death {
            Death::Refused => "refuses",
            Death::Hanging => "hangs",
        };
        let name = format!("five, {} {how}", way.name());
        let mut plan = self.plan(&name, &Way::FIVE, Pace::Window(self.choices.window));
        plan.dead = Some((way, death));
        plan.waits = self.choices.queued;
        plan.time = UNTIL_COUNTED;
        let figures = self.run(&plan).await?;
        let rate = figures.announced_per_second.unwrap_or(0.0);
        let kept = rate / alive.max(1.0);
        let text = format!(
            "with {} dead the other four reach {:.0} % of the rate with all alive",
            way.name(),
            kept * 100.0
        );
        self.results.find("dead_one_to_alive_ratio", kept, text);
        let (peak, queued) = (figures.peak_mib, figures.accepted);
        let text = format!("peak memory {peak:.0} MiB with {queued} waits queued for it");
        self.results.find("dead_one_peak_mib", peak, text);
        Ok(())
    }

    async fn idle(&mut self) -> Result<()> {
        if self.broker.is_none() {
            self.broker = Some(Broker::start(&self.directory)?);
        }
        for (name, ways) in [("log", &[Way::Log][..]), ("five", &Way::FIVE[..])] {
            let place = self.fresh_place().await?;
            let idle = Idle::start(&self.setting(), ways, &place).await?;
            let bar = bar(&format!("idle, {name}"));
            sleep(CALM).await;
            let before = idle.daemon.cpu_seconds()?;
            sleep(self.choices.time).await;
            let spent = idle.daemon.cpu_seconds()? - before;
            let share = spent / self.choices.time.as_secs_f64();
            let resident = idle.daemon.resident_kib()? as f64 / 1024.0;
            idle.stop().await?;
            bar.finish_and_clear();
            let text = format!("idle with announcers ({name}): {:.2} % of a core", share * 100.0);
            self.results.find(&format!("idle_{name}_core_share"), share, text);
            let text = format!("idle with announcers ({name}): {resident:.1} MiB resident");
            self.results.find(&format!("idle_{name}_resident_mib"), resident, text);
        }
        Ok(())
    }

    async fn long_polls(&mut self) -> Result<()> {
        let polls = self.choices.polls;
        check_files(polls)?;
        let mut plan = self.plan("waits to poll for", &[Way::Log], Pace::Closed);
        plan.waits = polls;
        plan.time = UNTIL_COUNTED;
        let place = self.fresh_place().await?;
        self.run_in(1, &plan, &place).await?;
        let daemon = place.start(&self.choices.binary, "", &[Announcer::Log]).await?;
        let bar = bar("long-polls");
        sleep(CALM).await;
        let findings = polls::measure(&daemon, polls, self.choices.time).await?;
        daemon.stop().await?;
        self.clear(place)?;
        bar.finish_and_clear();
        self.results.findings.extend(findings);
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        let mut plan = self.plan("filling the store", &[Way::Log], Pace::Closed);
        plan.waits = self.choices.stored;
        plan.time = UNTIL_COUNTED;
        let place = self.fresh_place().await?;
        let stored = self.run_in(1, &plan, &place).await?.accepted;
        let daemon = place.start(&self.choices.binary, "", &[Announcer::Log]).await?;
        let after = daemon.ready_after.as_secs_f64();
        sleep(CALM).await;
        let resident = daemon.resident_kib()? as f64 / 1024.0;
        daemon.stop().await?;
        self.clear(place)?;
        let text = format!("ready {:.0} ms after the start with {stored} open waits", after * 1e3);
        self.results.find("start_seconds", after, text);
        let text = format!("then {resident:.1} MiB resident");
        self.results.find("start_resident_mib", resident, text);
        Ok(())
    }

    async fn backlog(&mut self) -> Result<()> {
        ensure!(self.stores.are_shared(), "postgres-backlog measures PostgreSQL: --store postgres");
        let mut rates = Vec::new();
        for queued in [self.choices.backlog.min(FEW), self.choices.backlog] {
            let name = format!("queueing {queued}");
            let mut plan = self.plan(&name, &[Way::Webhook], Pace::Closed);
            plan.dead = Some((Way::Webhook, Death::Refused));
            plan.waits = queued;
            plan.time = UNTIL_COUNTED;
            let place = self.fresh_place().await?;
            self.run_in(1, &plan, &place).await?;
            claiming(&place.store).await?;

            let bar = bar(&format!("sending of {queued}"));
            let idle = Idle::start(&self.setting(), &[Way::Webhook], &place).await?;
            let webhook = idle.ledger.destination(Way::Webhook.name()).context("no webhook")?;
            let began = Instant::now();
            while webhook.received() < queued && began.elapsed() < self.choices.time {
                sleep(LOOK).await;
            }
            let (sent, took) = (webhook.received(), began.elapsed().as_secs_f64());
            let cost = claiming(&place.store).await?;
            idle.stop().await?;
            self.clear(place)?;
            bar.finish_and_clear();
            let rate = f64::from(sent) / took;
            let text = format!("with {queued} queued: {rate:.0} messages/s go out");
            self.results.find(&format!("backlog_{queued}_per_second"), rate, text);
            if let Some(cost) = cost {
                let text = format!(
                    "with {queued} queued: {:.2} ms on the server for each of {} claims",
                    cost.mean_ms, cost.calls
                );
                self.results.find(&format!("backlog_{queued}_claim_ms"), cost.mean_ms, text);
            }
            rates.push(rate);
        }
        if let [few, many] = rates[..] {
            let ratio = many / few.max(1.0);
            let text = format!("with many queued {:.0} % of the rate with few", ratio * 100.0);
            self.results.find("backlog_many_to_few_ratio", ratio, text);
        }
        Ok(())
    }
}
