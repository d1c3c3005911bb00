//! Hosts that wait for their answers: one connection and one long poll each.

use crate::daemon::Daemon;
use crate::envelope::{Number, question_id, thread_id};
use crate::process;
use crate::scenarios::Finding;
use crate::wire::Client;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Connections that are being opened at a time: fewer than a listener's backlog.
const OPENING: usize = 100;
/// Files that either side has open for other things. The daemon keeps 200 for itself.
const OTHER_FILES: u64 = 300;
/// The daemon has read the last request when it needs next to nothing for so long.
const CALM: Duration = Duration::from_secs(1);
/// Processor seconds that are next to nothing.
const QUIET: f64 = 0.02;
/// Polls end after 60 s: whatever is looked at, they are answered before that.
const ANSWER_BY: Duration = Duration::from_secs(40);
/// One in so many gets an answer.
const ANSWERED: usize = 100;

/// Refuses what the limit of open files does not allow.
pub(crate) fn check_files(polls: Number) -> Result<()> {
    let files = process::open_files()?;
    let needed = u64::from(polls) + OTHER_FILES;
    ensure!(
        files >= needed,
        "{polls} connections need {needed} open files here and in the daemon, but {files} are allowed; \
         raise it by `ulimit -n {needed}`"
    );
    Ok(())
}

/// Lets `polls` hosts wait for the answers of the first waits that are stored, looks at the daemon
/// for `time`, and answers some.
pub(crate) async fn measure(
    daemon: &Daemon,
    polls: Number,
    time: Duration,
) -> Result<Vec<Finding>> {
    let before = daemon.resident_kib()? as f64 / 1024.0;
    let began = Instant::now();
    let opening = Arc::new(Semaphore::new(OPENING));
    let mut waiting: Vec<JoinSet<Result<Instant>>> = Vec::new();
    let mut connected = JoinSet::new();
    for number in 0..polls {
        let (address, opening) = (daemon.address, Arc::clone(&opening));
        connected.spawn(async move {
            let _one = opening.acquire_owned().await?;
            Ok::<_, anyhow::Error>((number, Client::connect(address).await?))
        });
    }
    let mut clients = Vec::new();
    while let Some(client) = connected.join_next().await {
        clients.push(client??);
    }
    clients.sort_by_key(|(number, _)| *number);
    for (number, mut client) in clients {
        let path = format!("/v1/waits/{}/answer?wait=60s", question_id(number));
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address);
        let mut poll = JoinSet::new();
        poll.spawn(async move {
            let response = client.exchange(request.as_bytes()).await?;
            let expected = format!("\"answer\": {number}");
            let text = std::str::from_utf8(response.body)?;
            let status = response.status;
            ensure!(status == 200 && text.contains(&expected), "a poll got {status}: {text}");
            Ok(Instant::now())
        });
        waiting.push(poll);
    }
    let mut cpu = daemon.cpu_seconds()?;
    loop {
        sleep(CALM).await;
        let before = std::mem::replace(&mut cpu, daemon.cpu_seconds()?);
        if cpu - before <= QUIET || began.elapsed() > ANSWER_BY / 2 {
            break;
        }
    }
    let opened = began.elapsed();
    sleep(time.min(ANSWER_BY.saturating_sub(opened))).await;
    let watched = began.elapsed() - opened;
    let share = (daemon.cpu_seconds()? - cpu) / watched.as_secs_f64();
    let resident = daemon.resident_kib()? as f64 / 1024.0;
    let open = waiting.iter_mut().filter_map(|poll| poll.try_join_next()).next();
    ensure!(open.is_none(), "a poll ended by itself: {open:?}");

    let mut answers = Client::connect(daemon.address).await?;
    let mut took = Vec::new();
    for (number, poll) in waiting.iter_mut().enumerate().step_by(ANSWERED) {
        let wait = Number::try_from(number)?;
        let body = format!(
            "{{\"thread_id\":\"{}\",\"question_id\":\"{}\",\"answer\":{number}}}",
            thread_id(wait),
            question_id(wait)
        );
        let request = format!(
            "POST /v1/answers HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            daemon.address,
            body.len()
        );
        let asked = Instant::now();
        let accepted = answers.exchange(request.as_bytes()).await?.status;
        ensure!(accepted == 200, "an answer got {accepted}");
        let told = poll.join_next().await.context("a poll that was counted twice")???;
        took.push((told - asked).as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    let median = took.get(took.len() / 2).copied().unwrap_or(0.0);
    let slowest = took.last().copied().unwrap_or(0.0);
    let each = (resident - before) * 1024.0 / f64::from(polls).max(1.0);
    let find = |name: &str, value, text| Finding { name: name.to_owned(), value, text };
    Ok(vec![
        find(
            "long_polls_resident_mib",
            resident,
            format!("{polls} idle long polls: {resident:.1} MiB resident, {before:.1} before"),
        ),
        find("long_polls_kib_each", each, format!("each takes {each:.1} KiB")),
        find(
            "long_polls_core_share",
            share,
            format!("while they wait: {:.2} % of a core", share * 100.0),
        ),
        find(
            "long_polls_answer_ms",
            median,
            format!("from an answer to its host: {median:.1} ms, {slowest:.1} ms at most"),
        ),
    ])
}
