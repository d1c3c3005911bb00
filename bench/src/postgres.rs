//! Where daemons keep what they know: a file, or a database of PostgreSQL.

use answerback_testkit::postgres::{Database, Server, connect};
use anyhow::{Context, Result};
use std::fmt;
use std::str::FromStr;
use tokio::task::spawn_blocking;

/// What `--store` names.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A file beside each run.
    Sqlite,
    /// A server that is started for it, and waits for the disk.
    Postgres,
    /// A running server, by the URL of a user who may create databases.
    Url(String),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sqlite" => Ok(Self::Sqlite),
            "postgres" => Ok(Self::Postgres),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Self::Url(url.to_owned()))
            }
            _ => Err("must be sqlite, postgres, or postgres://USER:PASSWORD@HOST/DATABASE".into()),
        }
    }
}

/// Without the URL: it can hold a password.
impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Url(_) => "postgres by its URL",
        })
    }
}

/// The store of one run.
pub(crate) enum Store {
    /// In the run's directory.
    File,
    /// Dropped with this.
    Database(Database),
}

impl Store {
    /// The URL of the database, with its password.
    pub(crate) fn url(&self) -> Option<&str> {
        match self {
            Self::File => None,
            Self::Database(database) => Some(database.url()),
        }
    }
}

/// What makes stores.
pub(crate) struct Stores {
    kind: Kind,
    server: Option<Server>,
}

impl Stores {
    /// Of a kind.
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, server: None }
    }

    /// Whether several daemons can share one.
    pub(crate) fn are_shared(&self) -> bool {
        !matches!(self.kind, Kind::Sqlite)
    }

    /// A fresh one.
    pub(crate) async fn fresh(&mut self) -> Result<Store> {
        let admin = match &self.kind {
            Kind::Sqlite => return Ok(Store::File),
            Kind::Url(url) => url.clone(),
            Kind::Postgres => match &self.server {
                Some(server) => server.url(),
                None => {
                    let settings = [
                        // As much as one would give a server of this size; the default is for none.
                        "shared_buffers=1GB",
                        "max_wal_size=4GB",
                        "shared_preload_libraries=pg_stat_statements",
                    ];
                    self.server.insert(Server::start_with(&settings).await).url()
                }
            },
        };
        let made = spawn_blocking(move || Database::create_on(&admin)).await;
        Ok(Store::Database(made.context("no fresh database")?))
    }
}

/// What statements cost on the server, by its own count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// How often.
    pub(crate) calls: i64,
    /// The mean in milliseconds.
    pub(crate) mean_ms: f64,
}

/// What claiming has cost since the last look, by the statements that skip what others have locked. `None`
/// where the server does not count.
pub(crate) async fn claiming(store: &Store) -> Result<Option<Cost>> {
    const LOOK: &str = "SELECT coalesce(sum(calls), 0)::bigint, \
         coalesce(sum(total_exec_time) / nullif(sum(calls), 0), 0)::double precision \
         FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
         WHERE d.datname = current_database() AND query LIKE '%SKIP LOCKED%'";
    let Some(url) = store.url() else { return Ok(None) };
    let client = connect(url).await;
    if client.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await.is_err() {
        return Ok(None);
    }
    let Ok(rows) = client.query_typed(LOOK, &[]).await else { return Ok(None) };
    client.batch_execute("SELECT pg_stat_statements_reset()").await?;
    let row = rows.first().context("a sum without a row")?;
    Ok(Some(Cost { calls: row.get(0), mean_ms: row.get(1) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_kind_or_a_server() {
        assert!(matches!("sqlite".parse(), Ok(Kind::Sqlite)));
        assert!(matches!("postgres".parse(), Ok(Kind::Postgres)));
        let url: Kind = "postgres://u:s3cret@h/db".parse().unwrap();
        assert!(!format!("{url:?}").contains("s3cret"));
        assert!("mysql://h".parse::<Kind>().is_err());
    }
}
