//! `[store]`: where everything is kept.

use super::reading::Reading;
use answerback_contract::settings::{Place, Settings};
use answerback_contract::{ExposeSecret, SecretString};
use std::fmt;
use std::path::PathBuf;

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`: one file, relative names from the working directory.
    Sqlite(PathBuf),
    /// `sqlite::memory:`: gone with the process; for tests.
    Memory,
    /// `postgres://…` or `postgresql://…`: a database that many daemons share.
    Postgres(PostgresUrl),
}

/// A PostgreSQL database: `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS`, checked as far as that
/// goes without connecting.
#[derive(Clone, Debug)]
pub struct PostgresUrl {
    /// How to connect, parameters such as `sslmode` included.
    pub url: SecretString,
    /// How to connect for `LISTEN`, where `url` leads to a proxy that pools transactions.
    pub listen_url: Option<SecretString>,
}

impl PostgresUrl {
    /// Whether the URL holds a password, and so may stand only where nobody else reads it.
    #[must_use]
    pub fn has_password(&self) -> bool {
        Parts::of(self.url.expose_secret()).is_ok_and(|parts| parts.has_password)
    }
}

impl PartialEq for PostgresUrl {
    fn eq(&self, other: &Self) -> bool {
        let text = |url: &Option<SecretString>| url.as_ref().map(|u| u.expose_secret().to_owned());
        self.url.expose_secret() == other.url.expose_secret()
            && text(&self.listen_url) == text(&other.listen_url)
    }
}

impl Eq for PostgresUrl {}

impl fmt::Display for StoreUrl {
    /// Without user, password and parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("sqlite::memory:"),
            Self::Postgres(PostgresUrl { url, .. }) => match Parts::of(url.expose_secret()) {
                Ok(parts) => write!(f, "postgres://{}/{}", parts.hosts, parts.database),
                // It was checked when it was read.
                Err(_) => f.write_str("postgres:"),
            },
        }
    }
}

impl StoreUrl {
    /// Reads a store's URL, as `[store] url` has it.
    ///
    /// # Errors
    /// What is wrong with it and what would be right. The URL itself stays out of the message: it can hold a
    /// password.
    pub fn parse(text: &str) -> Result<Self, String> {
        const RIGHT: &str =
            "write sqlite:PATH, such as \"sqlite:answerback.db\", or postgres://HOST/DATABASE";
        match text.split_once(':') {
            Some(("sqlite", ":memory:")) => Ok(Self::Memory),
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() || path.contains(['?', '\0']) {
                    return Err(format!("names no file; {RIGHT}"));
                }
                Ok(Self::Sqlite(path.into()))
            }
            Some(("postgres" | "postgresql", _)) => {
                Parts::of(text)?;
                Ok(Self::Postgres(PostgresUrl { url: text.into(), listen_url: None }))
            }
            _ => Err(format!("is no store; {RIGHT}")),
        }
    }
}

/// What a PostgreSQL URL names. Not by a general URL parser: it may name several hosts, for servers that take
/// over from each other.
struct Parts<'t> {
    hosts: &'t str,
    database: &'t str,
    has_password: bool,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str) -> Result<Self, String> {
        const RIGHT: &str = "write postgres://USER@HOST:PORT/DATABASE";
        const ESCAPES: &str =
            "with the characters / ? @ : % of user and password as %2F %3F %40 %3A %25";
        let Some(("postgres" | "postgresql", rest)) = text.split_once("://") else {
            return Err(format!("is no URL of a PostgreSQL database; {RIGHT}"));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let parameter = |name| {
            let named = query.split('&').filter_map(|pair| pair.split_once('='));
            named.filter(|(n, v)| *n == name && !v.is_empty()).map(|(_, v)| v).next()
        };
        let hosts = if hosts.is_empty() { parameter("host").unwrap_or("") } else { hosts };
        if hosts.is_empty() {
            return Err(format!("names no host; {RIGHT}"));
        }
        if !hosts.split(',').all(has_right_port) {
            return Err(format!("has a port that is none; {RIGHT}, {ESCAPES}"));
        }
        let database =
            if database.is_empty() { parameter("dbname").unwrap_or("") } else { database };
        if database.is_empty() || database.contains(['/', '#', '@']) {
            return Err(format!("names no database; {RIGHT}, {ESCAPES}"));
        }
        let has_password = user.contains(':') || parameter("password").is_some();
        Ok(Self { hosts, database, has_password })
    }
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn has_right_port(host: &str) -> bool {
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    match after.split_once(':') {
        Some((_, port)) => port.parse::<u16>().is_ok_and(|p| p != 0),
        None => true,
    }
}

/// A URL that the configuration gives, and where.
struct Given {
    text: String,
    key: &'static str,
    place: Place,
}

/// Takes a URL that may stand in the file as long as it holds no password, or be named by a secret's keys.
fn given(settings: &mut Settings, keys: [&'static str; 3]) -> Option<Given> {
    let [plain, env, file] = keys;
    let places = keys.map(|key| settings.has(key).then(|| settings.place_of(key)));
    let text = settings.string(plain);
    let secret = settings.secret(env, file);
    let [plain_place, env_place, file_place] = places;
    if let Some(place) = plain_place {
        if env_place.is_some() || file_place.is_some() {
            settings.problem(
                plain,
                place,
                format!("stands beside {env} or {file}; keep one of them"),
            );
            return None;
        }
        return text.map(|text| Given { text, key: plain, place });
    }
    let (key, place) = env_place.map(|p| (env, p)).or_else(|| file_place.map(|p| (file, p)))?;
    secret.map(|secret| Given { text: secret.expose_secret().to_owned(), key, place })
}

pub(super) fn read_store(settings: &mut Settings, _: &mut Reading<'_>) -> StoreUrl {
    let named = ["url", "url_env", "url_file"].iter().any(|key| settings.has(key));
    let url = given(settings, ["url", "url_env", "url_file"]);
    let listen_url = given(settings, ["listen_url", "listen_url_env", "listen_url_file"]);
    let mut store = match url {
        Some(url) => match read_url(settings, &url, "url_env", "url_file") {
            Some(store) => store,
            None => return StoreUrl::Memory,
        },
        None if named => return StoreUrl::Memory,
        None => StoreUrl::Sqlite("answerback.db".into()),
    };
    let Some(listen) = listen_url else { return store };
    match &mut store {
        StoreUrl::Postgres(postgres) => {
            let read = read_url(settings, &listen, "listen_url_env", "listen_url_file");
            match read {
                Some(StoreUrl::Postgres(PostgresUrl { url, .. })) => postgres.listen_url = Some(url),
                Some(_) => settings.problem(
                    listen.key,
                    listen.place,
                    "is no PostgreSQL; write postgres://HOST/DATABASE, the same database as url without the proxy between",
                ),
                None => {}
            }
        }
        StoreUrl::Sqlite(_) | StoreUrl::Memory => settings.problem(
            listen.key,
            listen.place,
            "is only for a PostgreSQL store, which url does not name; remove it",
        ),
    }
    store
}

fn read_url(
    settings: &mut Settings,
    given: &Given,
    env: &'static str,
    file: &'static str,
) -> Option<StoreUrl> {
    let what = match StoreUrl::parse(&given.text) {
        // What the environment says is no part of the file, under whichever name.
        Ok(StoreUrl::Postgres(_))
            if matches!(given.place, Place::Line { .. })
                && given.key != env
                && given.key != file
                && Parts::of(&given.text).is_ok_and(|parts| parts.has_password) =>
        {
            format!(
                "a password must not stand in the configuration; put the whole URL into an environment variable and name it by {env}, or into a file and name it by {file}"
            )
        }
        Ok(store) => return Some(store),
        Err(what) => what,
    };
    settings.problem(given.key, given.place.clone(), what);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_a_file_memory_or_a_database() {
        let parse = StoreUrl::parse;
        assert_eq!(parse("sqlite:a/b.db"), Ok(StoreUrl::Sqlite("a/b.db".into())));
        assert_eq!(parse("sqlite:///var/a.db"), Ok(StoreUrl::Sqlite("/var/a.db".into())));
        assert_eq!(parse("sqlite::memory:"), Ok(StoreUrl::Memory));
        for bad in ["", "answerback.db", "sqlite:", "sqlite://", "mysql://x", "sqlite:a?mode=ro"] {
            let what = parse(bad).unwrap_err();
            assert!(what.contains("sqlite:PATH") && what.contains("postgres://"), "{bad}");
        }
        for good in [
            "postgres://h/db",
            "postgresql://user:s3cret@h:5432/db?sslmode=verify-full&sslrootcert=/ca.pem",
            "postgres://u@[::1]:5432/db",
            "postgres://u@[::1]/db",
            "postgres://u@a:5432,b:5433/db?target_session_attrs=read-write",
            "postgres://u@/db?host=/run/postgresql",
            "postgres://u@h?dbname=db",
        ] {
            assert!(matches!(parse(good), Ok(StoreUrl::Postgres(_))), "{good}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_database_is_told_without_its_password() {
        for (bad, what) in [
            ("postgres:s3cret", "is no URL"),
            ("postgres:///db", "no host"),
            ("postgres://u:s3cret@/db", "no host"),
            ("postgres://u:s3cret@h", "no database"),
            ("postgres://u:s3cret@h/", "no database"),
            ("postgres://u:s3cret@h:0/db", "a port"),
            ("postgres://u:s3cret@h:x/db", "a port"),
            ("postgres://u:s3cret/1@h/db", "%2F"),
            ("postgres://u:s3cret?1@h/db", "%3F"),
        ] {
            let said = StoreUrl::parse(bad).unwrap_err();
            assert!(said.contains(what), "{bad}: {said}");
            assert!(!said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn a_database_is_shown_without_user_password_and_parameters() {
        let url = "postgres://user:s3cret@h:5432/db?password=s3cret&application_name=x";
        let store = StoreUrl::parse(url).unwrap();
        assert_eq!(store.to_string(), "postgres://h:5432/db");
        assert!(!format!("{store:?}").contains("s3cret"));
    }
}
