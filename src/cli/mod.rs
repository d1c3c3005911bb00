//! The command line (contract, section 8): one file a command, the exit codes in `exit`.
//!
//! `serve`, `check`, `demo` and `migrate` work by themselves; all others speak to a running daemon over its
//! HTTP API.

mod announcements;
mod check;
mod client;
mod config_file;
mod deliveries;
mod demo;
mod exit;
mod input;
mod listing;
mod migrate;
mod outbox;
mod output;
mod publish;
mod serve;
mod waits;

use crate::clock::Clock;
use crate::registry::Registry;
use anyhow::Context as _;
use clap::Parser;
use exit::Failure;
use std::process::ExitCode;
use std::sync::Arc;

/// Takes in the questions that agents ask, announces each through every channel, lets one answer win and brings it back.
#[derive(Parser)]
#[command(name = "answerback", version, max_term_width = 100, propagate_version = false)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Serve(serve::Serve),
    Check(check::Check),
    Demo(demo::Demo),
    Migrate(migrate::Migrate),
    Publish(publish::Publish),
    Waits(waits::Waits),
    Announcements(announcements::Announcements),
    Deliveries(deliveries::Deliveries),
}

/// Reads the command line and does what it says. A wrong command line ends with status 2.
#[must_use]
pub fn run(registry: &Registry, clock: &Arc<dyn Clock>) -> ExitCode {
    // For every TLS of the process; an error only says that a provider is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    exit::end(carry_out(Arguments::parse().command, registry, clock))
}

fn carry_out(command: Command, registry: &Registry, clock: &Arc<dyn Clock>) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(&args, registry, clock),
        Command::Check(args) => check::run(&args, registry),
        Command::Demo(args) => demo::run(&args),
        Command::Migrate(args) => migrate::run(&args, registry),
        Command::Publish(args) => speak(publish::run(args)),
        Command::Waits(args) => speak(waits::run(args)),
        Command::Announcements(args) => speak(announcements::run(args)),
        Command::Deliveries(args) => speak(deliveries::run(args)),
    }
}

/// Runs a command that speaks to a daemon.
fn speak(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    runtime(false)?.block_on(command)
}

fn runtime(many_threads: bool) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match many_threads {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    Ok(builder.enable_all().build().context("the runtime cannot be started")?)
}

#[cfg(test)]
mod tests;
