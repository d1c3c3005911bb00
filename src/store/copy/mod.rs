//! Copies the store of a stopped daemon out of its SQLite file into a PostgreSQL database, whole:
//! the same ids, the same bytes, the same places in the feed of events.
//!
//! Rows go in groups, table by table in the order of their keys ([`source`], [`tables`]); a group
//! and how far the copy has got are one transaction ([`database`]). So a copy that was broken off
//! goes on where it stopped, and until it is finished no daemon starts on the database. Before that
//! both sides are counted and summed up ([`sums`]).

mod cells;
mod database;
mod source;
mod sums;
mod tables;

use crate::store::{postgres, sqlite};
use database::Database;
use secrecy::SecretString;
use source::Source;
use std::path::{Path, PathBuf};
use tables::Table;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// Groups that are read ahead of the one that is being written.
const AHEAD: usize = 2;

/// Why a store was not copied, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The file cannot be opened.
    #[error(transparent)]
    Source(#[from] sqlite::OpenError),
    /// The file cannot be read.
    #[error("{path} cannot be read: {what}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        what: String,
    },
    /// A row of the file makes no sense.
    #[error(
        "{path} holds something unexpected in the table {table}, row {row}: {what}; \
         nothing can be copied until that row is mended or removed"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where.
        table: &'static str,
        /// Its key.
        row: String,
        /// What is wrong with it.
        what: String,
    },
    /// The database cannot be opened.
    #[error(transparent)]
    Target(#[from] postgres::OpenError),
    /// The database is in use already.
    #[error(
        "the database is not empty: its table {table} has rows; \
         a store is copied into a database of its own, before the first daemon uses that"
    )]
    NotEmpty {
        /// The first table with rows.
        table: String,
    },
    /// What was copied in part was something else.
    #[error(
        "the database holds the unfinished copy of {path}, which was another store or has changed \
         since; copy into a new database, or empty this one: DROP SCHEMA, CREATE SCHEMA"
    )]
    OtherSource {
        /// Where it was.
        path: String,
    },
    /// Another process copies into the same database.
    #[error("another process copies into this database just now; leave it to that one")]
    Taken,
    /// A row was not taken, or the way to the server broke.
    #[error(
        "PostgreSQL did not take what was copied: {what}; run the same command again, \
         it goes on where it stopped"
    )]
    Write {
        /// What the server says.
        what: String,
    },
    /// What arrived is not what was sent.
    #[error(
        "the copy differs from {path}: {what}; did something else write to the database? \
         No daemon starts on it. Stop whatever uses it, empty it and copy anew"
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// A thread was lost.
    #[error(
        "the copy was broken off: {0}; run the same command again, it goes on where it stopped"
    )]
    Broken(#[from] tokio::task::JoinError),
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Rows are being copied.
    Copying {
        /// So many are there.
        copied: u64,
        /// Of so many.
        total: u64,
    },
    /// All are there, and both sides are being compared.
    Comparing,
}

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The tables of the file and their rows.
    pub tables: Vec<(&'static str, u64)>,
    /// How many of those rows an earlier run had copied; `None` when this was the first.
    pub earlier: Option<u64>,
}

/// Copies the SQLite file `from` into the database `to`, or goes on with that, and tells `progress`
/// how far it is. The file is only read, and no daemon can start on it meanwhile.
///
/// # Errors
/// What is in the way, and whether running it again helps.
pub async fn copy(
    from: &Path,
    to: &SecretString,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Copied, CopyError> {
    let path = from.to_owned();
    let source = spawn_blocking(move || Source::open(path)).await??;
    let contents = source.contents().clone();
    let total = contents.total();
    let (mut database, start) = Database::begin(to, &contents).await?;
    let mut copied = start.copied;
    progress(Progress::Copying { copied, total });
    let (sender, mut groups) = mpsc::channel(AHEAD);
    let at = start.at;
    let reading = spawn_blocking(move || {
        // Nobody takes more once writing has failed.
        source.read_on(at, |group| sender.blocking_send(group).is_ok()).map(|()| source)
    });
    while let Some(group) = groups.recv().await {
        copied += group.rows;
        database.write(&group, copied).await?;
        progress(Progress::Copying { copied, total });
    }
    let source = reading.await??;
    progress(Progress::Comparing);
    let summing = spawn_blocking(move || source.sums().map(|sums| (source, sums)));
    let arrived = database.sums().await?;
    // The file's lock is held until the database is a store.
    let (source, sent) = summing.await??;
    if let Some(what) = sent.difference(&arrived) {
        return Err(CopyError::Differs { path: from.to_owned(), what });
    }
    database.finish(&contents.highest).await?;
    drop(source);
    let tables = Table::ALL.iter().zip(contents.counts).map(|(t, n)| (t.name(), n)).collect();
    Ok(Copied { tables, earlier: start.resumed.then_some(start.copied) })
}
