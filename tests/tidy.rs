//! The house rules that a machine can check. Each failure names the file, the line and the cure.

#![allow(clippy::unwrap_used, reason = "a test may fail by it")]

use std::fs;
use std::path::Path;

/// What a source file may have at most. A longer one hides a seam.
const LINES: usize = 600;

/// What only the registry may name, so that an announcer is added in one place.
const ANNOUNCERS: [&str; 6] = ["sqs", "sns", "dynamodb", "webhook", "kafka", "log"];

/// What the core may not know: its callers bring time, randomness and I/O.
const NOT_IN_CORE: [&str; 14] = [
    "tokio",
    "rusqlite",
    "refinery",
    "axum",
    "hyper",
    "reqwest",
    "async fn",
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "SystemTime",
    "Instant",
    "getrandom",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text files under `folder`, with their names from the root.
fn files(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(next) = folders.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for path in entries.map(|e| e.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_symlink()
                || matches!(
                    name,
                    ".git" | "target" | ".test-services" | "__pycache__" | "node_modules" | ".venv"
                )
            {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.push((named(&path), text));
            }
        }
    }
    found.sort();
    found
}

fn named(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
}

fn is(name: &str, extensions: &[&str]) -> bool {
    extensions.iter().any(|e| name.ends_with(&format!(".{e}")))
}

/// The lines of all `files` that `breaks` finds at fault, as `file:line: text`.
fn lines_that(files: &[(String, String)], breaks: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in files {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| breaks(line)) {
            found.push(format!("{name}:{}: {}", number + 1, line.trim()));
        }
    }
    found
}

#[track_caller]
fn none(found: &[String], cure: &str) {
    assert!(found.is_empty(), "{cure}\n  {}", found.join("\n  "));
}

fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn only_the_registry_names_announcers() {
    let mut sources = files("src");
    sources.retain(|(name, _)| is(name, &["rs"]) && !name.starts_with("src/registry"));
    assert!(sources.len() > 10, "the sources are not where they were");
    let found = lines_that(&sources, |line| {
        ANNOUNCERS.iter().any(|kind| code(line).contains(&format!("answerback_{kind}")))
    });
    none(&found, "announcer crates are named in src/registry.rs only");
}

#[test]
fn the_core_knows_no_runtime_database_or_clock() {
    let core = files("src/core");
    assert!(core.len() > 5, "the core is not where it was");
    let found = lines_that(&core, |line| NOT_IN_CORE.iter().any(|word| code(line).contains(word)));
    none(&found, "the core decides; let its caller bring this in as an argument");
}

#[test]
fn announcers_do_not_depend_on_the_daemon() {
    let mut manifests = files("announcers");
    manifests.retain(|(name, _)| name.ends_with("Cargo.toml"));
    assert!(manifests.len() > 5, "the announcers are not where they were");
    let found = lines_that(&manifests, |line| {
        ["answerback.", "answerback ", "answerback-core"]
            .iter()
            .any(|start| line.starts_with(start))
    });
    none(&found, "an announcer knows answerback-contract only");
}

#[test]
fn no_hand_written_source_file_passes_600_lines() {
    let mut found = Vec::new();
    for (name, text) in files("") {
        let lines = text.lines().count();
        let script = name.starts_with("scripts/") && !is(&name, &["txt"]);
        if (is(&name, &["rs", "py", "ts", "sh"]) || script) && lines > LINES {
            found.push(format!("{name}: {lines} lines"));
        }
    }
    none(&found, "find the seam and split the file there");
}

#[test]
fn no_file_is_called_utils() {
    let mut found: Vec<String> = files("").into_iter().map(|(name, _)| name).collect();
    found.retain(|name| {
        let stem = Path::new(name).file_stem().unwrap().to_str().unwrap().to_lowercase();
        matches!(stem.as_str(), "utils" | "util" | "helpers" | "misc")
    });
    none(&found, "name the file for what it does");
}

#[test]
fn nothing_is_left_unfinished() {
    let mut sources = files("");
    sources.retain(|(name, _)| is(name, &["rs"]));
    let marks = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME")];
    let found = lines_that(&sources, |line| marks.iter().any(|mark| line.contains(mark)));
    none(&found, "finish it, or leave it out");
}

#[test]
fn every_test_runs() {
    let mut sources = files("");
    sources.retain(|(name, _)| is(name, &["rs"]));
    let found = lines_that(&sources, |line| code(line).contains(concat!("#[ign", "ore]")));
    none(&found, "a test that does not run says why: #[ignore = \"...\"]");
}

#[test]
fn no_file_knows_one_machine_or_one_registry() {
    let hosts = [
        concat!("/wo", "rk/"),
        concat!("/fa", "rm/"),
        concat!(".lib", "rary/"),
        concat!("pypi", ".org"),
        concat!("files.", "pythonhosted"),
        concat!("registry.", "npmjs"),
        concat!("static.", "crates.io"),
        concat!("proxy.", "golang.org"),
        concat!("maven", ".org"),
        concat!("deb.", "debian.org"),
    ];
    let mut all = files("");
    all.retain(|(name, _)| name != "Cargo.lock");
    let found = lines_that(&all, |line| hosts.iter().any(|host| line.contains(host)));
    none(
        &found,
        "the package manager's own configuration names hosts, and paths start at the repository",
    );
}

#[test]
fn the_readme_and_the_gate_name_the_commands_that_work() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap_or_default();
    let readme = read("README.md");
    for command in ["cargo run --release -- demo", "make test"] {
        assert!(readme.contains(command), "README.md does not name `{command}`");
    }
    assert!(read(".ci/run").contains("make test"), ".ci/run does not run what the README says");
    assert!(read("Makefile").contains("\ntest:"), "make test is gone");
}
