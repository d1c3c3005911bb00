//! The configuration: `answerback.toml` and the environment into one typed [`Config`].
//!
//! `document` turns TOML into settings that know their line, `environment` lays variables over
//! them; then every table is read key by key, so that all problems are told at once, each with its
//! place, its key and what would be right (contract, section 7). [`Config::load`] is pure but for
//! the secrets it is handed; [`Config::read`] is the same for the process's own file and
//! environment.
//!
//! A key that this version cannot carry out is refused, never ignored; a key that takes effect
//! with something still missing is told in [`Config::notes`].

mod auth;
mod destinations;
mod document;
mod environment;
mod policies;
mod reading;
mod secrets;
mod sending;
mod server;
mod store;

pub use auth::{ApiKey, Auth, MIN_KEY_BYTES, Require, Scope, Scopes, WebhookSecret};
pub use destinations::{AnnouncerConfig, RouteConfig, RouteTo};
pub use policies::{Links, LogFormat, Rate, Remind, Retention, Telemetry, Waits};
pub use secrets::ProcessSecrets;
pub use sending::{ReplyToConfig, Sending};
pub use server::{Server, Tls};
pub use store::{PostgresUrl, StoreUrl};

use crate::registry::Registry;
use answerback_contract::settings::{Place, Problem, SecretStore, Settings};
use answerback_core::{AnnouncerRule, RouteRule, Rules};
use reading::Reading;
use server::ReadServer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Every setting with its default, explained. Reading it gives the same as reading nothing.
pub const DEFAULTS: &str = include_str!("../../answerback.default.toml");

/// The file that is read when none is named and it exists.
pub const DEFAULT_FILE: &str = "answerback.toml";

/// The whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[server]`.
    pub server: Server,
    /// `[store]`.
    pub store: StoreUrl,
    /// `[auth]`.
    pub auth: Auth,
    /// `[waits]`.
    pub waits: Waits,
    /// `[links]`.
    pub links: Links,
    /// `[announcers.NAME]`, by name; never empty.
    pub announcers: Vec<AnnouncerConfig>,
    /// `[[routes]]`, in order.
    pub routes: Vec<RouteConfig>,
    /// `[reply_to]`.
    pub reply_to: ReplyToConfig,
    /// `[retention]`.
    pub retention: Retention,
    /// `[telemetry]`.
    pub telemetry: Telemetry,
    /// What is not wrong but should be known: keys that take effect with a later version.
    pub notes: Vec<Problem>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What it says cannot be used: every problem, in the order of the places.
    #[error("{}", list(.0))]
    Wrong(Vec<Problem>),
}

/// One problem a line.
fn list(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// Reads the configuration of a process: the named file, else [`DEFAULT_FILE`] when it exists,
    /// else the defaults; and what its environment says.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong.
    pub fn read(
        file: Option<&Path>,
        variables: &BTreeMap<String, String>,
        registry: &Registry,
    ) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if file.is_none() && e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ConfigError::Unreadable { file: path.to_owned(), source }),
        };
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        let secrets = Arc::new(ProcessSecrets::new(variables.clone(), base));
        Self::load(&text, &path.display().to_string(), variables, registry, secrets)
            .map_err(ConfigError::Wrong)
    }

    /// Reads a text, with `variables` laid over it. `file` is how problems call the text; relative
    /// names of files are seen from its folder.
    ///
    /// # Errors
    /// Everything that is wrong, each with its place and cure.
    pub fn load(
        text: &str,
        file: &str,
        variables: &BTreeMap<String, String>,
        registry: &Registry,
        secrets: Arc<dyn SecretStore>,
    ) -> Result<Self, Vec<Problem>> {
        let mut table = document::parse(text, file)?;
        let mut reading = Reading {
            registry,
            secrets: Arc::clone(&secrets),
            base: Path::new(file).parent().unwrap_or(Path::new("")).to_owned(),
            problems: environment::overlay(&mut table, variables),
            notes: Vec::new(),
        };
        let top = Place::Line { file: file.into(), line: 1 };
        let mut root = Settings::new("", top, table, secrets);

        let auth = reading.section(&mut root, "auth", auth::read_auth);
        let read = reading.section(&mut root, "server", server::read_server);
        check_openness(&read, &auth, &mut reading);
        destinations::read_sources(&mut root);
        let config = Self {
            store: reading.section(&mut root, "store", store::read_store),
            waits: reading.section(&mut root, "waits", policies::read_waits),
            links: reading.section(&mut root, "links", policies::read_links),
            announcers: destinations::read_announcers(&mut root, &mut reading),
            routes: destinations::read_routes(&mut root, &mut reading),
            reply_to: reading.section(&mut root, "reply_to", sending::read_reply_to),
            retention: reading.section(&mut root, "retention", policies::read_retention),
            telemetry: reading.section(&mut root, "telemetry", policies::read_telemetry),
            server: read.server,
            auth,
            notes: std::mem::take(&mut reading.notes),
        };
        reading.finish(root);
        if reading.problems.is_empty() {
            return Ok(config);
        }
        reading.problems.sort_by_key(|problem| order(&problem.place));
        Err(reading.problems)
    }

    /// What decisions take from the configuration.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            announcers: self.announcers.iter().map(AnnouncerConfig::rule).collect(),
            routes: self.routes.iter().map(RouteConfig::rule).collect(),
            reply_to: self.reply_to.allow.clone(),
            republished: self.waits.republished_after_answer,
            enforce_allowed_actions: self.waits.enforce_allowed_actions,
        }
    }
}

impl AnnouncerConfig {
    fn rule(&self) -> AnnouncerRule {
        AnnouncerRule {
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            matcher: self.matcher.clone(),
            events: self.events.clone(),
            follows_state: self.target.follows_state(),
            ordered: self.ordered,
        }
    }
}

impl RouteConfig {
    fn rule(&self) -> RouteRule {
        RouteRule {
            name: self.name.clone(),
            tenant: self.tenant.clone(),
            matcher: self.matcher.clone(),
            pull: matches!(self.to, RouteTo::Pull),
        }
    }
}

/// Without keys, loopback only (contract, section 3).
fn check_openness(read: &ReadServer, auth: &Auth, reading: &mut Reading<'_>) {
    // Keys that have problems of their own are not in the list, but they are meant to be there.
    let keys_meant = reading.problems.iter().any(|p| p.key.starts_with("auth."));
    if !auth.keys.is_empty() || keys_meant {
        return;
    }
    const CURE: &str = "add a key: [auth] keys = [{ name = \"ops\", key_env = \"OPS_KEY\", scopes = [\"admin\"] }]";
    let mut refuse = |place: &Place, key: &str, what: String| {
        reading.problems.push(Problem { place: place.clone(), key: key.to_owned(), what });
    };
    if !read.server.listen.ip().to_canonical().is_loopback() {
        let listen = read.server.listen;
        let what = format!(
            "{listen} is open to others, but there are no keys; {CURE}, or listen on 127.0.0.1:{}",
            listen.port()
        );
        refuse(&read.listen_place, "server.listen", what);
    }
    if read.server.public_url.is_some() {
        let what = format!(
            "says that others reach this daemon, but there are no keys; {CURE}, or take it out"
        );
        refuse(&read.public_url_place, "server.public_url", what);
    }
}

/// Lines in their order, then variables.
fn order(place: &Place) -> (u8, usize, Arc<str>) {
    match place {
        Place::BuiltIn => (0, 0, "".into()),
        Place::Line { line, .. } => (1, *line, "".into()),
        Place::Variable(name) => (2, 0, Arc::clone(name)),
    }
}

#[cfg(test)]
mod tests;
