//! The store in PostgreSQL, for any number of daemons at once.
//!
//! * What is asked for at the same time is carried out together, a few statements for all of it
//!   ([`batch`]); statements take arrays, and travel in as few round trips as can be ([`connect`]).
//! * Statements are prepared where no proxy stands between ([`pool`]).
//! * Transactions are READ COMMITTED. Rows are locked before a decision about them is taken, in the
//!   order of their ids; what two daemons would both insert is settled by unique indices, and the
//!   one that loses looks again. So the core decides alone, here as in every store.
//! * A lease is a mark in the row, with a count that fences late settlements off.
//! * Decisions are the core's; [`carry`] writes what follows from them.

mod answer;
mod batch;
mod carry;
mod connect;
mod deadlines;
mod fail;
mod feed;
mod forgotten;
mod lease;
mod line;
mod lists;
mod notify;
mod open;
mod operate;
mod pool;
mod publish;
mod replies;
mod rows;
mod settle;
mod shared;
mod statement;
mod store;
mod tls;
mod url;

use super::hashes;
pub(super) use connect::reason;
pub(super) use open::{COPYING, for_copying};
pub use open::{OpenError, PostgresOptions, bring_up_to_date, reach};
pub(super) use rows::text;
pub use store::PostgresStore;
