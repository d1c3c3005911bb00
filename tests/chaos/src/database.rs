//! The store that the replicas share: a PostgreSQL of the run's own and a network before it for each
//! replica, or one file of SQLite for a replica alone.

use answerback_testkit::postgres::{Database, Server, Stop};
use answerback_testkit::proxy::{Network, Proxy};
use std::path::Path;
use std::time::Duration;
use tokio::sync::Mutex;

/// Where waits are kept.
#[derive(Debug)]
pub enum Store {
    /// One file.
    Sqlite(String),
    /// A server that can be stopped.
    Postgres(Box<Postgres>),
}

/// A server, and the ways to it.
#[derive(Debug)]
pub struct Postgres {
    // Dropped before its server, which it is dropped on.
    database: Database,
    server: Mutex<Server>,
    links: Vec<Proxy>,
}

impl Store {
    /// One file in `folder`.
    #[must_use]
    pub fn sqlite(folder: &Path) -> Self {
        Self::Sqlite(format!("sqlite:{}", folder.join("answerback.db").display()))
    }

    /// A new server with an empty database, and a link for each of so many replicas.
    pub async fn postgres(replicas: usize) -> Self {
        let server = Server::start().await;
        let database = server.database().await;
        let mut links = Vec::new();
        for _ in 0..replicas {
            links.push(Proxy::start(server.addr()).await);
        }
        Self::Postgres(Box::new(Postgres { database, server: Mutex::new(server), links }))
    }

    /// What a replica's configuration names.
    #[must_use]
    pub fn url(&self, replica: usize) -> String {
        match self {
            Self::Sqlite(url) => url.clone(),
            Self::Postgres(postgres) => postgres.links[replica].lead(postgres.database.url()),
        }
    }

    /// Whether there is a server with a network before it.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    fn link(&self, replica: usize) -> Option<&Proxy> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(postgres) => postgres.links.get(replica),
        }
    }

    /// Cuts what a replica has and lets nothing new through.
    pub fn cut(&self, replica: usize) {
        if let Some(link) = self.link(replica) {
            link.set(Network::Refusing);
            link.cut();
        }
    }

    /// Delays a replica's link.
    pub fn slow(&self, replica: usize, by: Duration) {
        if let Some(link) = self.link(replica) {
            link.set(Network::Slow(by));
        }
    }

    /// Lets nothing through a replica's link, which stays.
    pub fn stall(&self, replica: usize) {
        if let Some(link) = self.link(replica) {
            link.set(Network::Silent);
        }
    }

    /// Mends a replica's link.
    pub fn mend(&self, replica: usize) {
        if let Some(link) = self.link(replica) {
            link.set(Network::Fine);
        }
    }

    /// Stops the server.
    pub async fn stop(&self, immediate: bool) {
        if let Self::Postgres(postgres) = self {
            let how = if immediate { Stop::Immediate } else { Stop::Fast };
            postgres.server.lock().await.stop(how).await;
        }
    }

    /// Starts it again.
    pub async fn start(&self) {
        if let Self::Postgres(postgres) = self {
            postgres.server.lock().await.start_again().await;
        }
    }

    /// What the server wrote.
    pub async fn log(&self) -> String {
        match self {
            Self::Sqlite(_) => String::new(),
            Self::Postgres(postgres) => postgres.server.lock().await.log(),
        }
    }
}
