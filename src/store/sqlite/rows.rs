//! Rows and what they mean.

use super::fail::{Done, Fail};
use crate::store::codes;
pub(super) use crate::store::codes::{
    BEHIND, DEAD, DELIVERED, NEVER, READY, WITHDRAWN, event_code, wait_code,
};
use answerback_contract::{
    Bytes, DedupeRest, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, Via,
    WaitState,
};
use answerback_core::{GivenAnswer, OutboxState, Wait, WaitId};
use rusqlite::Row;
use std::sync::Arc;

/// The columns that [`wait`] reads, of a table called `w`, for `concat!`.
macro_rules! wait_columns {
    () => {
        "w.id, w.tenant, w.thread_id, w.question_id, w.generation, w.choice, w.run_id, w.state, \
         w.event_id, w.created_at, w.expires_at, w.closed_at, w.valid_until, w.answered_at, \
         w.answered_by, w.answered_via, w.resends, w.note, w.answer, w.taken_over, w.envelope"
    };
}
pub(super) use wait_columns;

/// Reads a wait from the columns of [`wait_columns`].
pub(super) fn wait(row: &Row<'_>) -> Done<Wait> {
    let thread_id = id(row, 2, ThreadId::new)?;
    let question_id = id(row, 3, QuestionId::new)?;
    let run_id = match row.get_ref(6)?.as_str_or_null().map_err(|_| type_of(6))? {
        Some(run) => run.into(),
        None => Arc::from(thread_id.as_str()),
    };
    let rest = DedupeRest::choice(&question_id, number(row, 5)?);
    let answer = match blob(row, 18)? {
        None => None,
        Some(value) => Some(GivenAnswer {
            value,
            valid_until: time_or_none(row, 12)?,
            answered_at: time(row, 13)?,
            answered_by: row.get(14)?,
            answered_via: via(row, 15)?,
        }),
    };
    Ok(Wait {
        id: WaitId(row.get(0)?),
        tenant: id(row, 1, TenantId::new)?,
        thread_id,
        question_id,
        generation: generation(row, 4)?,
        rest,
        run_id,
        state: wait_state(row.get(7)?)?,
        envelope: blob(row, 20)?.ok_or_else(|| type_of(20))?,
        taken_over: blob(row, 19)?,
        event_id: id(row, 8, EventId::new)?,
        created_at: time(row, 9)?,
        expires_at: time_or_none(row, 10)?,
        closed_at: time_or_none(row, 11)?,
        answer,
        resends: number(row, 16)?,
        note: row.get(17)?,
    })
}

fn type_of(column: usize) -> Fail {
    Fail::Corrupt(format!("a value of an unexpected type in column {column}"))
}

/// An id, checked again: the core relies on it.
pub(super) fn id<T, E>(row: &Row<'_>, column: usize, make: fn(&str) -> Result<T, E>) -> Done<T> {
    let text = row.get_ref(column)?.as_str().map_err(|_| type_of(column))?;
    make(text).map_err(|_| Fail::Corrupt(format!("an impossible id in column {column}")))
}

pub(super) fn time(row: &Row<'_>, column: usize) -> Done<Time> {
    Ok(Time::from_millis(row.get(column)?))
}

pub(super) fn time_or_none(row: &Row<'_>, column: usize) -> Done<Option<Time>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Time::from_millis))
}

pub(super) fn number(row: &Row<'_>, column: usize) -> Done<u32> {
    u32::try_from(row.get::<_, i64>(column)?).map_err(|_| type_of(column))
}

pub(super) fn generation(row: &Row<'_>, column: usize) -> Done<Generation> {
    Generation::new(number(row, column)?).ok_or_else(|| type_of(column))
}

fn blob(row: &Row<'_>, column: usize) -> Done<Option<Bytes>> {
    let value = row.get_ref(column)?.as_blob_or_null().map_err(|_| type_of(column))?;
    Ok(value.map(Bytes::copy_from_slice))
}

fn via(row: &Row<'_>, column: usize) -> Done<Via> {
    let text = row.get_ref(column)?.as_str().map_err(|_| type_of(column))?;
    Via::from_name(text).ok_or_else(|| Fail::Corrupt(format!("an unknown way `{text}`")))
}

pub(super) fn wait_state(code: i64) -> Done<WaitState> {
    codes::wait_state(code).ok_or_else(|| Fail::Corrupt(format!("an unknown wait state {code}")))
}

pub(super) fn outbox_state(code: i64) -> Done<OutboxState> {
    codes::outbox_state(code)
        .ok_or_else(|| Fail::Corrupt(format!("an unknown outbox state {code}")))
}

pub(super) fn event(code: i64) -> Done<Event> {
    codes::event(code).ok_or_else(|| Fail::Corrupt(format!("an unknown event {code}")))
}
