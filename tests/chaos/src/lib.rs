//! Injects faults into daemons that share a database, and holds what they did against what they
//! promised (contract, section 0).
//!
//! ```text
//! schedule ── seed → faults: pure                inject ── carries them out
//! load ── askers, approvers, hosts, readers      receivers, stream ── whom the daemons send to
//!            └──────────── history ── every request and arrival with its real times ──────┘
//! oracle ── history → violations: pure           report ── a table, JSON, a time line of each
//! ```
//!
//! Only the faults are repeated by a seed; what the daemons make of them is not. So a failing run
//! keeps its history, which the oracle can judge again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

pub mod aftermath;
pub mod clock;
pub mod database;
pub mod dice;
pub mod history;
pub mod inject;
pub mod load;
pub mod message;
pub mod oracle;
pub mod payload;
pub mod receivers;
pub mod replica;
pub mod report;
pub mod run;
pub mod schedule;
pub mod setup;
pub mod stream;
pub mod text;
