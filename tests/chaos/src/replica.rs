//! One daemon as a child process that is killed, stopped and set a wrong clock.

use crate::clock::{OFFSET_FILE, OffsetFile, Watch};
use crate::history::Recorder;
use crate::setup::{self, Settings};
use answerback_testkit::Api;
use answerback_testkit::daemon::free_address;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// How often a replica is looked at that should run.
const LOOK: Duration = Duration::from_millis(200);

/// A replica. Its process comes and goes; its address, files and number stay.
#[derive(Debug)]
pub struct Replica {
    number: usize,
    binary: PathBuf,
    folder: PathBuf,
    addr: SocketAddr,
    offset: OffsetFile,
    child: Mutex<Option<Child>>,
    watch: Watch,
    recorder: Recorder,
}

impl Replica {
    /// Writes its configuration; starts nothing.
    ///
    /// # Errors
    /// What the file system says.
    pub fn prepare(
        number: usize,
        binary: &Path,
        run: &Path,
        settings: &Settings<'_>,
        watch: Watch,
        recorder: Recorder,
    ) -> Result<Self> {
        let folder = run.join(format!("replica-{number}"));
        fs::create_dir_all(&folder)?;
        let addr = free_address();
        fs::write(folder.join("answerback.toml"), setup::config(number, addr, settings))?;
        fs::write(folder.join("store.url"), &settings.store_url)?;
        let offset = OffsetFile::create(&folder)?;
        let binary = binary.to_owned();
        let child = Mutex::new(None);
        Ok(Self { number, binary, folder, addr, offset, child, watch, recorder })
    }

    /// The URL of its API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Starts its process, unless it runs.
    ///
    /// # Errors
    /// When the binary cannot be started at all.
    pub async fn start(&self) -> Result<()> {
        let mut child = self.child.lock().await;
        if child.is_none() {
            *child = Some(self.spawn()?);
        }
        Ok(())
    }

    fn spawn(&self) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let err = log.try_clone()?;
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--config", "answerback.toml"]).current_dir(&self.folder);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env(OFFSET_FILE, self.offset.path()).env("HOME", &self.folder);
        command.stdin(Stdio::null()).stdout(log).stderr(err).kill_on_drop(true);
        command.spawn().with_context(|| format!("{} cannot be started", self.binary.display()))
    }

    /// Ends its process without a chance to do anything.
    pub async fn kill(&self) {
        if let Some(mut child) = self.child.lock().await.take() {
            let _ = child.start_kill();
            let _ = child.wait().await;
        }
    }

    /// Sends `STOP` or `CONT`.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.lock().await.as_ref().and_then(Child::id);
        if let Some(pid) = pid {
            // The command rather than the call: the workspace forbids unsafe code.
            let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).status().await;
        }
    }

    /// Sets its clock so far off.
    ///
    /// # Errors
    /// What the file system says.
    pub fn set_clock(&self, millis: i64) -> Result<()> {
        Ok(self.offset.set(millis)?)
    }

    /// Starts it again whenever it ends by itself, for ever. That is written down: a daemon may give
    /// up at its start while the database is away, but should not end later.
    pub async fn keep_running(&self) {
        loop {
            sleep(LOOK).await;
            let mut child = self.child.lock().await;
            let Some(running) = child.as_mut() else { continue };
            let Ok(Some(status)) = running.try_wait() else { continue };
            let last = last_line(&self.folder.join("log"));
            let number = self.number;
            self.recorder.mishap(
                self.watch.now(),
                format!("replica {number} ended by itself with {status}: {last}"),
            );
            match self.spawn() {
                Ok(next) => *child = Some(next),
                Err(_) => *child = None,
            }
        }
    }

    /// Waits until it says that it is ready; `false` when it does not within `bound`.
    pub async fn ready(&self, bound: Duration) -> bool {
        let api = Api::new(self.url());
        let asking = async {
            loop {
                let once = api.try_send(Method::GET, "/readyz", &[], Bytes::new());
                if let Ok(Ok(reply)) = timeout(Duration::from_secs(2), once).await
                    && reply.status == 200
                {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(bound, asking).await.is_ok()
    }
}

fn last_line(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let tail = &bytes[bytes.len().saturating_sub(2_000)..];
    String::from_utf8_lossy(tail).lines().last().unwrap_or_default().to_owned()
}
