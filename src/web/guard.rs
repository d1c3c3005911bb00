//! Who is let in at all. Whoever speaks HTTP/1.1 names one host.
//!
//! When there are no keys: callers on this machine that mean this machine.
//!
//! A web page can make its visitor's browser call `127.0.0.1`. By DNS rebinding it does so under
//! its own host name; without, the browser says by `Origin` whose page it was. Both are refused,
//! and so is what a proxy passed on for someone else.

use super::problem::Problem;
use http::{HeaderMap, Uri, Version, header};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Headers by which proxies say for whom they ask.
const FORWARDED: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];

/// Refuses requests that name several hosts, or none where HTTP wants one (RFC 9112, section 3.2):
/// a proxy in front may have judged by another one.
pub(crate) fn host(version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get_all(header::HOST).iter().count() {
        0 if version == Version::HTTP_11 => {
            Err(Problem::bad_input("Host", "is missing; HTTP/1.1 wants it"))
        }
        0 | 1 => Ok(()),
        _ => Err(Problem::bad_input("Host", "stands twice; send it once")),
    }
}

/// Whether a caller is on this machine, means this machine, and asks for itself.
pub(crate) fn local(peer: IpAddr, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    if !peer.to_canonical().is_loopback() {
        return Err(Problem::forbidden(
            "without [auth] keys only callers on this machine are served; configure keys to serve others",
        ));
    }
    if FORWARDED.iter().any(|name| headers.contains_key(*name)) {
        return Err(Problem::forbidden(
            "without [auth] keys nothing is served through a proxy; configure keys to serve others",
        ));
    }
    let host = headers.get(header::HOST).map(|value| value.to_str().unwrap_or_default());
    let authority = uri.authority().map(http::uri::Authority::as_str);
    if (host.is_none() && authority.is_none())
        || [host, authority].into_iter().flatten().any(|name| !is_loopback_name(name))
    {
        return Err(Problem::forbidden(
            "without [auth] keys only the host names localhost, 127.0.0.1 and [::1] are served; \
             use one of them, or configure keys",
        ));
    }
    let origin = headers.get(header::ORIGIN).map(|value| value.to_str().unwrap_or_default());
    let foreign =
        |origin: &str| !origin.split_once("://").is_some_and(|(_, h)| is_loopback_name(h));
    if origin.is_some_and(foreign) {
        return Err(Problem::forbidden(
            "without [auth] keys web pages of other hosts are not served; configure keys",
        ));
    }
    Ok(())
}

/// Whether `host` or `host:port` can only mean this machine.
fn is_loopback_name(text: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok_and(|a| IpAddr::V6(a).to_canonical().is_loopback())
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    is_port(port)
        && (name.eq_ignore_ascii_case("localhost")
            || name.parse::<Ipv4Addr>().is_ok_and(|a| a.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn check(peer: &str, uri: &'static str, pairs: &[(&'static str, &'static str)]) -> bool {
        let headers: HeaderMap =
            pairs.iter().map(|(n, v)| (n.parse().unwrap(), HeaderValue::from_static(v))).collect();
        local(peer.parse().unwrap(), &Uri::from_static(uri), &headers).is_ok()
    }

    #[test]
    fn one_host_is_named_where_http_wants_one() {
        let check = |version, hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for name in hosts {
                headers.append(header::HOST, HeaderValue::from_static(name));
            }
            host(version, &headers).map_err(|problem| problem.code)
        };
        assert_eq!(check(Version::HTTP_11, &["a"]), Ok(()));
        assert_eq!(check(Version::HTTP_11, &[]), Err("bad-input"));
        assert_eq!(check(Version::HTTP_10, &[]), Ok(()));
        assert_eq!(check(Version::HTTP_2, &[]), Ok(()), "there the URI names it");
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            assert_eq!(check(version, &["a", "a"]), Err("bad-input"), "{version:?}");
        }
    }

    #[test]
    fn loopback_names_are_served() {
        for host in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.8.9.1:1",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(check("127.0.0.1", "/x", &[("host", host)]), "{host}");
        }
        assert!(check("::1", "http://localhost:8080/x", &[]), "HTTP/2 names the host in the URI");
        assert!(check("::ffff:127.0.0.1", "/x", &[("host", "localhost")]));
    }

    #[test]
    fn other_names_are_not() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "",
            "[::2]",
            "localhost:80x",
            "[::1]x",
            "[::1",
            "0.0.0.0:8080",
            "user@localhost",
            "localhost.",
        ] {
            assert!(!check("127.0.0.1", "/x", &[("host", host)]), "{host}");
        }
        assert!(!check("127.0.0.1", "/x", &[]));
        assert!(!check("127.0.0.1", "http://evil.example/x", &[("host", "localhost")]));
    }

    #[test]
    fn callers_from_elsewhere_proxies_and_foreign_pages_are_not() {
        assert!(!check("10.0.0.7", "/x", &[("host", "localhost")]));
        for name in FORWARDED {
            assert!(!check("127.0.0.1", "/x", &[("host", "localhost"), (name, "10.0.0.7")]));
        }
        for origin in ["https://evil.example", "null", "http://localhost.evil.example"] {
            assert!(!check("127.0.0.1", "/x", &[("host", "localhost"), ("origin", origin)]));
        }
        assert!(check(
            "127.0.0.1",
            "/x",
            &[("host", "localhost"), ("origin", "http://localhost:3000")]
        ));
    }
}
