//! Opening the database: whether it is ours, which schema it has, and bringing that up to date.

use super::connect::{Link, reason};
use super::pool;
use super::url::Target;
use crate::store::schema::Migrated;
use crate::store::sqlite::Mint;
use answerback_core::Rules;
use refinery::{Migration, Runner};
use secrecy::SecretString;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// The numbered steps of the schema, oldest first.
const MIGRATIONS: [(&str, &str); 1] = [("V1__first", include_str!("migrations/V1__first.sql"))];

/// Where it stands which steps were taken. Not the name that refinery gives by default: another
/// program may keep its own in the same schema.
const HISTORY: &str = "answerback_schema_history";

/// A table that is there while a store is copied into the database.
pub(in crate::store) const COPYING: &str = "copying";

/// How long all of connecting may take: a proxy may accept and then say nothing.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// How often a start tries where another one may just have done the same, or the server itself is
/// starting, with pauses of [`PAUSE`] times the number of the try.
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_millis(100);

/// What a store needs.
pub struct PostgresOptions {
    /// Where it is; a proxy that gives each transaction another connection may stand in between.
    pub url: SecretString,
    /// A direct way to the same database, for hearing of other daemons' commits at once.
    pub listen_url: Option<SecretString>,
    /// What decisions take from the configuration.
    pub rules: Arc<Rules>,
    /// Gives the ids of the events that the store brings about.
    pub mint: Mint,
}

impl std::fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresOptions").finish_non_exhaustive()
    }
}

/// Why the store does not open, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL cannot be read.
    #[error(
        "the store's url is not taken: {what}; \
         it reads postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=verify-full"
    )]
    Url {
        /// What is wrong with it.
        what: String,
    },
    /// The certificates to trust cannot be read.
    #[error(
        "sslrootcert of the store's url: {path}: {what}; it must be a file of certificates in PEM"
    )]
    RootCert {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// TLS cannot be set up.
    #[error(
        "TLS to PostgreSQL cannot be set up: {what}; install ca-certificates, or name sslrootcert"
    )]
    Tls {
        /// Why.
        what: String,
    },
    /// Nobody answers, or not as PostgreSQL does.
    #[error(
        "cannot connect to PostgreSQL at {at}: {what}; check the host and the port in the store's \
         url, that the server runs and lets this machine in"
    )]
    Unreachable {
        /// Hosts and ports.
        at: String,
        /// What happened.
        what: String,
    },
    /// The server does not let the daemon in.
    #[error(
        "PostgreSQL at {at} does not let `{user}` in: {what}; check user and password in the \
         store's url, and the server's pg_hba.conf"
    )]
    Denied {
        /// Hosts and ports.
        at: String,
        /// Who was refused.
        user: String,
        /// What the server says.
        what: String,
    },
    /// The database is not there.
    #[error(
        "PostgreSQL at {at} has no database `{database}`; create it: \
         CREATE DATABASE \"{database}\" ENCODING 'UTF8' TEMPLATE template0"
    )]
    NoDatabase {
        /// Hosts and ports.
        at: String,
        /// Which.
        database: String,
    },
    /// The database does not hold every text.
    #[error(
        "the database holds texts in {found}, which is not enough; create one with \
         ENCODING 'UTF8' TEMPLATE template0"
    )]
    Encoding {
        /// Its encoding.
        found: String,
    },
    /// There is no schema for the tables.
    #[error(
        "no schema that the search_path names exists; create one that `{user}` owns \
         (CREATE SCHEMA \"{user}\" AUTHORIZATION \"{user}\")"
    )]
    NoSchema {
        /// Whose search path.
        user: String,
    },
    /// Another program's tables are in the way.
    #[error(
        "the schema `{schema}` holds tables of another program: {tables}; give the store a \
         database of its own, or a schema: …?options=-c%20search_path%3Danswerback"
    )]
    Foreign {
        /// The schema.
        schema: String,
        /// Those that have names of ours.
        tables: String,
    },
    /// A newer answerback has been there, with which this one cannot work.
    #[error(
        "the database has schema version {found}, which needs an answerback that knows version \
         {oldest} at least; this one knows up to {known}: install a newer one, or restore a backup \
         from before the upgrade"
    )]
    Newer {
        /// Its schema.
        found: i32,
        /// What one must know to work with it.
        oldest: i32,
        /// What this one knows.
        known: i32,
    },
    /// Tables may not be created, or not be read.
    #[error(
        "PostgreSQL does not let `{user}` create and use tables in the schema `{schema}`: {what}; \
         GRANT CREATE, USAGE ON SCHEMA \"{schema}\" TO \"{user}\", or run `answerback migrate` as a \
         user who may, and let this one use the tables"
    )]
    Forbidden {
        /// Who was refused.
        user: String,
        /// Where.
        schema: String,
        /// What the server says.
        what: String,
    },
    /// Creating or upgrading the schema failed; nothing of the step that failed is kept.
    #[error("the schema cannot be brought up to date: {what}")]
    Migrate {
        /// What went wrong.
        what: String,
    },
    /// Another store is being copied into the database.
    #[error(
        "a store is being copied into this database and that is not finished; run the same \
         `answerback migrate --from …` again, it goes on where it stopped"
    )]
    Copying,
    /// The server said no.
    #[error("PostgreSQL at {at}: {what}; check the server and its log")]
    Server {
        /// Hosts and ports.
        at: String,
        /// What it says.
        what: String,
    },
}

/// A database that is up to date.
pub(super) struct Prepared {
    pub(super) link: Link,
    /// The way on which other daemons are heard of.
    pub(super) listen: Target,
}

/// Reads the URLs, and makes sure that the database is there, ours and up to date.
pub(super) async fn prepare(options: &PostgresOptions) -> Result<Prepared, OpenError> {
    let target = Target::parse(&options.url)?;
    let listen = match &options.listen_url {
        Some(url) => Target::parse(url)?,
        None => target.clone(),
    };
    if target.unchecked {
        tracing::warn!(
            at = target.at(),
            "who answers at this address is not checked, so whoever can stand in between may read \
             and change what is stored; sslmode=verify-full in the store's url checks it"
        );
    }
    migrate(&target).await?;
    let link = Link::new(pool::new(target).map_err(|what| OpenError::Url { what })?);
    Ok(Prepared { link, listen })
}

/// Connects and asks something, changing nothing: whether the way to a database is open.
///
/// # Errors
/// What is in the way.
pub async fn reach(url: &SecretString) -> Result<(), OpenError> {
    let target = Target::parse(url)?;
    let client = connect(&target).await?;
    client.batch_execute("SELECT 1").await.map_err(|error| refused(&target, &error))
}

/// Makes sure that the database is ours and brings its schema up to date.
///
/// # Errors
/// What is in the way.
pub async fn bring_up_to_date(url: &SecretString) -> Result<Migrated, OpenError> {
    migrate(&Target::parse(url)?).await
}

/// A connection to a database that is up to date, also while a store is being copied into it.
pub(in crate::store) async fn for_copying(url: &SecretString) -> Result<Client, OpenError> {
    let target = Target::parse(url)?;
    run_migrations(&target, &steps(&MIGRATIONS)?, Unfinished::GoesOn).await?;
    connect(&target).await
}

/// Connects for a start, and says what is wrong if that fails.
pub(super) async fn connect(target: &Target) -> Result<Client, OpenError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let done = tokio::time::timeout(CONNECT, target.connect()).await;
        match done {
            Err(_) => {
                let what = format!("no answer within {} s", CONNECT.as_secs());
                return Err(OpenError::Unreachable { at: target.at(), what });
            }
            Ok(Ok((client, connection))) => {
                // Ends with the client; whoever uses that is told of what goes wrong.
                tokio::spawn(async move { drop(connection.await) });
                return Ok(client);
            }
            Ok(Err(error)) if passes(&error) && tries < TRIES => {
                tokio::time::sleep(PAUSE * tries).await;
            }
            Ok(Err(error)) => return Err(refused(target, &error)),
        }
    }
}

/// Whether it is only that the server is starting, or full for the moment.
fn passes(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [&SqlState::CANNOT_CONNECT_NOW, &SqlState::TOO_MANY_CONNECTIONS].contains(&code)
    })
}

/// What a failed connection means.
fn refused(target: &Target, error: &tokio_postgres::Error) -> OpenError {
    let (at, what) = (target.at(), reason(error));
    let Some(db) = error.as_db_error() else { return OpenError::Unreachable { at, what } };
    let (code, message) = (db.code(), db.message());
    // pgbouncer has one code for all it refuses.
    let proxy = *code == SqlState::PROTOCOL_VIOLATION;
    if *code == SqlState::INVALID_CATALOG_NAME || (proxy && message.contains("no such database")) {
        return OpenError::NoDatabase { at, database: target.database().to_owned() };
    }
    let denied = [&SqlState::INVALID_PASSWORD, &SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
    if denied.contains(&code) || (proxy && message.contains("auth")) {
        return OpenError::Denied { at, user: target.user().to_owned(), what };
    }
    OpenError::Unreachable { at, what }
}

/// Makes sure that the database is ours and brings its schema up to date. Any number of daemons may
/// do it at once.
pub(super) async fn migrate(target: &Target) -> Result<Migrated, OpenError> {
    run_migrations(target, &steps(&MIGRATIONS)?, Unfinished::IsRefused).await
}

/// What becomes of a database into which a store was copied in part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unfinished {
    IsRefused,
    GoesOn,
}

fn steps(migrations: &[(&str, &str)]) -> Result<Vec<Migration>, OpenError> {
    migrations
        .iter()
        .map(|(name, sql)| Migration::unapplied(name, sql))
        .collect::<Result<_, _>>()
        .map_err(|error| OpenError::Migrate { what: error.to_string() })
}

async fn run_migrations(
    target: &Target,
    steps: &[Migration],
    copy: Unfinished,
) -> Result<Migrated, OpenError> {
    let known = i32::try_from(steps.len()).unwrap_or(i32::MAX);
    let mut client = connect(target).await?;
    let mut before = None;
    let mut tries = 0;
    loop {
        let seen = look(&client, target).await?;
        if seen.copying && copy == Unfinished::IsRefused {
            return Err(OpenError::Copying);
        }
        let before = *before.get_or_insert(seen.version);
        if let Some(now) = seen.version.filter(|found| *found >= known) {
            if seen.oldest > known {
                return Err(OpenError::Newer { found: now, oldest: seen.oldest, known });
            }
            return Ok(Migrated { before, now });
        }
        if seen.version.is_none() && !seen.foreign.is_empty() {
            return Err(OpenError::Foreign { schema: seen.schema, tables: seen.foreign });
        }
        let mut runner = Runner::new(steps)
            .set_grouped(false)
            .set_abort_divergent(true)
            .set_abort_missing(false);
        runner.set_migration_table_name(HISTORY);
        let Err(error) = runner.run_async(&mut client).await else { continue };
        // Another daemon may have done the same step meanwhile: DDL is transactional, so one of the
        // two fails, and the next look tells.
        tries += 1;
        let code = server_code(&error);
        if code == Some(SqlState::INSUFFICIENT_PRIVILEGE) {
            let (user, what) = (target.user().to_owned(), chain(&error));
            return Err(OpenError::Forbidden { user, schema: seen.schema, what });
        }
        let lost = code.is_none_or(|code| is_race(&code));
        if !lost || tries >= TRIES || !matches!(error.kind(), refinery::error::Kind::Connection(..))
        {
            return Err(OpenError::Migrate { what: chain(&error) });
        }
        tokio::time::sleep(PAUSE * tries).await;
        if client.is_closed() {
            client = connect(target).await?;
        }
    }
}

/// Whether a statement of a step may have failed because another daemon was at it too.
fn is_race(code: &SqlState) -> bool {
    [
        &SqlState::DUPLICATE_TABLE,
        &SqlState::DUPLICATE_OBJECT,
        &SqlState::DUPLICATE_COLUMN,
        &SqlState::UNIQUE_VIOLATION,
        &SqlState::T_R_SERIALIZATION_FAILURE,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::LOCK_NOT_AVAILABLE,
        &SqlState::INTERNAL_ERROR, // "tuple concurrently updated"
    ]
    .contains(&code)
}

/// What there is in a database.
struct Seen {
    schema: String,
    /// Of the schema, as far as it is ours.
    version: Option<i32>,
    /// What one must know to work with it.
    oldest: i32,
    /// Tables of ours by their names.
    foreign: String,
    copying: bool,
}

async fn look(client: &Client, target: &Target) -> Result<Seen, OpenError> {
    let user = || target.user().to_owned();
    let failed = |error: tokio_postgres::Error| match error.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            let what = reason(&error);
            OpenError::Forbidden { user: user(), schema: "of the store".to_owned(), what }
        }
        _ => OpenError::Server { at: target.at(), what: reason(&error) },
    };
    let rows = client
        .query_typed("SELECT current_schema()::TEXT, current_setting('server_encoding')::TEXT", &[])
        .await
        .map_err(failed)?;
    let text = |column: usize| -> Option<String> { rows.first()?.try_get(column).ok()? };
    let Some(schema) = text(0) else { return Err(OpenError::NoSchema { user: user() }) };
    let encoding = text(1).unwrap_or_default();
    if !encoding.eq_ignore_ascii_case("UTF8") {
        return Err(OpenError::Encoding { found: encoding });
    }
    // Before the history: tables that are seen here and are ours have their line in it by then.
    let tables = client
        .query_typed(
            "SELECT table_name::TEXT FROM information_schema.tables \
             WHERE table_schema = current_schema()",
            &[],
        )
        .await
        .map_err(failed)?;
    let tables: BTreeSet<String> = tables.iter().filter_map(|row| row.try_get(0).ok()).collect();
    let taken: Vec<&str> =
        tables.iter().map(String::as_str).filter(|name| ours().any(|our| our == *name)).collect();
    let (copying, foreign) = (tables.contains(COPYING), taken.join(", "));
    let mut seen = Seen { schema, version: None, oldest: 0, foreign, copying };
    if tables.contains(HISTORY) {
        let sql = format!("SELECT max(version)::INTEGER FROM {HISTORY}");
        let rows = client.query_typed(&sql, &[]).await.map_err(failed)?;
        seen.version = rows.first().and_then(|row| row.try_get(0).ok().flatten());
    }
    if seen.version.is_some() {
        let sql = "SELECT oldest FROM compatibility WHERE id = 1";
        let rows = client.query_typed(sql, &[]).await.map_err(failed)?;
        seen.oldest = rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(0);
    }
    Ok(seen)
}

/// The tables that the steps create.
fn ours() -> impl Iterator<Item = &'static str> {
    let lines = MIGRATIONS.iter().flat_map(|(_, sql)| sql.lines());
    lines.filter_map(|line| line.strip_prefix("CREATE TABLE ")?.split_whitespace().next())
}

/// What the server said to a step.
fn server_code(error: &refinery::Error) -> Option<SqlState> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return error.code().cloned();
        }
        source = error.source();
    }
    None
}

/// An error of a step, with what the server said.
fn chain(error: &refinery::Error) -> String {
    let refinery::error::Kind::Connection(what, source) = error.kind() else {
        return error.to_string();
    };
    match source.downcast_ref::<tokio_postgres::Error>() {
        Some(error) => format!("{what}: {}", reason(error)),
        None => format!("{what}: {source}"),
    }
}

#[cfg(test)]
mod tests;
