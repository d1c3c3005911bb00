//! The short run that is part of every test run: every kind of machinery once, in under a minute.
//! `make chaos` makes long ones.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may fail by it")]

use answerback_chaos::run::{Plan, keep, run};
use std::path::Path;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_daemons_under_faults_lose_nothing_and_double_nothing() {
    let folder = tempfile::Builder::new().prefix("answerback-chaos.").tempdir().unwrap();
    let plan = Plan {
        seed: 11,
        time: Duration::from_secs(25),
        replicas: 3,
        rate: 40,
        postgres: true,
        kafka: Some(answerback_testkit::services::kafka()),
        feed: true,
        hurry: true,
        binary: Path::new(env!("CARGO_BIN_EXE_chaos-replica")).to_owned(),
        folder: folder.path().to_owned(),
    };
    let (report, history) = Box::pin(run(&plan, &|_, _| {})).await.unwrap();
    eprintln!("{}", report.table());
    if !report.violations.is_empty() {
        let kept = folder.keep();
        keep(&history, &kept).unwrap();
        panic!("logs and history are in {}\n{}", kept.display(), report.violations(&history));
    }
    // Nothing broken is nothing proven where nothing happened.
    assert!(report.acknowledged > 50, "only {} publishes were acknowledged", report.acknowledged);
    assert!(report.answers > 20, "only {} waits were answered", report.answers);
    assert!(report.faults.len() >= 8, "only {:?}", report.faults);
}
