//! Whole configurations: what is read, what is refused, and with which words.

use super::*;
use answerback_contract::ExposeSecret;
use answerback_contract::settings::testing::MapSecrets;
use answerback_contract::{
    Announcer, ConnectError, Connecting, Event, Field, Kind, Limits, Purpose, Target, async_trait,
};
use answerback_core::Republished;
use answerback_core::breaker::Threshold;
use answerback_core::matching::TagValue;
use answerback_core::retry::Schedule;
use std::time::Duration;

/// A kind that wants a `url` and knows a limit.
struct Plain(&'static str);

struct PlainTarget(String);

impl Kind for Plain {
    fn name(&self) -> &'static str {
        self.0
    }

    fn fields(&self) -> &'static [Field] {
        &[Field { key: "url", required: true, help: "Where to." }]
    }

    fn validate(
        &self,
        _: Purpose,
        settings: &mut Settings,
    ) -> Result<Arc<dyn Target>, Vec<Problem>> {
        if self.0 == "log" {
            return Ok(Arc::new(PlainTarget("the log".to_owned())));
        }
        let url = settings.required_string("url", "where to");
        if url.is_empty() {
            return Err(settings.take_problems());
        }
        Ok(Arc::new(PlainTarget(url)))
    }
}

#[async_trait]
impl Target for PlainTarget {
    fn limits(&self) -> Limits {
        Limits { batch_messages: 10, batch_bytes: 2_000, message_bytes: 1_000 }
    }

    fn describe(&self) -> String {
        self.0.clone()
    }

    async fn connect(&self, _: &Connecting) -> Result<Arc<dyn Announcer>, ConnectError> {
        Err(ConnectError { what: "is only a test".to_owned(), source: None })
    }
}

fn registry() -> Registry {
    let mut registry = Registry::empty();
    registry.add(&[Purpose::Announce], Arc::new(Plain("log")));
    registry.add(&[Purpose::Announce], Arc::new(Plain("webhook")));
    registry.add(&[Purpose::Answer], Arc::new(Plain("http")));
    registry
}

fn secrets() -> Arc<MapSecrets> {
    let pairs = [
        ("KEY", "0123456789abcdef"),
        ("OTHER", "fedcba9876543210"),
        ("SHORT", "0123456789abcde"),
        ("BLANK", "0123456789 abcdef"),
        ("file:tls.crt", "x"),
        ("file:tls.key", "x"),
        ("STORE", "postgres://u:s3cret@h/db"),
        ("STORE_DIRECT", "postgres://u:s3cret@direct/db"),
    ];
    Arc::new(MapSecrets(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()))
}

fn load_with(text: &str, variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Config::load(text, "a.toml", &variables, &registry(), secrets())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn load(text: &str) -> Config {
    load_with(text, &[]).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    load_with(text, &[]).err().unwrap_or_default()
}

#[test]
fn nothing_configured_is_loopback_a_file_and_a_log() {
    let config = load("");
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.server.shutdown_grace, Duration::from_secs(20));
    assert_eq!(config.store, StoreUrl::Sqlite("answerback.db".into()));
    assert_eq!(config.announcers.len(), 1);
    assert_eq!((config.announcers[0].name.as_str(), config.announcers[0].kind), ("log", "log"));
    assert!(config.auth.keys.is_empty() && config.routes.is_empty() && config.notes.is_empty());
    assert_eq!(config.retention.closed, Duration::from_secs(30 * 86_400));
    assert_eq!(config.retention.dead, Duration::from_secs(90 * 86_400));
    assert_eq!(config.rules().republished, Republished::Resend);
}

#[test]
fn the_defaults_file_says_what_holds_without_it() {
    assert_eq!(format!("{:?}", load(DEFAULTS)), format!("{:?}", load("")));
}

#[test]
fn every_setting_of_the_defaults_file_exists_also_those_that_are_commented_out() {
    let text: String = DEFAULTS
        .lines()
        .map(|line| match line.strip_prefix('#') {
            // One key stands twice where the default and an example differ: keep the example.
            Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase()) => setting,
            _ => line,
        })
        .fold(Vec::<&str>::new(), |mut lines, line| {
            let key = |line: &str| line.split_once(" = ").map(|(key, _)| key.to_owned());
            if key(line).is_some() && lines.last().and_then(|last| key(last)) == key(line) {
                lines.pop();
            }
            lines.push(line);
            lines
        })
        .join("\n");
    assert_ne!(text, DEFAULTS);
    let unknown: Vec<_> =
        problems(&text).into_iter().filter(|p| p.contains("is no key of this table")).collect();
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn an_announcer_has_every_common_setting() {
    let config = load(
        r#"
        [announcers.Finance_eu-1]
        type = "webhook"
        url = "x"
        tenant = "acme"
        match = { tags = { group = ["finance", "treasury"], n = 5, f = 1.5, b = true }, source_function = "f", thread_prefix = ["a-", "b-"], actions = ["approve"] }
        events = ["wait.created", "wait.timed-out"]
        max_in_flight = 7
        ordering = "none"
        retry = { initial = "1s", max = "1m", max_age = "2h" }
        breaker = { failures = 3, pause = "2s", max_pause = "PT1M" }
        timeout = "3s"
        max_bytes = 1000
        include_answer = true
        claim_check = false
        "#,
    );
    let a = &config.announcers[0];
    assert_eq!(config.announcers.len(), 1, "no log beside what is configured");
    assert_eq!(a.name.as_str(), "Finance_eu-1");
    assert_eq!(a.tenant.as_str(), "acme");
    assert_eq!(a.events, [Event::Created, Event::TimedOut]);
    assert!(!a.ordered && a.include_answer);
    assert_eq!(a.sending.max_in_flight, 7);
    assert_eq!(a.sending.timeout, Duration::from_secs(3));
    assert_eq!(a.sending.max_bytes, Some(1_000));
    assert_eq!(
        a.sending.retry,
        Schedule {
            initial: Duration::from_secs(1),
            max: Duration::from_secs(60),
            max_age: Duration::from_secs(7_200)
        }
    );
    assert_eq!(
        a.sending.breaker,
        Threshold {
            failures: 3,
            pause: Duration::from_secs(2),
            max_pause: Duration::from_secs(60)
        }
    );
    let tag = |name: &str| a.matcher.tags.iter().find(|(n, _)| n == name).unwrap().1.clone();
    assert_eq!(
        tag("group"),
        [TagValue::Text("finance".to_owned()), TagValue::Text("treasury".to_owned())]
    );
    assert_eq!(tag("n"), [TagValue::Number("5".to_owned())]);
    assert_eq!(tag("f"), [TagValue::Number("1.5".to_owned())]);
    assert_eq!(tag("b"), [TagValue::Bool(true)]);
    assert_eq!(a.matcher.thread_prefixes, ["a-", "b-"]);
    let rules = config.rules();
    assert!(rules.announcers[0].wants(Event::TimedOut) && !rules.announcers[0].ordered);
}

#[test]
fn routes_keep_their_order_and_may_be_pulled() {
    let config = load(
        r#"
        [[routes]]
        name = "z"
        type = "http"
        url = "u"
        match = { thread_prefix = "order-" }
        [[routes]]
        name = "pull"
        type = "pull"
        "#,
    );
    let rules = config.rules();
    let seen: Vec<_> = rules.routes.iter().map(|r| (r.name.as_str(), r.pull)).collect();
    assert_eq!(seen, [("z", false), ("pull", true)]);
    assert!(matches!(&config.routes[0].to, RouteTo::Send { kind: "http", .. }));
}

#[test]
fn keys_have_scopes_and_a_tenant() {
    let config = load(
        r#"
        [server]
        listen = "0.0.0.0:80"
        public_url = "https://h/x/"
        trusted_proxies = ["10.1.2.3/8", "::1"]
        tls = { cert_file = "tls.crt", key_file = "tls.key" }
        [auth]
        keys = [
          { name = "agents", key_env = "KEY", scopes = ["publish"] },
          { name = "ops", key_env = "OTHER", scopes = "admin", tenant = "acme" },
        ]
        webhook_secrets = [{ name = "agent-wait", secret_env = "SHORT" }]
        require = "both"
        "#,
    );
    let [agents, ops] = &config.auth.keys[..] else { panic!() };
    assert!(agents.scopes.allow(Scope::Publish) && !agents.scopes.allow(Scope::Read));
    assert!(Scope::ALL.into_iter().all(|scope| ops.scopes.allow(scope)));
    assert_eq!((agents.tenant.as_str(), ops.tenant.as_str()), ("default", "acme"));
    assert_eq!(config.auth.require, Require::Both);
    assert_eq!(config.server.public_url.unwrap().as_str(), "https://h/x");
    assert_eq!(config.server.trusted_proxies[0].to_string(), "10.0.0.0/8");
    assert_eq!(config.server.tls.unwrap().key_file, Path::new("tls.key"));
}

#[test]
fn a_key_out_of_a_file_and_an_empty_array_are_told_as_what_they_are() {
    let told = problems(
        r#"[auth]
keys = [
  { name = "a", key_file = "tls.crt", scopes = ["read"] },
  { name = "b", key_env = "KEY", scopes = [] },
]
[announcers.l]
type = "log"
match = { actions = [], thread_prefix = [], source_function = "f" }
max_in_flight = "32"
include_answer = "true"
"#,
    );
    let empty = "is empty; name one at least, or take it out";
    assert_eq!(
        told,
        [
            "a.toml:3: auth.keys[0].key_file: the key is shorter than 16 bytes; make a longer one, such as by `openssl rand -hex 32`".to_owned(),
            format!("a.toml:4: auth.keys[1].scopes: {empty}"),
            format!("a.toml:8: announcers.l.match.thread_prefix: {empty}"),
            format!("a.toml:8: announcers.l.match.actions: {empty}"),
            "a.toml:9: announcers.l.max_in_flight: is a string, but must be an integer".to_owned(),
            "a.toml:10: announcers.l.include_answer: is a string, but must be true or false"
                .to_owned(),
        ]
    );
}

#[test]
fn variables_win_and_are_named_in_problems() {
    let config = load_with(
        "[server]\nlisten = \"127.0.0.1:1\"\n[announcers.my-hook]\ntype = \"webhook\"\nurl = \"a\"\n",
        &[
            ("ANSWERBACK_SERVER__LISTEN", "[::1]:2"),
            ("ANSWERBACK_ANNOUNCERS__MY_HOOK__URL", "b"),
            ("ANSWERBACK_ANNOUNCERS__MY_HOOK__MAX_IN_FLIGHT", "3"),
            ("ANSWERBACK_WAITS__ENFORCE_ALLOWED_ACTIONS", "true"),
            ("ANSWERBACK_AUTH__KEYS", "[{ name = \"k\", key_env = \"KEY\", scopes = [\"read\"] }]"),
            ("ANSWERBACK_API_KEY", "not a setting"),
        ],
    )
    .unwrap();
    assert_eq!(config.server.listen.to_string(), "[::1]:2");
    assert_eq!(config.announcers[0].target.describe(), "b");
    assert_eq!(config.announcers[0].sending.max_in_flight, 3);
    assert!(config.waits.enforce_allowed_actions);
    assert_eq!(config.auth.keys.len(), 1);
    let wrong = load_with("", &[("ANSWERBACK_SERVER__LISTN", "x")]).unwrap_err();
    assert_eq!(
        wrong,
        [
            "environment variable ANSWERBACK_SERVER__LISTN: server.listn: is no key of this table; did you mean \"listen\"?"
        ]
    );
}

#[test]
fn without_keys_it_is_not_open_to_others() {
    let open = problems("[server]\nlisten = \"0.0.0.0:8080\"\npublic_url = \"https://h\"\n");
    assert_eq!(open.len(), 2);
    assert!(open[0].starts_with("a.toml:2: server.listen: 0.0.0.0:8080 is open to others, but there are no keys; add a key: [auth] keys = "), "{open:?}");
    assert!(open[0].ends_with("or listen on 127.0.0.1:8080"));
    assert!(open[1].starts_with("a.toml:3: server.public_url: "));
    for loopback in ["127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(load_with(&format!("[server]\nlisten = \"{loopback}\"\n"), &[]).is_ok());
    }
    let secret_only = problems(
        "[server]\nlisten = \"0.0.0.0:1\"\n[auth]\nwebhook_secrets = [{ name = \"a\", secret_env = \"KEY\" }]\n",
    );
    assert_eq!(secret_only.len(), 1, "a webhook secret is no key: {secret_only:?}");
    let broken_key = problems(
        "[server]\nlisten = \"0.0.0.0:1\"\n[auth]\nkeys = [{ name = \"a\", key_env = \"NONE\", scopes = [\"read\"] }]\n",
    );
    assert_eq!(
        broken_key,
        [
            "a.toml:4: auth.keys[0].key_env: the environment variable NONE is not set; set it to the secret"
        ]
    );
}

#[test]
fn what_this_version_cannot_do_is_refused_and_never_ignored() {
    let text = r#"
[sources.requests]
type = "kafka"
[announcers.bus]
type = "eventbridge"
bus = "agents"
[announcers.a]
type = "webhook"
url = "x"
claim_check = true
include_link = true
match = { expr = "true" }
[[routes]]
name = "l"
type = "lambda"
[telemetry]
otlp_endpoint = "http://127.0.0.1:4318"
"#;
    let problems = problems(text);
    let keys: Vec<_> = problems.iter().map(|p| p.split(": ").nth(1).unwrap()).collect();
    assert_eq!(
        keys,
        [
            "sources.requests",
            "announcers.bus.type",
            "announcers.a.claim_check",
            "announcers.a.include_link",
            "announcers.a.match.expr",
            "routes[0].type",
            "telemetry.otlp_endpoint",
        ]
    );
    for problem in problems {
        assert!(problem.contains("not supported by this version"), "{problem}");
        assert!(!problem.contains("s3cret"), "{problem}");
    }
}

#[test]
fn what_takes_effect_later_is_taken_and_told() {
    let config = load(
        "[waits]\nearly_answer_hold = \"60s\"\nremind = [\"50%\", \"1h before\"]\n[links]\nrate_limit = \"10/s\"\n[announcers.a]\ntype = \"log\"\nevents = [\"wait.reminder\"]\n",
    );
    let notes: Vec<_> = config.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(notes[0].starts_with("a.toml:2: waits.early_answer_hold: has no effect"), "{notes:?}");
    assert_eq!(config.waits.remind.len(), 2);
    assert_eq!(config.links.rate_limit.count.get(), 10);
}

#[test]
fn a_database_with_a_password_comes_by_a_secret_only() {
    let config = load("[store]\nurl_env = \"STORE\"\nlisten_url_env = \"STORE_DIRECT\"\n");
    let StoreUrl::Postgres(postgres) = &config.store else { panic!("{}", config.store) };
    assert_eq!(postgres.url.expose_secret(), "postgres://u:s3cret@h/db");
    let listen_url = postgres.listen_url.as_ref().unwrap();
    assert_eq!(listen_url.expose_secret(), "postgres://u:s3cret@direct/db");
    assert!(!format!("{config:?}").contains("s3cret"));
    assert_eq!(load("[store]\nurl = \"postgres://u@h/db\"\n").store.to_string(), "postgres://h/db");
    let by_variable = load_with("", &[("ANSWERBACK_STORE__URL", "postgres://u:s3cret@h/db")]);
    assert_eq!(by_variable.unwrap().store.to_string(), "postgres://h/db");

    for (text, what) in [
        ("url = \"postgres://u:s3cret@h/db\"", "a.toml:2: store.url: a password must not"),
        ("url = \"postgres://h/db?password=s3cret\"", "a.toml:2: store.url: a password must not"),
        (
            "url = \"postgres://h/db\"\nlisten_url = \"postgres://u:s3cret@h/db\"",
            "a.toml:3: store.listen_url: a password must not stand in the configuration; put the whole URL into an environment variable and name it by listen_url_env, or",
        ),
        ("url_env = \"KEY\"", "a.toml:2: store.url_env: is no store"),
        ("url = \"sqlite:a\"\nurl_env = \"STORE\"", "a.toml:2: store.url: stands beside"),
        (
            "listen_url = \"postgres://h/db\"",
            "a.toml:2: store.listen_url: is only for a PostgreSQL",
        ),
        (
            "url = \"postgres://h/db\"\nlisten_url = \"sqlite:a\"",
            "a.toml:3: store.listen_url: is no PostgreSQL",
        ),
    ] {
        let problems = problems(&format!("[store]\n{text}\n"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(what), "{problems:?}");
        assert!(!problems[0].contains("s3cret"), "{problems:?}");
    }
}

/// What an operator sees of a file in which everything is wrong. The words are kept in a file:
/// set `UPDATE_GOLDEN=1` to write it anew, and read the difference.
#[test]
fn every_problem_is_told_at_once_with_line_key_and_cure() {
    let text = include_str!("../../tests/golden/config-wrong.toml");
    let seen = problems(text).join("\n") + "\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/config-wrong.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &seen).unwrap();
    }
    assert_eq!(seen, std::fs::read_to_string(path).unwrap_or_default());
}
