//! The small sections: `[waits]`, `[links]`, `[retention]`, `[telemetry]`.

use super::reading::{Reading, duration_to, not_supported, parsed};
use answerback_contract::SecretString;
use answerback_contract::duration::parse_setting;
use answerback_contract::settings::Settings;
use answerback_core::Republished;
use std::num::NonZeroU32;
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// A hundred years: what is longer is a slip of the pen.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// `[waits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// What happens when an answered question is published again.
    pub republished_after_answer: Republished,
    /// Whether an `action` outside `allowed_actions` is refused.
    pub enforce_allowed_actions: bool,
    /// How long an answer from a queue that overtakes its question is held.
    pub early_answer_hold: Duration,
    /// When a wait that is still open is announced again.
    pub remind: Vec<Remind>,
}

/// A point of a wait's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remind {
    /// After so many percent of it, 1 to 99.
    Percent(u8),
    /// So long before its end.
    Before(Duration),
}

/// `[links]`.
#[derive(Clone, Debug)]
pub struct Links {
    /// Requests that a client may make at a link.
    pub rate_limit: Rate,
    /// What signs links; without it one is made at the first start and kept in the store.
    pub key: Option<SecretString>,
}

/// So many a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// How many.
    pub count: NonZeroU32,
    /// In how long.
    pub per: Duration,
}

/// `[retention]`: how long what is over is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Waits that ended, with all that was sent for them.
    pub closed: Duration,
    /// Dead announcements and deliveries, at least.
    pub dead: Duration,
}

/// `[telemetry]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// Which events are logged, as a filter of tracing-subscriber; it was tried once.
    pub log: String,
    /// How a line looks.
    pub log_format: LogFormat,
}

/// How a line of the log looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log: "info".to_owned(), log_format: LogFormat::Text }
    }
}

pub(super) fn read_waits(settings: &mut Settings, reading: &mut Reading<'_>) -> Waits {
    reading.note(
        settings,
        "early_answer_hold",
        "has no effect before there are sources; this version takes messages by HTTP only",
    );
    reading.note(settings, "remind", "has no effect: this version sends no reminders");
    let choices = [
        ("resend", Republished::Resend),
        ("ask_again", Republished::AskAgain),
        ("ignore", Republished::Ignore),
    ];
    Waits {
        republished_after_answer: settings
            .choice("republished_after_answer", &choices)
            .unwrap_or_default(),
        enforce_allowed_actions: settings.boolean("enforce_allowed_actions").unwrap_or(false),
        early_answer_hold: duration_to(settings, "early_answer_hold", Duration::from_secs(86_400))
            .unwrap_or(Duration::from_secs(60)),
        remind: read_reminders(settings),
    }
}

fn read_reminders(settings: &mut Settings) -> Vec<Remind> {
    let place = settings.place_of("remind");
    let mut reminders = Vec::new();
    for text in settings.strings("remind").unwrap_or_default() {
        match reminder(&text) {
            Some(reminder) => reminders.push(reminder),
            None => settings.problem(
                "remind",
                place.clone(),
                format!("{text:?} is no point of a wait's time; write one such as \"50%\" (1 to 99) or \"1h before\""),
            ),
        }
    }
    reminders
}

fn reminder(text: &str) -> Option<Remind> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.trim().parse().ok().filter(|p| (1..=99).contains(p))?;
        return Some(Remind::Percent(percent));
    }
    let duration = text.strip_suffix("before")?.trim();
    parse_setting(duration).ok().map(Remind::Before)
}

pub(super) fn read_links(settings: &mut Settings, reading: &mut Reading<'_>) -> Links {
    let what = "has no effect: this version hands out no links";
    for key in ["rate_limit", "key_env", "key_file"] {
        reading.note(settings, key, what);
    }
    Links {
        rate_limit: parsed(settings, "rate_limit", rate).unwrap_or(Rate {
            count: NonZeroU32::MIN.saturating_add(599),
            per: Duration::from_secs(60),
        }),
        key: settings.secret("key_env", "key_file"),
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    let read = || {
        let (count, unit) = text.split_once('/')?;
        let seconds = match unit.trim() {
            "s" | "sec" | "second" => 1,
            "min" | "m" | "minute" => 60,
            "h" | "hour" => 3_600,
            _ => return None,
        };
        Some(Rate { count: count.trim().parse().ok()?, per: Duration::from_secs(seconds) })
    };
    read().ok_or_else(|| format!("{text:?} is no rate; write one such as \"600/min\""))
}

pub(super) fn read_retention(settings: &mut Settings, _: &mut Reading<'_>) -> Retention {
    const DAY: u64 = 86_400;
    let mut days = |key, days: u64| {
        duration_to(settings, key, LONGEST).unwrap_or(Duration::from_secs(days * DAY))
    };
    Retention { closed: days("closed", 30), dead: days("dead", 90) }
}

pub(super) fn read_telemetry(settings: &mut Settings, _: &mut Reading<'_>) -> Telemetry {
    not_supported(settings, "otlp_endpoint");
    let filter = |text: &str| {
        EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|e| {
            format!("{text:?} is no log filter ({e}); write a level such as \"info\", or \"info,answerback=debug\"")
        })
    };
    let defaults = Telemetry::default();
    Telemetry {
        log: parsed(settings, "log", filter).unwrap_or(defaults.log),
        log_format: settings
            .choice("log_format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reminders_are_a_share_or_a_time_before_the_end() {
        assert_eq!(reminder("50%"), Some(Remind::Percent(50)));
        assert_eq!(reminder("1h before"), Some(Remind::Before(Duration::from_secs(3_600))));
        for bad in ["", "0%", "100%", "%", "1h", "before", "1h after", "1.5%"] {
            assert_eq!(reminder(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_rate_is_a_count_and_a_unit() {
        let count = |text| rate(text).map(|r| (r.count.get(), r.per.as_secs())).ok();
        assert_eq!(count("600/min"), Some((600, 60)));
        assert_eq!(count("5 / s"), Some((5, 1)));
        for bad in ["", "600", "0/min", "-1/s", "600/day", "x/min"] {
            assert_eq!(count(bad), None, "{bad}");
        }
    }
}
