//! The table, and the same for programs.

use crate::environment::Environment;
use crate::figures::{Figures, Quantiles};
use crate::scenarios::Results;
use anyhow::Result;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;
use std::fmt::Write;

const HEAD: [&str; 10] = [
    "run",
    "accepted/s",
    "announced/s",
    "accept p50",
    "p99 ms",
    "to received p50",
    "p99 ms",
    "CPU s/1,000",
    "peak MiB",
    "errors",
];

/// The text for a person.
pub(crate) fn table(environment: &Environment, results: &Results) -> String {
    let mut text = format!("{}\n", environment.line());
    if !results.runs.is_empty() {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(HEAD);
        for figures in &results.runs {
            table.add_row(row(figures));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = writeln!(text, "{table}");
    }
    for finding in &results.findings {
        let _ = writeln!(text, "{}", finding.text);
    }
    for figures in &results.runs {
        remark(figures, &mut text);
    }
    text
}

fn row(figures: &Figures) -> Vec<Cell> {
    let quantile = |quantiles: Option<Quantiles>, which: fn(Quantiles) -> f64| {
        quantiles.map_or_else(|| "–".to_owned(), |q| format!("{:.1}", which(q)))
    };
    let cells = [
        figures.run.clone(),
        format!("{:.0}", figures.accepted_per_second),
        figures.announced_per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}")),
        quantile(figures.accept_ms, |q| q.p50),
        quantile(figures.accept_ms, |q| q.p99),
        quantile(figures.accept_to_received_ms, |q| q.p50),
        quantile(figures.accept_to_received_ms, |q| q.p99),
        format!("{:.3}", figures.cpu_seconds_per_1000),
        format!("{:.0}", figures.peak_mib),
        figures.errors.to_string(),
    ];
    cells.into_iter().map(Cell::new).collect()
}

/// Whatever is not as it should be, and in how many waits all was.
fn remark(figures: &Figures, text: &mut String) {
    let run = &figures.run;
    if let Some(error) = &figures.first_error {
        let _ = writeln!(text, "{run}: the first of {} errors: {error}", figures.errors);
    }
    if !figures.cpu_seconds_per_1000_by_thread.is_empty() {
        let each = figures.cpu_seconds_per_1000_by_thread.iter();
        let each: Vec<_> = each.map(|(name, spent)| format!("{name} {spent:.3}")).collect();
        let _ = writeln!(text, "{run}: CPU s/1,000 by thread: {}", each.join(", "));
    }
    if figures.by_destination_ms.len() > 1 {
        let each = figures.by_destination_ms.iter();
        let each: Vec<_> =
            each.map(|(name, q)| format!("{name} {:.1}/{:.1}", q.p50, q.p99)).collect();
        let _ = writeln!(text, "{run}: to received p50/p99 ms: {}", each.join(", "));
    }
    if figures.queue_empty == Some(false) {
        let _ = writeln!(text, "{run}: the daemon still has announcements queued");
    }
    for check in &figures.checks {
        if !check.holds() {
            let _ = writeln!(
                text,
                "{run}: WRONG at {}: {} missing, {} invented, {} altered",
                check.destination, check.missing, check.invented, check.altered
            );
        }
        if check.repeated > 0 && check.destination != "log" {
            let _ =
                writeln!(text, "{run}: {} received {} twice", check.destination, check.repeated);
        }
    }
    if figures.holds() && !figures.checks.is_empty() {
        let names: Vec<_> = figures.checks.iter().map(|check| check.destination).collect();
        let _ = writeln!(
            text,
            "{run}: {} waits accepted, all received by {}, none invented or altered",
            figures.accepted,
            names.join(", ")
        );
    }
}

/// The text for a program.
pub(crate) fn json(environment: &Environment, results: &Results) -> Result<String> {
    #[derive(Serialize)]
    struct Report<'a> {
        environment: &'a Environment,
        #[serde(flatten)]
        results: &'a Results,
    }
    Ok(serde_json::to_string_pretty(&Report { environment, results })?)
}
