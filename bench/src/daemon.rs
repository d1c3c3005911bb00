//! The daemon under measurement: the real binary in a directory of its own.

use crate::postgres::Store;
use crate::settings::{ENVIRONMENT, STORE};
use crate::{process, wire};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// The longest start that is waited for.
const START: Duration = Duration::from_secs(60);

/// The daemon's own grace is 20 s.
const STOP: Duration = Duration::from_secs(30);

/// Between two looks at `/readyz`: what the start time is exact to.
const LOOK: Duration = Duration::from_millis(2);

/// The lines of its log that an error shows.
const TAIL: usize = 20;

/// A running daemon. Dropping it kills it.
pub(crate) struct Daemon {
    child: Child,
    pid: u32,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// From the start of the process to the first 200 of `/readyz`.
    pub(crate) ready_after: Duration,
    log: PathBuf,
}

/// A loopback port that was free a moment ago.
pub(crate) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?)
}

impl Daemon {
    /// Starts `binary` with a configuration in `directory` and waits until it is ready. A store that
    /// is there already is used.
    pub(crate) async fn start(
        binary: &Path,
        directory: &Path,
        address: SocketAddr,
        store: &Store,
        configuration: &str,
    ) -> Result<Self> {
        std::fs::write(directory.join("answerback.toml"), configuration)?;
        let log = directory.join("daemon.log");
        let output = File::options().create(true).append(true).open(&log)?;
        let began = Instant::now();
        let child = Command::new(binary)
            .args(["serve", "--config", "answerback.toml"])
            .current_dir(directory)
            .envs(ENVIRONMENT.iter().copied())
            .envs(store.url().map(|url| (STORE, url)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!("cannot start {}; build it with `cargo build --release`", binary.display())
            })?;
        let pid = child.id().context("the daemon ended at once")?;
        let mut daemon = Self { child, pid, address, ready_after: Duration::ZERO, log };
        while !matches!(wire::get(address, "/readyz").await, Ok((200, _))) {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon ended with {status}:\n{}", daemon.tail());
            }
            ensure!(began.elapsed() < START, "not ready after {START:?}:\n{}", daemon.tail());
            sleep(LOOK).await;
        }
        daemon.ready_after = began.elapsed();
        Ok(daemon)
    }

    /// Processor seconds so far.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        process::cpu_seconds(self.pid)
    }

    /// The same by the names of its threads.
    pub(crate) fn cpu_by_thread(&self) -> Result<BTreeMap<String, f64>> {
        process::cpu_by_thread(self.pid)
    }

    /// Peak resident memory so far, in KiB.
    pub(crate) fn peak_kib(&self) -> Result<u64> {
        process::peak_kib(self.pid)
    }

    /// Resident memory now, in KiB.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        process::resident_kib(self.pid)
    }

    /// Its metrics, in Prometheus's text form.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let (status, text) = wire::get(self.address, "/metrics").await?;
        ensure!(status == 200, "/metrics answers {status}");
        Ok(text)
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> Result<Vec<u8>> {
        std::fs::read(&self.log).context("cannot read the daemon's log")
    }

    /// The end of its log.
    pub(crate) fn tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// Asks it to end, as an operator would, and waits until it has.
    pub(crate) async fn stop(mut self) -> Result<()> {
        let asked = Command::new("kill").arg(self.pid.to_string()).status().await;
        ensure!(asked.is_ok_and(|status| status.success()), "cannot signal the daemon");
        let status = timeout(STOP, self.child.wait())
            .await
            .with_context(|| format!("did not stop within {STOP:?}:\n{}", self.tail()))??;
        ensure!(status.success(), "the daemon ended with {status}:\n{}", self.tail());
        Ok(())
    }
}

/// The sum of a metric over all its labels, `None` when there is none of that name.
pub(crate) fn sum(metrics: &str, name: &str, having: &str) -> Option<f64> {
    let mut found = None;
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        if !(rest.starts_with('{') || rest.starts_with(' ')) || !rest.contains(having) {
            continue;
        }
        if let Some(value) = rest.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()) {
            *found.get_or_insert(0.0) += value;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_alone() {
        let text = "# HELP a x\na{b=\"c\"} 2\na{b=\"d\"} 3\na_more{b=\"c\"} 9\nplain 7\n";
        assert_eq!(sum(text, "a", ""), Some(5.0));
        assert_eq!(sum(text, "a", "b=\"d\""), Some(3.0));
        assert_eq!(sum(text, "plain", ""), Some(7.0));
        assert_eq!(sum(text, "none", ""), None);
    }
}
