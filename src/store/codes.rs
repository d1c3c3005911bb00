//! What small numbers in the stores' rows mean.

use answerback_contract::{Event, WaitState};
use answerback_core::OutboxState;

/// `waits.state` of an open wait.
pub(super) const OPEN: i64 = 1;
/// `outbox.state`: queued behind another one of its order key.
pub(super) const BEHIND: i64 = 0;
/// `outbox.state`: queued, and none of its order key is before it.
pub(super) const READY: i64 = 1;
/// `outbox.state`: delivered.
pub(super) const DELIVERED: i64 = 2;
/// `outbox.state`: dead.
pub(super) const DEAD: i64 = 3;
/// `outbox.state`: withdrawn.
pub(super) const WITHDRAWN: i64 = 4;
/// `outbox.next_attempt_at` of what is never due.
pub(super) const NEVER: i64 = i64::MAX;

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

/// What [`wait_code`] stands for.
pub(super) fn wait_state(code: i64) -> Option<WaitState> {
    usize::try_from(code).ok().and_then(|at| WaitState::ALL.get(at).copied())
}

/// What `outbox.state` stands for.
pub(super) fn outbox_state(code: i64) -> Option<OutboxState> {
    match code {
        BEHIND | READY => Some(OutboxState::Queued),
        DELIVERED => Some(OutboxState::Delivered),
        DEAD => Some(OutboxState::Dead),
        WITHDRAWN => Some(OutboxState::Withdrawn),
        _ => None,
    }
}

/// `outbox.event` and `events.event`; [`Event::ALL`] has them in this order.
pub(super) fn event_code(event: Event) -> i64 {
    match event {
        Event::Created => 0,
        Event::Answered => 1,
        Event::TimedOut => 2,
        Event::Cancelled => 3,
        Event::Reminder => 4,
    }
}

/// What [`event_code`] stands for.
pub(super) fn event(code: i64) -> Option<Event> {
    usize::try_from(code).ok().and_then(|at| Event::ALL.get(at).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_they_are_written() {
        for state in WaitState::ALL {
            assert_eq!(wait_state(wait_code(state)), Some(state));
        }
        for e in Event::ALL {
            assert_eq!(event(event_code(e)), Some(e));
        }
    }
}
