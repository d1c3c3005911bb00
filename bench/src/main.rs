//! Measures the daemon: starts the real binary, loads it, receives what it announces, holds every
//! wait against what was accepted and prints a table. See README.md beside this crate.

mod bare;
mod clock;
mod daemon;
mod envelope;
mod environment;
mod figures;
mod kafka;
mod ledger;
mod load;
mod polls;
mod postgres;
mod process;
mod report;
mod run;
mod scenarios;
mod settings;
mod stubs;
mod wire;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use environment::Environment;
use postgres::Kind;
use run::{Death, Way};
use scenarios::{Choices, Scenario, Session};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

// As the daemon: so that the bare handler is compared on equal terms.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the answerback daemon on this machine.
#[derive(Parser)]
#[command(name = "answerback-bench", version)]
struct Options {
    /// What to measure; everything, when nothing is named.
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// The daemon; default: the `answerback` beside this program.
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Ends a run earlier, after so many waits.
    #[arg(long)]
    waits: Option<u32>,
    /// Keep-alive connections that publish.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: u16,
    /// Threads that publish.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Waits that may be accepted and not yet received everywhere, in webhook, fan-out, dead-one.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// The full rate, in waits a second, of which half-load takes half; default: what fan-out reaches.
    #[arg(long)]
    rate: Option<f64>,
    /// The rate of latency, in waits a second.
    #[arg(long, default_value_t = 500.0)]
    latency_rate: f64,
    /// The announcer that is dead in dead-one.
    #[arg(long, value_enum, default_value = "webhook")]
    dead: Way,
    /// How it is dead.
    #[arg(long, value_enum, default_value = "refused")]
    death: Death,
    /// Waits to queue for the dead one.
    #[arg(long, default_value_t = 200_000)]
    queued: u32,
    /// Messages to queue in postgres-backlog.
    #[arg(long, default_value_t = 1_000_000)]
    backlog: u32,
    /// Where daemons keep everything: `sqlite`, `postgres` (a server is started for it), or the URL of
    /// a server's user who may create databases.
    #[arg(long, default_value = "sqlite")]
    store: Kind,
    /// Daemons that share one store, in accept; it needs PostgreSQL.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,
    /// Idle long polls, each with a connection of its own.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    polls: u32,
    /// Open waits stored before the start that is measured.
    #[arg(long, default_value_t = 100_000)]
    stored: u32,
    /// A running Kafka broker, host:port; default: one is started by scripts/kafka-up.
    #[arg(long, env = "ANSWERBACK_TEST_KAFKA")]
    kafka: Option<String>,
    /// Where stores go; default: beside this program. What a disk is worth shows in the figures.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Keeps stores, configurations and logs, and says where.
    #[arg(long)]
    keep: bool,
    /// Prints JSON instead of the table.
    #[arg(long)]
    json: bool,
}

impl Options {
    fn choices(&self, binary: PathBuf) -> Choices {
        Choices {
            binary,
            time: Duration::from_secs(self.seconds),
            waits: self.waits,
            connections: self.connections.into(),
            threads: self.threads.into(),
            window: self.window,
            rate: self.rate,
            latency_rate: self.latency_rate,
            dead: self.dead,
            death: self.death,
            queued: self.queued,
            backlog: self.backlog,
            stored: self.stored,
            polls: self.polls,
            store: self.store.clone(),
            replicas: self.replicas.into(),
            kafka: self.kafka.clone(),
            keep: self.keep,
        }
    }
}

async fn measure(options: Options) -> Result<bool> {
    let beside = std::env::current_exe()?;
    let beside = beside.parent().context("this program lies nowhere")?;
    let binary = options.daemon.clone().unwrap_or_else(|| beside.join("answerback"));
    let binary = binary.canonicalize().with_context(|| {
        format!("no daemon at {}; build it with `cargo build --release`", binary.display())
    })?;
    let rates = [options.rate, Some(options.latency_rate)];
    ensure!(rates.iter().flatten().all(|rate| *rate > 0.0), "a rate must be above 0");
    ensure!(
        options.replicas == 1 || !matches!(options.store, Kind::Sqlite),
        "several daemons share no file: --store postgres"
    );
    let directory = options.directory.clone().unwrap_or_else(|| beside.to_owned());
    let directory = tempfile::Builder::new()
        .prefix("bench-")
        .disable_cleanup(options.keep)
        .tempdir_in(directory)?;
    let environment = Environment::look(&binary, directory.path())?;
    let scenarios = match &options.scenarios[..] {
        [] => &Scenario::ALL[..],
        named => named,
    };
    let mut session = Session::new(options.choices(binary), directory.path());
    for &scenario in scenarios {
        session.measure(scenario).await?;
    }
    if options.keep {
        writeln!(std::io::stderr(), "kept: {}", directory.path().display())?;
    }
    let results = &session.results;
    let text = if options.json {
        report::json(&environment, results)? + "\n"
    } else {
        report::table(&environment, results)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(results.hold())
}

/// 0: measured, and every wait is accounted for; 1: not; 2: usage.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    if std::env::args().nth(1).as_deref() == Some(bare::ARGUMENT) {
        bare::serve().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse();
    // Not by the signal itself: whatever was started has to be ended.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        held = measure(options) => Ok(if held? { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
        _ = terminated.recv() => Ok(ExitCode::from(143)),
    }
}
