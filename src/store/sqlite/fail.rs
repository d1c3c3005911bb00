//! What can go wrong below the trait, and what the caller is told of it.

use crate::store::StoreError;
use answerback_contract::json::JsonError;
use answerback_core::Refusal;
use rusqlite::ErrorCode;

/// Why a piece of work did not happen.
#[derive(Debug)]
pub(super) enum Fail {
    /// SQLite said no.
    Sql(rusqlite::Error),
    /// A row is not what this version writes.
    Corrupt(String),
    /// The work panicked.
    Panicked,
}

/// What a piece of work gives.
pub(super) type Done<T> = Result<T, Fail>;

impl Fail {
    /// Whether it would happen to any work just now, as on a full disk: there is no use in trying
    /// the rest of a batch one by one.
    pub(super) fn concerns_all(&self) -> bool {
        use ErrorCode::{
            CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase,
            OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
        };
        let Self::Sql(error) = self else { return false };
        matches!(
            error.sqlite_error_code(),
            Some(
                CannotOpen
                    | DatabaseBusy
                    | DatabaseCorrupt
                    | DatabaseLocked
                    | DiskFull
                    | NotADatabase
                    | OutOfMemory
                    | PermissionDenied
                    | ReadOnly
                    | SystemIoFailure
            )
        )
    }

    /// Whether the connection it happened on had better be opened anew.
    pub(super) fn spoils_connection(&self) -> bool {
        self.concerns_all() && !self.is(ErrorCode::DiskFull)
    }

    fn is(&self, code: ErrorCode) -> bool {
        matches!(self, Self::Sql(error) if error.sqlite_error_code() == Some(code))
    }

    /// As the trait has it. Statements and values are left out: they could hold what is secret.
    pub(super) fn told(&self) -> StoreError {
        match self {
            Self::Corrupt(what) => StoreError::Corrupt(what.clone()),
            Self::Panicked => {
                StoreError::Unavailable("the operation failed inside; see the log".to_owned())
            }
            Self::Sql(_) if self.is(ErrorCode::DiskFull) => StoreError::Unavailable(
                "the disk is full; free space on it and the daemon goes on by itself".to_owned(),
            ),
            Self::Sql(rusqlite::Error::SqliteFailure(failure, _)) => {
                StoreError::Unavailable(format!("SQLite: {failure}"))
            }
            Self::Sql(_) => StoreError::Unavailable("SQLite refused a statement".to_owned()),
        }
    }
}

impl From<rusqlite::Error> for Fail {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{FromSqlConversionFailure, InvalidColumnType, Utf8Error};
        match &error {
            FromSqlConversionFailure(column, ..) | InvalidColumnType(column, ..) => {
                Self::Corrupt(format!("a value of an unexpected type in column {column}"))
            }
            Utf8Error(..) => Self::Corrupt("a text that is not UTF-8".to_owned()),
            _ => Self::Sql(error),
        }
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
