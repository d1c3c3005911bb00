//! What is counted, under the names that the contract fixes (section 3). Never an id or a tag as a
//! label.

use answerback_core::Destination;
use metrics::{
    Counter, Histogram, counter, describe_counter, describe_gauge, describe_histogram, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// New waits and generations.
pub const WAITS_ACCEPTED: &str = "answerback_waits_accepted_total";
/// Publishes that asked nothing new.
pub const DUPLICATES: &str = "answerback_duplicates_total";
/// Answers, by `via` and `result`.
pub const ANSWERS: &str = "answerback_answers_total";
/// Announcements, by `announcer` and `outcome`.
pub const ANNOUNCEMENTS: &str = "answerback_announcements_total";
/// Seconds from queued to delivered.
pub const ANNOUNCEMENT_SECONDS: &str = "answerback_announcement_seconds";
/// Queued messages, by `announcer`.
pub const QUEUE_DEPTH: &str = "answerback_queue_depth";
/// Age of the oldest queued message in seconds, by `announcer`.
pub const OLDEST_SECONDS: &str = "answerback_oldest_seconds";
/// Deliveries of answers, by `route` and `outcome`.
pub const DELIVERIES: &str = "answerback_deliveries_total";
/// Messages from sources, by `source` and `outcome`.
pub const SOURCE_MESSAGES: &str = "answerback_source_messages_total";
/// Waits that no announcer is told of.
pub const UNMATCHED_WAITS: &str = "answerback_unmatched_waits_total";
/// Seconds from a deadline to its effect.
pub const DEADLINE_LAG: &str = "answerback_deadline_lag_seconds";

/// Upper bounds of the histograms' buckets, in seconds: a delivery takes a millisecond or a day.
const SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3_600.0,
    86_400.0,
];

/// How often recorded values are folded into their buckets.
const UPKEEP: Duration = Duration::from_secs(5);

/// Makes the process count, and gives what renders `/metrics`. Further calls give the same.
#[must_use]
pub fn install() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let builder = PrometheusBuilder::new();
            let builder = builder
                .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
                .unwrap_or_default();
            let recorder = builder.build_recorder();
            let handle = recorder.handle();
            // Another recorder of an embedding program keeps its place; ours then renders nothing.
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed: /metrics stays empty");
            }
            describe();
            handle
        })
        .clone()
}

/// What `/metrics` says of each.
fn describe() {
    describe_counter!(WAITS_ACCEPTED, "New waits and new generations of waits.");
    describe_counter!(DUPLICATES, "Publishes that asked nothing new.");
    describe_counter!(ANSWERS, "Answers, by the way they came and what became of them.");
    describe_counter!(ANNOUNCEMENTS, "Attempts to announce, by announcer and outcome.");
    describe_histogram!(ANNOUNCEMENT_SECONDS, "Seconds from queued to delivered.");
    describe_gauge!(QUEUE_DEPTH, "Messages queued for an announcer.");
    describe_gauge!(
        OLDEST_SECONDS,
        "Age in seconds of the oldest message queued for an announcer."
    );
    describe_counter!(DELIVERIES, "Attempts to deliver answers, by route and outcome.");
    describe_counter!(SOURCE_MESSAGES, "Messages that came in, by source and outcome.");
    describe_counter!(UNMATCHED_WAITS, "Waits that no announcer is told of.");
    describe_histogram!(DEADLINE_LAG, "Seconds from a deadline to its effect.");
}

/// A source's handles, looked up once.
#[derive(Clone)]
pub struct SourceMetrics {
    /// Questions, answers and start messages that were taken.
    pub accepted: Counter,
    /// Those that had been taken before.
    pub duplicate: Counter,
    /// Those that the contract refuses.
    pub refused: Counter,
    /// Those that could not be taken now.
    pub failed: Counter,
}

impl SourceMetrics {
    /// The handles of a source: its name in the configuration, or `http`.
    #[must_use]
    pub fn of(source: &str) -> Self {
        let source = source.to_owned();
        let count = |outcome: &'static str| counter!(SOURCE_MESSAGES, "source" => source.clone(), "outcome" => outcome);
        Self {
            accepted: count("accepted"),
            duplicate: count("duplicate"),
            refused: count("refused"),
            failed: count("failed"),
        }
    }
}

/// Keeps what histograms hold bounded, until `stop`.
pub async fn upkeep(handle: PrometheusHandle, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(UPKEEP) => handle.run_upkeep(),
        }
    }
}

/// A lane's handles, looked up once.
#[derive(Clone)]
pub struct LaneMetrics {
    /// Delivered messages.
    pub delivered: Counter,
    /// Failed attempts that are followed by another.
    pub retried: Counter,
    /// Messages given up.
    pub dead: Counter,
    /// Seconds from queued to delivered.
    pub seconds: Histogram,
}

impl LaneMetrics {
    /// The handles of a destination.
    #[must_use]
    pub fn of(destination: &Destination) -> Self {
        let label = destination.label().to_owned();
        let (name, key) = if destination.is_announcer() {
            (ANNOUNCEMENTS, "announcer")
        } else {
            (DELIVERIES, "route")
        };
        let count =
            |outcome: &'static str| counter!(name, key => label.clone(), "outcome" => outcome);
        Self {
            delivered: count("delivered"),
            retried: count("retried"),
            dead: count("dead"),
            seconds: histogram!(ANNOUNCEMENT_SECONDS, key => label.clone()),
        }
    }
}
