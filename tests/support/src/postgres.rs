//! PostgreSQL: fresh databases on the server that `scripts/services up` started, and servers of a test's own
//! that it may stop, kill and start again.

use crate::daemon::free_address;
use crate::services;
use crate::waiting::PATIENCE;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use std::{env, fs};
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, NoTls};
use ulid::Ulid;
use url::Url;

/// A fresh, empty database on the shared server. That server does not wait for the disk: what must survive a
/// crash of PostgreSQL belongs on a [`Server`].
pub async fn database() -> Database {
    spawn_blocking(Database::create).await.expect("a database")
}

/// A database, dropped with this, whoever is still connected.
#[derive(Debug)]
pub struct Database {
    url: String,
    admin: String,
    name: String,
}

impl Database {
    /// The same as [`database`], for callers that cannot wait otherwise.
    ///
    /// # Panics
    /// Where the server is not there, or refuses.
    #[must_use]
    pub fn create() -> Self {
        Self::create_on(&services::postgres())
    }

    /// One on another server, by the URL of a user of it who may create databases.
    ///
    /// # Panics
    /// Where the server is not there, or refuses.
    #[must_use]
    pub fn create_on(admin: &str) -> Self {
        let name = format!("test_{}", Ulid::generate().to_string().to_lowercase());
        // Nobody is ever connected to this template: no other test, and no worker of the server.
        run_alone(admin, &format!("CREATE DATABASE {name} TEMPLATE template0"))
            .unwrap_or_else(|e| panic!("no fresh database: {e}"));
        Self { url: with_database(admin, &name), admin: admin.to_owned(), name }
    }

    /// Its URL, with the password.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same database through pgbouncer in transaction mode; only for one on the shared server.
    #[must_use]
    pub fn pgbouncer_url(&self) -> String {
        with_database(&services::pgbouncer(), &self.name)
    }

    /// A connection of the test's own.
    pub async fn connect(&self) -> Client {
        connect(&self.url).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Left to the end of the server where it cannot be done: a test may have stopped it.
        let _ = run_alone(&self.admin, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// Where the shared server listens, to put a [`Proxy`](crate::proxy::Proxy) before it.
///
/// # Panics
/// Where it is not there.
#[must_use]
pub fn shared_addr() -> SocketAddr {
    let url = Url::parse(&services::postgres()).expect("a URL");
    url.socket_addrs(|| None).ok().and_then(|a| a.first().copied()).expect("an address")
}

/// A connection by its URL.
///
/// # Panics
/// Where the server does not let it in.
pub async fn connect(url: &str) -> Client {
    try_connect(url).await.unwrap_or_else(|e| panic!("cannot connect to PostgreSQL: {e}"))
}

async fn try_connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Runs one statement with a connection and a thread of its own, so that it can be done wherever a value is
/// made or dropped.
fn run_alone(url: &str, statement: &str) -> Result<(), String> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|e| e.to_string())?.block_on(async {
            let said = |e: tokio_postgres::Error| match e.as_db_error() {
                Some(refusal) => refusal.to_string(),
                None => e.to_string(),
            };
            try_connect(url).await.map_err(said)?.batch_execute(statement).await.map_err(said)
        })
    };
    thread::scope(|scope| scope.spawn(work).join()).map_err(|_| "the thread ended".to_owned())?
}

fn with_database(url: &str, name: &str) -> String {
    let mut url = Url::parse(url).expect("a URL");
    url.set_path(name);
    url.into()
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Ends every session, then shuts down in order, as a restart for an upgrade does.
    Fast,
    /// At once; the next start recovers as from a crash.
    Immediate,
}

/// A server of one's own, alone on its port, that waits for the disk as it should. Ended with this, and its
/// data removed.
#[derive(Debug)]
pub struct Server {
    bin: PathBuf,
    user: Option<(u32, u32)>,
    dir: TempDir,
    addr: SocketAddr,
    settings: Vec<String>,
    child: Option<Child>,
}

impl Server {
    /// A new, empty one that lets connections in.
    ///
    /// # Panics
    /// Where PostgreSQL is not installed, or does not start; with what it wrote.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with settings such as `max_connections=20`.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub async fn start_with(settings: &[&str]) -> Self {
        let settings = settings.iter().map(|s| (*s).to_owned()).collect();
        let mut server = spawn_blocking(|| Self::prepare(settings)).await.expect("a cluster");
        server.start_again().await;
        server
    }

    fn prepare(settings: Vec<String>) -> Self {
        let bin = programs();
        let user = other_user();
        let dir = tempfile::Builder::new().prefix("answerback-postgres.").tempdir();
        let dir = dir.expect("a temporary directory");
        if let Some((uid, gid)) = user {
            chown(dir.path(), Some(uid), Some(gid)).expect("root may give a directory away");
        }
        let server = Self { bin, user, dir, addr: free_address(), settings, child: None };
        let made = server
            .program("initdb")
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"])
            .output()
            .expect("initdb can be started");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        server
    }

    /// A superuser's URL of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.addr)
    }

    /// Where it listens, also after a restart.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A fresh, empty database on it.
    pub async fn database(&self) -> Database {
        let admin = self.url();
        spawn_blocking(move || Database::create_on(&admin)).await.expect("a database")
    }

    /// Everything it has written so far, over all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Stops it and waits for its end.
    pub async fn stop(&mut self, how: Stop) {
        let signal = match how {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
        };
        self.end_by(signal, PATIENCE).await;
    }

    /// Kills its main process (SIGKILL); its sessions end once they notice.
    pub async fn kill(&mut self) {
        self.end_by("KILL", PATIENCE).await;
    }

    /// Starts it on the same data and port, and waits until it lets connections in.
    ///
    /// # Panics
    /// When it runs, or does not start; with what it wrote.
    pub async fn start_again(&mut self) {
        assert!(self.child.is_none(), "the server runs");
        let end = Instant::now() + PATIENCE;
        self.child = Some(self.launch());
        while try_connect(&self.url()).await.is_err() {
            if self.child.as_mut().is_none_or(|c| !matches!(c.try_wait(), Ok(None))) {
                // After a kill the last sessions may hold its memory for a moment.
                self.child = Some(self.launch());
            }
            assert!(Instant::now() < end, "PostgreSQL does not start:\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn launch(&self) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.log_file());
        let log = log.expect("a log file");
        let mut command = self.program("postgres");
        command.args(["-p", &self.addr.port().to_string()]);
        let ours = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=400",
            "shared_buffers=128MB",
            // With the data, so that a kill leaves nothing behind elsewhere.
            "dynamic_shared_memory_type=mmap",
        ];
        for setting in ours.into_iter().chain(self.settings.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        let err = log.try_clone().expect("a second handle");
        command.stdout(log).stderr(err).spawn().expect("postgres can be started")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.arg("-D").arg(self.dir.path().join("data"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    async fn end_by(&mut self, signal: &'static str, patience: Duration) {
        let Some(child) = self.child.take() else { return };
        spawn_blocking(move || end(child, signal, patience)).await.expect("an end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            end(child, "QUIT", Duration::from_secs(10));
        }
        if thread::panicking() {
            eprintln!("---- what PostgreSQL wrote ----\n{}---- end ----", self.log());
        }
    }
}

/// Ends a server by a signal, by SIGKILL where that takes too long.
fn end(mut child: Child, signal: &str, patience: Duration) {
    let pid = child.id().to_string();
    // The command rather than the call: the workspace forbids unsafe code.
    let send = |signal: &str| Command::new("kill").args(["-s", signal, &pid]).status();
    let _ = send(signal);
    thread::scope(|scope| {
        let (ended, over) = mpsc::channel();
        scope.spawn(move || ended.send(child.wait()));
        if over.recv_timeout(patience).is_err() {
            let _ = send("KILL");
        }
    });
}

/// Debian keeps PostgreSQL's programs apart by version, and off the path. The newest.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|v| Some((v.file_name().to_str()?.parse::<u32>().ok()?, v.path().join("bin"))))
        .filter(|(_, bin)| bin.join("initdb").exists() && bin.join("postgres").exists())
        .max_by_key(|(version, _)| *version);
    let on_path = || {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).find(|dir| dir.join("initdb").exists())
    };
    newest.map(|(_, bin)| bin).or_else(on_path).expect("PostgreSQL; see scripts/install-tools")
}

/// User and group to run PostgreSQL as, where this process is root's: it refuses to run as root.
fn other_user() -> Option<(u32, u32)> {
    let root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    root.then(|| {
        let id = |which| {
            let said =
                Command::new("id").args([which, "postgres"]).output().expect("the command id");
            let text = String::from_utf8_lossy(&said.stdout).into_owned();
            text.trim()
                .parse()
                .expect("PostgreSQL does not run as root, and there is no user postgres")
        };
        (id("-u"), id("-g"))
    })
}
