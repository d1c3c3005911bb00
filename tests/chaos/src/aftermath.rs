//! What stands in the store when all is over.

use crate::history::{FinalRow, FinalWait, WaitKey};
use crate::load::Client;
use crate::load::{Call, escaped};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::Value;
use std::time::Duration;

/// How long a page may take.
const PAGE: Duration = Duration::from_secs(30);

/// How many announcements and deliveries still wait to be sent; those that hosts come for do not.
///
/// # Errors
/// When the replica does not say.
pub async fn queued(client: &Client, replica: usize) -> Result<usize> {
    let mut queued = 0;
    for plural in ["announcements", "deliveries"] {
        let page = page(client, replica, &format!("/v1/{plural}?state=queued&limit=500")).await?;
        let rows = page[plural].as_array().context("a list")?;
        queued += rows.iter().filter(|row| row["route"] != "pull").count();
    }
    Ok(queued)
}

/// The deadlines of open waits, as milliseconds since 1970.
///
/// # Errors
/// When the replica does not say.
pub async fn open_deadlines(client: &Client, replica: usize) -> Result<Vec<i64>> {
    let mut deadlines = Vec::new();
    for wait in all(client, replica, "waits", "state=open&").await? {
        if let Some(at) = wait["expires_at"].as_str()
            && let Ok(at) = answerback::contract::Time::parse(at)
        {
            deadlines.extend(at.map(answerback::contract::Time::millis));
        }
    }
    Ok(deadlines)
}

/// Every wait.
///
/// # Errors
/// When the replica does not say.
pub async fn waits(client: &Client, replica: usize) -> Result<Vec<FinalWait>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().into();
    let all = all(client, replica, "waits", "").await?;
    let read = all.iter().map(|wait| {
        Ok(FinalWait {
            wait: key(wait)?,
            state: text(&wait["state"]),
            dedupe_key: text(&wait["dedupe_key"]),
            event_id: text(&wait["envelope"]["event_id"]),
            via: wait["answer"]["answered_via"].as_str().map(Into::into),
        })
    });
    read.collect()
}

/// Every announcement and delivery.
///
/// # Errors
/// When the replica does not say.
pub async fn rows(client: &Client, replica: usize) -> Result<Vec<FinalRow>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().into();
    let mut rows = Vec::new();
    for (plural, place) in [("announcements", "announcer"), ("deliveries", "route")] {
        for row in all(client, replica, plural, "").await? {
            rows.push(FinalRow {
                name: text(&row[place]),
                delivery: plural == "deliveries",
                wait: key(&row)?,
                event: text(&row["event"]),
                state: text(&row["state"]),
                reason: text(&row["reason"]),
            });
        }
    }
    Ok(rows)
}

fn key(value: &Value) -> Result<WaitKey> {
    Ok(WaitKey {
        thread: value["thread_id"].as_str().context("a thread_id")?.into(),
        question: value["question_id"].as_str().context("a question_id")?.into(),
        generation: value["generation"].as_u64().context("a generation")?.try_into()?,
    })
}

async fn all(client: &Client, replica: usize, plural: &str, filter: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/{plural}?{filter}limit=500{cursor}");
        let mut page = page(client, replica, &path).await?;
        all.append(page[plural].as_array_mut().context("a list")?);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", escaped(next)),
            None => return Ok(all),
        }
    }
}

async fn page(client: &Client, replica: usize, path: &str) -> Result<Value> {
    let mut call = Call::bare(replica, Method::GET, path);
    call.patience = PAGE;
    let reply = client.send(&call).await.with_context(|| format!("no reply to {path}"))?;
    ensure!(reply.status == 200, "{path} answers {}: {}", reply.status, reply.code());
    Ok(serde_json::from_slice(&reply.body)?)
}
