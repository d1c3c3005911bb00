//! No space left: nothing is acknowledged that is not stored, and it goes on when there is space.

use crate::bed::{all_of, answer, bare, envelope, settled, webhook};
use answerback_testkit::{Api, Daemon, Receiver, eventually};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A small file system of its own, which only root can mount.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(dir.path());
        mount.output().is_ok_and(|o| o.status.success()).then(|| Self(dir))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Takes all the space that is left.
    fn fill(&self) {
        let mut file = File::create(self.path("ballast")).unwrap();
        for piece in [1 << 16, 1 << 12, 1] {
            let bytes = vec![0_u8; piece];
            while file.write_all(&bytes).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.path("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn large(n: usize) -> Value {
    let mut wait = envelope(&format!("t{n}"), &format!("q{n}"));
    wait["question"] = json!("x".repeat(20_000));
    wait
}

/// Publishes until the store takes no more; gives how many it acknowledged.
async fn publish_until_refused(api: &Api) -> usize {
    for n in 0..2_000 {
        let reply = api.post("/v1/waits", &large(n)).await;
        if reply.status != 202 {
            assert_eq!((reply.status, reply.code().as_str()), (503, "store-unavailable"));
            assert!(!reply.header("retry-after").is_empty());
            assert!(reply.json()["error"]["retryAfterSeconds"].is_number());
            return n;
        }
    }
    panic!("the disk is never full");
}

/// What must hold while the disk is full and after it has space again.
async fn check(daemon: Daemon, hook: &Receiver, make_space: impl AsyncFnOnce(&Daemon)) {
    let api = daemon.api();
    let acknowledged = publish_until_refused(api).await;
    // An answer is no more acknowledged than a question.
    if acknowledged > 0 {
        let mut message = answer("t0", "q0", json!("y".repeat(200_000)));
        let refused = api.post("/v1/answers", &message).await;
        message["answer"] = json!(0);
        assert_eq!((refused.status, refused.code().as_str()), (503, "store-unavailable"));
        let wait = api.get("/v1/waits/q0").await.expect(200).json();
        assert_eq!(wait["state"], "open");
    }
    make_space(&daemon).await;
    eventually("the store takes waits again", || async {
        (api.post("/v1/waits", &large(5_000)).await.status < 300).then_some(())
    })
    .await;
    let shown = |waits: &[Value]| {
        let mut ids: Vec<_> =
            waits.iter().map(|w| w["question_id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let mut wanted: Vec<_> = (0..acknowledged).map(|n| format!("q{n}")).collect();
    wanted.push("q5000".to_owned());
    wanted.sort();
    assert_eq!(shown(&all_of(api, "/v1/waits").await), wanted, "only what was acknowledged");
    settled(&daemon).await;
    let mut keys: Vec<_> = hook.all().iter().map(|r| r.json()["question_id"].clone()).collect();
    keys.sort_by_key(ToString::to_string);
    keys.dedup();
    assert_eq!(keys.len(), acknowledged + 1, "each was announced");
    // It is all on disk.
    let daemon = daemon.restart().await;
    assert_eq!(shown(&all_of(daemon.api(), "/v1/waits").await), wanted);
}

#[tokio::test]
async fn on_a_full_disk_nothing_is_acknowledged_and_it_recovers_when_there_is_space() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("no small file system can be mounted here: the limit on files stands in for it");
        return;
    };
    let hook = Receiver::start().await;
    let daemon = bare()
        .store(&format!("sqlite:{}", disk.path("answerback.db").display()))
        .config(&webhook("hook", &hook.url("/"), ""))
        .start()
        .await;
    daemon.api().post("/v1/waits", &envelope("before", "before")).await.expect(202);
    hook.next().await;
    daemon.api().post("/v1/waits/before/cancel", &json!({})).await.expect(200);
    settled(&daemon).await;
    disk.fill();
    let before = all_of(daemon.api(), "/v1/waits").await.len();
    assert_eq!(before, 1, "what is stored can still be read");
    let acknowledged = publish_until_refused(daemon.api()).await;
    assert!(acknowledged < 300, "{acknowledged} of 20 kB each on a full disk");
    let refused = daemon.api().post("/v1/waits", &large(9_000)).await.expect(503);
    assert_eq!(refused.code(), "store-unavailable");
    disk.free();
    eventually("the store takes waits again", || async {
        (daemon.api().post("/v1/waits", &large(5_000)).await.status < 300).then_some(())
    })
    .await;
    settled(&daemon).await;
    let waits = all_of(daemon.api(), "/v1/waits").await;
    assert_eq!(waits.len(), acknowledged + 2, "only what was acknowledged");
    let mut announced: Vec<_> =
        hook.all().iter().map(|r| r.json()["question_id"].to_string()).collect();
    announced.sort();
    announced.dedup();
    assert_eq!(announced.len(), acknowledged + 2);
    let daemon = daemon.restart().await;
    assert_eq!(all_of(daemon.api(), "/v1/waits").await.len(), acknowledged + 2);
}

/// The same by a limit on the size of files, which anybody can set: another error than that of a
/// full disk, and one that ends a process which does not ignore the signal.
#[tokio::test]
async fn when_files_may_not_grow_nothing_is_acknowledged_and_it_recovers_when_they_may() {
    let dir = TempDir::new().unwrap();
    let wrapper = dir.path().join("answerback");
    ignoring_the_signal(&wrapper);
    let hook = Receiver::start().await;
    let setup = answerback_testkit::daemon::Setup::new(&wrapper);
    let daemon = setup.on_file().config(&webhook("hook", &hook.url("/"), "")).start().await;
    limit_files(&daemon, "2000000");
    check(daemon, &hook, async |daemon| limit_files(daemon, "unlimited")).await;
}

/// A program that runs the daemon, its process and all, deaf to the signal of the limit.
fn ignoring_the_signal(wrapper: &Path) {
    let script =
        format!("#!/bin/sh\ntrap '' XFSZ\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_answerback"));
    fs::write(wrapper, script).unwrap();
    fs::set_permissions(wrapper, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The soft limit only, so that it can be raised again.
fn limit_files(daemon: &Daemon, bytes: &str) {
    let pid = daemon.pid().unwrap().to_string();
    let limit = format!("--fsize={bytes}:unlimited");
    let status = Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap();
    assert!(status.success(), "prlimit of util-linux");
}
