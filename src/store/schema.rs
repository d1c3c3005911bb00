//! What bringing a schema up to date did.

/// What was done to a store's schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Its version before; `None` when there was nothing.
    pub before: Option<i32>,
    /// Its version now; in PostgreSQL it may be above what this version of answerback knows.
    pub now: i32,
}
