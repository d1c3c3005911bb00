//! Settings into a target: pure, every problem with its place and cure.

use answerback_contract::settings::{Problem, Setting, Settings, Value};
use answerback_contract::{ExposeSecret, Field, Purpose, SecretString};
use rdkafka::ClientConfig;
use std::collections::BTreeMap;
use std::time::Duration;

/// The settings of `kafka` announcers and routes.
pub(crate) const FIELDS: &[Field] = &[
    Field {
        key: "brokers",
        required: true,
        help: "The brokers to start from: \"host:port\", several separated by commas.",
    },
    Field { key: "topic", required: true, help: "The topic to send to." },
    Field {
        key: "properties",
        required: false,
        help: "A table of further properties of the client (librdkafka), such as \"security.protocol\". Secrets go by NAME_env or NAME_file: \"sasl.password_env\". Idempotence and acks=all are fixed.",
    },
];

/// Properties that are secrets: they come from a variable or a file, never from the configuration.
const SECRETS: [(&str, &str, &str); 5] = [
    ("sasl.password", "sasl.password_env", "sasl.password_file"),
    (
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.secret_env",
        "sasl.oauthbearer.client.secret_file",
    ),
    ("ssl.key.password", "ssl.key.password_env", "ssl.key.password_file"),
    ("ssl.key.pem", "ssl.key.pem_env", "ssl.key.pem_file"),
    ("ssl.keystore.password", "ssl.keystore.password_env", "ssl.keystore.password_file"),
];

/// The longest name of a topic (Kafka's own limit).
const TOPIC_CHARACTERS: usize = 249;

/// The largest record that the client sends when `message.max.bytes` says nothing: librdkafka's
/// default, a little below the 1,048,588 bytes of a whole batch that brokers take by default.
const MESSAGE_BYTES: usize = 1_000_000;

/// Whether this build speaks TLS, and with it SCRAM.
const TLS: bool = cfg!(feature = "tls");

/// Which topic of which brokers, and how to speak to them: everything but a connection.
#[derive(Clone)]
pub(crate) struct KafkaTarget {
    pub(crate) purpose: Purpose,
    pub(crate) brokers: String,
    pub(crate) topic: String,
    pub(crate) message_bytes: usize,
    properties: BTreeMap<String, String>,
    secrets: Vec<(&'static str, SecretString)>,
}

impl KafkaTarget {
    /// The client's configuration for attempts of this length.
    ///
    /// The client tries again by itself, idempotently, but never past the attempt: then the daemon
    /// schedules. It gives up a little earlier than the attempt, so that it can still say why.
    pub(crate) fn client_config(&self, attempt: Duration) -> ClientConfig {
        let within = |part: u32, least: u128, most: u128| {
            (attempt.as_millis() * u128::from(part) / 100).clamp(least, most).to_string()
        };
        let mut config = ClientConfig::new();
        let defaults: [(&[&str], String); 9] = [
            (&["client.id"], "answerback".to_owned()),
            // Java's way to choose a partition, so that other writers of the topic agree.
            (&["partitioner"], "murmur2_random".to_owned()),
            (&["linger.ms", "queue.buffering.max.ms"], "2".to_owned()),
            (&["queue.buffering.max.messages"], "100000".to_owned()),
            (&["queue.buffering.max.kbytes"], "65536".to_owned()),
            (&["reconnect.backoff.max.ms", "reconnect.backoff.ms"], "2000".to_owned()),
            (&["socket.timeout.ms"], within(100, 1_000, 300_000)),
            (&["request.timeout.ms"], within(90, 100, 30_000)),
            // How long an unknown topic may still turn up.
            (&["topic.metadata.propagation.max.ms"], within(50, 100, 30_000)),
        ];
        for (names, value) in defaults {
            if let [name, ..] = names
                && !names.iter().any(|name| self.properties.contains_key(*name))
            {
                config.set(*name, value);
            }
        }
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        for (name, secret) in &self.secrets {
            config.set(*name, secret.expose_secret());
        }
        config.set("bootstrap.servers", &self.brokers);
        config.set("enable.idempotence", "true");
        config.set("acks", "all");
        config.set("message.timeout.ms", within(90, 50, 2_000_000_000));
        config
    }
}

/// Reads the settings.
pub(crate) fn validate(
    purpose: Purpose,
    settings: &mut Settings,
) -> Result<KafkaTarget, Vec<Problem>> {
    let brokers = read_brokers(settings);
    let topic = read_topic(settings);
    let (properties, secrets) = read_properties(settings);
    if settings.has_problems() {
        return Err(settings.take_problems());
    }
    let message_bytes =
        properties.get("message.max.bytes").and_then(|n| n.parse().ok()).unwrap_or(MESSAGE_BYTES);
    Ok(KafkaTarget { purpose, brokers, topic, message_bytes, properties, secrets })
}

fn read_brokers(settings: &mut Settings) -> String {
    let place = settings.place_of("brokers");
    let text = settings.required_string("brokers", "\"host:port\", several separated by commas");
    for broker in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
        let port = broker.rsplit_once(':').map_or("9092", |(_, port)| port);
        let bad = broker.is_empty()
            || broker.starts_with(':')
            || broker.contains(|c: char| c.is_control() || c.is_whitespace())
            || (!broker.ends_with(']') && !port.parse::<u16>().is_ok_and(|p| p > 0));
        if bad {
            let what = format!("has {broker:?}, which is no broker; write \"host:port\"");
            settings.problem("brokers", place, what);
            return String::new();
        }
    }
    text
}

/// Kafka's own rule for names of topics.
fn read_topic(settings: &mut Settings) -> String {
    let place = settings.place_of("topic");
    let topic = settings.required_string("topic", "the name of the topic");
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !topic.chars().all(legal) || topic.len() > TOPIC_CHARACTERS || topic == "." || topic == ".."
    {
        let what = "is no name of a topic; use up to 249 letters, digits, dots, _ and -";
        settings.problem("topic", place, what);
    }
    topic
}

type Properties = (BTreeMap<String, String>, Vec<(&'static str, SecretString)>);

fn read_properties(settings: &mut Settings) -> Properties {
    let Some(mut table) = settings.table("properties") else { return Properties::default() };
    let mut secrets = Vec::new();
    for (name, env_key, file_key) in SECRETS {
        let place = table.place_of(env_key);
        match table.secret(env_key, file_key) {
            Some(_) if !TLS && name.starts_with("ssl.") => {
                table.problem(name, place, format!("needs TLS, {NEEDS_TLS}"));
            }
            Some(secret) => secrets.push((name, secret)),
            None => {}
        }
    }
    let mut properties = BTreeMap::new();
    for (name, setting) in table.take_rest() {
        let place = setting.place.clone();
        match read_property(&name, setting) {
            Ok(value) => {
                properties.insert(name, value);
            }
            Err(what) => table.problem(&name, place, what),
        }
    }
    if let Some((name, what)) = unsupported_security(&properties) {
        let place = table.place_of("");
        table.problem(name, place, what);
    }
    settings.absorb(table);
    (properties, secrets)
}

/// Reads one property, as text, and lets the client's own parser judge it.
fn read_property(name: &str, setting: Setting) -> Result<String, String> {
    let value = match setting.value {
        Value::String(text) => text,
        Value::Integer(n) => n.to_string(),
        Value::Boolean(b) => b.to_string(),
        Value::Float(n) => n.to_string(),
        Value::Array(_) | Value::Table(_) => {
            return Err("must be a string, a number or true or false".to_owned());
        }
    };
    if let Some(what) = contradiction(name, &value) {
        return Err(what.to_owned());
    }
    if !TLS && name.starts_with("ssl.") {
        return Err(format!("needs TLS, {NEEDS_TLS}"));
    }
    if !TLS && name == "security.protocol" && value.trim().to_ascii_lowercase().ends_with("ssl") {
        return Err(format!("asks for TLS, {NEEDS_TLS}"));
    }
    if value.contains('\0') || name.contains('\0') {
        return Err("has a NUL character in it; take it out".to_owned());
    }
    let mut alone = ClientConfig::new();
    alone.set(name, &value);
    match alone.create_native_config() {
        Ok(_) => Ok(value),
        // The client's message would repeat the value.
        Err(_) => Err(
            "is no property of the client (librdkafka), or has a value that it does not take; see its CONFIGURATION.md"
                .to_owned(),
        ),
    }
}

/// What a property must not say, because the guarantees hang on it.
fn contradiction(name: &str, value: &str) -> Option<&'static str> {
    let number = || value.trim().parse::<i64>().ok();
    match name {
        "bootstrap.servers" | "metadata.broker.list" => Some("is given by brokers; take it out"),
        "enable.idempotence" if value != "true" => {
            Some("is always true, so that retries make no duplicates; take it out")
        }
        "acks" | "request.required.acks" if value != "all" && value != "-1" => {
            Some("is always all, so that delivered means replicated; take it out")
        }
        "message.timeout.ms" | "delivery.timeout.ms" => Some("follows timeout; set that instead"),
        "max.in.flight" | "max.in.flight.requests.per.connection"
            if number().is_none_or(|n| n > 5) =>
        {
            Some("must be from 1 to 5 with an idempotent producer")
        }
        "retries" | "message.send.max.retries" if number().is_none_or(|n| n < 1) => {
            Some("must be at least 1 with an idempotent producer")
        }
        "queuing.strategy" if value != "fifo" => Some("must be fifo to keep threads in order"),
        "transactional.id" => Some("is not used: each message stands alone; take it out"),
        "plugin.library.paths" => Some("would load foreign code; take it out"),
        _ => None,
    }
}

const NEEDS_TLS: &str =
    "which this build of answerback lacks; use a build with the feature kafka-tls";

/// Security that this build cannot speak, told before the client would fail over it.
fn unsupported_security(properties: &BTreeMap<String, String>) -> Option<(&'static str, String)> {
    let value = |name: &str| properties.get(name).map(|v| v.trim().to_ascii_lowercase());
    let protocol = value("security.protocol").unwrap_or_default();
    if !protocol.starts_with("sasl") {
        return None;
    }
    let mechanism = value("sasl.mechanisms").or_else(|| value("sasl.mechanism"));
    let what = match mechanism.as_deref() {
        Some("plain") => return None,
        Some("scram-sha-256" | "scram-sha-512") if TLS => return None,
        Some("scram-sha-256" | "scram-sha-512") => format!("asks for SCRAM, {NEEDS_TLS}"),
        Some(_) => {
            "is not spoken by answerback; use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512".to_owned()
        }
        None => "is missing; use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512".to_owned(),
    };
    Some(("sasl.mechanism", what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use answerback_contract::settings::testing::{MapSecrets, setting, settings, text};

    fn read(pairs: Vec<(&str, Setting)>) -> Result<KafkaTarget, Vec<String>> {
        let secrets = MapSecrets([("PW".to_owned(), "s3cret".to_owned())].into());
        let mut settings = settings(pairs, secrets);
        let shown = |p: Vec<Problem>| p.iter().map(ToString::to_string).collect::<Vec<_>>();
        let target = validate(Purpose::Announce, &mut settings).map_err(shown)?;
        settings.finish().map(|()| target).map_err(shown)
    }

    fn with(properties: &[(&str, Value)]) -> Result<KafkaTarget, Vec<String>> {
        let table = properties.iter().map(|(k, v)| ((*k).to_owned(), setting(v.clone())));
        read(vec![
            ("brokers", text("127.0.0.1:9092")),
            ("topic", text("waits")),
            ("properties", setting(Value::Table(table.collect()))),
        ])
    }

    fn string(text: &str) -> Value {
        Value::String(text.to_owned())
    }

    const ATTEMPT: Duration = Duration::from_secs(10);

    #[test]
    fn idempotence_and_acks_are_fixed_and_the_attempt_bounds_the_client() {
        let config = with(&[]).unwrap().client_config(ATTEMPT);
        for (name, value) in [
            ("bootstrap.servers", "127.0.0.1:9092"),
            ("enable.idempotence", "true"),
            ("acks", "all"),
            ("message.timeout.ms", "9000"),
            ("socket.timeout.ms", "10000"),
        ] {
            assert_eq!(config.get(name), Some(value), "{name}");
        }
        assert!(config.create_native_config().is_ok());
    }

    #[test]
    fn properties_pass_through_and_win_over_defaults() {
        let target = with(&[
            ("security.protocol", string("plaintext")),
            ("queue.buffering.max.ms", Value::Integer(7)),
            ("compression.type", string("gzip")),
            ("socket.keepalive.enable", Value::Boolean(true)),
            ("message.max.bytes", Value::Integer(5_000_000)),
        ])
        .unwrap();
        assert_eq!(target.message_bytes, 5_000_000);
        let config = target.client_config(ATTEMPT);
        assert_eq!(config.get("queue.buffering.max.ms"), Some("7"));
        assert_eq!(config.get("linger.ms"), None);
        assert_eq!(config.get("compression.type"), Some("gzip"));
        assert_eq!(config.get("socket.keepalive.enable"), Some("true"));
        assert!(config.create_native_config().is_ok());
    }

    #[test]
    fn a_property_that_breaks_a_guarantee_is_refused() {
        for (name, value) in [
            ("enable.idempotence", Value::Boolean(false)),
            ("acks", Value::Integer(1)),
            ("request.required.acks", string("0")),
            ("message.timeout.ms", Value::Integer(1)),
            ("delivery.timeout.ms", Value::Integer(1)),
            ("max.in.flight", Value::Integer(6)),
            ("retries", Value::Integer(0)),
            ("queuing.strategy", string("lifo")),
            ("transactional.id", string("x")),
            ("bootstrap.servers", string("x:1")),
            ("plugin.library.paths", string("x")),
        ] {
            let problems = with(&[(name, value)]).err().unwrap_or_default();
            assert_eq!(problems.len(), 1, "{name}: {problems:?}");
            let place = format!("test.toml:1: announcers.test.properties.{name}: ");
            assert!(problems[0].starts_with(&place), "{problems:?}");
        }
        for (name, value) in [
            ("enable.idempotence", Value::Boolean(true)),
            ("acks", string("all")),
            ("acks", Value::Integer(-1)),
            ("max.in.flight", Value::Integer(5)),
        ] {
            assert!(with(&[(name, value)]).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_client_s_own_parser_judges_the_rest() {
        let problems = with(&[("linger.mss", Value::Integer(1)), ("linger.ms", string("s3cret"))]);
        let problems = problems.err().unwrap();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(!problems.concat().contains("s3cret"));
    }

    #[test]
    fn passwords_come_by_reference() {
        let target = with(&[
            ("security.protocol", string("sasl_plaintext")),
            ("sasl.mechanism", string("PLAIN")),
            ("sasl.username", string("me")),
            ("sasl.password_env", string("PW")),
        ])
        .unwrap();
        assert_eq!(target.client_config(ATTEMPT).get("sasl.password"), Some("s3cret"));
        let problems = with(&[("sasl.password", string("s3cret"))]).err().unwrap();
        assert!(problems[0].contains("sasl.password_env"), "{problems:?}");
        assert!(!problems[0].contains("s3cret"), "{problems:?}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_without_the_feature_names_the_cure() {
        for properties in [
            &[("security.protocol", string("ssl"))][..],
            &[("security.protocol", string("SASL_SSL"))],
            &[("ssl.ca.location", string("/ca.pem"))],
            &[
                ("security.protocol", string("sasl_plaintext")),
                ("sasl.mechanism", string("SCRAM-SHA-256")),
            ],
        ] {
            let problems = with(properties).err().unwrap();
            assert!(problems[0].contains("feature kafka-tls"), "{problems:?}");
        }
        let problems = with(&[("security.protocol", string("sasl_plaintext"))]).err().unwrap();
        assert!(problems[0].contains("use PLAIN"), "{problems:?}");
    }

    #[test]
    fn brokers_and_topic_have_their_shape() {
        for (brokers, topic, good) in [
            ("a:9092", "waits", true),
            ("a:9092, b:9093", "waits.v1_x-y", true),
            ("[::1]:9092,kafka", "waits", true),
            ("[::1]:9092", "waits", true),
            ("", "waits", false),
            ("a:9092,", "waits", false),
            ("a:port", "waits", false),
            ("a:0", "waits", false),
            (":9092", "waits", false),
            ("a b:9092", "waits", false),
            ("a:9092", "", false),
            ("a:9092", "wa its", false),
            ("a:9092", "..", false),
        ] {
            let read = read(vec![("brokers", text(brokers)), ("topic", text(topic))]);
            assert_eq!(read.is_ok(), good, "{brokers:?} {topic:?} {:?}", read.err());
        }
    }
}
