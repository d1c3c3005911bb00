//! answerback takes in the questions that agents ask, keeps them safe, announces each through every
//! channel a team uses, lets exactly one answer win and brings it back to the host that waits.
//!
//! Data flows one way: [`intake`] → [`store`] → [`dispatch`] → announcer, and answer → store →
//! dispatch → host. What follows from a message is decided in [`core`], without I/O; everything
//! else here carries it out. ARCHITECTURE.md has the map and the invariants.

pub mod answers;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod demo;
pub mod dispatch;
pub mod intake;
pub mod metrics;
mod program;
pub mod registry;
pub mod store;
pub mod telemetry;
pub mod web;

pub use answerback_contract as contract;
pub use answerback_core as core;
pub use program::Answerback;
