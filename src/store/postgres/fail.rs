//! What can go wrong below the trait, and what the caller is told of it.

use crate::store::StoreError;
use answerback_contract::json::JsonError;
use answerback_core::Refusal;
use tokio_postgres::error::SqlState;

/// Why a piece of work did not happen.
#[derive(Debug)]
pub(super) enum Fail {
    /// The server, or the way to it, said no.
    Sql(tokio_postgres::Error),
    /// No connection is to be had.
    Connect(String),
    /// It took too long.
    Slow,
    /// Somebody else did the same meanwhile: look again, then it goes.
    Conflict,
    /// A row is not what this version writes.
    Corrupt(String),
}

/// What a piece of work gives.
pub(super) type Done<T> = Result<T, Fail>;

impl Fail {
    /// Whether the same work, done anew, may well succeed at once: it lost against another
    /// transaction, and has changed nothing.
    pub(super) fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict => true,
            Self::Sql(error) => error.code().is_some_and(|code| {
                [
                    &SqlState::T_R_SERIALIZATION_FAILURE,
                    &SqlState::T_R_DEADLOCK_DETECTED,
                    &SqlState::UNIQUE_VIOLATION,
                    &SqlState::LOCK_NOT_AVAILABLE,
                ]
                .contains(&code)
            }),
            Self::Connect(_) | Self::Slow | Self::Corrupt(_) => false,
        }
    }

    /// Whether it waited in vain for what another transaction holds.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Sql(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    /// Whether a statement that was prepared does not fit what there is now, as after an upgrade of the
    /// schema: a fresh connection knows none.
    pub(super) fn is_stale(&self) -> bool {
        matches!(self, Self::Sql(error) if error.code().is_some_and(|code| {
            [&SqlState::FEATURE_NOT_SUPPORTED, &SqlState::INVALID_SQL_STATEMENT_NAME].contains(&code)
        }))
    }

    /// Whether it is about one piece of work, so that others in its batch may succeed without it.
    pub(super) fn concerns_one(&self) -> bool {
        match self {
            Self::Corrupt(_) | Self::Conflict => true,
            _ if self.is_held() => true,
            // Classes 22 (data), 23 (integrity) and 42 (the statement itself).
            Self::Sql(error) => error.code().is_some_and(|code| {
                ["22", "23", "42", "54"].iter().any(|class| code.code().starts_with(class))
            }),
            Self::Connect(_) | Self::Slow => false,
        }
    }

    /// As the trait has it. Statements and values are left out: they could hold what is secret.
    pub(super) fn told(&self) -> StoreError {
        let unavailable = |what: &str| StoreError::Unavailable(what.to_owned());
        match self {
            Self::Corrupt(what) => StoreError::Corrupt(what.clone()),
            Self::Connect(what) => StoreError::Unavailable(format!("PostgreSQL: {what}")),
            Self::Slow => unavailable("PostgreSQL does not answer in time"),
            Self::Conflict => unavailable("too many daemons change the same waits at once"),
            Self::Sql(error) => match error.as_db_error() {
                // The message of the server names tables and settings; details would name values.
                Some(db) => StoreError::Unavailable(format!(
                    "PostgreSQL: {} ({})",
                    db.message(),
                    db.code().code()
                )),
                None if error.is_closed() => unavailable("PostgreSQL: the connection was lost"),
                None => unavailable("PostgreSQL: the connection does not work"),
            },
        }
    }
}

impl From<tokio_postgres::Error> for Fail {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Refusal> for Fail {
    fn from(refusal: Refusal) -> Self {
        Self::Corrupt(format!("an envelope is not as it was let in: {refusal}"))
    }
}

impl From<JsonError> for Fail {
    fn from(error: JsonError) -> Self {
        Self::from(Refusal::from(error))
    }
}
