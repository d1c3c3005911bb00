//! Where the real services are: `scripts/services up` starts them, `make test` as well.

use std::env;

/// The Kafka broker, as `host:port`.
#[must_use]
pub fn kafka() -> String {
    named("ANSWERBACK_TEST_KAFKA")
}

/// The AWS emulator, as the base of its URLs.
#[must_use]
pub fn aws() -> String {
    named("ANSWERBACK_TEST_AWS")
}

/// PostgreSQL, as the URL of a superuser.
#[must_use]
pub fn postgres() -> String {
    named("ANSWERBACK_TEST_POSTGRES")
}

/// The same server through pgbouncer in transaction mode.
#[must_use]
pub fn pgbouncer() -> String {
    named("ANSWERBACK_TEST_PGBOUNCER")
}

/// The Python interpreter that has agent-wait and LangGraph.
#[must_use]
pub fn python() -> String {
    named("ANSWERBACK_TEST_PYTHON")
}

/// A missing service fails the test: one that is skipped proves nothing.
fn named(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set; run `make test`, or: scripts/services up && eval \"$(scripts/services env)\""
        )
    })
}
