//! Rows and what they mean.

use super::fail::{Done, Fail};
use answerback_contract::{
    Bytes, DedupeRest, Event, EventId, Generation, QuestionId, TenantId, ThreadId, Time, Via,
    WaitState,
};
use answerback_core::{GivenAnswer, OutboxState, Wait, WaitId};
use rusqlite::Row;
use std::sync::Arc;

/// `waits.state` of an open wait; partial indices name it as a literal.
pub(super) const OPEN: i64 = 1;

/// `outbox.state`: queued behind another one of its order key.
pub(super) const BEHIND: i64 = 0;
/// `outbox.state`: queued, due at its `next_attempt_at`.
pub(super) const READY: i64 = 1;
/// `outbox.state`: delivered.
pub(super) const DELIVERED: i64 = 2;
/// `outbox.state`: dead.
pub(super) const DEAD: i64 = 3;
/// `outbox.next_attempt_at` of what is never due.
pub(super) const NEVER: i64 = i64::MAX;
/// `outbox.state`: withdrawn.
pub(super) const WITHDRAWN: i64 = 4;

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
    usize::try_from(code)
        .ok()
        .and_then(|at| WaitState::ALL.get(at).copied())
        .ok_or_else(|| Fail::Corrupt(format!("an unknown wait state {code}")))
}

/// `waits.state`; [`WaitState::ALL`] has them in this order.
pub(super) fn wait_code(state: WaitState) -> i64 {
    match state {
        WaitState::Pending => 0,
        WaitState::Open => OPEN,
        WaitState::Completed => 2,
        WaitState::TimedOut => 3,
        WaitState::Cancelled => 4,
        WaitState::Unused => 5,
    }
}

pub(super) fn outbox_state(code: i64) -> Done<OutboxState> {
    match code {
        BEHIND | READY => Ok(OutboxState::Queued),
        DELIVERED => Ok(OutboxState::Delivered),
        DEAD => Ok(OutboxState::Dead),
        WITHDRAWN => Ok(OutboxState::Withdrawn),
        other => Err(Fail::Corrupt(format!("an unknown outbox state {other}"))),
    }
}

pub(super) fn event(code: i64) -> Done<Event> {
    usize::try_from(code)
        .ok()
        .and_then(|at| Event::ALL.get(at).copied())
        .ok_or_else(|| Fail::Corrupt(format!("an unknown event {code}")))
}

/// `outbox.event`; [`Event::ALL`] has them in this order.
pub(super) fn event_code(event: Event) -> i64 {
    match event {
        Event::Created => 0,
        Event::Answered => 1,
        Event::TimedOut => 2,
        Event::Cancelled => 3,
        Event::Reminder => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_they_are_written() {
        for state in WaitState::ALL {
            assert_eq!(wait_state(wait_code(state)).unwrap(), state);
        }
        for e in Event::ALL {
            assert_eq!(event(event_code(e)).unwrap(), e);
        }
    }
}
