//! Whether the daemon lives, whether it can work, and what it counts.

use super::front::App;
use super::problem::Problem;
use super::reply::Reply;
use crate::metrics::{OLDEST_SECONDS, QUEUE_DEPTH};
use crate::store::Depth;
use answerback_contract::Time;
use answerback_core::Destination;
use http::{HeaderValue, StatusCode};
use metrics::gauge;
use std::time::Duration;
use tokio::sync::Mutex;

/// How long a probe of the store counts: asking is free and writes to the disk.
const PROBE_COUNTS: Duration = Duration::from_secs(1);

/// When the store was probed last, and how that went. Held while a probe is under way, so that many
/// callers make one.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Option<(Time, bool)>>);

pub(crate) fn alive() -> Reply {
    Reply::ok("{\"status\":\"ok\"}")
}

pub(crate) async fn ready(app: &App) -> Result<Reply, Problem> {
    if app.state.drain.is_cancelled() {
        return Err(Problem::shutting_down());
    }
    let now = app.state.clock.now();
    let mut last = app.readiness.0.lock().await;
    let works = match *last {
        Some((at, works)) if at <= now && at.until(now) < PROBE_COUNTS => works,
        _ => {
            let probed = app.state.store.probe(now).await;
            if let Err(error) = &probed {
                tracing::warn!(%error, "not ready");
            }
            *last = Some((now, probed.is_ok()));
            probed.is_ok()
        }
    };
    if works { Ok(Reply::ok("{\"status\":\"ready\"}")) } else { Err(Problem::store_unavailable()) }
}

pub(crate) async fn metrics(app: &App) -> Result<Reply, Problem> {
    // A store that cannot be asked must not hide what is counted in memory.
    match app.state.store.depths().await {
        Ok(depths) => set_gauges(app, &depths),
        Err(error) => tracing::warn!(%error, "the queues could not be measured"),
    }
    let mut reply = Reply::json(StatusCode::OK, app.state.metrics.render());
    reply.content_type = Some(HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(reply)
}

/// Sets the gauges of every announcer, to zero where nothing is queued: a gauge keeps what it was
/// set to last.
fn set_gauges(app: &App, depths: &[Depth]) {
    let now = app.state.clock.now();
    for rule in &app.state.rules.announcers {
        let at = Destination::Announcer(rule.name.clone());
        let depth = depths.iter().find(|d| d.destination == at);
        let queued = depth.map_or(0, |d| d.queued);
        let oldest = depth.and_then(|d| d.oldest).map_or(0.0, |t| t.until(now).as_secs_f64());
        let label = || rule.name.to_string();
        // Exact up to 2^53 messages.
        gauge!(QUEUE_DEPTH, "announcer" => label()).set(queued as f64);
        gauge!(OLDEST_SECONDS, "announcer" => label()).set(oldest);
    }
}
