//! The log: lines on standard error, for people or for programs.

use crate::config::{LogFormat, Telemetry};
use std::io::IsTerminal as _;
use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, filter, fmt};

/// The finest level at which libraries may log. Below it some write out requests with their
/// bodies, and no question, answer or secret may reach a log at any level (contract, section 0).
const LIBRARIES: LevelFilter = LevelFilter::WARN;

/// Starts logging. A process logs one way: a second call changes nothing.
pub fn start(telemetry: &Telemetry) {
    // The configuration has tried the filter before.
    let wanted = EnvFilter::try_new(&telemetry.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = match telemetry.log_format {
        LogFormat::Text => fmt::layer()
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .boxed(),
        LogFormat::Json => fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_writer(std::io::stderr)
            .boxed(),
    };
    let lines = lines.with_filter(filter::filter_fn(may_be_logged));
    // An error only says that somebody else has started logging before.
    let _ = tracing_subscriber::registry().with(wanted).with(lines).try_init();
}

fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    is_ours(metadata.target()) || *metadata.level() <= LIBRARIES
}

/// Whether a module is of this program: `answerback`, `answerback_<kind>::client`, …
fn is_ours(target: &str) -> bool {
    target
        .split("::")
        .next()
        .is_some_and(|krate| krate == "answerback" || krate.starts_with("answerback_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_modules_log_finely() {
        assert!(is_ours("answerback") && is_ours("answerback_kind::client"));
        assert!(!is_ours("aws_smithy_runtime::client") && !is_ours("answerbacker"));
    }
}
