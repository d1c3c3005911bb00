//! The real daemon as a child process.

use crate::http::Api;
use crate::postgres::Database;
use crate::waiting::PATIENCE;
use bytes::Bytes;
use http::Method;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// The configuration names the store's URLs by these: they can hold a password.
const STORE_URL: &str = "STORE_URL";
const STORE_LISTEN_URL: &str = "STORE_LISTEN_URL";

/// Where a daemon keeps what it knows.
#[derive(Clone, Debug)]
enum Store {
    /// Whichever store the tests are run on, by `ANSWERBACK_TEST_STORE`: a fresh one.
    Any(Arc<OnceLock<Database>>),
    /// A file in the daemon's own directory.
    File,
    /// There, and what must live as long.
    At(String, Option<Arc<OnceLock<Database>>>, Option<Arc<TempDir>>),
}

/// Whether the tests are run on PostgreSQL.
fn on_postgres() -> bool {
    match std::env::var("ANSWERBACK_TEST_STORE").as_deref() {
        Err(_) | Ok("" | "sqlite") => false,
        Ok("postgres") => true,
        Ok(other) => panic!("ANSWERBACK_TEST_STORE is {other:?}; it may be sqlite or postgres"),
    }
}

/// How to start one. Also what a restart repeats.
#[derive(Clone, Debug)]
pub struct Setup {
    binary: PathBuf,
    server: String,
    store: Store,
    listen_url: Option<String>,
    tables: String,
    env: Vec<(String, String)>,
    key: Option<String>,
    addr: SocketAddr,
    dir: Arc<TempDir>,
}

impl Setup {
    /// Of the binary that cargo built: `env!("CARGO_BIN_EXE_answerback")`. On a free loopback port,
    /// with a directory and a store of its own: SQLite, or a PostgreSQL database where
    /// `ANSWERBACK_TEST_STORE` is `postgres`.
    #[must_use]
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            server: String::new(),
            store: Store::Any(Arc::default()),
            listen_url: None,
            tables: String::new(),
            env: Vec::new(),
            key: None,
            addr: free_address(),
            dir: Arc::new(TempDir::new().expect("a temporary directory")),
        }
    }

    /// Lines for the table `[server]`.
    #[must_use]
    pub fn server(mut self, lines: &str) -> Self {
        let _ = writeln!(self.server, "{lines}");
        self
    }

    /// The store at a URL.
    #[must_use]
    pub fn store(mut self, url: &str) -> Self {
        self.store = Store::At(url.to_owned(), None, None);
        self
    }

    /// SQLite in its own directory, whichever store the tests are run on: for what is about the file.
    #[must_use]
    pub fn on_file(mut self) -> Self {
        self.store = Store::File;
        self
    }

    /// The store of another.
    #[must_use]
    pub fn sharing(mut self, other: &Self) -> Self {
        let (database, dir) = match &other.store {
            Store::Any(database) => (Some(Arc::clone(database)), Some(Arc::clone(&other.dir))),
            Store::File => (None, Some(Arc::clone(&other.dir))),
            Store::At(_, database, dir) => (database.clone(), dir.clone()),
        };
        self.store = Store::At(other.store_url(), database, dir);
        self
    }

    /// Another one like this: on the same store, with a port and a directory of its own.
    #[must_use]
    pub fn replica(&self) -> Self {
        let dir = Arc::new(TempDir::new().expect("a temporary directory"));
        Self { addr: free_address(), dir, ..self.clone() }.sharing(self)
    }

    /// Where it listens to what other daemons say, if not at the store's URL.
    #[must_use]
    pub fn listen_url(mut self, url: &str) -> Self {
        self.listen_url = Some(url.to_owned());
        self
    }

    /// The URL of its store, which is made if need be.
    ///
    /// # Panics
    /// Where PostgreSQL is to be used and is not there.
    #[must_use]
    pub fn store_url(&self) -> String {
        match &self.store {
            Store::At(url, ..) => url.clone(),
            Store::Any(database) if on_postgres() => {
                database.get_or_init(Database::create).url().to_owned()
            }
            Store::Any(_) | Store::File => {
                let file = self.dir().join("answerback.db");
                format!("sqlite:{}", file.to_str().expect("a path in UTF-8"))
            }
        }
    }

    /// Tables of the configuration, but for `[server]` and `[store]`.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        let _ = writeln!(self.tables, "{toml}");
        self
    }

    /// An environment variable. The daemon gets none but these and the path.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What the emulator and the stub take as credentials.
    #[must_use]
    pub fn aws_credentials(self) -> Self {
        self.env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
    }

    /// The key that [`Daemon::api`] sends; the configuration must know it.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where it will listen.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Writes the configuration and gives its path.
    #[must_use]
    pub fn write_config(&self) -> PathBuf {
        let url = self.store_url();
        let mut store = match url.starts_with("sqlite:") {
            true => format!("url = \"{url}\"\n"),
            false => format!("url_env = \"{STORE_URL}\"\n"),
        };
        if self.listen_url.is_some() {
            let _ = writeln!(store, "listen_url_env = \"{STORE_LISTEN_URL}\"");
        }
        let text = format!(
            "[server]\nlisten = \"{}\"\n{}\n[store]\n{store}\n{}",
            self.addr, self.server, self.tables
        );
        let file = self.dir().join("answerback.toml");
        fs::write(&file, text).expect("the configuration can be written");
        file
    }

    /// A command of the same binary, in the same place and environment, such as `waits list`.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(args).current_dir(self.dir()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.dir()).envs(self.env.iter().map(|(n, v)| (n, v)));
        command.env("ANSWERBACK_URL", format!("http://{}", self.addr));
        if let Some(key) = &self.key {
            command.env("ANSWERBACK_API_KEY", key);
        }
        let store_url = match &self.store {
            // Not made for a command that does without.
            Store::Any(database) => database.get().map(Database::url),
            Store::File => None,
            Store::At(url, ..) => Some(url.as_str()),
        };
        command.envs(store_url.map(|url| (STORE_URL, url)));
        command.envs(self.listen_url.iter().map(|url| (STORE_LISTEN_URL, url)));
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// When it ends instead, or is not ready in time; with all that it wrote.
    pub async fn start(self) -> Daemon {
        let config = self.write_config();
        let log = self.dir().join("log");
        let out = File::options().create(true).append(true).open(&log).expect("a log file");
        let err = out.try_clone().expect("a second handle");
        let mut command = self.command(&["serve", "--config"]);
        command.arg(config).stdout(out).stderr(err);
        let child =
            command.spawn().unwrap_or_else(|e| panic!("cannot start {:?}: {e}", self.binary));
        let mut api = Api::new(format!("http://{}", self.addr));
        if let Some(key) = &self.key {
            api = api.with_key(key);
        }
        let mut daemon = Daemon { setup: self, child, api, shown: false };
        daemon.ready().await;
        daemon
    }
}

/// A running daemon; killed when dropped. What it wrote is shown when the test is failing.
#[derive(Debug)]
pub struct Daemon {
    setup: Setup,
    child: Child,
    api: Api,
    shown: bool,
}

impl Daemon {
    /// Its API, with the set-up's key.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// A full URL of it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        self.api.url(path)
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.setup.dir()
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// How it was set up, for a second one on the same directory.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Everything it has written so far, over all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs a command line of the binary against it, such as `["waits", "list"]`.
    pub async fn run(&self, args: &[&str]) -> std::process::Output {
        let running = self.setup.command(args).output();
        timeout(PATIENCE, running)
            .await
            .expect("a command that ends")
            .expect("a command that starts")
    }

    /// Ends it without a chance to do anything.
    pub async fn kill9(&mut self) {
        let _ = self.child.start_kill();
        let _ = self.child.wait().await;
    }

    /// Asks it to end (SIGTERM) and gives its exit status.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal("TERM").await;
        self.exit().await
    }

    /// Sends a signal by its name without `SIG`.
    pub async fn signal(&self, name: &str) {
        if let Some(pid) = self.child.id() {
            // The command rather than the call: the workspace forbids unsafe code.
            let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
            assert!(sent.await.expect("the command kill").success(), "cannot signal {pid}");
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within [`PATIENCE`].
    pub async fn exit(&mut self) -> ExitStatus {
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.expect("a child that can be waited for"),
            Err(_) => panic!("the daemon did not end"),
        }
    }

    /// Kills it if it still runs, and starts it again on the same directory and port.
    pub async fn restart(mut self) -> Self {
        self.kill9().await;
        self.shown = true;
        self.setup.clone().start().await
    }

    /// The same with another configuration.
    pub async fn restart_with(mut self, change: impl FnOnce(Setup) -> Setup) -> Self {
        self.kill9().await;
        self.shown = true;
        change(self.setup.clone()).start().await
    }

    async fn ready(&mut self) {
        let end = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(2);
        loop {
            let reply = self.api.try_send(Method::GET, "/readyz", &[], Bytes::new()).await;
            if reply.is_ok_and(|r| r.status == 200) {
                return;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the daemon ended with {status} instead of becoming ready");
            }
            assert!(Instant::now() < end, "the daemon is not ready within {PATIENCE:?}");
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Resident memory in bytes, as the kernel counts it.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let pid = self.pid().expect("a running daemon");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("its memory");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a size");
        kib * 1024
    }

    /// CPU time used so far, user and system.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let pid = self.pid().expect("a running daemon");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its times");
        let after = stat.rsplit_once(") ").expect("a name in brackets").1;
        let ticks: u64 =
            after.split(' ').skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        // The unit of these fields is 1/100 s on every Linux that we know.
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.shown {
            eprintln!("---- what the daemon wrote ----\n{}---- end ----", self.log());
        }
    }
}

/// The ports that tests choose from: below those that the system gives to whoever asks for any, so
/// that no connection and no other listener takes one between being chosen and being used.
const PORTS: std::ops::Range<u32> = 10_000..32_000;

/// A loopback address that is free, and that this process is given once.
#[must_use]
pub fn free_address() -> SocketAddr {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let some = PORTS.end - PORTS.start;
    for _ in 0..some {
        // Test binaries that run at the same time begin at different places.
        let at = (std::process::id() % 1_000) * 22 + GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORTS.start + at % some).expect("a port has sixteen bits");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return SocketAddr::from(([127, 0, 0, 1], port));
        }
    }
    panic!("no port from {} to {} is free", PORTS.start, PORTS.end);
}
