//! How lists are read: a walk over ids, newest first, a page after the other.

use super::{Listed, WaitFilter};

/// How many rows one read or statement of a list looks at, so that others get their turn between two.
pub(super) const PAGE: usize = 500;
/// How many rows a list looks at before it gives what it found, and a cursor.
pub(super) const MOST_LOOKED_AT: usize = 20_000;

/// What one read of a list found, how much it looked at, and where the next one goes on.
pub(super) struct Page<T> {
    pub(super) found: Vec<T>,
    pub(super) looked_at: usize,
    pub(super) next: Option<i64>,
}

impl<T> Page<T> {
    pub(super) fn empty() -> Self {
        Self { found: Vec::new(), looked_at: 0, next: None }
    }
}

/// A list as far as it was read: until `limit` is found or enough was looked at.
pub(super) struct Walked<T> {
    found: Vec<T>,
    limit: usize,
    looked_at: usize,
    next: Option<i64>,
}

impl<T> Walked<T> {
    pub(super) fn start(before: Option<i64>, limit: usize) -> Self {
        Self { found: Vec::new(), limit, looked_at: 0, next: Some(before.unwrap_or(i64::MAX)) }
    }

    /// Before which id to read on, and how many are wanted still.
    pub(super) fn goes_on(&self) -> Option<(i64, usize)> {
        let left = self.limit.saturating_sub(self.found.len());
        self.next.filter(|_| left > 0 && self.looked_at < MOST_LOOKED_AT).map(|from| (from, left))
    }

    pub(super) fn add(&mut self, page: Page<T>) {
        self.found.extend(page.found);
        self.looked_at += page.looked_at;
        self.next = page.next;
    }

    pub(super) fn listed<I>(self, id: fn(i64) -> I) -> Listed<T, I> {
        Listed { found: self.found, next: self.next.map(id) }
    }
}

/// Where the candidates of a list of waits come from, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// Over all there are. Not by an index of tenants: that would have to be kept for the sake of
    /// the rare store with many.
    All,
    /// Over what is not over.
    Open,
    Thread,
    /// Envelopes have no run of their own: theirs is the thread.
    Run,
}

impl Walk {
    pub(super) fn of(filter: &WaitFilter) -> Self {
        let only_open = !filter.states.is_empty() && !filter.states.iter().any(|s| s.is_over());
        match (&filter.thread_id, &filter.run_id) {
            (Some(_), _) => Self::Thread,
            (None, Some(_)) => Self::Run,
            (None, None) if only_open => Self::Open,
            (None, None) => Self::All,
        }
    }
}
