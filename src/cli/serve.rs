//! `answerback serve`: the daemon.

use super::exit::Failure;
use super::{config_file, output};
use crate::clock::Clock;
use crate::config::Config;
use crate::registry::Registry;
use crate::{daemon, telemetry};
use std::path::PathBuf;
use std::sync::Arc;

/// Run the daemon until SIGTERM or ctrl-C
#[derive(clap::Args)]
pub(crate) struct Serve {
    /// The configuration; ./answerback.toml if that exists, else the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) fn run(
    args: &Serve,
    registry: &Registry,
    clock: &Arc<dyn Clock>,
) -> Result<(), Failure> {
    let config = config_file::read(args.config.as_deref(), registry).map_err(|error| {
        output::complain(&error.to_string());
        output::complain("error: the configuration cannot be used; nothing was started");
        Failure::Told
    })?;
    telemetry::start(&config.telemetry);
    tell(&config);
    let runtime = super::runtime(true)?;
    // Boxed: the future of a whole daemon is large.
    runtime
        .block_on(Box::pin(daemon::serve(&config, Arc::clone(clock))))
        .map_err(|error| Failure::Other(error.into()))
}

/// What the operator should know of the configuration though nothing is wrong.
fn tell(config: &Config) {
    for note in &config.notes {
        tracing::warn!(place = %note.place, key = note.key, "{}", note.what);
    }
    if config.auth.keys.is_empty() {
        tracing::warn!("there are no keys: anybody on this machine may ask, answer and look");
    }
}
