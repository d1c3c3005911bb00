//! What the person sees.

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

/// Prints steps and remembers the figures for the summary.
pub(super) struct Screen {
    started: Instant,
    colour: bool,
    figures: Vec<(&'static str, Duration)>,
}

impl Screen {
    pub(super) fn start() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let screen = Self { started: Instant::now(), colour, figures: Vec::new() };
        screen.line("answerback demo: a question out, one answer back\n");
        screen
    }

    /// A step that was just done.
    pub(super) fn step(&mut self, name: &str, what: &str) {
        let name = format!("{name:<12}");
        let name = if self.colour { format!("\x1b[1;36m{name}\x1b[0m") } else { name };
        self.line(&format!("{:>6.2}s  {name} {what}", self.started.elapsed().as_secs_f64()));
    }

    /// A step and how long it took.
    pub(super) fn measured(&mut self, name: &'static str, took: Duration, what: &str) {
        self.figures.push((name, took));
        self.step(name, &format!("after {:.1} ms: {what}", took.as_secs_f64() * 1_000.0));
    }

    /// Asks the person to answer.
    pub(super) fn invite(&self, daemon: &SocketAddr, approve: &str, reject: &str) {
        let curl = |body: &str| {
            format!(
                "  curl -X POST http://{daemon}/v1/answers -H 'content-type: application/json' \\\n    -d '{body}'"
            )
        };
        self.line("\nYour turn. Answer from another terminal (Ctrl-C ends the demo):\n");
        self.line(&curl(approve));
        self.line("\nor\n");
        self.line(&curl(reject));
        self.line("");
    }

    pub(super) fn summary(&self) {
        self.line("\nSummary: one question, announced once, one answer, routed back once.");
        for (name, took) in &self.figures {
            self.line(&format!("  {name:<12} {:>8.1} ms", took.as_secs_f64() * 1_000.0));
        }
        self.line("\nNext: `answerback serve` takes real questions; README.md says how.");
    }

    fn line(&self, text: &str) {
        // A closed pipe ends nothing: the demo itself goes on.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }
}
