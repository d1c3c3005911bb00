//! The file that is copied: read only, and kept from daemons meanwhile.

use super::CopyError;
use super::cells::Cell;
use super::sums::{Sum, Sums};
use super::tables::{Key, Table};
use crate::store::sqlite::{FileLock, stopped};
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Rows that are written in one transaction, and about how many bytes; one row at least.
const ROWS: u64 = 2_000;
const BYTES: usize = 4 << 20;

/// The file, open for reading.
pub(super) struct Source {
    conn: Connection,
    contents: Contents,
    #[expect(dead_code, reason = "held, not used")]
    lock: FileLock,
}

/// What is in the file.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) path: PathBuf,
    /// Rows of [`Table::ALL`].
    pub(super) counts: [u64; Table::ALL.len()],
    pub(super) highest: Highest,
    /// Tells whether a file is the same and unchanged.
    pub(super) mark: String,
}

impl Contents {
    /// The rows of a table.
    fn count(&self, table: Table) -> u64 {
        Table::ALL.iter().zip(self.counts).find(|(t, _)| **t == table).map_or(0, |(_, n)| n)
    }

    /// All rows.
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The highest numbers that were ever given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Highest {
    pub(super) destination: i64,
    pub(super) wait: i64,
    pub(super) message: i64,
    pub(super) event: i64,
}

/// How far a copy is: up to which row of which table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) table: Table,
    pub(super) key: Key,
}

impl At {
    /// Before everything.
    pub(super) fn start() -> Self {
        Self { table: Table::ALL[0], key: Key::default() }
    }
}

/// Rows that are written in one transaction.
pub(super) struct Group {
    /// Where the copy is once they are.
    pub(super) at: At,
    /// How many rows of the file they are.
    pub(super) rows: u64,
    /// For each table of [`Table::filled`] its rows.
    pub(super) cells: Vec<Vec<Vec<Cell>>>,
}

impl Source {
    pub(super) fn open(path: PathBuf) -> Result<Self, CopyError> {
        let (conn, lock) = stopped(&path)?;
        let contents = look(&conn, path.clone())
            .map_err(|error| CopyError::Read { path, what: error.to_string() })?;
        Ok(Self { conn, contents, lock })
    }

    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    fn failed(&self, error: &rusqlite::Error) -> CopyError {
        CopyError::Read { path: self.contents.path.clone(), what: error.to_string() }
    }

    /// Reads all that comes after `at`, group by group, as long as `take` wants more.
    pub(super) fn read_on(
        &self,
        at: At,
        mut take: impl FnMut(Group) -> bool,
    ) -> Result<(), CopyError> {
        let begun = Table::ALL.iter().skip_while(|table| **table != at.table);
        for table in begun {
            let after = if *table == at.table { at.key.clone() } else { Key::default() };
            if !self.read_table(*table, &after, &mut take)? {
                break;
            }
        }
        Ok(())
    }

    fn read_table(
        &self,
        table: Table,
        after: &Key,
        take: &mut impl FnMut(Group) -> bool,
    ) -> Result<bool, CopyError> {
        let failed = |error: rusqlite::Error| self.failed(&error);
        let mut statement = self.conn.prepare(table.sql()).map_err(failed)?;
        let mut rows = statement.query(params_from_iter(table.params(after))).map_err(failed)?;
        let fresh = || Group {
            at: At { table, key: Key::default() },
            rows: 0,
            cells: table.filled().iter().map(|_| Vec::new()).collect(),
        };
        let (mut group, mut bytes) = (fresh(), 0);
        while let Some(row) = rows.next().map_err(failed)? {
            let key = table.key(row).map_err(failed)?;
            let cells = table.rows(row).map_err(|what| CopyError::Corrupt {
                path: self.contents.path.clone(),
                table: table.name(),
                row: named(&key),
                what,
            })?;
            for (all, row) in group.cells.iter_mut().zip(cells) {
                bytes += row.iter().map(Cell::bytes).sum::<usize>();
                all.push(row);
            }
            group.rows += 1;
            group.at.key = key;
            if group.rows == ROWS || bytes >= BYTES {
                if !take(std::mem::replace(&mut group, fresh())) {
                    return Ok(false);
                }
                bytes = 0;
            }
        }
        Ok(group.rows == 0 || take(group))
    }

    /// What the file holds, summed up from the rows themselves.
    pub(super) fn sums(&self) -> Result<Sums, CopyError> {
        let sums = || -> rusqlite::Result<Sums> {
            Ok(Sums {
                counts: self.contents.counts,
                commits: self.contents.count(Table::Events),
                waits: waits(&self.conn)?,
                outbox: outbox(&self.conn)?,
            })
        };
        sums().map_err(|error| self.failed(&error))
    }
}

/// How a row is called in an error.
fn named(key: &Key) -> String {
    match (key.id, &key.rest[..]) {
        (id, []) => id.to_string(),
        (0, rest) => hex::encode(rest),
        (id, rest) => format!("{id}, {}", hex::encode(rest)),
    }
}

fn look(conn: &Connection, path: PathBuf) -> rusqlite::Result<Contents> {
    // All reads see one state of the file, whatever others do with it.
    conn.execute_batch("BEGIN")?;
    let mut counts = [0; Table::ALL.len()];
    let mut mark = String::new();
    for (table, count) in Table::ALL.iter().zip(&mut counts) {
        let sql = format!("SELECT count(*), {} FROM {}", signs(*table), table.name());
        let (rows, signs): (i64, String) =
            conn.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        *count = u64::try_from(rows).unwrap_or(0);
        let _ = write!(mark, "{} {rows} {signs} ", table.name());
    }
    let highest = Highest {
        destination: number(conn, "SELECT max(id) FROM destinations")?,
        wait: sequence(conn, Table::Waits)?,
        message: sequence(conn, Table::Outbox)?,
        event: sequence(conn, Table::Events)?,
    };
    let _ = write!(mark, "{highest:?}");
    let mark = hex::encode(Sha256::digest(mark.as_bytes()));
    Ok(Contents { path, counts, highest, mark })
}

/// In which whatever a daemon does to a table shows, together with the number of rows.
fn signs(table: Table) -> &'static str {
    match table {
        Table::Destinations => "total(paused) || ''",
        Table::Waits => {
            "total(state) || ' ' || total(resends) || ' ' || total(taken_over IS NOT NULL) || ' ' \
             || total(closed_at) || ' ' || total(created_at)"
        }
        Table::Publishes => "total(wait) || ''",
        Table::Outbox => {
            "total(state) || ' ' || total(attempts) || ' ' || total(queued_at) || ' ' \
             || total(next_attempt_at) || ' ' || total(finished_at)"
        }
        Table::Events => "total(at) || ''",
        Table::Forgotten => "total(at) || ''",
        Table::Replies => "total(kept_at) || ''",
    }
}

fn number(conn: &Connection, sql: &str) -> rusqlite::Result<i64> {
    Ok(conn.query_row(sql, [], |row| row.get::<_, Option<i64>>(0))?.unwrap_or(0))
}

/// The highest number that a table has given, also when the row is gone.
fn sequence(conn: &Connection, table: Table) -> rusqlite::Result<i64> {
    let given: Option<i64> = conn
        .query_row("SELECT seq FROM sqlite_sequence WHERE name = ?1", [table.name()], |row| {
            row.get(0)
        })
        .optional()?;
    let there = number(conn, &format!("SELECT max(id) FROM {}", table.name()))?;
    Ok(given.unwrap_or(0).max(there))
}

fn waits(conn: &Connection) -> rusqlite::Result<Sum> {
    let mut statement =
        conn.prepare("SELECT id, state, envelope, taken_over, answer FROM waits ORDER BY id")?;
    let mut rows = statement.query([])?;
    let mut sum = Sum::default();
    while let Some(row) = rows.next()? {
        sum.wait(
            row.get(0)?,
            row.get(1)?,
            row.get_ref(2)?.as_blob()?,
            row.get_ref(3)?.as_blob_or_null()?,
            row.get_ref(4)?.as_blob_or_null()?,
        );
    }
    Ok(sum)
}

fn outbox(conn: &Connection) -> rusqlite::Result<Sum> {
    let mut statement = conn.prepare(
        "SELECT id, wait, destination, state, attempts, next_attempt_at, order_key \
         FROM outbox ORDER BY id",
    )?;
    let mut rows = statement.query([])?;
    let mut sum = Sum::default();
    while let Some(row) = rows.next()? {
        let mut numbers = [None; 7];
        for (n, number) in numbers.iter_mut().enumerate() {
            *number = row.get::<_, Option<i64>>(n)?;
        }
        sum.message(&numbers);
    }
    Ok(sum)
}
