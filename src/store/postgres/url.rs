//! What a URL of PostgreSQL means, and connections by it.
//!
//! URLs are those of libpq, with its words for how much TLS is wanted:
//!
//! | `sslmode`           | encrypted         | the server is checked                              |
//! |---------------------|-------------------|----------------------------------------------------|
//! | `disable`           | no                | no                                                 |
//! | `prefer` (if unset) | when it offers to | no                                                 |
//! | `require`           | yes               | no; as `verify-ca` when there is a `sslrootcert`   |
//! | `verify-ca`         | yes               | by its certificate, whatever name that is for      |
//! | `verify-full`       | yes               | by its certificate, which must be for the host     |
//!
//! `sslrootcert` names a file of certificates in PEM to trust; `system`, and nothing, stand for what
//! the system trusts. `sslrootcert=system` alone means `verify-full`. Unix sockets never use TLS.

use super::open::OpenError;
use super::tls::{Check, Tls};
use secrecy::{ExposeSecret, SecretString};
use std::path::PathBuf;
use std::time::Duration;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};

/// How long one address may take to accept a connection, unless the URL says otherwise.
const CONNECT: Duration = Duration::from_secs(5);
/// How long what was sent may stay without a sign of the other side.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);
/// An idle connection is tried after this, and then so often and so many times.
const IDLE: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// What tokio-postgres has when the URL says nothing.
const IDLE_UNSET: Duration = Duration::from_secs(2 * 3_600);

/// A connection that is to be driven, with the client that uses it.
pub(super) type Connected = (Client, Connection<Socket, <Tls as MakeTlsConnect<Socket>>::Stream>);

/// A database, and how to get there. Cheap to clone.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) tls: Tls,
    /// The server may be anybody: nobody checks it, and it is not on this machine.
    pub(super) unchecked: bool,
}

impl Target {
    /// Reads a URL.
    pub(super) fn parse(url: &SecretString) -> Result<Self, OpenError> {
        let Parts { plain, mode, root } = take_apart(url.expose_secret())?;
        let mut config: Config =
            plain.parse().map_err(|error: tokio_postgres::Error| bad(&cause(&error)))?;
        let tcp: Vec<String> = hosts(&config)?;
        let wanted = Wanted::of(mode.as_deref(), root.as_deref())?;
        let wanted = if tcp.is_empty() { Wanted::nothing() } else { wanted };
        config.ssl_mode(wanted.mode);
        settle(&mut config);
        let tls = Tls::new(&wanted.check, config.get_ssl_negotiation())?;
        let unchecked = wanted.check == Check::Nothing && tcp.iter().any(|host| !is_here(host));
        Ok(Self { config, tls, unchecked })
    }

    /// Connects. Whoever gets it drives the connection.
    pub(super) async fn connect(&self) -> Result<Connected, tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// Where it is, for people: hosts and ports, no user and no password.
    pub(super) fn at(&self) -> String {
        let port = |n: usize| {
            let ports = self.config.get_ports();
            ports.get(n).or(ports.first()).copied().unwrap_or(5432)
        };
        let name = |(n, host): (usize, &Host)| match host {
            Host::Tcp(host) if host.contains(':') => format!("[{host}]:{}", port(n)),
            Host::Tcp(host) => format!("{host}:{}", port(n)),
            Host::Unix(path) => format!("{}/.s.PGSQL.{}", path.display(), port(n)),
        };
        let hosts = self.config.get_hosts();
        if hosts.is_empty() {
            let addresses = self.config.get_hostaddrs().iter().enumerate();
            let named: Vec<_> = addresses.map(|(n, ip)| format!("{ip}:{}", port(n))).collect();
            return named.join(",");
        }
        hosts.iter().enumerate().map(name).collect::<Vec<_>>().join(",")
    }

    /// Who the daemon is to the server.
    pub(super) fn user(&self) -> &str {
        self.config.get_user().unwrap_or("the user it runs as")
    }

    /// Which database.
    pub(super) fn database(&self) -> &str {
        self.config.get_dbname().or(self.config.get_user()).unwrap_or("of the user it runs as")
    }
}

/// A URL without what tokio-postgres has no word for.
struct Parts {
    plain: String,
    mode: Option<String>,
    root: Option<String>,
}

fn take_apart(url: &str) -> Result<Parts, OpenError> {
    let rest = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme))
        .ok_or_else(|| bad("it must begin with postgres:// or postgresql://"))?;
    // A password may hold a question mark.
    let credentials = rest.find('@').map_or(0, |at| at + 1);
    let start = url.len() - rest.len() + credentials;
    let Some(at) = url[start..].find('?').map(|at| start + at) else {
        return Ok(Parts { plain: url.to_owned(), mode: None, root: None });
    };
    let (mut mode, mut root, mut kept) = (None, None, Vec::new());
    for parameter in url[at + 1..].split('&').filter(|p| !p.is_empty()) {
        match parameter.split_once('=') {
            Some(("sslmode", value)) => mode = Some(decode(value)?),
            Some(("sslrootcert", value)) => root = Some(decode(value)?),
            _ => kept.push(parameter),
        }
    }
    let plain = match kept.is_empty() {
        true => url[..at].to_owned(),
        false => format!("{}?{}", &url[..at], kept.join("&")),
    };
    Ok(Parts { plain, mode, root: root.filter(|path| !path.is_empty()) })
}

fn decode(value: &str) -> Result<String, OpenError> {
    let text = percent_encoding::percent_decode_str(value).decode_utf8();
    Ok(text.map_err(|_| bad("a parameter is not UTF-8"))?.into_owned())
}

/// How much TLS is wanted.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    mode: SslMode,
    check: Check,
}

impl Wanted {
    fn nothing() -> Self {
        Self { mode: SslMode::Disable, check: Check::Nothing }
    }

    fn of(mode: Option<&str>, root: Option<&str>) -> Result<Self, OpenError> {
        let file = root.filter(|root| *root != "system").map(PathBuf::from);
        let system = root == Some("system");
        let check = |names| Check::Certificate { roots: file.clone(), names };
        let (mode, check) = match mode {
            None | Some("verify-full") if system => (SslMode::Require, check(true)),
            // Anybody gets a certificate that the system trusts: it says something only of a name.
            Some(_) if system => {
                return Err(bad("sslrootcert=system goes with sslmode=verify-full only"));
            }
            Some("disable") => (SslMode::Disable, Check::Nothing),
            None | Some("prefer") => (SslMode::Prefer, Check::Nothing),
            Some("require") if file.is_none() => (SslMode::Require, Check::Nothing),
            Some("require" | "verify-ca") => (SslMode::Require, check(false)),
            Some("verify-full") => (SslMode::Require, check(true)),
            Some(other) => {
                return Err(bad(&format!(
                    "sslmode={other} is none of disable, prefer, require, verify-ca and verify-full"
                )));
            }
        };
        Ok(Self { mode, check })
    }
}

/// The hosts that are reached by TCP; there is a host at least.
fn hosts(config: &Config) -> Result<Vec<String>, OpenError> {
    let mut tcp = Vec::new();
    for host in config.get_hosts() {
        match host {
            Host::Tcp(name) if name.contains('@') => {
                return Err(bad("an @ in the user or the password must be written as %40"));
            }
            Host::Tcp(name) if name.is_empty() => return Err(bad("it names no host")),
            Host::Tcp(name) => tcp.push(name.clone()),
            Host::Unix(_) => {}
        }
    }
    if config.get_hosts().is_empty() {
        if config.get_hostaddrs().is_empty() {
            return Err(bad("it names no host"));
        }
        tcp.push(String::new());
    }
    Ok(tcp)
}

fn is_here(host: &str) -> bool {
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What holds unless the URL says otherwise.
fn settle(config: &mut Config) {
    if config.get_application_name().is_none() {
        config.application_name("answerback");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED);
    }
    if config.get_keepalives_idle() == IDLE_UNSET {
        config.keepalives_idle(IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(PROBE_EVERY);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(PROBES);
    }
}

fn bad(what: &str) -> OpenError {
    OpenError::Url { what: what.to_owned() }
}

fn cause(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        Target::parse(&url.into()).unwrap()
    }

    fn refusal(url: &str) -> String {
        Target::parse(&url.into()).err().unwrap().to_string()
    }

    #[test]
    fn a_url_says_who_where_and_what() {
        let t = target("postgres://me:s%40cret@db.example:6432/store?application_name=x");
        assert_eq!((t.at().as_str(), t.user(), t.database()), ("db.example:6432", "me", "store"));
        assert_eq!(t.config.get_password(), Some(&b"s@cret"[..]));
        assert_eq!(t.config.get_application_name(), Some("x"));
        let t = target("postgresql://me@a,b:5433/store?target_session_attrs=read-write");
        assert_eq!(t.at(), "a:5432,b:5433");
        assert_eq!(t.config.get_application_name(), Some("answerback"));
        assert_eq!(t.config.get_connect_timeout(), Some(&CONNECT));
        assert_eq!(target("postgres://me@[::1]:5433/x").at(), "[::1]:5433");
    }

    #[test]
    fn a_socket_of_this_machine_needs_no_tls() {
        let t = target("postgres:///store?host=/run/postgresql&user=me&sslmode=require");
        assert_eq!(t.at(), "/run/postgresql/.s.PGSQL.5432");
        assert_eq!((t.config.get_ssl_mode(), t.unchecked), (SslMode::Disable, false));
        let t = target("postgres://me@%2Frun%2Fpostgresql/store");
        assert_eq!(t.at(), "/run/postgresql/.s.PGSQL.5432");
    }

    #[test]
    fn sslmode_means_what_it_means_to_libpq() {
        let wanted = |mode, root| Wanted::of(mode, root).unwrap();
        let checked = |roots: Option<&str>, names| Wanted {
            mode: SslMode::Require,
            check: Check::Certificate { roots: roots.map(PathBuf::from), names },
        };
        let plain = |mode| Wanted { mode, check: Check::Nothing };
        assert_eq!(wanted(None, None), plain(SslMode::Prefer));
        assert_eq!(wanted(Some("disable"), None), plain(SslMode::Disable));
        assert_eq!(wanted(Some("require"), None), plain(SslMode::Require));
        assert_eq!(wanted(Some("require"), Some("ca.pem")), checked(Some("ca.pem"), false));
        assert_eq!(wanted(Some("verify-ca"), Some("ca.pem")), checked(Some("ca.pem"), false));
        assert_eq!(wanted(Some("verify-full"), Some("ca.pem")), checked(Some("ca.pem"), true));
        assert_eq!(wanted(Some("verify-full"), None), checked(None, true));
        assert_eq!(wanted(None, Some("system")), checked(None, true));
        assert!(Wanted::of(Some("require"), Some("system")).is_err());
        assert!(Wanted::of(Some("allow"), None).is_err());
    }

    #[test]
    fn only_a_server_elsewhere_that_nobody_checks_is_worth_a_word() {
        assert!(target("postgres://me@db.example/x").unchecked);
        assert!(target("postgres://me@db.example/x?sslmode=require").unchecked);
        assert!(!target("postgres://me@127.0.0.1/x").unchecked);
        assert!(!target("postgres://me@localhost/x?sslmode=disable").unchecked);
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, what) in [
            ("mysql://me:hunter2@host/x", "postgres://"),
            ("postgres://me:hunter2@host/x?nonsense=1", "nonsense"),
            ("postgres://me:hunter2@host:port/x", "port"),
            ("postgres://me:hun@ter2@host/x", "%40"),
            ("postgres:///x", "no host"),
            ("postgres://me:hunter2@host/x?sslmode=maybe", "sslmode=maybe"),
            ("postgres://me:hunter2@host/x?sslmode=verify-ca&sslrootcert=/none.pem", "/none.pem"),
        ] {
            let said = refusal(url);
            assert!(said.contains(what), "{said}");
            assert!(!said.contains("hunter2") && !said.contains("ter2"), "{said}");
        }
    }

    #[test]
    fn a_password_may_hold_a_question_mark() {
        let t = target("postgres://me:what?@host/x?sslmode=disable");
        assert_eq!(t.config.get_password(), Some(&b"what?"[..]));
        assert_eq!(t.config.get_ssl_mode(), SslMode::Disable);
    }
}
