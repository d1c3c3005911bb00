//! `answerback-chaos`: daemons under faults, and whether they kept their promises. See README.md
//! beside this crate.

use answerback_chaos::history::{History, Recorder};
use answerback_chaos::oracle::judge;
use answerback_chaos::report::{About, Report};
use answerback_chaos::run::{Plan, keep, kept, run};
use anyhow::{Context, Result};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Injects faults into daemons that share a database, and judges what they did.
#[derive(Parser)]
#[command(name = "answerback-chaos", version)]
struct Options {
    /// Seconds with faults.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// What repeats the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Daemons.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=16))]
    replicas: u16,
    /// Questions a second.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rate: u64,
    /// One daemon on a file of SQLite, instead of several on a PostgreSQL of the run's own.
    #[arg(long)]
    sqlite: bool,
    /// A running Kafka broker, host:port; without one nothing is announced to Kafka.
    #[arg(long, env = "ANSWERBACK_TEST_KAFKA")]
    kafka: Option<String>,
    /// Nobody follows the feed of events.
    #[arg(long)]
    no_feed: bool,
    /// Ends leases by setting all clocks once the faults are over, instead of waiting for them.
    #[arg(long)]
    hurry: bool,
    /// The daemon; default: the `chaos-replica` beside this program.
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// Keeps the run's files, also when nothing was broken.
    #[arg(long)]
    keep: bool,
    /// Judges the kept history of an earlier run instead of running.
    #[arg(long, value_name = "FOLDER")]
    judge: Option<PathBuf>,
    /// Prints JSON instead of the table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    match runtime.block_on(Box::pin(chaos(options))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}

async fn chaos(options: Options) -> Result<bool> {
    if let Some(folder) = &options.judge {
        let history = kept(folder)?;
        let about = About {
            seed: options.seed,
            seconds: options.seconds,
            settled_after: 0,
            replicas: options.replicas.into(),
        };
        return tell(&Report::new(about, &history, judge(&history)), &history, options.json);
    }
    let beside = std::env::current_exe()?;
    let beside = beside.parent().context("this program lies nowhere")?;
    let binary = options.daemon.clone().unwrap_or_else(|| beside.join("chaos-replica"));
    let binary =
        binary.canonicalize().with_context(|| format!("no daemon at {}", binary.display()))?;
    let folder = tempfile::Builder::new().prefix("answerback-chaos.").tempdir()?;
    let plan = Plan {
        seed: options.seed,
        time: Duration::from_secs(options.seconds),
        replicas: if options.sqlite { 1 } else { options.replicas.into() },
        rate: options.rate,
        postgres: !options.sqlite,
        kafka: options.kafka.clone(),
        feed: !options.no_feed,
        hurry: options.hurry,
        binary,
        folder: folder.path().to_owned(),
    };
    // Hidden by itself where there is no terminal.
    let bar = ProgressBar::new(options.seconds);
    bar.set_style(ProgressStyle::with_template("{elapsed_precise} {bar:30} {msg}")?);
    let progress = |recorder: &Recorder, what: &str| {
        let message = recorder.with(|h| {
            format!(
                "{what}: {} asked, {} answered, {} received, {} faults",
                h.publishes.len(),
                h.answers.len(),
                h.arrivals.len(),
                h.faults.len()
            )
        });
        bar.set_position(bar.elapsed().as_secs());
        bar.set_message(message);
    };
    let ran = run(&plan, &progress).await;
    bar.finish_and_clear();
    let (mut report, history) = match ran {
        Ok(ran) => ran,
        Err(error) => {
            let kept = folder.keep();
            return Err(
                error.context(format!("the run failed; its files are in {}", kept.display()))
            );
        }
    };
    let well = report.violations.is_empty();
    if !well || options.keep {
        let kept = folder.keep();
        keep(&history, &kept)?;
        std::fs::write(kept.join("violations.txt"), report.violations(&history))?;
        report.kept = Some(kept.display().to_string());
    }
    tell(&report, &history, options.json)
}

/// Prints a report; gives whether nothing was broken.
fn tell(report: &Report, history: &History, json: bool) -> Result<bool> {
    let well = report.violations.is_empty();
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
    } else {
        writeln!(out, "{}", report.table())?;
    }
    if !well {
        writeln!(std::io::stderr(), "\n{}", report.violations(history))?;
    }
    if let Some(kept) = &report.kept {
        writeln!(std::io::stderr(), "logs and history: {kept}")?;
    }
    Ok(well)
}
