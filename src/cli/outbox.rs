//! What announcements and deliveries have in common.

use super::client::{Api, Ask, segment};
use super::exit::Failure;
use super::listing::unexpected;
use super::output;
use anyhow::Context as _;
use http::Method;
use serde::Deserialize;
use serde_json::Value;

/// Where an announcement or a delivery stands.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum State {
    /// To be sent, now or later
    Queued,
    /// Sent
    Delivered,
    /// Given up; can be sent again by `retry`
    Dead,
    /// Pointless, because the wait was over first
    Withdrawn,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// One of them, as lists show it.
#[derive(Deserialize)]
pub(crate) struct Item {
    id: Value,
    announcer: Option<String>,
    route: Option<String>,
    thread_id: String,
    question_id: String,
    generation: u64,
    event: Option<String>,
    state: String,
    attempts: u64,
    last_error: Option<String>,
    reason: Option<String>,
    at: Option<String>,
}

impl Item {
    pub(crate) fn row(self) -> Vec<String> {
        vec![
            id_text(&self.id),
            self.announcer.or(self.route).unwrap_or_default(),
            self.question_id,
            self.thread_id,
            self.generation.to_string(),
            self.event.unwrap_or_default(),
            self.state,
            self.attempts.to_string(),
            self.at.unwrap_or_default(),
            trouble(self.reason.as_deref(), self.last_error.as_deref()),
        ]
    }
}

/// An id as a person would type it.
pub(crate) fn id_text(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), ToOwned::to_owned)
}

/// Why something is dead, and what went wrong last.
pub(crate) fn trouble(reason: Option<&str>, last_error: Option<&str>) -> String {
    match (reason, last_error) {
        (Some(reason), Some(error)) => format!("{reason}: {error}"),
        (Some(text), None) | (None, Some(text)) => text.to_owned(),
        (None, None) => String::new(),
    }
}

/// `POST /v1/<collection>/<id>/retry`, and what came of it.
pub(crate) async fn retry(
    api: &Api,
    collection: &str,
    id: &str,
    json: bool,
) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Retried {
        retried: u64,
    }
    let path = format!("/v1/{collection}/{}/retry", segment(id));
    let body = api.ask(Ask::new(Method::POST, path)).await?;
    if json {
        return output::json_line(&body);
    }
    let Retried { retried } = serde_json::from_slice(&body).with_context(unexpected)?;
    output::line(&format!("{retried} queued again"))
}
