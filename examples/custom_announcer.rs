//! answerback with an announcer of one's own: `type = "journal"` appends each message to a file,
//! one JSON object a line, and counts it as delivered once it is on the disk.
//!
//! ```toml
//! [announcers.archive]
//! type = "journal"
//! path = "/var/lib/answerback/archive.ndjson"
//! match = { tags = { approver_group = "finance" } }
//! ```
//!
//! Everything common to announcers (matching, order, retries, the breaker, dead letters) comes from
//! the daemon. Try it: `cargo run --example custom_announcer -- check --config my.toml`, then
//! `serve` instead of `check`. All other commands are there as well.

use answerback::Answerback;
use answerback::contract::settings::{Problem, Settings};
use answerback::contract::{
    Announcer, Attempt, ConnectError, Connecting, Field, Kind, Limits, Message, Outcome, Purpose,
    Target, async_trait,
};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// A line is dead at once beyond this size.
const LINE_BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    Answerback::new().announcer(Arc::new(JournalKind)).run()
}

/// The kind: knows the settings and makes a target of them. Pure.
struct JournalKind;

impl Kind for JournalKind {
    fn name(&self) -> &'static str {
        "journal"
    }

    fn fields(&self) -> &'static [Field] {
        &[Field { key: "path", required: true, help: "The file; made if it is missing." }]
    }

    fn validate(
        &self,
        _purpose: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        let path = settings.required_string("path", "the file to append to");
        if path.is_empty() {
            return Err(settings.take_problems());
        }
        Ok(Arc::new(JournalTarget { path: path.into() }))
    }
}

/// The target: everything known, nothing opened yet.
struct JournalTarget {
    path: PathBuf,
}

#[async_trait]
impl Target for JournalTarget {
    fn limits(&self) -> Limits {
        // One fsync for a whole batch.
        Limits { batch_messages: 100, batch_bytes: LINE_BYTES, message_bytes: LINE_BYTES }
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    async fn connect(&self, _connecting: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        // Opened at each batch: a disk that is not mounted yet is a retry, not a failed start, and
        // a file that was rotated away is followed by a fresh one.
        let journal = Journal { path: self.path.clone(), turn: Mutex::new(()) };
        Ok(Arc::new(SharedJournal(Arc::new(journal))))
    }
}

/// The sender. File work blocks, so it is done on a thread that may block.
struct SharedJournal(Arc<Journal>);

struct Journal {
    path: PathBuf,
    /// One batch at a time, so that a batch that failed half-way can be taken back.
    turn: Mutex<()>,
}

#[async_trait]
impl Announcer for SharedJournal {
    async fn announce(&self, batch: &[Message], attempt: Attempt) -> Vec<Outcome> {
        let mut lines = Vec::new();
        for message in batch {
            line_into(&mut lines, &message.payload);
        }
        let journal = Arc::clone(&self.0);
        let writing = tokio::task::spawn_blocking(move || journal.append(&lines));
        let outcome = match tokio::time::timeout(attempt.timeout, writing).await {
            Ok(Ok(Ok(()))) => Outcome::Delivered,
            Ok(Ok(Err(e))) => Outcome::retry(format!("the journal cannot be written: {e}")),
            Ok(Err(_)) => Outcome::retry("the writing was broken off"),
            // It may still be written: then the line stands twice, with one dedupe id.
            Err(_) => Outcome::retry("the disk did not answer in time"),
        };
        vec![outcome; batch.len()]
    }

    async fn probe(&self) -> Result<(), ConnectError> {
        let folder = self.0.path.parent().unwrap_or(Path::new("."));
        if folder.as_os_str().is_empty() || folder.is_dir() {
            return Ok(());
        }
        let what = format!("the folder {} is missing; make it", folder.display());
        Err(ConnectError { what, source: None })
    }
}

impl Journal {
    /// All of it, on the disk, or nothing of it.
    fn append(&self, lines: &[u8]) -> std::io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let length = file.metadata()?.len();
        write_and_sync(&file, lines).inspect_err(|_| {
            let _ = file.set_len(length);
        })
    }
}

fn write_and_sync(mut file: &File, lines: &[u8]) -> std::io::Result<()> {
    file.write_all(lines)?;
    file.sync_data()
}

/// The payload as it came, on one line: outside of strings a line break is only a blank.
fn line_into(lines: &mut Vec<u8>, payload: &[u8]) {
    lines.extend(payload.iter().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { *b }));
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback::config::Config;
    use answerback::contract::settings::testing::MapSecrets;
    use answerback::contract::{
        Bytes, DedupeKey, DedupeRest, Event, EventId, Generation, QuestionId, ThreadId, Time,
        WaitState,
    };
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn load(text: &str) -> Result<Config, Vec<Problem>> {
        let program = Answerback::new().announcer(Arc::new(JournalKind));
        let (variables, secrets) = (BTreeMap::new(), Arc::new(MapSecrets::default()));
        Config::load(text, "my.toml", &variables, program.registry(), secrets)
    }

    fn message(payload: &'static str) -> Message {
        let question = QuestionId::new("q").unwrap();
        let wait_key = DedupeRest::choice(&question, 1);
        Message {
            event: Event::Created,
            event_id: EventId::new("e").unwrap(),
            thread_id: ThreadId::new("t").unwrap(),
            question_id: question,
            generation: Generation::FIRST,
            dedupe_key: DedupeKey::of(Event::Created, &wait_key, 0),
            wait_key,
            payload: Bytes::from(payload),
            envelope: Bytes::from(payload),
            state: WaitState::Open,
            expires_at: None,
            at: Time::from_millis(0),
            answered_by: None,
            answered_via: None,
        }
    }

    async fn connected(path: &Path) -> Arc<dyn Announcer> {
        let config =
            load(&format!("[announcers.a]\ntype = \"journal\"\npath = {path:?}\n")).unwrap();
        let timeout = Duration::from_secs(10);
        let connecting = Connecting { name: "a".to_owned(), attempt_timeout: timeout };
        config.announcers[0].target.connect(&connecting).await.unwrap()
    }

    fn attempt() -> Attempt {
        Attempt { now: Time::from_millis(0), timeout: Duration::from_secs(10) }
    }

    #[tokio::test]
    async fn messages_stand_in_the_file_one_a_line_as_they_came() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let journal = connected(&path).await;
        journal.probe().await.unwrap();
        let batch = [message("{\"n\":1.10,\n\"s\":\"a\\nb\"}"), message("{}")];
        let outcomes = journal.announce(&batch, attempt()).await;
        assert_eq!(outcomes, [Outcome::Delivered, Outcome::Delivered]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"n\":1.10, \"s\":\"a\\nb\"}\n{}\n");
    }

    #[tokio::test]
    async fn a_folder_that_is_away_is_a_retry_and_found_by_a_probe() {
        let folder = tempfile::tempdir().unwrap();
        let journal = connected(&folder.path().join("missing").join("journal")).await;
        assert!(journal.probe().await.unwrap_err().what.contains("make it"));
        let outcomes = journal.announce(&[message("{}")], attempt()).await;
        assert!(matches!(&outcomes[..], [Outcome::Retry { .. }]), "{outcomes:?}");
    }

    #[test]
    fn its_settings_are_checked_as_those_of_any_announcer() {
        let problems = load("[announcers.a]\ntype = \"journal\"\npaht = \"x\"\n").err().unwrap();
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "my.toml:1: announcers.a.path: is missing; give the file to append to",
                "my.toml:3: announcers.a.paht: is no key of this table; did you mean \"path\"?",
            ]
        );
    }
}
