//! Thousands of small worlds, each of one seed: some replicas over one store that fails, buses and
//! hosts that fail, clients, clocks that are set, processes that are killed. Time is simulated and
//! all chance comes from the seed, so that a run that breaks a promise can be looked at again:
//!
//! ```text
//! SIMULATION_SEED=17 cargo test --release --test simulation -- --nocapture
//! ```
//!
//! `SIMULATION_SEEDS` says how many to try, and `SIMULATION_FIRST` where to start.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail by it")]

mod afterglow;
mod buses;
mod clock;
mod ledger;
mod life;
mod load;
mod oracle;
mod plan;
mod random;
mod replay;
mod replica;
mod run;
mod store;
mod world;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Half a minute's work for two processors. A debug build is several times as slow.
const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 2_000 };

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs seeds on all processors, until so many have failed.
fn over(
    seeds: std::ops::Range<u64>,
    each: impl Fn(u64) -> Result<(), String> + Sync,
) -> Vec<String> {
    const ENOUGH: usize = 5;
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(Vec::new());
    // Half of the time a thread waits for its store's.
    let threads = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failed.lock().unwrap().len() < ENOUGH {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let done = catch_unwind(AssertUnwindSafe(|| each(seed)))
                        .unwrap_or_else(|_| Err("panicked".to_owned()));
                    if let Err(why) = done {
                        failed.lock().unwrap().push(format!(
                            "seed {seed}: {why}\n  SIMULATION_SEED={seed} cargo test --release --test simulation -- --nocapture"
                        ));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "how long the test itself takes is no simulated time"
)]
fn no_seed_breaks_a_promise() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let report = run::run(seed, true);
        let mut out = std::io::stderr().lock();
        for line in &report.lines {
            writeln!(out, "{line}").unwrap();
        }
        assert!(report.wrong.is_empty(), "seed {seed}:\n{}", report.wrong.join("\n"));
        return;
    }
    let first = number("SIMULATION_FIRST").unwrap_or(0);
    let seeds = first..first + number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let (calls, arrivals) = (AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    let failed = over(seeds.clone(), |seed| {
        let report = run::run(seed, false);
        calls.fetch_add(report.calls as u64, Ordering::Relaxed);
        arrivals.fetch_add(report.arrivals as u64, Ordering::Relaxed);
        match report.wrong.first() {
            None => Ok(()),
            Some(wrong) => Err(format!("{} broken promises, first: {wrong}", report.wrong.len())),
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let (seconds, seeds) = (began.elapsed().as_secs_f64(), seeds.end - seeds.start);
    let mut out = std::io::stderr().lock();
    writeln!(
        out,
        "{seeds} seeds in {seconds:.1} s: {} calls of the store, {} messages arrived",
        calls.into_inner(),
        arrivals.into_inner()
    )
    .unwrap();
}

#[test]
fn the_same_seed_is_the_same_run() {
    let seeds = if cfg!(debug_assertions) { 8 } else { 60 };
    let failed = over(1_000_000..1_000_000 + seeds, |seed| {
        let (once, again) = (run::run(seed, false), run::run(seed, false));
        if once.hash == again.hash { Ok(()) } else { Err("two runs differ".to_owned()) }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn other_seeds_are_other_runs() {
    assert_ne!(run::run(1, false).hash, run::run(2, false).hash);
}
