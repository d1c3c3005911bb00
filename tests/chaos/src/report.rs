//! What came of a run: counts, violations, and the time line of each wait that something is wrong with.

use crate::history::{History, Pulled, Reply, WaitKey};
use crate::oracle::{Judgement, Overlaps, Violation};
use comfy_table::{Table, presets};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

/// Violations that a time line is shown for.
const SHOWN: usize = 12;

/// Faults around a wait's time that are shown, in microseconds.
const AROUND: u64 = 3_000_000;

/// Counts of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What repeats the faults.
    pub seed: u64,
    /// Seconds with faults.
    pub seconds: u64,
    /// Seconds until all was settled after them.
    pub settled_after: u64,
    /// Daemons.
    pub replicas: usize,
    /// Publishes that were acknowledged, each once.
    pub acknowledged: usize,
    /// Attempts to publish.
    pub publish_attempts: usize,
    /// Of them, without a reply that says what came of it.
    pub publish_unknown: usize,
    /// Waits in the store at the end.
    pub waits: usize,
    /// Waits by state.
    pub states: BTreeMap<String, usize>,
    /// Messages that announcers have taken, each once.
    pub announced: usize,
    /// Answers that were acknowledged, of different waits.
    pub answers: usize,
    /// Attempts to answer.
    pub answer_attempts: usize,
    /// Of them refused, because the wait was over.
    pub answers_refused: usize,
    /// Waits that ended with their default.
    pub defaults: usize,
    /// Answers and defaults that hosts have taken, each once.
    pub delivered: usize,
    /// Answers that hosts pulled.
    pub pulled: usize,
    /// Long polls that ended with an answer or an end.
    pub polls: usize,
    /// Messages that came again after they were taken, and overlaps that have a cause.
    pub overlaps: Overlaps,
    /// Events that readers of the feed were told.
    pub fed: usize,
    /// Faults by kind.
    pub faults: BTreeMap<String, usize>,
    /// Requests without a reply that says what came of them, by what came instead.
    pub unknown: BTreeMap<String, usize>,
    /// Daemons that gave up at their start, and the like.
    pub mishaps: usize,
    /// What was broken.
    pub violations: Vec<Violation>,
    /// Where the run's files are kept.
    pub kept: Option<String>,
}

/// What a report is made for.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// What repeats the faults.
    pub seed: u64,
    /// Seconds with faults.
    pub seconds: u64,
    /// Seconds until all was settled after them.
    pub settled_after: u64,
    /// Daemons.
    pub replicas: usize,
}

impl Report {
    /// Counts.
    #[must_use]
    pub fn new(about: About, history: &History, judgement: Judgement) -> Self {
        let acknowledged = history.publishes.iter().filter(|p| matches!(p.reply, Reply::Ok(_)));
        let acknowledged: HashSet<&str> = acknowledged.map(|p| &*p.event_id).collect();
        let taken = |delivery: bool| {
            let arrivals = history.arrivals.iter();
            let taken = arrivals.filter(|a| a.verdict.taken() && a.answer.is_some() == delivery);
            taken.map(|a| (a.place, &*a.dedupe_key)).collect::<HashSet<_>>().len()
        };
        let answered = history.answers.iter().filter(|a| matches!(a.reply, Reply::Ok(())));
        let answered: HashSet<&WaitKey> = answered.map(|a| &a.wait).collect();
        let mut states = BTreeMap::new();
        for wait in &history.waits {
            *states.entry(wait.state.to_string()).or_default() += 1;
        }
        let mut faults = BTreeMap::new();
        for injected in &history.faults {
            *faults.entry(injected.fault.kind().to_owned()).or_default() += 1;
        }
        let pulled =
            history.pulls.iter().filter(|p| matches!(p.reply, Reply::Ok(Pulled::Answer(_))));
        let ended = history.pulls.iter().filter(|p| !p.delete && p.reply != Reply::Unknown);
        Self {
            seed: about.seed,
            seconds: about.seconds,
            settled_after: about.settled_after,
            replicas: about.replicas,
            acknowledged: acknowledged.len(),
            publish_attempts: history.publishes.len(),
            publish_unknown: count(&history.publishes, |p| p.reply == Reply::Unknown),
            waits: history.waits.len(),
            states,
            announced: taken(false),
            answers: answered.len(),
            answer_attempts: history.answers.len(),
            answers_refused: count(&history.answers, |a| matches!(a.reply, Reply::Refused { .. })),
            defaults: count(&history.waits, |w| w.via.as_deref() == Some("default")),
            delivered: taken(true),
            pulled: pulled.map(|p| &p.wait).collect::<HashSet<_>>().len(),
            polls: ended.count(),
            overlaps: judgement.overlaps,
            fed: history.fed.len(),
            faults,
            unknown: history.unknown.clone(),
            mishaps: history.mishaps.len(),
            violations: judgement.violations,
            kept: None,
        }
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let mut row = |what: &str, value: String| {
            table.add_row([what.to_owned(), value]);
        };
        let states: Vec<_> = self.states.iter().map(|(state, n)| format!("{n} {state}")).collect();
        row("seed", self.seed.to_string());
        row("replicas", self.replicas.to_string());
        row("seconds with faults", self.seconds.to_string());
        row("settled after", format!("{} s", self.settled_after));
        row("publishes acknowledged", self.acknowledged.to_string());
        row(
            "attempts to publish",
            format!("{}, {} without a reply", self.publish_attempts, self.publish_unknown),
        );
        row("waits", format!("{}: {}", self.waits, states.join(", ")));
        row("announcements taken", self.announced.to_string());
        row("waits answered", self.answers.to_string());
        row(
            "attempts to answer",
            format!("{}, {} refused", self.answer_attempts, self.answers_refused),
        );
        row("defaults", self.defaults.to_string());
        row("answers taken by hosts", format!("{}, {} more pulled", self.delivered, self.pulled));
        row("looks at answers", self.polls.to_string());
        row("events told by the feed", self.fed.to_string());
        row("duplicates", self.overlaps.duplicates.to_string());
        row(
            "overlaps with a cause",
            format!(
                "{} sender stopped, {} clocks apart",
                self.overlaps.stopped, self.overlaps.apart
            ),
        );
        for (kind, n) in &self.faults {
            row(&format!("fault: {kind}"), n.to_string());
        }
        for (why, n) in &self.unknown {
            row(&format!("no result: {why}"), n.to_string());
        }
        row("failed starts", self.mishaps.to_string());
        row("violations", self.violations.len().to_string());
        table.trim_fmt()
    }

    /// The violations with what is known of their waits, and how to look again.
    #[must_use]
    pub fn violations(&self, history: &History) -> String {
        let mut text = String::new();
        let mut by_rule: BTreeMap<&str, usize> = BTreeMap::new();
        for violation in &self.violations {
            *by_rule.entry(violation.rule).or_default() += 1;
        }
        for (rule, n) in &by_rule {
            let _ = writeln!(text, "broken {n} times: {rule}");
        }
        let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
        let mut told = HashSet::new();
        for violation in &self.violations {
            let count = shown.entry(violation.rule).or_default();
            *count += 1;
            if *count > SHOWN.div_ceil(by_rule.len().max(1)) {
                continue;
            }
            let _ = writeln!(text, "\n{}\n  {}", violation.rule, violation.what);
            if let Some(wait) = &violation.wait {
                let (thread, question) = (&wait.thread, &wait.question);
                let _ = writeln!(text, "  {thread} · {question} · {}", wait.generation);
                if told.insert((thread, question)) {
                    text.push_str(&time_line(history, wait));
                }
            }
        }
        let _ = writeln!(
            text,
            "\nthe same faults again: make chaos SECONDS={} SEED={}",
            self.seconds, self.seed
        );
        text
    }
}

fn count<T>(all: &[T], which: impl Fn(&T) -> bool) -> usize {
    all.iter().filter(|one| which(one)).count()
}

/// Everything that was recorded of a wait, and the faults around it, by time.
#[must_use]
pub fn time_line(history: &History, wait: &WaitKey) -> String {
    let mut lines: Vec<(u64, String)> = Vec::new();
    let of = |thread: &str, question: &str| thread == &*wait.thread && question == &*wait.question;
    for p in history.publishes.iter().filter(|p| of(&p.thread, &p.question)) {
        let line = format!(
            "…{:<9} publish {} variant {} at replica {} deadline {:?}: {:?}",
            p.span.end, p.event_id, p.variant, p.replica, p.deadline, p.reply
        );
        lines.push((p.span.begin, line));
    }
    for a in history.answers.iter().filter(|a| of(&a.wait.thread, &a.wait.question)) {
        let line = format!(
            "…{:<9} answer to {} at replica {}: {} {:?}",
            a.span.end, a.wait.generation, a.replica, a.text, a.reply
        );
        lines.push((a.span.begin, line));
    }
    for c in history.cancels.iter().filter(|c| of(&c.wait.thread, &c.wait.question)) {
        let line = format!(
            "…{:<9} cancel {} at replica {}: {:?}",
            c.span.end, c.wait.generation, c.replica, c.reply
        );
        lines.push((c.span.begin, line));
    }
    for p in history.pulls.iter().filter(|p| of(&p.wait.thread, &p.wait.question)) {
        let what = if p.delete { "delete" } else { "pull" };
        let line = format!(
            "…{:<9} {what} {} at replica {}: {:?}",
            p.span.end, p.wait.generation, p.replica, p.reply
        );
        lines.push((p.span.begin, line));
    }
    for a in history.arrivals.iter().filter(|a| of(&a.thread, &a.question)) {
        let line = format!(
            "…{:<9} {} got {} ({}) from replica {:?}: {:?} {}{}",
            a.span.end,
            a.place.name(),
            a.dedupe_key,
            a.event_id,
            a.replica,
            a.verdict,
            a.answer.as_deref().unwrap_or_default(),
            a.offset.map_or(String::new(), |offset| format!(" at {offset:?}")),
        );
        lines.push((a.span.begin, line));
    }
    for f in history.fed.iter().filter(|f| of(&f.wait.thread, &f.wait.question)) {
        let line = format!(
            "{:<10} reader {} told {} {} by replica {}",
            "", f.reader, f.id, f.event, f.replica
        );
        lines.push((f.at, line));
    }
    let from = lines.iter().map(|line| line.0).min().unwrap_or(0).saturating_sub(AROUND);
    let to = lines.iter().map(|line| line.0).max().unwrap_or(0).saturating_add(AROUND);
    let mishaps = history.mishaps.iter().filter(|(at, _)| (from..=to).contains(at));
    lines.extend(mishaps.map(|(at, what)| (*at, format!("           {what}"))));
    for injected in history.faults.iter().filter(|f| f.span.begin <= to && from <= f.span.end) {
        lines
            .push((injected.span.begin, format!("…{:<9} {:?}", injected.span.end, injected.fault)));
    }
    lines.sort();
    let mut text = String::new();
    for (at, line) in lines {
        let _ = writeln!(text, "    {at:>9} {line}");
    }
    for last in history.waits.iter().filter(|last| of(&last.wait.thread, &last.wait.question)) {
        let (generation, state) = (last.wait.generation, &last.state);
        let _ = writeln!(
            text,
            "    at the end: generation {generation} is {state}, {} by {}",
            last.dedupe_key, last.event_id
        );
    }
    for row in history.rows.iter().filter(|row| of(&row.wait.thread, &row.wait.question)) {
        let _ = writeln!(
            text,
            "    at the end: {} of {} for {}: {} {}",
            row.event, row.wait.generation, row.name, row.state, row.reason
        );
    }
    text
}
