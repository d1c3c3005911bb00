//! What the integration tests and the benchmark share: the real daemon as a child process, receivers,
//! a stub of AWS that enforces AWS's own limits, and hands for the real services.
//!
//! Everything panics with a clear message where a test should end; that is what it is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

pub mod aws;
pub mod cases;
pub mod daemon;
pub mod events;
pub mod host;
pub mod http;
pub mod kafka;
pub mod moto;
pub mod postgres;
pub mod proxy;
pub mod receiver;
mod serve;
pub mod services;
mod waiting;

pub use daemon::Daemon;
pub use events::{Event, Events};
pub use http::{Api, Reply};
pub use receiver::{Answer, Receiver};
pub use waiting::{Gate, PATIENCE, eventually, eventually_within};
