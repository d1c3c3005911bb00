//! `answerback waits`: look at questions, answer them, withdraw them.

use super::client::{Api, Ask, Connection};
use super::exit::Failure;
use super::input;
use super::listing::{self, Amount, unexpected};
use super::outbox::{id_text, trouble};
use super::output::{self, clean, indented};
use answerback_contract::json::{self, Quoted};
use anyhow::Context as _;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::fmt::Write as _;

/// Look at questions, answer them, withdraw them
#[derive(clap::Args)]
pub(crate) struct Waits {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List waits, newest first
    List {
        /// Only those in this state
        #[arg(long, value_parser = ["pending", "open", "completed", "timed-out", "cancelled", "unused"])]
        state: Option<String>,
        /// Only those of this thread
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// Only those of this run
        #[arg(long, value_name = "ID")]
        run: Option<String>,
        /// Only those announced, or to be announced, by this announcer
        #[arg(long, value_name = "NAME")]
        announcer: Option<String>,
        /// Only those with this tag; can be given several times
        #[arg(long, value_name = "NAME=VALUE", value_parser = tag)]
        tag: Vec<(String, String)>,
        #[command(flatten)]
        amount: Amount,
    },
    /// Show one wait with its question, announcements and answer
    Get {
        #[command(flatten)]
        which: Which,
    },
    /// Answer a question
    Answer {
        #[command(flatten)]
        which: Which,
        /// The answer: JSON, @FILE or @- for standard input
        // Numbers may be negative.
        #[arg(long, value_name = "JSON|@FILE", allow_hyphen_values = true)]
        answer: String,
        /// Who answers
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
    },
    /// Withdraw a question
    Cancel {
        #[command(flatten)]
        which: Which,
    },
}

/// One wait.
#[derive(clap::Args)]
struct Which {
    /// The question's id
    question_id: String,
    /// Its thread, where several threads have a question of this id
    #[arg(long, value_name = "ID")]
    thread: Option<String>,
    /// Which question under this id, from 1; the newest if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    generation: Option<u32>,
}

impl Which {
    fn ask(&self, method: Method, rest: &str) -> Ask {
        Ask::wait(method, &self.question_id, rest)
            .with("thread_id", self.thread.as_deref())
            .with("generation", self.generation)
    }
}

fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((format!("tag.{name}"), value.to_owned())),
        _ => Err("write NAME=VALUE, such as approver_group=finance".to_owned()),
    }
}

pub(crate) async fn run(args: Waits) -> Result<(), Failure> {
    let api = Api::new(&args.connection)?;
    let json = args.connection.json;
    match args.command {
        Command::List { state, thread, run, announcer, tag, amount } => {
            let mut ask = Ask::new(Method::GET, "/v1/waits")
                .with("state", state)
                .with("thread_id", thread)
                .with("run_id", run)
                .with("announcer", announcer);
            for (key, value) in tag {
                ask = ask.with(&key, Some(value));
            }
            let header = ["QUESTION", "THREAD", "GEN", "STATE", "ASKED", "EXPIRES", "ANSWERED BY"];
            listing::print(&api, ask, "waits", &amount, json, &header, ListedWait::row).await
        }
        Command::Get { which } => {
            let body = api.ask(which.ask(Method::GET, "")).await?;
            if json {
                return output::json_line(&body);
            }
            let wait: ShownWait = serde_json::from_slice(&body).with_context(unexpected)?;
            output::line(&wait.text())
        }
        Command::Answer { which, answer, by } => {
            answer_one(&api, &which, &answer, by.as_deref(), json).await
        }
        Command::Cancel { which } => {
            let body = api.ask(which.ask(Method::POST, "/cancel")).await?;
            if json {
                return output::json_line(&body);
            }
            output::line(&format!("cancelled: {}", clean(&which.question_id)))
        }
    }
}

async fn answer_one(
    api: &Api,
    which: &Which,
    answer: &str,
    by: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let answer = input::argument(answer)?;
    json::parse(&answer).map_err(|e| {
        Failure::Usage(format!(
            "--answer is no JSON: {e}; a text needs quotation marks of its own, as in --answer '\"yes\"'"
        ))
    })?;
    let (thread, generation) = meant(api, which).await?;
    let message = message(&which.question_id, &thread, generation, answer.trim(), by);
    let body = api.ask(Ask::new(Method::POST, "/v1/answers").body(message)).await?;
    if json {
        return output::json_line(&body);
    }
    output::line(&format!("accepted: {} is answered", clean(&which.question_id)))
}

/// The wait that the person means. Looked up where the arguments do not say it all, because an
/// answer must name its thread, and one without a generation is for the first.
async fn meant(api: &Api, which: &Which) -> Result<(String, Option<u32>), Failure> {
    #[derive(Deserialize)]
    struct Found {
        thread_id: String,
        generation: u32,
    }
    if let (Some(thread), Some(generation)) = (&which.thread, which.generation) {
        return Ok((thread.clone(), Some(generation)));
    }
    let body = match api.ask(which.ask(Method::GET, "")).await {
        Ok(body) => body,
        // A key may be good for answering and not for looking.
        Err(Failure::Api(error)) if error.status == StatusCode::FORBIDDEN => {
            return match &which.thread {
                Some(thread) => Ok((thread.clone(), which.generation)),
                None => Err(Failure::Usage(
                    "this key may not look the wait up; name its thread by --thread".to_owned(),
                )),
            };
        }
        Err(error) => return Err(error),
    };
    let found: Found = serde_json::from_slice(&body).with_context(unexpected)?;
    Ok((found.thread_id, Some(found.generation)))
}

/// The answer message; the answer's own text goes in as it came. The first generation is what
/// everybody means who names none.
fn message(
    question_id: &str,
    thread_id: &str,
    generation: Option<u32>,
    answer: &str,
    by: Option<&str>,
) -> String {
    let mut out =
        format!("{{\"thread_id\":{},\"question_id\":{}", Quoted(thread_id), Quoted(question_id));
    if let Some(generation) = generation.filter(|n| *n > 1) {
        let _ = write!(out, ",\"generation\":{generation}");
    }
    if let Some(by) = by {
        let _ = write!(out, ",\"answered_by\":{}", Quoted(by));
    }
    let _ = write!(out, ",\"answer\":{answer}}}");
    out
}

#[derive(Deserialize)]
struct ListedWait {
    thread_id: String,
    question_id: String,
    generation: u64,
    state: String,
    created_at: Option<String>,
    expires_at: Option<String>,
    answer: Option<GivenAnswer>,
}

impl ListedWait {
    fn row(self) -> Vec<String> {
        vec![
            self.question_id,
            self.thread_id,
            self.generation.to_string(),
            self.state,
            self.created_at.unwrap_or_default(),
            self.expires_at.unwrap_or_else(|| "never".to_owned()),
            self.answer.map(|answer| answer.by()).unwrap_or_default(),
        ]
    }
}

#[derive(Deserialize)]
struct GivenAnswer {
    message: Option<Box<RawValue>>,
    answered_at: Option<String>,
    answered_by: Option<Box<RawValue>>,
    answered_via: Option<String>,
}

impl GivenAnswer {
    fn by(&self) -> String {
        // What a sender claims can be any JSON.
        let by = self.answered_by.as_ref().map_or("", |by| by.get());
        let by = serde_json::from_str::<String>(by).unwrap_or_else(|_| by.to_owned());
        let via = self.answered_via.as_deref().unwrap_or_default();
        match by.as_str() {
            "" | "null" => via.to_owned(),
            by => format!("{by} ({via})"),
        }
    }
}

#[derive(Deserialize)]
struct ShownWait {
    thread_id: String,
    question_id: String,
    generation: u64,
    dedupe_key: Option<String>,
    run_id: Option<String>,
    state: String,
    envelope: ShownEnvelope,
    created_at: Option<String>,
    expires_at: Option<String>,
    closed_at: Option<String>,
    #[serde(default)]
    announcements: Vec<Sent>,
    answer: Option<GivenAnswer>,
    #[serde(default)]
    deliveries: Vec<Sent>,
}

#[derive(Deserialize)]
struct ShownEnvelope {
    question: Option<Box<RawValue>>,
    allowed_actions: Option<Box<RawValue>>,
    tags: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Sent {
    id: Value,
    announcer: Option<String>,
    route: Option<String>,
    event: Option<String>,
    state: String,
    attempts: u64,
    next_attempt_at: Option<String>,
    delivered_at: Option<String>,
    last_error: Option<String>,
    reason: Option<String>,
}

impl Sent {
    fn row(&self) -> Vec<String> {
        vec![
            id_text(&self.id),
            self.announcer.clone().or_else(|| self.route.clone()).unwrap_or_default(),
            self.event.clone().unwrap_or_default(),
            self.state.clone(),
            self.attempts.to_string(),
            self.delivered_at.clone().or_else(|| self.next_attempt_at.clone()).unwrap_or_default(),
            trouble(self.reason.as_deref(), self.last_error.as_deref()),
        ]
    }
}

impl ShownWait {
    fn text(&self) -> String {
        let raw = |value: &Option<Box<RawValue>>| value.as_ref().map(|v| v.get().to_owned());
        let answered = self.answer.as_ref().map(|answer| {
            format!("{} by {}", answer.answered_at.as_deref().unwrap_or_default(), answer.by())
        });
        let expires = self.expires_at.clone().unwrap_or_else(|| "never".to_owned());
        let facts = [
            ("question", Some(self.question_id.clone())),
            ("thread", Some(self.thread_id.clone())),
            ("generation", Some(self.generation.to_string())),
            ("run", self.run_id.clone().filter(|run| *run != self.thread_id)),
            ("state", Some(self.state.clone())),
            ("asked", self.created_at.clone()),
            ("expires", Some(expires)),
            ("closed", self.closed_at.clone()),
            ("answered", answered),
            ("actions", raw(&self.envelope.allowed_actions)),
            ("tags", raw(&self.envelope.tags)),
            ("dedupe key", self.dedupe_key.clone()),
        ];
        let facts: Vec<_> = facts
            .into_iter()
            .filter_map(|(name, value)| Some(vec![name.to_owned(), value?]))
            .filter(|fact| fact[1] != "null")
            .collect();
        let mut text = output::table(None, &facts);
        let mut section = |title: &str, body: &str| {
            let _ = write!(text, "\n\n{title}\n{body}");
        };
        if let Some(question) = &self.envelope.question {
            section("Question", &indented(question.get(), 2));
        }
        if let Some(message) = self.answer.as_ref().and_then(|answer| answer.message.as_ref()) {
            section("Answer", &indented(message.get(), 2));
        }
        for (title, column, sent) in [
            ("Announcements", "ANNOUNCER", &self.announcements),
            ("Deliveries", "ROUTE", &self.deliveries),
        ] {
            if !sent.is_empty() {
                let header = ["ID", column, "EVENT", "STATE", "ATTEMPTS", "AT", "TROUBLE"];
                let rows: Vec<_> = sent.iter().map(Sent::row).collect();
                section(title, &output::table(Some(&header), &rows));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_goes_in_as_it_was_written() {
        assert_eq!(
            message("q\"1", "t", Some(2), "{\"n\": 1.10}", Some("Zoë")),
            r#"{"thread_id":"t","question_id":"q\"1","generation":2,"answered_by":"Zoë","answer":{"n": 1.10}}"#
        );
        assert_eq!(
            message("q", "t", Some(1), "null", None),
            r#"{"thread_id":"t","question_id":"q","answer":null}"#
        );
    }

    #[test]
    fn a_tag_is_a_name_and_a_value() {
        assert_eq!(tag("a=b=c"), Ok(("tag.a".to_owned(), "b=c".to_owned())));
        assert!(tag("a").is_err() && tag("=b").is_err());
    }

    #[test]
    fn a_wait_is_shown_with_its_question_untouched() {
        let body = r#"{"thread_id":"order-1","question_id":"q","generation":1,"dedupe_key":"wait.created:q",
            "run_id":"order-1","state":"completed","envelope":{"type":"wait.created","question":{"amount":1.10,"big":9007199254740993},
            "allowed_actions":["approve"],"tags":null},"created_at":"2026-01-01T00:00:00.000Z","expires_at":null,
            "closed_at":"2026-01-01T00:01:00.000Z",
            "announcements":[{"id":7,"announcer":"log","event":"wait.created","state":"dead","attempts":3,"next_attempt_at":null,"last_error":"HTTP 400","delivered_at":null,"reason":"refused"}],
            "answer":{"message":{"answer":true},"answered_at":"2026-01-01T00:01:00.000Z","answered_by":"Zoë","answered_via":"api"},
            "deliveries":[]}"#;
        let wait: ShownWait = serde_json::from_str(body).unwrap();
        assert_eq!(
            wait.text(),
            "question    q
thread      order-1
generation  1
state       completed
asked       2026-01-01T00:00:00.000Z
expires     never
closed      2026-01-01T00:01:00.000Z
answered    2026-01-01T00:01:00.000Z by Zoë (api)
actions     [\"approve\"]
dedupe key  wait.created:q

Question
  {
    \"amount\": 1.10,
    \"big\": 9007199254740993
  }

Answer
  {
    \"answer\": true
  }

Announcements
ID  ANNOUNCER  EVENT         STATE  ATTEMPTS  AT  TROUBLE
7   log        wait.created  dead   3             refused: HTTP 400"
        );
    }
}
