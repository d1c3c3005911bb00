//! Rows and what they mean.

use super::fail::{Done, Fail};
use crate::store::codes;
use answerback_contract::{
    Bytes, DedupeRest, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, Via,
    WaitState,
};
use answerback_core::{GivenAnswer, OutboxState, Wait, WaitId};
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

/// The columns that [`wait`] reads, of a table called `w`, for `concat!`.
macro_rules! wait_columns {
    () => {
        "w.id, w.tenant, w.thread_id, w.question_id, w.generation, w.choice, w.run_id, w.state, \
         w.event_id, w.created_at, w.expires_at, w.closed_at, w.valid_until, w.answered_at, \
         w.answered_by, w.answered_via, w.resends, w.note, w.answer, w.taken_over, w.envelope"
    };
}
pub(super) use wait_columns;

/// How many columns [`wait_columns`] are.
pub(super) const WAIT_COLUMNS: usize = 21;

/// Reads a wait from the columns of [`wait_columns`], the first of which is column `from`.
pub(super) fn wait(row: &Row, from: usize) -> Done<Wait> {
    let thread_id = id(row, from + 2, ThreadId::new)?;
    let question_id = id(row, from + 3, QuestionId::new)?;
    let run_id = match get::<Option<&str>>(row, from + 6)? {
        Some(run) => run.into(),
        None => Arc::from(thread_id.as_str()),
    };
    let rest = DedupeRest::choice(&question_id, number(row, from + 5)?);
    let answer = match blob(row, from + 18)? {
        None => None,
        Some(value) => Some(GivenAnswer {
            value,
            valid_until: time_or_none(row, from + 12)?,
            answered_at: time(row, from + 13)?,
            answered_by: match get::<Option<&[u8]>>(row, from + 14)? {
                None => None,
                Some(who) => Some(
                    String::from_utf8(who.to_vec())
                        .map_err(|_| Fail::Corrupt("a text that is not UTF-8".to_owned()))?,
                ),
            },
            answered_via: via(get(row, from + 15)?)?,
        }),
    };
    Ok(Wait {
        id: WaitId(get(row, from)?),
        tenant: id(row, from + 1, TenantId::new)?,
        thread_id,
        question_id,
        generation: generation(row, from + 4)?,
        rest,
        run_id,
        state: wait_state(get(row, from + 7)?)?,
        envelope: blob(row, from + 20)?.ok_or_else(|| type_of(from + 20))?,
        taken_over: blob(row, from + 19)?,
        event_id: id(row, from + 8, EventId::new)?,
        created_at: time(row, from + 9)?,
        expires_at: time_or_none(row, from + 10)?,
        closed_at: time_or_none(row, from + 11)?,
        answer,
        resends: number(row, from + 16)?,
        note: get(row, from + 17)?,
    })
}

fn type_of(column: usize) -> Fail {
    Fail::Corrupt(format!("a value of an unexpected type in column {column}"))
}

/// A column's value.
pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Done<T> {
    row.try_get(column).map_err(|_| type_of(column))
}

/// An id, checked again: the core relies on it.
pub(super) fn id<T, E>(row: &Row, column: usize, make: fn(&str) -> Result<T, E>) -> Done<T> {
    make(get(row, column)?)
        .map_err(|_| Fail::Corrupt(format!("an impossible id in column {column}")))
}

/// An id that may be missing.
pub(super) fn id_or_none<T, E>(
    row: &Row,
    column: usize,
    make: fn(&str) -> Result<T, E>,
) -> Done<Option<T>> {
    let text: Option<&str> = get(row, column)?;
    text.map(make)
        .transpose()
        .map_err(|_| Fail::Corrupt(format!("an impossible id in column {column}")))
}

pub(super) fn time(row: &Row, column: usize) -> Done<Time> {
    Ok(Time::from_millis(get(row, column)?))
}

pub(super) fn time_or_none(row: &Row, column: usize) -> Done<Option<Time>> {
    Ok(get::<Option<i64>>(row, column)?.map(Time::from_millis))
}

/// A number that is stored as INTEGER.
pub(super) fn number(row: &Row, column: usize) -> Done<u32> {
    u32::try_from(get::<i32>(row, column)?).map_err(|_| type_of(column))
}

pub(super) fn generation(row: &Row, column: usize) -> Done<Generation> {
    Generation::new(number(row, column)?).ok_or_else(|| type_of(column))
}

pub(super) fn blob(row: &Row, column: usize) -> Done<Option<Bytes>> {
    Ok(get::<Option<&[u8]>>(row, column)?.map(Bytes::copy_from_slice))
}

fn via(text: &str) -> Done<Via> {
    Via::from_name(text).ok_or_else(|| Fail::Corrupt(format!("an unknown way `{text}`")))
}

pub(super) fn wait_state(code: i16) -> Done<WaitState> {
    codes::wait_state(code.into())
        .ok_or_else(|| Fail::Corrupt(format!("an unknown wait state {code}")))
}

pub(super) fn outbox_state(code: i16) -> Done<OutboxState> {
    codes::outbox_state(code.into())
        .ok_or_else(|| Fail::Corrupt(format!("an unknown outbox state {code}")))
}

pub(super) fn event(code: i16) -> Done<Event> {
    codes::event(code.into()).ok_or_else(|| Fail::Corrupt(format!("an unknown event {code}")))
}

/// PostgreSQL's TEXT holds every character but this one.
pub(in crate::store) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
