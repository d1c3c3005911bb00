//! What went wrong without purpose.

use super::{Book, Findings};
use crate::clock::At;
use crate::schedule::Fault;

const MISHAP: &str = "nothing fails by itself";

/// So long after the database was away a daemon may still end: it gives up starting, in microseconds.
const GRACE: At = 20_000_000;

pub(super) fn check(book: &Book<'_>, findings: &mut Findings) {
    for (at, what) in &book.history.mishaps {
        // A daemon that cannot reach its database when it starts may say so and end.
        let away = book.history.faults.iter().any(|injected| {
            matches!(
                injected.fault,
                Fault::Database { .. }
                    | Fault::Cut { .. }
                    | Fault::Stall { .. }
                    | Fault::Slow { .. }
            ) && injected.span.begin <= *at
                && at.saturating_sub(GRACE) <= injected.span.end
        });
        if !(away && what.contains("ended by itself")) {
            findings.add(MISHAP, *at, None, what.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Fixture, broken, fine};
    use super::*;
    use crate::history::{Injected, Span};

    #[test]
    fn a_daemon_that_ends_by_itself_is_found_unless_its_database_was_away() {
        let mut fixture = Fixture::answered();
        fixture.history.mishaps.push((5_000_000, "replica 1 ended by itself".to_owned()));
        broken(&fixture, MISHAP);
        let span = Span { begin: 3_000_000, end: 4_000_000 };
        let fault = Fault::Database { immediate: true };
        fixture.history.faults.push(Injected { span, fault });
        fine(&fixture);
    }
}
