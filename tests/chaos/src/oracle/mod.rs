//! Holds a history against what was promised: pure functions, one file a promise.

mod announced;
mod answers;
mod book;
mod defaults;
mod feed;
#[cfg(test)]
mod fixture;
mod leases;
mod mishaps;
mod order;
mod skew;

pub use book::{Book, Story};
pub use leases::Overlaps;
pub use skew::Skew;

use crate::clock::At;
use crate::history::{History, WaitKey};
use serde::Serialize;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    /// Which promise.
    pub rule: &'static str,
    /// What happened instead.
    pub what: String,
    /// Of which wait, where it is of one.
    pub wait: Option<WaitKey>,
    /// When it shows.
    pub at: At,
}

/// What came of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Judgement {
    /// What was broken.
    pub violations: Vec<Violation>,
    /// Attempts at one message that overlapped, and why they may.
    pub overlaps: Overlaps,
}

/// Collects what was broken.
#[derive(Debug, Default)]
pub struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, rule: &'static str, at: At, wait: Option<&WaitKey>, what: String) {
        self.0.push(Violation { rule, what, wait: wait.cloned(), at });
    }
}

/// Judges a history by every rule.
#[must_use]
pub fn judge(history: &History) -> Judgement {
    let book = Book::new(history);
    let mut findings = Findings::default();
    announced::check(&book, &mut findings);
    order::check(&book, &mut findings);
    answers::check(&book, &mut findings);
    defaults::check(&book, &mut findings);
    feed::check(&book, &mut findings);
    mishaps::check(&book, &mut findings);
    let overlaps = leases::check(&book, &mut findings);
    let mut violations = findings.0;
    violations.sort_by_key(|violation| violation.at);
    Judgement { violations, overlaps }
}
