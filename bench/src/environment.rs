//! What the figures were measured on. Without it they mean little.

use anyhow::Result;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tokio::time::Instant;

const SYNCS: usize = 101;

/// The machine and what ran on it.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    /// What the daemon says its version is.
    daemon: String,
    /// This benchmark's version.
    bench: &'static str,
    /// Cores that may be used.
    cores: usize,
    /// Their name.
    processor: String,
    /// The kernel's release.
    kernel: String,
    /// What else ran as the benchmark began: the load average of the last minute.
    load_average: String,
    /// The median time in ms to append 4 KiB and have it on disk, where the store is.
    sync_ms: f64,
}

impl Environment {
    /// Looks, and writes a little in `directory`.
    pub(crate) fn look(daemon: &Path, directory: &Path) -> Result<Self> {
        let said = Command::new(daemon).arg("--version").output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let first = |file: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            text.split_whitespace().next().unwrap_or("unknown").to_owned()
        };
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        Ok(Self {
            daemon: said.unwrap_or_else(|_| "unknown".to_owned()),
            bench: env!("CARGO_PKG_VERSION"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.to_owned(),
            kernel: first("/proc/sys/kernel/osrelease"),
            load_average: first("/proc/loadavg"),
            sync_ms: sync_time(directory)?,
        })
    }

    /// In one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}; {} cores, {}; Linux {}; load {} before; fsync {:.2} ms",
            self.daemon, self.cores, self.processor, self.kernel, self.load_average, self.sync_ms
        )
    }
}

fn sync_time(directory: &Path) -> Result<f64> {
    let path = directory.join("sync");
    let mut file = File::create(&path)?;
    let block = [0_u8; 4096];
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    std::fs::remove_file(path)?;
    times.sort_unstable();
    Ok(times[SYNCS / 2].as_secs_f64() * 1e3)
}
