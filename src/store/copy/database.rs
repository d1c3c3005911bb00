//! The database that a store is copied into.
//!
//! The table `copying` is there from the first row to the last check, and with it goes how far the
//! copy is. Statements are unnamed and transactions stand alone, as everywhere: a proxy may give
//! each of them another connection.

use super::CopyError;
use super::cells::Array;
use super::source::{At, Contents, Group, Highest};
use super::sums::{self, Sum, Sums};
use super::tables::{Key, Table};
use crate::store::postgres::{COPYING, for_copying, reason};
use secrecy::SecretString;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// One statement may sum up a whole table.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; \
     SET LOCAL lock_timeout = '10s'";

/// Tables that must be empty before, but for what a daemon needs to start.
const TABLES: [&str; 8] =
    ["waits", "outbox", "events", "commits", "publishes", "forgotten", "replies", "destinations"];

/// The database, with the copy begun.
pub(super) struct Database {
    client: Client,
    at: At,
}

/// Where a copy starts.
pub(super) struct Start {
    pub(super) at: At,
    /// Rows that are there.
    pub(super) copied: u64,
    /// Whether an earlier run has begun it.
    pub(super) resumed: bool,
}

impl From<tokio_postgres::Error> for CopyError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Write { what: reason(&error) }
    }
}

type Param<'p> = (&'p (dyn ToSql + Sync), Type);

impl Database {
    /// Connects, brings the schema up to date, and begins the copy or finds out where it is.
    pub(super) async fn begin(
        to: &SecretString,
        contents: &Contents,
    ) -> Result<(Self, Start), CopyError> {
        let client = for_copying(to).await?;
        let mut database = Self { client, at: At::start() };
        let start = database.find_start(contents).await?;
        database.at = start.at.clone();
        Ok((database, start))
    }

    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, CopyError> {
        Ok(self.client.query_typed(sql, params).await?)
    }

    async fn find_start(&self, contents: &Contents) -> Result<Start, CopyError> {
        let marker = self
            .query(
                "SELECT 1 FROM information_schema.tables \
                 WHERE table_schema = current_schema() AND table_name = $1",
                &[(&COPYING, Type::TEXT)],
            )
            .await?;
        if marker.is_empty() {
            self.mark(contents).await?;
            return Ok(Start { at: At::start(), copied: 0, resumed: false });
        }
        let found = self
            .query("SELECT mark, path, at_table, at_id, at_rest, copied FROM copying", &[])
            .await?;
        let Some(row) = found.first() else { return Err(CopyError::Taken) };
        if row.try_get::<_, &str>(0)? != contents.mark {
            return Err(CopyError::OtherSource { path: row.try_get(1)? });
        }
        let table = Table::of_code(row.try_get(2)?);
        let table = table.ok_or_else(|| CopyError::OtherSource {
            path: "a store by another version of answerback".to_owned(),
        })?;
        let key = Key { id: row.try_get(3)?, rest: row.try_get(4)? };
        let copied = u64::try_from(row.try_get::<_, i64>(5)?).unwrap_or(0);
        Ok(Start { at: At { table, key }, copied, resumed: true })
    }

    /// Makes sure that nothing is there, and that no daemon starts from now on.
    async fn mark(&self, contents: &Contents) -> Result<(), CopyError> {
        self.client.batch_execute(BEGIN).await?;
        // Whoever writes to it at this moment is waited for.
        self.client.batch_execute("LOCK TABLE waits IN SHARE ROW EXCLUSIVE MODE").await?;
        for table in TABLES {
            let sql = format!("SELECT 1 FROM {table} LIMIT 1");
            if !self.query(&sql, &[]).await?.is_empty() {
                self.client.batch_execute("ROLLBACK").await?;
                return Err(CopyError::NotEmpty { table: table.to_owned() });
            }
        }
        let made = self
            .client
            .batch_execute(
                "CREATE TABLE copying (id INTEGER PRIMARY KEY CHECK (id = 1), mark TEXT NOT NULL, \
                 path TEXT NOT NULL, at_table SMALLINT NOT NULL, at_id BIGINT NOT NULL, \
                 at_rest BYTEA NOT NULL, copied BIGINT NOT NULL)",
            )
            .await;
        match made {
            Err(error) if error.code().is_some_and(is_there) => return Err(CopyError::Taken),
            other => other?,
        }
        let path = contents.path.display().to_string();
        let At { table, key } = At::start();
        self.query(
            "INSERT INTO copying (id, mark, path, at_table, at_id, at_rest, copied) \
             VALUES (1, $1, $2, $3, $4, $5, 0)",
            &[
                (&contents.mark, Type::TEXT),
                (&path, Type::TEXT),
                (&table.code(), Type::INT2),
                (&key.id, Type::INT8),
                (&key.rest, Type::BYTEA),
            ],
        )
        .await?;
        Ok(self.client.batch_execute("COMMIT").await?)
    }

    /// Writes rows, and that the copy is as far as that.
    pub(super) async fn write(&mut self, group: &Group, copied: u64) -> Result<(), CopyError> {
        self.client.batch_execute(BEGIN).await?;
        let copied = i64::try_from(copied).unwrap_or(i64::MAX);
        let (from, to) = (&self.at, &group.at);
        let moved = self
            .query(
                "UPDATE copying SET at_table = $1, at_id = $2, at_rest = $3, copied = $4 \
                 WHERE at_table = $5 AND at_id = $6 AND at_rest = $7 RETURNING 1",
                &[
                    (&to.table.code(), Type::INT2),
                    (&to.key.id, Type::INT8),
                    (&to.key.rest, Type::BYTEA),
                    (&copied, Type::INT8),
                    (&from.table.code(), Type::INT2),
                    (&from.key.id, Type::INT8),
                    (&from.key.rest, Type::BYTEA),
                ],
            )
            .await?;
        if moved.is_empty() {
            return Err(CopyError::Taken);
        }
        for (filled, rows) in to.table.filled().iter().zip(&group.cells) {
            let arrays: Vec<Array<'_>> = filled.arrays(rows);
            let params: Vec<Param<'_>> =
                arrays.iter().map(|(array, kind)| (&**array as _, kind.clone())).collect();
            self.query(&filled.sql(), &params).await?;
        }
        self.client.batch_execute("COMMIT").await?;
        self.at = group.at.clone();
        Ok(())
    }

    /// What has arrived, summed up from the rows themselves.
    pub(super) async fn sums(&self) -> Result<Sums, CopyError> {
        self.client.batch_execute(BEGIN).await?;
        let mut counts = [0; Table::ALL.len()];
        for (table, count) in Table::ALL.iter().zip(&mut counts) {
            *count = self.count(table.name()).await?;
        }
        let commits = self.count("commits").await?;
        let waits = self.sum(sums::WAITS).await?;
        let outbox = self.sum(sums::OUTBOX).await?;
        self.client.batch_execute("COMMIT").await?;
        Ok(Sums { counts, commits, waits, outbox })
    }

    async fn count(&self, table: &str) -> Result<u64, CopyError> {
        let found = self.query(&format!("SELECT count(*) FROM {table}"), &[]).await?;
        let count: Option<i64> = found.first().map(|row| row.try_get(0)).transpose()?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    async fn sum(&self, sql: &str) -> Result<Sum, CopyError> {
        let found = self.query(sql, &[]).await?;
        let sum: Option<String> = found.first().map(|row| row.try_get(0)).transpose()?;
        Ok(Sum(sum.and_then(|sum| sum.parse().ok()).unwrap_or(0)))
    }

    /// Makes a store of it: no number is given again that the file has given, and daemons may start.
    pub(super) async fn finish(&self, highest: &Highest) -> Result<(), CopyError> {
        self.client.batch_execute(BEGIN).await?;
        let held = self.query("SELECT 1 FROM copying FOR UPDATE", &[]).await?;
        if held.is_empty() {
            return Err(CopyError::Taken);
        }
        let Highest { destination, wait, message, event } = highest;
        for (sequence, last) in [
            ("pg_get_serial_sequence('destinations', 'id')", destination),
            ("'wait_ids'", wait),
            ("'outbox_ids'", message),
            ("pg_get_serial_sequence('commits', 'id')", event),
        ] {
            if *last > 0 {
                let sql = format!("SELECT setval({sequence}, $1)");
                self.query(&sql, &[(last, Type::INT8)]).await?;
            }
        }
        self.query("UPDATE feed SET last = $1 WHERE id = 1", &[(event, Type::INT8)]).await?;
        // So many rows at once: plans made for empty tables would read them whole.
        self.client.batch_execute(&format!("ANALYZE {}", TABLES.join(", "))).await?;
        self.client.batch_execute("DROP TABLE copying").await?;
        Ok(self.client.batch_execute("COMMIT").await?)
    }
}

/// Whether another process has just made the table.
fn is_there(code: &SqlState) -> bool {
    [&SqlState::DUPLICATE_TABLE, &SqlState::UNIQUE_VIOLATION].contains(&code)
}
