//! `[server]`: where it listens.

use super::reading::{Reading, duration_to, parsed};
use answerback_contract::settings::{Place, Settings, Value};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// `[server]`.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where HTTP is served.
    pub listen: SocketAddr,
    /// How others reach it, without a slash at the end; for links.
    pub public_url: Option<Url>,
    /// Whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// How long a stop may take.
    pub shutdown_grace: Duration,
    /// HTTPS; plain HTTP without.
    pub tls: Option<Tls>,
}

/// `[server] tls`: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate and those that lead to a root.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// What `[server]` says, and where, for the rules that need the keys as well.
pub(super) struct ReadServer {
    pub(super) server: Server,
    pub(super) listen_place: Place,
    pub(super) public_url_place: Place,
}

pub(super) fn read_server(settings: &mut Settings, reading: &mut Reading<'_>) -> ReadServer {
    let listen_place = settings.place_of("listen");
    let public_url_place = settings.place_of("public_url");
    let server = Server {
        listen: parsed(settings, "listen", |text| {
            text.parse().map_err(|_| {
                format!("{text:?} is no address with a port; write one such as \"127.0.0.1:8080\"")
            })
        })
        .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8_080)),
        public_url: parsed(settings, "public_url", public_url),
        trusted_proxies: networks(settings, "trusted_proxies"),
        shutdown_grace: duration_to(settings, "shutdown_grace", Duration::from_secs(3_600))
            .unwrap_or(Duration::from_secs(20)),
        tls: reading.within(settings, "tls", |tls, reading| Tls {
            cert_file: reading.file(tls, "cert_file"),
            key_file: reading.file(tls, "key_file"),
        }),
    };
    ReadServer { server, listen_place, public_url_place }
}

fn public_url(text: &str) -> Result<Url, String> {
    const RIGHT: &str = "write one such as \"https://approvals.example.com/answerback\"";
    let mut url = Url::parse(text).map_err(|e| format!("is no URL ({e}); {RIGHT}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(format!("must start with http:// or https://; {RIGHT}"));
    }
    let bare = url.username().is_empty() && url.password().is_none();
    if !bare || url.query().is_some() || url.fragment().is_some() {
        return Err(format!("must have neither user, query nor fragment; {RIGHT}"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Ok(url)
}

/// An array of address blocks or single addresses.
pub(super) fn networks(settings: &mut Settings, key: &'static str) -> Vec<IpNet> {
    let Some(setting) = settings.take(key) else { return Vec::new() };
    let Value::Array(items) = setting.value else {
        settings.problem(key, setting.place, "must be an array such as [\"10.0.0.0/8\"]");
        return Vec::new();
    };
    let mut networks = Vec::with_capacity(items.len());
    for item in items {
        let network = match &item.value {
            Value::String(text) => text
                .parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| format!("{text:?} is no address or block of addresses")),
            _ => Err("has an item that is no string".to_owned()),
        };
        match network {
            Ok(network) => networks.push(network.trunc()),
            Err(what) => {
                settings.problem(
                    key,
                    item.place,
                    format!("{what}; write one such as \"10.0.0.0/8\""),
                );
            }
        }
    }
    networks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_loses_its_last_slash_only() {
        let url = |text| public_url(text).map(|u| u.to_string());
        assert_eq!(url("https://h/answerback/"), Ok("https://h/answerback".to_owned()));
        assert_eq!(url("https://h"), Ok("https://h/".to_owned()), "an empty path is a slash");
        for bad in ["h", "ftp://h", "https://u@h/", "https://h/?a", "https://h/#a", "mailto:a@b"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }
}
