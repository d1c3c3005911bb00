//! A program of one's own: answerback with further announcers compiled in.

use crate::clock::{Clock, SystemClock};
use crate::registry::Registry;
use answerback_contract::{Kind, Purpose};
use std::fmt;
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
#[derive(Clone)]
pub struct Answerback {
    registry: Registry,
    clock: Arc<dyn Clock>,
}

impl Answerback {
    /// With every announcer that this crate's features brought in.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Registry::with_built_in())
    }

    /// With no announcers but those that are added.
    #[must_use]
    pub fn bare() -> Self {
        Self::with(Registry::empty())
    }

    fn with(registry: Registry) -> Self {
        Self { registry, clock: Arc::new(SystemClock) }
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

    /// Goes by another clock than the system's: for tests of what happens when a clock is set. Sleeps
    /// are not by it, as they are not by a wall clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
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
        crate::cli::run(&self.registry, &self.clock)
    }
}

impl Default for Answerback {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Answerback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answerback").field("registry", &self.registry).finish_non_exhaustive()
    }
}
