//! A program of one's own: answerback with further announcers compiled in.

use crate::registry::Registry;
use answerback_contract::{Kind, Purpose};
use std::process::ExitCode;
use std::sync::Arc;

/// Builds the whole command-line program; see `examples/custom_announcer.rs`.
///
/// ```no_run
/// use answerback::Answerback;
///
/// fn main() -> std::process::ExitCode {
///     Answerback::new().run()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Answerback {
    registry: Registry,
}

impl Answerback {
    /// With every announcer that this crate's features brought in.
    #[must_use]
    pub fn new() -> Self {
        Self { registry: Registry::with_built_in() }
    }

    /// With no announcers but those that are added.
    #[must_use]
    pub fn bare() -> Self {
        Self { registry: Registry::empty() }
    }

    /// Adds a kind of announcer: `type = "<its name>"` in `[announcers.NAME]`.
    #[must_use]
    pub fn announcer(mut self, kind: Arc<dyn Kind>) -> Self {
        self.registry.add(&[Purpose::Announce], kind);
        self
    }

    /// Adds a kind of route: `type = "<its name>"` in `[[routes]]`.
    #[must_use]
    pub fn route(mut self, kind: Arc<dyn Kind>) -> Self {
        self.registry.add(&[Purpose::Answer], kind);
        self
    }

    /// The kinds, to read a configuration with.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Reads the command line and the environment, and does what they say.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        crate::cli::run(&self.registry)
    }
}

impl Default for Answerback {
    fn default() -> Self {
        Self::new()
    }
}
