//! The configuration of a replica.

use crate::schedule::Place;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

/// The bound on one attempt to send by HTTP.
pub const ATTEMPT: Duration = Duration::from_secs(1);

/// The bound on one attempt to send to Kafka, whose client connects slowly.
pub const STREAM_ATTEMPT: Duration = Duration::from_secs(5);

/// How long a lease holds at most: the longest attempt and what the daemon adds to it
/// (`src/dispatch/lane.rs`: a quarter of a second ahead, a minute to record).
pub const LEASE: Duration = Duration::from_millis(5_000 + 250 + 60_000);

/// Which threads' answers the configured route takes; the others go by `reply_to`, or are pulled.
pub const ROUTED: &str = "r-";

/// The header that tells who sent.
pub const SENDER: &str = "X-Chaos-Replica";

/// What a configuration depends on.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Where the harness receives: `http://127.0.0.1:port`.
    pub receivers: &'a str,
    /// The broker, `host:port`.
    pub kafka: Option<&'a str>,
    /// The topic.
    pub topic: &'a str,
    /// The store's URL.
    pub store_url: String,
}

/// The text of `answerback.toml`.
#[must_use]
pub fn config(number: usize, addr: SocketAddr, settings: &Settings<'_>) -> String {
    let Settings { receivers, kafka, topic, .. } = settings;
    let sending = "retry = { initial = \"50ms\", max = \"1s\" }\n\
                   breaker = { failures = 20, pause = \"100ms\", max_pause = \"1s\" }";
    let http = |name: &str| {
        format!(
            "type = \"webhook\"\nurl = \"{receivers}/{name}\"\nallow_private = [\"127.0.0.0/8\"]\n\
             timeout = \"{}s\"\nheaders = {{ {SENDER} = \"{number}\" }}\n{sending}\n",
            ATTEMPT.as_secs()
        )
    };
    let mut text = format!(
        "[server]\nlisten = \"{addr}\"\nshutdown_grace = \"5s\"\n\n[store]\nurl_file = \"store.url\"\n\n\
         [telemetry]\nlog = \"info,answerback=debug\"\n\n"
    );
    let _ = writeln!(text, "[announcers.{}]\n{}", Place::Hook.name(), http(Place::Hook.name()));
    let every =
        "events = [\"wait.created\", \"wait.answered\", \"wait.timed-out\", \"wait.cancelled\"]";
    let _ = writeln!(
        text,
        "[announcers.{}]\n{every}\n{}",
        Place::Life.name(),
        http(Place::Life.name())
    );
    if let Some(kafka) = kafka {
        let _ = writeln!(
            text,
            "[announcers.{}]\ntype = \"kafka\"\nbrokers = \"{kafka}\"\ntopic = \"{topic}\"\ntimeout = \"{}s\"\n{sending}\n",
            Place::Stream.name(),
            STREAM_ATTEMPT.as_secs(),
        );
    }
    let host = http(Place::Host.name()).replace("\"webhook\"", "\"http\"");
    let _ = writeln!(
        text,
        "[[routes]]\nname = \"{}\"\nmatch = {{ thread_prefix = \"{ROUTED}\" }}\n{host}",
        Place::Host.name()
    );
    let _ = writeln!(
        text,
        "[reply_to]\nallow = [\"{receivers}/*\"]\nallow_private = [\"127.0.0.0/8\"]\ntimeout = \"{}s\"\n{sending}",
        ATTEMPT.as_secs()
    );
    text
}
