//! `[auth]`: who may do what.

use super::reading::{Reading, check_name, one_or_many, parsed, tenant};
use answerback_contract::settings::{Place, Settings};
use answerback_contract::{ExposeSecret, SecretString, TenantId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The fewest bytes of a key: shorter ones can be guessed.
pub const MIN_KEY_BYTES: usize = 16;

/// `[auth]`.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    /// The keys of callers.
    pub keys: Vec<ApiKey>,
    /// The secrets that sign what agent-wait publishes.
    pub webhook_secrets: Vec<WebhookSecret>,
    /// What a publish must carry.
    pub require: Require,
}

/// What `POST /v1/waits` must carry once both keys and webhook secrets are configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Require {
    /// A key or a signature.
    #[default]
    Any,
    /// Both.
    Both,
}

/// A caller's key.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// What lists and `answered_by` call it.
    pub name: Arc<str>,
    /// The bearer token.
    pub secret: SecretString,
    /// What it may do.
    pub scopes: Scopes,
    /// Whose waits it sees.
    pub tenant: TenantId,
}

/// A secret of a publisher that signs (`X-Agent-Wait-Signature`).
#[derive(Clone, Debug)]
pub struct WebhookSecret {
    /// What logs call it.
    pub name: Arc<str>,
    /// The secret, used as its literal bytes.
    pub secret: SecretString,
    /// Whose waits it publishes.
    pub tenant: TenantId,
}

/// What a key may do (contract, section 3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// Ask and withdraw.
    Publish,
    /// Answer.
    Answer,
    /// Look.
    Read,
    /// Everything.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Publish, Self::Answer, Self::Read, Self::Admin];

    /// The name as it stands in the configuration and in `details.scope`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Answer => "answer",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

/// The scopes of one key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Those scopes.
    #[must_use]
    pub fn of(scopes: &[Scope]) -> Self {
        Self(scopes.iter().copied().collect())
    }

    /// Whether they include this one; `admin` includes all.
    #[must_use]
    pub fn allow(&self, scope: Scope) -> bool {
        self.0.contains(&scope) || self.0.contains(&Scope::Admin)
    }
}

pub(super) fn read_auth(settings: &mut Settings, reading: &mut Reading<'_>) -> Auth {
    let require_place = settings.place_of("require");
    let mut keys: Vec<ApiKey> = Vec::new();
    let mut names = Vec::new();
    for mut item in reading.items(settings, "keys") {
        if let Some(key) = read_key(&mut item, &mut names, &keys) {
            keys.push(key);
        }
        reading.finish(item);
    }
    let mut webhook_secrets: Vec<WebhookSecret> = Vec::new();
    let mut names = Vec::new();
    for mut item in reading.items(settings, "webhook_secrets") {
        if let Some(secret) = read_webhook_secret(&mut item, &mut names, &webhook_secrets) {
            webhook_secrets.push(secret);
        }
        reading.finish(item);
    }
    let require = settings
        .choice("require", &[("any", Require::Any), ("both", Require::Both)])
        .unwrap_or_default();
    // A secret with a problem is not in the list: do not follow up one problem with another.
    let complete = !settings.has_problems() && reading.problems.is_empty();
    if require == Require::Both && complete && (keys.is_empty() || webhook_secrets.is_empty()) {
        let what = "\"both\" needs keys and webhook_secrets; add what is missing, or write \"any\"";
        settings.problem("require", require_place, what);
    }
    Auth { keys, webhook_secrets, require }
}

fn read_key(
    settings: &mut Settings,
    names: &mut Vec<Arc<str>>,
    others: &[ApiKey],
) -> Option<ApiKey> {
    let (key, place) = given(settings, "key_env", "key_file");
    let name = read_name(settings, names);
    let secret = read_secret(settings, "key_env", "key_file");
    let scopes = read_scopes(settings);
    let tenant = tenant(settings);
    let secret = secret?;
    if secret.expose_secret().len() < MIN_KEY_BYTES {
        let what = format!(
            "the key is shorter than {MIN_KEY_BYTES} bytes; make a longer one, such as by `openssl rand -hex 32`"
        );
        settings.problem(key, place, what);
        return None;
    }
    if !secret.expose_secret().bytes().all(|b| b.is_ascii_graphic()) {
        let what = "the key has a blank or a character that is not ASCII, which no Authorization header can carry; make another";
        settings.problem(key, place, what);
        return None;
    }
    if let Some(other) = others.iter().find(|k| k.secret.expose_secret() == secret.expose_secret())
    {
        let what = format!("is the same key as that of {:?}; give each its own", other.name);
        settings.problem(key, place, what);
        return None;
    }
    Some(ApiKey { name: name?, secret, scopes: scopes?, tenant })
}

fn read_webhook_secret(
    settings: &mut Settings,
    names: &mut Vec<Arc<str>>,
    others: &[WebhookSecret],
) -> Option<WebhookSecret> {
    let (key, place) = given(settings, "secret_env", "secret_file");
    let name = read_name(settings, names);
    let secret = read_secret(settings, "secret_env", "secret_file");
    let tenant = tenant(settings);
    let secret = secret?;
    if let Some(other) = others.iter().find(|s| s.secret.expose_secret() == secret.expose_secret())
    {
        let what = format!("is the same secret as that of {:?}; give each its own", other.name);
        settings.problem(key, place, what);
        return None;
    }
    Some(WebhookSecret { name: name?, secret, tenant })
}

/// By which of two keys a secret is given, and where that stands.
fn given(
    settings: &Settings,
    env_key: &'static str,
    file_key: &'static str,
) -> (&'static str, Place) {
    let by_file = settings.has(file_key) && !settings.has(env_key);
    let key = if by_file { file_key } else { env_key };
    (key, settings.place_of(key))
}

/// A name that is not among `names`, which it joins.
fn read_name(settings: &mut Settings, names: &mut Vec<Arc<str>>) -> Option<Arc<str>> {
    if !settings.has("name") {
        settings.required_string("name", "a name, which is how lists and logs call it");
        return None;
    }
    parsed(settings, "name", |text| {
        check_name(text)?;
        if names.iter().any(|name| **name == *text) {
            return Err(format!("{text:?} stands twice; names must differ"));
        }
        let name: Arc<str> = text.into();
        names.push(Arc::clone(&name));
        Ok(name)
    })
}

fn read_secret(
    settings: &mut Settings,
    env_key: &'static str,
    file_key: &'static str,
) -> Option<SecretString> {
    let plain = env_key.strip_suffix("_env").unwrap_or(env_key);
    let given = [env_key, file_key, plain].into_iter().any(|key| settings.has(key));
    let secret = settings.secret(env_key, file_key);
    if !given {
        settings.missing(
            env_key,
            "the name of an environment variable here, or a file's by the key that ends in _file",
        );
    }
    secret
}

fn read_scopes(settings: &mut Settings) -> Option<Scopes> {
    let place: Place = settings.place_of("scopes");
    if !settings.has("scopes") {
        settings.take("scopes");
        settings.missing("scopes", "some of \"publish\", \"answer\", \"read\", \"admin\"");
        return None;
    }
    let mut scopes = BTreeSet::new();
    // Without a scope the key could do nothing: an empty array is refused like a missing one.
    for text in one_or_many(settings, "scopes") {
        match Scope::ALL.into_iter().find(|s| s.name() == text) {
            Some(scope) => {
                scopes.insert(scope);
            }
            None => settings.problem(
                "scopes",
                place.clone(),
                format!(
                    "{text:?} is no scope; there are \"publish\", \"answer\", \"read\", \"admin\""
                ),
            ),
        }
    }
    Some(Scopes(scopes))
}
