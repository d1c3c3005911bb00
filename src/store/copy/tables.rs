//! The tables of the file, and what their rows are in PostgreSQL.

use super::cells::{Cell, Filled, Kind};
use crate::store::codes::{self, NEVER, READY};
use crate::store::{hashes, postgres};
use answerback_contract::{DedupeRest, EventId, QuestionId, TenantId, ThreadId, Via};
use answerback_core::Destination;
use rusqlite::Row;
use rusqlite::types::Value;

/// A table of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Destinations,
    Waits,
    Publishes,
    Outbox,
    Events,
    Forgotten,
    Replies,
}

/// A place in a table in the order of its key. Keys are a number, bytes, or both.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Key {
    pub(super) id: i64,
    pub(super) rest: Vec<u8>,
}

/// What is wrong with a row.
pub(super) type Odd = String;

impl Table {
    /// In the order in which they are copied.
    pub(super) const ALL: [Self; 7] = [
        Self::Destinations,
        Self::Waits,
        Self::Publishes,
        Self::Outbox,
        Self::Events,
        Self::Forgotten,
        Self::Replies,
    ];

    /// What it is called in the file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Destinations => "destinations",
            Self::Waits => "waits",
            Self::Publishes => "publishes",
            Self::Outbox => "outbox",
            Self::Events => "events",
            Self::Forgotten => "forgotten",
            Self::Replies => "replies",
        }
    }

    /// What stands in `copying.at_table`.
    pub(super) fn code(self) -> i16 {
        let at = Self::ALL.iter().position(|table| *table == self);
        at.and_then(|at| i16::try_from(at).ok()).unwrap_or(i16::MAX)
    }

    /// What [`Self::code`] stands for.
    pub(super) fn of_code(code: i16) -> Option<Self> {
        usize::try_from(code).ok().and_then(|at| Self::ALL.get(at).copied())
    }

    /// Reads on after a key, in the order of keys.
    pub(super) fn sql(self) -> &'static str {
        match self {
            Self::Destinations => {
                "SELECT id, kind, name, paused FROM destinations WHERE id > ?1 ORDER BY id"
            }
            Self::Waits => {
                "SELECT id, tenant, thread_id, question_id, generation, choice, run_id, state, \
                 event_id, created_at, expires_at, closed_at, valid_until, answered_at, \
                 answered_by, answered_via, resends, note, answer, taken_over, envelope \
                 FROM waits WHERE id > ?1 ORDER BY id"
            }
            Self::Publishes => {
                "SELECT p.wait, p.event_id, w.tenant, w.thread_id, w.question_id \
                 FROM publishes p LEFT JOIN waits w ON w.id = p.wait \
                 WHERE (p.wait, p.event_id) > (?1, ?2) ORDER BY p.wait, p.event_id"
            }
            Self::Outbox => {
                "SELECT o.id, o.wait, o.destination, o.event, o.repeat, o.state, o.attempts, \
                 o.order_key, o.queued_at, o.next_attempt_at, o.finished_at, o.event_id, \
                 o.reason, o.last_error, d.kind, w.valid_until \
                 FROM outbox o LEFT JOIN destinations d ON d.id = o.destination \
                 LEFT JOIN waits w ON w.id = o.wait WHERE o.id > ?1 ORDER BY o.id"
            }
            Self::Events => {
                "SELECT id, wait, event, at, event_id FROM events WHERE id > ?1 ORDER BY id"
            }
            Self::Forgotten => {
                "SELECT hash, generation, choice, at FROM forgotten WHERE hash > ?1 ORDER BY hash"
            }
            Self::Replies => {
                "SELECT scope, body_hash, status, body, kept_at FROM replies \
                 WHERE scope > ?1 ORDER BY scope"
            }
        }
    }

    /// The parameters of [`Self::sql`].
    pub(super) fn params(self, after: &Key) -> Vec<Value> {
        let text = || Value::Text(String::from_utf8_lossy(&after.rest).into_owned());
        match self {
            Self::Destinations | Self::Waits | Self::Outbox | Self::Events => {
                vec![Value::Integer(after.id)]
            }
            Self::Publishes => vec![Value::Integer(after.id), text()],
            Self::Forgotten => vec![Value::Blob(after.rest.clone())],
            Self::Replies => vec![text()],
        }
    }

    /// The key of a row of [`Self::sql`].
    pub(super) fn key(self, row: &Row<'_>) -> rusqlite::Result<Key> {
        Ok(match self {
            Self::Destinations | Self::Waits | Self::Outbox | Self::Events => {
                Key { id: row.get(0)?, rest: Vec::new() }
            }
            Self::Publishes => Key { id: row.get(0)?, rest: row.get::<_, String>(1)?.into_bytes() },
            Self::Forgotten => Key { id: 0, rest: row.get(0)? },
            Self::Replies => Key { id: 0, rest: row.get::<_, String>(0)?.into_bytes() },
        })
    }

    /// The tables of PostgreSQL that its rows go to.
    pub(super) fn filled(self) -> &'static [Filled] {
        match self {
            Self::Destinations => &[DESTINATIONS],
            Self::Waits => &[WAITS],
            Self::Publishes => &[PUBLISHES],
            Self::Outbox => &[OUTBOX],
            Self::Events => &[COMMITS, EVENTS],
            Self::Forgotten => &[FORGOTTEN],
            Self::Replies => &[REPLIES],
        }
    }

    /// A row of [`Self::sql`] as it goes to each table of [`Self::filled`].
    pub(super) fn rows(self, row: &Row<'_>) -> Result<Vec<Vec<Cell>>, Odd> {
        match self {
            Self::Destinations => destination(row).map(one),
            Self::Waits => wait(row).map(one),
            Self::Publishes => publish(row).map(one),
            Self::Outbox => message(row).map(one),
            Self::Events => event(row),
            Self::Forgotten => forgotten(row).map(one),
            Self::Replies => reply(row).map(one),
        }
    }
}

fn one(row: Vec<Cell>) -> Vec<Vec<Cell>> {
    vec![row]
}

fn get<T: rusqlite::types::FromSql>(row: &Row<'_>, column: usize) -> Result<T, Odd> {
    row.get(column).map_err(|_| format!("a value of an unexpected type in column {column}"))
}

fn int(row: &Row<'_>, column: usize) -> Result<i32, Odd> {
    i32::try_from(get::<i64>(row, column)?)
        .map_err(|_| format!("a number too large in column {column}"))
}

/// A small number that must stand for something.
fn code<T>(row: &Row<'_>, column: usize, of: fn(i64) -> Option<T>) -> Result<i16, Odd> {
    let code = get::<i64>(row, column)?;
    of(code).ok_or_else(|| format!("an unknown code {code} in column {column}"))?;
    i16::try_from(code).map_err(|_| format!("an unknown code {code} in column {column}"))
}

fn id<T, E>(row: &Row<'_>, column: usize, make: fn(&str) -> Result<T, E>) -> Result<T, Odd> {
    make(&get::<String>(row, column)?).map_err(|_| format!("an impossible id in column {column}"))
}

/// A text that may hold what PostgreSQL does not take.
fn text(row: &Row<'_>, column: usize) -> Result<Option<String>, Odd> {
    Ok(get::<Option<String>>(row, column)?.map(|text| postgres::text(&text)))
}

/// An event's id that may be missing.
fn event_id(row: &Row<'_>, column: usize) -> Result<Option<String>, Odd> {
    let text: Option<String> = get(row, column)?;
    if let Some(text) = &text {
        EventId::new(text).map_err(|_| format!("an impossible id in column {column}"))?;
    }
    Ok(text)
}

const DESTINATIONS: Filled = Filled {
    table: "destinations",
    columns: &[
        ("id", Kind::Big),
        ("kind", Kind::Text),
        ("name", Kind::Text),
        ("hash", Kind::Bytes),
        ("paused", Kind::Bool),
    ],
};

fn destination(row: &Row<'_>) -> Result<Vec<Cell>, Odd> {
    let (kind, name): (String, String) = (get(row, 1)?, get(row, 2)?);
    let destination = Destination::kept(&kind, &name)
        .ok_or_else(|| format!("an unknown kind of destination `{kind}`"))?;
    Ok(vec![
        get::<i64>(row, 0)?.into(),
        kind.into(),
        postgres::text(&name).into(),
        hashes::destination(&destination).to_vec().into(),
        get::<bool>(row, 3)?.into(),
    ])
}

const WAITS: Filled = Filled {
    table: "waits",
    columns: &[
        ("id", Kind::Big),
        ("identity", Kind::Bytes),
        ("generation", Kind::Int),
        ("rest_hash", Kind::Bytes),
        ("question_hash", Kind::Bytes),
        ("run_hash", Kind::Bytes),
        ("choice", Kind::Int),
        ("state", Kind::Small),
        ("resends", Kind::Int),
        ("bytes", Kind::Int),
        ("created_at", Kind::Big),
        ("expires_at", Kind::Big),
        ("closed_at", Kind::Big),
        ("valid_until", Kind::Big),
        ("answered_at", Kind::Big),
        ("tenant", Kind::Text),
        ("thread_id", Kind::Text),
        ("question_id", Kind::Text),
        ("run_id", Kind::Text),
        ("event_id", Kind::Text),
        ("answered_via", Kind::Text),
        ("answered_by", Kind::Bytes),
        ("note", Kind::Text),
        ("answer", Kind::Bytes),
        ("taken_over", Kind::Bytes),
        ("envelope", Kind::Bytes),
    ],
};

fn wait(row: &Row<'_>) -> Result<Vec<Cell>, Odd> {
    let tenant = id(row, 1, TenantId::new)?;
    let thread = id(row, 2, ThreadId::new)?;
    let question = id(row, 3, QuestionId::new)?;
    let generation = int(row, 4)?;
    let choice = int(row, 5)?;
    let rest = u32::try_from(choice).map_err(|_| "an impossible choice in column 5".to_owned())?;
    let rest = DedupeRest::choice(&question, rest);
    let run: Option<String> = get(row, 6)?;
    let run_hash = run.as_deref().map(|run| hashes::run(&tenant, run).to_vec());
    let via: Option<String> = get(row, 15)?;
    if let Some(via) = via.as_deref().filter(|via| Via::from_name(via).is_none()) {
        return Err(format!("an unknown way `{via}` in column 15"));
    }
    let (taken_over, envelope): (Option<Vec<u8>>, Vec<u8>) = (get(row, 19)?, get(row, 20)?);
    let bytes = envelope.len() + taken_over.as_ref().map_or(0, Vec::len);
    Ok(vec![
        get::<i64>(row, 0)?.into(),
        hashes::identity(&tenant, &thread, &question).to_vec().into(),
        generation.into(),
        hashes::key(&tenant, &rest).to_vec().into(),
        hashes::question(&tenant, &question).to_vec().into(),
        run_hash.into(),
        choice.into(),
        code(row, 7, codes::wait_state)?.into(),
        int(row, 16)?.into(),
        i32::try_from(bytes).unwrap_or(i32::MAX).into(),
        get::<i64>(row, 9)?.into(),
        get::<Option<i64>>(row, 10)?.into(),
        get::<Option<i64>>(row, 11)?.into(),
        get::<Option<i64>>(row, 12)?.into(),
        get::<Option<i64>>(row, 13)?.into(),
        tenant.as_str().to_owned().into(),
        thread.as_str().to_owned().into(),
        question.as_str().to_owned().into(),
        run.map(|run| postgres::text(&run)).into(),
        id(row, 8, EventId::new)?.as_str().to_owned().into(),
        via.into(),
        get::<Option<String>>(row, 14)?.map(String::into_bytes).into(),
        text(row, 17)?.into(),
        get::<Option<Vec<u8>>>(row, 18)?.into(),
        taken_over.into(),
        envelope.into(),
    ])
}

const PUBLISHES: Filled =
    Filled { table: "publishes", columns: &[("wait", Kind::Big), ("event_hash", Kind::Bytes)] };

fn publish(row: &Row<'_>) -> Result<Vec<Cell>, Odd> {
    if get::<Option<String>>(row, 2)?.is_none() {
        return Err("a publish of a wait that is not there".to_owned());
    }
    let tenant = id(row, 2, TenantId::new)?;
    let thread = id(row, 3, ThreadId::new)?;
    let question = id(row, 4, QuestionId::new)?;
    let hash = hashes::event(&tenant, &thread, &question, &get::<String>(row, 1)?);
    Ok(vec![get::<i64>(row, 0)?.into(), hash.to_vec().into()])
}

const OUTBOX: Filled = Filled {
    table: "outbox",
    columns: &[
        ("id", Kind::Big),
        ("wait", Kind::Big),
        ("destination", Kind::Big),
        ("due_at", Kind::Big),
        ("queued_at", Kind::Big),
        ("next_attempt_at", Kind::Big),
        ("finished_at", Kind::Big),
        ("order_key", Kind::Big),
        ("attempts", Kind::Int),
        ("repeat", Kind::Int),
        ("event", Kind::Small),
        ("state", Kind::Small),
        ("event_id", Kind::Text),
        ("reason", Kind::Text),
        ("last_error", Kind::Text),
    ],
};

fn message(row: &Row<'_>) -> Result<Vec<Cell>, Odd> {
    let next_attempt_at: i64 = get(row, 9)?;
    let state = code(row, 5, codes::outbox_state)?;
    let kind: Option<String> = get(row, 14)?;
    // What its host comes for is due when the answer lapses. In the file that may be put right only
    // when it comes up.
    let due_at = match kind.as_deref() == Some(Destination::Pull.parts().0) {
        true if i64::from(state) <= READY => get::<Option<i64>>(row, 15)?.unwrap_or(NEVER),
        _ => next_attempt_at,
    };
    Ok(vec![
        get::<i64>(row, 0)?.into(),
        get::<i64>(row, 1)?.into(),
        get::<i64>(row, 2)?.into(),
        due_at.into(),
        get::<i64>(row, 8)?.into(),
        next_attempt_at.into(),
        get::<Option<i64>>(row, 10)?.into(),
        get::<Option<i64>>(row, 7)?.into(),
        int(row, 6)?.into(),
        int(row, 4)?.into(),
        code(row, 3, codes::event)?.into(),
        state.into(),
        event_id(row, 11)?.into(),
        text(row, 12)?.into(),
        text(row, 13)?.into(),
    ])
}

const COMMITS: Filled = Filled {
    table: "commits",
    columns: &[
        ("id", Kind::Big),
        ("events", Kind::Int),
        ("first_place", Kind::Big),
        ("last_place", Kind::Big),
    ],
};

const EVENTS: Filled = Filled {
    table: "events",
    columns: &[
        ("commit_id", Kind::Big),
        ("nth", Kind::Int),
        ("wait", Kind::Big),
        ("at", Kind::Big),
        ("event", Kind::Small),
        ("event_id", Kind::Text),
    ],
};

/// An event is a commit of its own, so that it keeps its place between those that are gone.
fn event(row: &Row<'_>) -> Result<Vec<Vec<Cell>>, Odd> {
    let place: i64 = get(row, 0)?;
    Ok(vec![
        vec![place.into(), 1_i32.into(), place.into(), place.into()],
        vec![
            place.into(),
            0_i32.into(),
            get::<i64>(row, 1)?.into(),
            get::<i64>(row, 3)?.into(),
            code(row, 2, codes::event)?.into(),
            event_id(row, 4)?.into(),
        ],
    ])
}

const FORGOTTEN: Filled = Filled {
    table: "forgotten",
    columns: &[
        ("hash", Kind::Bytes),
        ("generation", Kind::Int),
        ("choice", Kind::Int),
        ("at", Kind::Big),
    ],
};

fn forgotten(row: &Row<'_>) -> Result<Vec<Cell>, Odd> {
    Ok(vec![
        get::<Vec<u8>>(row, 0)?.into(),
        int(row, 1)?.into(),
        int(row, 2)?.into(),
        get::<i64>(row, 3)?.into(),
    ])
}

const REPLIES: Filled = Filled {
    table: "replies",
    columns: &[
        ("scope_hash", Kind::Bytes),
        ("body_hash", Kind::Bytes),
        ("status", Kind::Int),
        ("body", Kind::Bytes),
        ("kept_at", Kind::Big),
    ],
};

fn reply(row: &Row<'_>) -> Result<Vec<Cell>, Odd> {
    Ok(vec![
        hashes::scope(&get::<String>(row, 0)?).to_vec().into(),
        get::<Vec<u8>>(row, 1)?.into(),
        int(row, 2)?.into(),
        get::<Vec<u8>>(row, 3)?.into(),
        get::<i64>(row, 4)?.into(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_known_by_their_codes() {
        for table in Table::ALL {
            assert_eq!(Table::of_code(table.code()), Some(table));
        }
        assert_eq!(Table::of_code(7), None);
        assert_eq!(Table::of_code(-1), None);
    }
}
