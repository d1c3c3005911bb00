//! The daemon from outside: the real binary, spoken to over HTTP, with real services around it.
//!
//! Every test has its own daemon on its own port, and queues, topics and tables of its own names, so
//! that they run side by side. What they share is in `bed` and in the crate `answerback-testkit`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod bed;
mod buses;
mod cases;
mod cli;
mod crash;
mod deadlines;
mod faults;
mod full_disk;
mod http;
mod langgraph;
mod migrate;
mod refused;
mod replicas;
mod sequences;
mod spine;
mod strict;
