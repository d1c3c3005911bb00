//! `answerback publish`: asks the questions of a file.

use super::client::{Api, ApiError, Ask, Connection};
use super::exit::Failure;
use super::input::{Messages, Numbered};
use super::listing::unexpected;
use super::output::{self, clean};
use answerback_contract::Bytes;
use answerback_contract::json::{self, Json};
use anyhow::Context as _;
use futures::future::join_all;
use http::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::time::Duration;

/// Requests under way at a time: enough for the daemon to commit many together.
const AT_ONCE: usize = 64;

/// Bytes under way at a time, but one message at least.
const BYTES_AT_ONCE: usize = 8 << 20;

/// How often a message is tried while the daemon says that it cannot take it now.
const ATTEMPTS: u32 = 5;

/// The longest that is waited between two attempts, whatever the daemon asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Ask the questions of a file: one envelope, or one a line
///
/// Publishing again is safe: a question that is open already is a duplicate. Envelopes go out as they stand.
#[derive(clap::Args)]
pub(crate) struct Publish {
    /// The file, or - for standard input
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    connection: Connection,
}

/// What came of the messages.
#[derive(Default, PartialEq, Eq, Debug)]
struct Tally {
    accepted: usize,
    duplicates: usize,
    failed: usize,
}

pub(crate) async fn run(args: Publish) -> Result<(), Failure> {
    let api = Api::new(&args.connection)?;
    let (input, bytes): (Box<dyn BufRead>, _) = match args.file.as_str() {
        "-" => (Box::new(io::stdin().lock()), None),
        name => {
            let file = File::open(name).with_context(|| format!("{name} cannot be read"))?;
            let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
            (Box::new(BufReader::new(file)), bytes)
        }
    };
    let mut messages = Messages::new(input);
    let bar = progress(bytes);
    let mut printer = Printer { bar: bar.clone(), json: args.connection.json, gone: false };
    let mut tally = Tally::default();
    let mut waiting: Option<Numbered> = None;
    loop {
        let group = next_group(&mut messages, &mut waiting)
            .with_context(|| format!("{} cannot be read", args.file))?;
        if group.is_empty() {
            break;
        }
        let replies = join_all(group.iter().map(|message| publish(&api, message))).await;
        for (message, reply) in group.iter().zip(replies) {
            bar.inc(message.text.as_ref().map_or(0, |t| u64::try_from(t.len()).unwrap_or(0) + 1));
            tally.count(&reply);
            // A daemon that is not there will not be there for the next message either.
            let stop = matches!(reply, Err(Failure::Other(_)));
            printer.print(message, reply)?;
            if stop {
                bar.finish_and_clear();
                output::complain(&tally.text());
                return Err(Failure::Told);
            }
        }
    }
    bar.finish_and_clear();
    let total = tally.accepted + tally.duplicates + tally.failed;
    if total == 0 {
        return Err(Failure::other(format!("{} holds no message", args.file)));
    }
    if total > 1 {
        output::complain(&tally.text());
    }
    if tally.failed > 0 { Err(Failure::Told) } else { Ok(()) }
}

impl Tally {
    fn count(&mut self, reply: &Result<Accepted, Failure>) {
        match reply {
            Ok(accepted) if accepted.shown.duplicate => self.duplicates += 1,
            Ok(_) => self.accepted += 1,
            Err(_) => self.failed += 1,
        }
    }

    fn text(&self) -> String {
        format!(
            "{} accepted, {} duplicates, {} failed",
            self.accepted, self.duplicates, self.failed
        )
    }
}

/// On standard error, and only where that is a terminal.
fn progress(bytes: Option<u64>) -> ProgressBar {
    let bar = match bytes {
        Some(bytes) => ProgressBar::new(bytes),
        None => ProgressBar::new_spinner(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = match bytes {
        Some(_) => "{bar:40} {percent:>3} %  {bytes} of {total_bytes}, {eta} left",
        None => "{spinner} {bytes} in {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// The next messages that can be under way together: two of one thread never, for the later one
/// may supersede the earlier.
fn next_group<R: BufRead>(
    messages: &mut Messages<R>,
    waiting: &mut Option<Numbered>,
) -> io::Result<Vec<Numbered>> {
    let mut group = Vec::new();
    let mut threads = HashSet::new();
    let mut bytes = 0;
    while group.len() < AT_ONCE && bytes < BYTES_AT_ONCE {
        let message = match waiting.take() {
            Some(message) => message,
            None => match messages.next()? {
                Some(message) => message,
                None => break,
            },
        };
        if !threads.insert(message.text.as_deref().and_then(thread_of)) {
            *waiting = Some(message);
            break;
        }
        bytes += message.text.as_ref().map_or(0, Vec::len);
        group.push(message);
    }
    Ok(group)
}

/// `thread_id` as its JSON text; `None` where the message has none that could be read.
fn thread_of(message: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(message).ok()?;
    let members = json::members(text).ok()?;
    let thread = members.iter().find(|member| member.key == "thread_id")?;
    match json::parse(thread.raw).ok()? {
        Json::String(text) => Some(text.into_owned()),
        _ => Some(thread.raw.to_owned()),
    }
}

/// A question that the daemon has.
struct Accepted {
    shown: Shown,
    body: Bytes,
}

#[derive(Deserialize)]
struct Shown {
    thread_id: String,
    question_id: String,
    generation: u64,
    duplicate: bool,
}

/// Publishes one message; while the daemon says that it took nothing and cannot now, again.
async fn publish(api: &Api, message: &Numbered) -> Result<Accepted, Failure> {
    let Some(text) = &message.text else {
        return Err(Failure::Usage(
            "it is longer than the 1 MiB that an envelope may have".to_owned(),
        ));
    };
    let ask = Ask::new(Method::POST, "/v1/waits").body(text.clone());
    let mut attempt = 1;
    loop {
        match api.ask(ask.clone()).await {
            Ok(body) => {
                let shown = serde_json::from_slice(&body).with_context(unexpected)?;
                return Ok(Accepted { shown, body });
            }
            Err(Failure::Api(error)) if may_try_again(&error) && attempt < ATTEMPTS => {
                let asked = error.retry_after.unwrap_or(Duration::from_secs(1));
                tokio::time::sleep(asked.min(LONGEST_WAIT)).await;
                attempt += 1;
            }
            Err(failure) => return Err(failure),
        }
    }
}

fn may_try_again(error: &ApiError) -> bool {
    matches!(error.code.as_str(), "rate-limit-exceeded" | "store-unavailable" | "shutting-down")
}

/// Prints one result a message, in the order of the file. Goes on when nobody reads it: what was
/// asked for is the publishing.
struct Printer {
    bar: ProgressBar,
    json: bool,
    gone: bool,
}

impl Printer {
    fn print(
        &mut self,
        message: &Numbered,
        reply: Result<Accepted, Failure>,
    ) -> Result<(), Failure> {
        let bar = self.bar.clone();
        bar.suspend(|| match reply {
            Ok(accepted) if self.json => self.out(|| output::json_line(&accepted.body)),
            Ok(Accepted { shown, .. }) => {
                let word = if shown.duplicate { "duplicate" } else { "accepted" };
                self.out(|| {
                    output::line(&format!(
                        "{word:9}  {}  thread {}, generation {}",
                        clean(&shown.question_id),
                        clean(&shown.thread_id),
                        shown.generation
                    ))
                })
            }
            Err(failure) => {
                if let (true, Failure::Api(error)) = (self.json, &failure) {
                    self.out(|| output::json_line(&error.body))?;
                }
                let told = failure.message().unwrap_or_default();
                output::complain(&match message.alone {
                    true => told,
                    false => format!("line {}: {told}", message.line),
                });
                Ok(())
            }
        })
    }

    fn out(&mut self, write: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if self.gone {
            return Ok(());
        }
        match write() {
            Err(Failure::ReaderGone) => {
                self.gone = true;
                Ok(())
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_questions_of_one_thread_are_never_under_way_together() {
        let text = "{\"thread_id\":\"a\"}\n{\"thread_id\":\"b\"}\n{\"thread_id\":\"\\u0061\"}\nnone\nnone\n";
        let mut messages = Messages::new(text.as_bytes());
        let mut waiting = None;
        let mut groups = Vec::new();
        loop {
            let group = next_group(&mut messages, &mut waiting).unwrap();
            if group.is_empty() {
                break;
            }
            groups.push(group.iter().map(|m| m.line).collect::<Vec<_>>());
        }
        assert_eq!(groups, [vec![1, 2], vec![3, 4], vec![5]]);
    }
}
