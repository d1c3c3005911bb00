//! Opening the file: whose it is, whether it is ours, which schema it has.

use super::depths::Depths;
use super::destinations::{DestinationId, Destinations};
use super::fail::{Done, Fail};
use super::lanes::Lanes;
use super::unit::{Mint, Shared};
use crate::store::schema::Migrated;
use answerback_contract::Time;
use answerback_core::{Destination, Rules};
use refinery::{Migration, Runner};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `PRAGMA application_id` of our files: "answ".
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"answ");
/// How long a statement waits for a lock: only the checkpointer and a reading tool ever hold one.
const BUSY: Duration = Duration::from_secs(10);
const STATEMENTS: usize = 64;

/// The numbered steps of the schema, oldest first.
const MIGRATIONS: [(&str, &str); 2] = [
    ("V1__first", include_str!("migrations/V1__first.sql")),
    ("V2__events", include_str!("migrations/V2__events.sql")),
];

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In memory: gone when closed.
    Memory,
    /// In a file, with `-wal`, `-shm` and `.lock` files beside it.
    File(PathBuf),
}

impl Location {
    /// Reads `[store] url`: `sqlite:PATH`, `sqlite://PATH` or `sqlite::memory:`.
    ///
    /// # Errors
    /// [`OpenError::Url`].
    pub fn from_url(url: &str) -> Result<Self, OpenError> {
        let rest = url.strip_prefix("sqlite:").ok_or(OpenError::Url)?;
        let path = rest.strip_prefix("//").unwrap_or(rest);
        match path {
            ":memory:" => Ok(Self::Memory),
            "" => Err(OpenError::Url),
            path => Ok(Self::File(PathBuf::from(path))),
        }
    }
}

/// Why the store does not open, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is none of ours.
    #[error("the store's url must be sqlite:PATH or sqlite::memory:")]
    Url,
    /// Another daemon has the file.
    #[error("{path} is in use by another process{}; stop it or use another file", pid(.holder))]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process that has it, where known.
        holder: Option<u32>,
    },
    /// The file or its directory cannot be used.
    #[error("{path}: {source}; the daemon needs to read and write this file and its directory")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Something else is in the file.
    #[error("{path} is not an answerback store; give the store a file of its own")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A newer answerback has written it.
    #[error(
        "{path} has schema version {found}, this answerback knows up to {known}; install the \
         newer answerback again, or restore a backup from before the upgrade"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i32,
        /// Ours.
        known: i32,
    },
    /// There is none.
    #[error("there is no store at {path}; name the file that the daemon was using")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// An older answerback has written it, and here it is only read.
    #[error(
        "{path} has schema version {found}, and {known} is needed; bring it up to date first: \
         ANSWERBACK_STORE__URL=sqlite:{path} answerback migrate"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i32,
        /// Ours.
        known: i32,
    },
    /// Creating or upgrading the schema failed; nothing of that step is kept.
    #[error("{path}: the schema cannot be brought up to date: {source}")]
    Migrate {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: Box<refinery::Error>,
    },
    /// What is in the file makes no sense to SQLite.
    #[error(
        "{path} is damaged ({what}); restore it from a backup, or rescue what can be read by \
         `sqlite3 {path} .recover`, or move it and the files beside it away to start anew"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        what: String,
    },
    /// SQLite said no.
    #[error("{path}: SQLite says: {what}; check the file, its directory and the disk")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite says, its causes included.
        what: String,
    },
    /// A thread could not be started.
    #[error("a thread for the store cannot be started: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    /// What an error of SQLite means.
    pub(super) fn sqlite(path: &Path, error: &rusqlite::Error) -> Self {
        let (path, what) = (path.to_owned(), error.to_string());
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::Foreign { path },
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, what },
            _ => Self::Sqlite { path, what },
        }
    }
}

fn pid(holder: &Option<u32>) -> String {
    holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// Keeps other daemons off the file, until it is dropped or the process is gone.
#[derive(Debug)]
pub(in crate::store) struct FileLock(#[expect(dead_code, reason = "held, not used")] File);

impl FileLock {
    pub(super) fn take(database: &Path) -> Result<Self, OpenError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = |source| OpenError::File { path: path.clone(), source };
        let mut file = private().open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // Only to help: the lock itself is what counts.
                let _ = (&file).take(20).read_to_string(&mut text);
                let holder = text.trim().parse().ok();
                return Err(OpenError::Locked { path: database.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let id = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(id.as_bytes()))
            .map_err(failed)?;
        Ok(Self(file))
    }
}

/// Questions and answers are nobody else's to read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

/// Opens the file for writing and brings its schema up to date.
pub(super) fn prepare(path: &Path) -> Result<Connection, OpenError> {
    let failed = |source| OpenError::File { path: path.to_owned(), source };
    match private().open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let directory = path.parent().unwrap_or(path).to_owned();
            return Err(OpenError::File { path: directory, source: error });
        }
        Err(error) => return Err(failed(error)),
    }
    let refused = |error: rusqlite::Error| OpenError::sqlite(path, &error);
    let mut conn = Connection::open_with_flags(path, flags()).map_err(refused)?;
    check_ours(&conn, path).map_err(|e| e.unwrap_or_else(refused))?;
    writer_settings(&conn).map_err(refused)?;
    migrate(&mut conn, path)?;
    Ok(conn)
}

/// Brings the schema of a file that no daemon has open up to date, and makes a store where there is
/// none.
///
/// # Errors
/// What is in the way.
pub fn bring_up_to_date(path: &Path) -> Result<Migrated, OpenError> {
    let _lock = FileLock::take(path)?;
    // What cannot be read is told by what follows.
    let before = path.exists().then(|| reader(path).and_then(|conn| version(&conn)).ok().flatten());
    prepare(path)?;
    Ok(Migrated { before: before.flatten(), now: known() })
}

/// Opens the file that a daemon has left, for reading only; none can start on it while the lock is
/// held.
pub(in crate::store) fn stopped(path: &Path) -> Result<(Connection, FileLock), OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing { path: path.to_owned() });
    }
    let lock = FileLock::take(path)?;
    let refused = |error: rusqlite::Error| OpenError::sqlite(path, &error);
    let conn = reader(path).map_err(refused)?;
    check_ours(&conn, path).map_err(|e| e.unwrap_or_else(refused))?;
    let found = version(&conn).map_err(refused)?.unwrap_or(0);
    if found < known() {
        return Err(OpenError::Older { path: path.to_owned(), found, known: known() });
    }
    Ok((conn, lock))
}

/// Opens a store in memory.
pub(super) fn prepare_memory() -> Result<Connection, OpenError> {
    let path = Path::new(":memory:");
    let refused = |error: rusqlite::Error| OpenError::sqlite(path, &error);
    let mut conn = Connection::open_in_memory().map_err(refused)?;
    writer_settings(&conn).map_err(refused)?;
    migrate(&mut conn, path)?;
    Ok(conn)
}

/// Either our own error or SQLite's.
enum Refused {
    Ours(OpenError),
    Sqlite(rusqlite::Error),
}

impl Refused {
    fn unwrap_or_else(self, refused: impl FnOnce(rusqlite::Error) -> OpenError) -> OpenError {
        match self {
            Self::Ours(error) => error,
            Self::Sqlite(error) => refused(error),
        }
    }
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Whether the file is empty, or ours and not from the future.
fn check_ours(conn: &Connection, path: &Path) -> Result<(), Refused> {
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(());
    }
    let id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    if id != APPLICATION_ID {
        return Err(Refused::Ours(OpenError::Foreign { path: path.to_owned() }));
    }
    match version(conn)? {
        Some(found) if found > known() => {
            let path = path.to_owned();
            Err(Refused::Ours(OpenError::Newer { path, found, known: known() }))
        }
        _ => Ok(()),
    }
}

/// The schema that this version of answerback works with.
fn known() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// The schema that a file has.
fn version(conn: &Connection) -> rusqlite::Result<Option<i32>> {
    if !conn.table_exists(None, "refinery_schema_history")? {
        return Ok(None);
    }
    conn.query_row("SELECT max(version) FROM refinery_schema_history", [], |row| row.get(0))
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let run = |conn: &mut Connection| {
        let steps = MIGRATIONS
            .iter()
            .map(|(name, sql)| Migration::unapplied(name, sql))
            .collect::<Result<Vec<_>, _>>()?;
        Runner::new(&steps).set_grouped(false).run(conn)
    };
    run(conn)
        .map(|_| ())
        .map_err(|source| OpenError::Migrate { path: path.to_owned(), source: Box::new(source) })
}

fn flags() -> OpenFlags {
    // Each connection is used by one thread at a time.
    OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

/// Opens a file that was prepared, again.
pub(super) fn writer(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags())?;
    writer_settings(&conn)?;
    Ok(conn)
}

/// What every connection that carries out statements has.
fn settings(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Otherwise SQLite parses and plans some statements anew for each value they are given, which
    // costs several times what the statements themselves do.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn writer_settings(conn: &Connection) -> rusqlite::Result<()> {
    settings(conn)?;
    // The order matters: what shapes a new file comes before the first page is written.
    conn.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL;
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA temp_store = MEMORY;
         PRAGMA cache_size = -16384;"
    ))
}

/// Opens a prepared file for reading.
pub(super) fn reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    settings(&conn)?;
    conn.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2048;")?;
    Ok(conn)
}

/// Opens a prepared file for checkpoints.
pub(super) fn checkpointer(path: &Path) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, flags())?;
    conn.busy_timeout(BUSY)?;
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA cache_size = -256;")?;
    Ok(conn)
}

/// Reads what is known in memory.
pub(super) fn load(conn: &Connection, rules: Arc<Rules>, mint: Mint) -> Done<Shared> {
    let mut destinations = Destinations::default();
    let mut lanes = Lanes::new(first_lease(&mint));
    let mut statement = conn.prepare("SELECT id, kind, name, paused FROM destinations")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(1)?, row.get(2)?);
        let destination = Destination::kept(&kind, &name)
            .ok_or_else(|| Fail::Corrupt(format!("an unknown kind of destination `{kind}`")))?;
        let id = DestinationId(row.get(0)?);
        destinations.insert(id, destination);
        if row.get(3)? {
            lanes.set_paused(id, true);
        }
    }
    let mut depths = Depths::default();
    // The two partial indices hold everything that is queued.
    let mut queued = conn.prepare(
        "SELECT destination, queued_at / 1000, count(*), min(queued_at) FROM outbox \
         INDEXED BY outbox_due WHERE state = 1 GROUP BY 1, 2 \
         UNION ALL \
         SELECT destination, queued_at / 1000, count(*), min(queued_at) FROM outbox \
         INDEXED BY outbox_order WHERE state <= 1 AND order_key IS NOT NULL AND state = 0 \
         GROUP BY 1, 2",
    )?;
    let mut rows = queued.query([])?;
    while let Some(row) = rows.next()? {
        let count = u64::try_from(row.get::<_, i64>(2)?).unwrap_or(0);
        depths.add(DestinationId(row.get(0)?), Time::from_millis(row.get(3)?), count);
    }
    let forgot = super::forgotten::any(conn)?;
    Ok(Shared::new(rules, mint, destinations, lanes, depths, forgot))
}

/// Leases count from another number at each start.
fn first_lease(mint: &Mint) -> u64 {
    let mut hasher = DefaultHasher::new();
    mint().as_str().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_path_or_memory() {
        let file = |path: &str| Location::File(PathBuf::from(path));
        let read = |url| Location::from_url(url).ok();
        assert_eq!(read("sqlite:answerback.db"), Some(file("answerback.db")));
        assert_eq!(read("sqlite:/var/lib/a b.db"), Some(file("/var/lib/a b.db")));
        assert_eq!(read("sqlite:///var/lib/a.db"), Some(file("/var/lib/a.db")));
        assert_eq!(read("sqlite::memory:"), Some(Location::Memory));
        assert_eq!(read("sqlite://:memory:"), Some(Location::Memory));
        assert_eq!(read("sqlite:"), None);
        assert_eq!(read("postgres://localhost/a"), None);
    }

    #[test]
    fn a_statement_is_planned_once_whatever_its_values() {
        let conn = prepare_memory().unwrap();
        let planned_anew = || {
            let mut statement = conn
                .prepare(
                    "SELECT id FROM outbox INDEXED BY outbox_order \
                     WHERE state <= 1 AND order_key IS NOT NULL AND order_key = ?1 \
                     ORDER BY id LIMIT 1",
                )
                .unwrap();
            for value in 0..5 {
                assert!(!statement.exists([value]).unwrap());
            }
            statement.get_status(rusqlite::StatementStatus::RePrepare)
        };
        assert_eq!(planned_anew(), 0);
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, false).unwrap();
        assert!(planned_anew() > 0, "the setting is what makes the difference");
    }
}
