//! What is counted, under the names that the contract fixes (section 3). Never an id or a tag as a
//! label.

use answerback_core::Destination;
use metrics::{Counter, Histogram, counter, histogram};

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
