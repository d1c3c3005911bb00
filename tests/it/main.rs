//! The daemon from outside: the real binary, spoken to over HTTP, with real services around it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod cli;
mod http;
