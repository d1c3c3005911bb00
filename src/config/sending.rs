//! What announcers and routes have in common, and `[reply_to]`.

use super::reading::{Reading, duration_to, not_supported, one_or_many};
use super::server::networks;
use answerback_contract::settings::{Place, Settings, Value};
use answerback_contract::{SecretString, Target};
use answerback_core::breaker::Threshold;
use answerback_core::matching::{Matcher, TagValue};
use answerback_core::reply_to::Allow;
use answerback_core::retry::Schedule;
use ipnet::IpNet;
use std::time::Duration;

/// The most messages under way at one destination.
const MOST_IN_FLIGHT: usize = 10_000;
/// The longest an attempt may take: leases hold a little longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(300);
/// The longest wait between attempts, and the longest pause.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);
/// The longest age of a message that is still tried.
const LONGEST_AGE: Duration = Duration::from_secs(90 * 86_400);

/// How messages go out to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// `max_in_flight`: messages under way at the same time, at most.
    pub max_in_flight: usize,
    /// `retry`.
    pub retry: Schedule,
    /// `breaker`.
    pub breaker: Threshold,
    /// `timeout`: the bound on one attempt.
    pub timeout: Duration,
    /// `max_bytes`: larger messages are dead at once; the service's own limit without.
    pub max_bytes: Option<usize>,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            max_in_flight: 32,
            retry: Schedule::default(),
            breaker: Threshold::default(),
            timeout: Duration::from_secs(10),
            max_bytes: None,
        }
    }
}

/// `[reply_to]`: what envelopes may ask for by themselves.
#[derive(Clone, Debug)]
pub struct ReplyToConfig {
    /// Where they may point.
    pub allow: Allow,
    /// What signs answers to http targets; unsigned without.
    pub secret: Option<SecretString>,
    /// Addresses that the private-address guard lets through.
    pub allow_private: Vec<IpNet>,
    /// How answers go out, one place each.
    pub sending: Sending,
}

pub(super) fn read_sending(settings: &mut Settings, reading: &mut Reading<'_>) -> Sending {
    let defaults = Sending::default();
    Sending {
        max_in_flight: settings
            .count("max_in_flight", MOST_IN_FLIGHT)
            .unwrap_or(defaults.max_in_flight),
        retry: reading
            .within(settings, "retry", |retry, _| read_retry(retry))
            .unwrap_or(defaults.retry),
        breaker: reading
            .within(settings, "breaker", |breaker, _| read_breaker(breaker))
            .unwrap_or(defaults.breaker),
        timeout: duration_to(settings, "timeout", LONGEST_ATTEMPT).unwrap_or(defaults.timeout),
        max_bytes: settings.count("max_bytes", usize::MAX),
    }
}

fn read_retry(settings: &mut Settings) -> Schedule {
    let defaults = Schedule::default();
    let place = settings.place_of("max");
    let initial = duration_to(settings, "initial", LONGEST_DELAY).unwrap_or(defaults.initial);
    let max = duration_to(settings, "max", LONGEST_DELAY).unwrap_or(defaults.max);
    let max_age = duration_to(settings, "max_age", LONGEST_AGE).unwrap_or(defaults.max_age);
    if max < initial && !settings.has_problems() {
        settings.problem("max", place, "is shorter than `initial`; it must be at least as long");
    }
    Schedule { initial, max, max_age }
}

fn read_breaker(settings: &mut Settings) -> Threshold {
    let defaults = Threshold::default();
    let place = settings.place_of("max_pause");
    let failures = settings.count("failures", 1_000_000).and_then(|n| u32::try_from(n).ok());
    let pause = duration_to(settings, "pause", LONGEST_DELAY).unwrap_or(defaults.pause);
    let max_pause =
        duration_to(settings, "max_pause", LONGEST_DELAY).unwrap_or(defaults.max_pause.max(pause));
    if max_pause < pause && !settings.has_problems() {
        settings.problem(
            "max_pause",
            place,
            "is shorter than `pause`; it must be at least as long",
        );
    }
    Threshold { failures: failures.unwrap_or(defaults.failures), pause, max_pause }
}

/// Holds `max_bytes` against what the service itself takes.
pub(super) fn check_max_bytes(
    settings: &mut Settings,
    place: Place,
    sending: &Sending,
    target: &dyn Target,
) {
    let most = target.limits().message_bytes;
    if sending.max_bytes.is_some_and(|bytes| bytes > most) {
        let what = format!("is more than the {most} bytes that the service takes");
        settings.problem("max_bytes", place, what);
    }
}

/// `match`; everything fits without it.
pub(super) fn read_matcher(settings: &mut Settings, reading: &mut Reading<'_>) -> Matcher {
    let read = |settings: &mut Settings, _: &mut Reading<'_>| {
        not_supported(settings, "expr");
        Matcher {
            tags: read_tags(settings),
            source_functions: one_or_many(settings, "source_function"),
            thread_prefixes: one_or_many(settings, "thread_prefix"),
            actions: one_or_many(settings, "actions"),
        }
    };
    reading.within(settings, "match", read).unwrap_or_default()
}

fn read_tags(settings: &mut Settings) -> Vec<(String, Vec<TagValue>)> {
    let Some(setting) = settings.take("tags") else { return Vec::new() };
    let Value::Table(table) = setting.value else {
        let what = "must be a table such as { approver_group = [\"finance\", \"treasury\"] }";
        settings.problem("tags", setting.place, what);
        return Vec::new();
    };
    let mut tags = Vec::with_capacity(table.len());
    for (name, wanted) in table {
        let items = match wanted.value {
            Value::Array(items) => items,
            _ => vec![wanted.clone()],
        };
        if items.is_empty() {
            let what = "is empty, so that nothing would ever match; name values, or take it out";
            settings.problem(&format!("tags.{name}"), wanted.place, what);
            continue;
        }
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match item.value {
                Value::String(text) => values.push(TagValue::Text(text)),
                Value::Integer(number) => values.push(TagValue::Number(number.to_string())),
                Value::Float(number) => values.push(TagValue::Number(number.to_string())),
                Value::Boolean(b) => values.push(TagValue::Bool(b)),
                Value::Array(_) | Value::Table(_) => {
                    let what = "must be a string, a number, true or false, or an array of them";
                    settings.problem(&format!("tags.{name}"), item.place, what);
                }
            }
        }
        tags.push((name, values));
    }
    tags
}

pub(super) fn read_reply_to(settings: &mut Settings, reading: &mut Reading<'_>) -> ReplyToConfig {
    ReplyToConfig {
        allow: read_allow(settings),
        secret: settings.secret("secret_env", "secret_file"),
        allow_private: networks(settings, "allow_private"),
        sending: read_sending(settings, reading),
    }
}

/// Each pattern by itself, so that every wrong one is named at its own line.
fn read_allow(settings: &mut Settings) -> Allow {
    let Some(setting) = settings.take("allow") else { return Allow::default() };
    let Value::Array(items) = setting.value else {
        let what = "must be an array of patterns such as [\"https://*.internal.example.com\"]";
        settings.problem("allow", setting.place, what);
        return Allow::default();
    };
    let mut patterns = Vec::with_capacity(items.len());
    for item in items {
        let Value::String(text) = item.value else {
            settings.problem("allow", item.place, "has an item that is no string");
            continue;
        };
        match Allow::read(&[&text]) {
            Ok(_) => patterns.push(text),
            Err(what) => settings.problem("allow", item.place, what),
        }
    }
    Allow::read(&patterns).unwrap_or_default()
}
