//! What Linux knows about a process.

use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Ticks of the processor times in `/proc/PID/stat`: `USER_HZ`, which is 100 on every Linux that
/// Rust runs on.
const TICKS_A_SECOND: f64 = 100.0;

/// Processor seconds, user and system, of all threads since the start; exact to 0.01 s.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = read(pid, "stat")?;
    ticks(&stat).map(|t| t as f64 / TICKS_A_SECOND).context("an unknown form of /proc/PID/stat")
}

/// Processor seconds of the threads that live now, by the threads' names; numbers in them left out.
pub(crate) fn cpu_by_thread(pid: u32) -> Result<BTreeMap<String, f64>> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the two looks.
        let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
        if let (Some(name), Some(ticks)) = (name(&stat), ticks(&stat)) {
            *all.entry(name).or_default() += ticks as f64 / TICKS_A_SECOND;
        }
    }
    Ok(all)
}

/// The largest resident memory so far, in KiB.
pub(crate) fn peak_kib(pid: u32) -> Result<u64> {
    kib(&read(pid, "status")?, "VmHWM:").context("no VmHWM in /proc/PID/status")
}

/// The resident memory now, in KiB.
pub(crate) fn resident_kib(pid: u32) -> Result<u64> {
    kib(&read(pid, "status")?, "VmRSS:").context("no VmRSS in /proc/PID/status")
}

/// So many files this process may have open, and the daemon that it starts too.
pub(crate) fn open_files() -> Result<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_ascii_whitespace().next());
    let soft = soft.context("no limit of open files in /proc/self/limits")?;
    if soft == "unlimited" { Ok(u64::MAX) } else { Ok(soft.parse()?) }
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {path}: the daemon has ended, or this is no Linux"))
}

/// Fields 14 and 15, `utime` and `stime`. The second one, the name, may hold blanks and brackets.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn name(stat: &str) -> Option<String> {
    let (_, rest) = stat.split_once('(')?;
    let (name, _) = rest.rsplit_once(')')?;
    Some(name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned())
}

fn kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_times_are_found_behind_any_name() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 1234 66 0 0 20 0 5 0 1 2 3";
        assert_eq!(ticks(stat), Some(1300));
        assert_eq!(ticks("42 (x"), None);
        assert_eq!(name(stat).as_deref(), Some("a b) c"));
        assert_eq!(name("7 (worker-12) S").as_deref(), Some("worker"));
    }

    #[test]
    fn memory_is_read_in_kib() {
        let status = "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!((kib(status, "VmHWM:"), kib(status, "VmRSS:")), (Some(2048), Some(1024)));
        assert_eq!(kib(status, "VmSwap:"), None);
    }

    #[test]
    fn this_very_process_has_figures() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
        assert!(!cpu_by_thread(pid).unwrap().is_empty());
        assert!(peak_kib(pid).unwrap() >= resident_kib(pid).unwrap() / 2);
    }
}
