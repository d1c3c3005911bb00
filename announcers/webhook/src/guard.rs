//! Which addresses a webhook may reach: only public ones, and what the operator lets through.
//!
//! The blocks are those that the IANA special-purpose registries (RFC 6890 and its updates) do not
//! call globally reachable, the transition schemes that hide an IPv4 address within an IPv6 one, and
//! the metadata services of the clouds. Everything is judged on the address itself, never on how a
//! URL spells it: the `url` crate reads decimal, octal and hexadecimal hosts as the address they
//! are, and names are judged by what they resolve to.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use url::{Host, Url};

/// IPv4 blocks that are refused, with what they are.
const REFUSED_V4: &[(u32, u8, &str)] = &[
    (v4(169, 254, 169, 254), 32, "a cloud metadata service"),
    (v4(100, 100, 100, 200), 32, "a cloud metadata service"),
    (v4(168, 63, 129, 16), 32, "a cloud metadata service"),
    (v4(0, 0, 0, 0), 8, "unspecified"),
    (v4(10, 0, 0, 0), 8, "private"),
    (v4(100, 64, 0, 0), 10, "shared by carrier-grade NAT"),
    (v4(127, 0, 0, 0), 8, "loopback"),
    (v4(169, 254, 0, 0), 16, "link-local"),
    (v4(172, 16, 0, 0), 12, "private"),
    (v4(192, 0, 0, 0), 24, "reserved for protocols"),
    (v4(192, 0, 2, 0), 24, "for documentation"),
    (v4(192, 88, 99, 0), 24, "a 6to4 relay"),
    (v4(192, 168, 0, 0), 16, "private"),
    (v4(198, 18, 0, 0), 15, "for benchmarks"),
    (v4(198, 51, 100, 0), 24, "for documentation"),
    (v4(203, 0, 113, 0), 24, "for documentation"),
    (v4(224, 0, 0, 0), 4, "multicast"),
    (v4(255, 255, 255, 255), 32, "broadcast"),
    (v4(240, 0, 0, 0), 4, "reserved"),
];

/// IPv6 blocks that are refused, the more exact ones first. What is left outside `2000::/3` is not
/// global unicast and refused as well.
const REFUSED_V6: &[(u128, u8, &str)] = &[
    (v6(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254), 128, "a cloud metadata service"),
    (0, 128, "unspecified"),
    (1, 128, "loopback"),
    (0, 96, "an IPv4 address in IPv6 clothes"),
    (v6(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, "an IPv4 address in IPv6 clothes"),
    (v6(0x0064, 0xff9b, 0, 0, 0, 0, 0, 0), 96, "an IPv4 address behind NAT64"),
    (v6(0x0064, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "an IPv4 address behind NAT64"),
    (v6(0x0100, 0, 0, 0, 0, 0, 0, 0), 64, "for discarding"),
    (v6(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, "a Teredo tunnel"),
    (v6(0x2001, 2, 0, 0, 0, 0, 0, 0), 48, "for benchmarks"),
    (v6(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "reserved for protocols"),
    (v6(0x2001, 0x0db8, 0, 0, 0, 0, 0, 0), 32, "for documentation"),
    (v6(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "a 6to4 tunnel"),
    (v6(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "for documentation"),
    (v6(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "private"),
    (v6(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local"),
    (v6(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "private"),
    (v6(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "multicast"),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> u32 {
    u32::from_be_bytes([a, b, c, d])
}

#[expect(clippy::too_many_arguments, reason = "an IPv6 address has eight groups")]
const fn v6(a: u16, b: u16, c: u16, d: u16, e: u16, f: u16, g: u16, h: u16) -> u128 {
    Ipv6Addr::new(a, b, c, d, e, f, g, h).to_bits()
}

/// Lets through public addresses and what the operator allowed. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    allowed: Arc<[IpNet]>,
}

/// An address that the guard refuses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the address {address} is {kind}; to reach it, add it to allow_private")]
pub struct AddressRefused {
    /// The address.
    pub address: IpAddr,
    /// What it is, such as `loopback`.
    pub kind: &'static str,
}

/// A text that names no address block.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no address block; write one such as \"10.0.0.0/8\", \"127.0.0.1\" or \"fd00::/8\""
)]
pub struct BadBlock(pub String);

impl AddressGuard {
    /// A guard that lets through these blocks, CIDR or single addresses, besides public addresses.
    ///
    /// # Errors
    /// The first text that names no block.
    pub fn allowing<S: AsRef<str>>(blocks: &[S]) -> Result<Self, BadBlock> {
        let allowed: Result<Vec<IpNet>, BadBlock> =
            blocks.iter().map(|text| parse_block(text.as_ref())).collect();
        Ok(Self { allowed: allowed?.into() })
    }

    /// Judges an address. An IPv4 address mapped into IPv6 is judged as what is connected to: the
    /// IPv4 address.
    ///
    /// # Errors
    /// What kind of address it is, when it is neither public nor allowed.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressRefused> {
        let address = address.to_canonical();
        let Some(kind) = refused_kind(address) else { return Ok(()) };
        if self.allowed.iter().any(|block| block.contains(&address)) {
            return Ok(());
        }
        Err(AddressRefused { address, kind })
    }

    /// Judges the host of a URL as far as it can be judged without asking DNS: literal addresses,
    /// which never reach a resolver, and `localhost`, which is loopback by RFC 6761.
    ///
    /// # Errors
    /// What kind of address it is, when it is neither public nor allowed.
    pub fn check_literal(&self, url: &Url) -> Result<(), AddressRefused> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check(address.into()),
            Some(Host::Ipv6(address)) => self.check(address.into()),
            Some(Host::Domain(name)) if is_localhost(name) => self
                .check(Ipv4Addr::LOCALHOST.into())
                .or_else(|refused| self.check(Ipv6Addr::LOCALHOST.into()).map_err(|_| refused)),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or(name);
    last.eq_ignore_ascii_case("localhost")
}

/// Reads a block; one of mapped IPv4 addresses becomes the IPv4 block, since that is what addresses
/// are compared as.
fn parse_block(text: &str) -> Result<IpNet, BadBlock> {
    let text = text.trim();
    let block = match text.parse::<IpNet>() {
        Ok(block) => block,
        Err(_) => text.parse::<IpAddr>().map(IpNet::from).map_err(|_| BadBlock(text.to_owned()))?,
    };
    let block = block.trunc();
    let IpNet::V6(six) = block else { return Ok(block) };
    let (Some(four), Some(length)) =
        (six.addr().to_ipv4_mapped(), six.prefix_len().checked_sub(96))
    else {
        return Ok(block);
    };
    Ipv4Net::new(four, length).map(IpNet::V4).map_err(|_| BadBlock(text.to_owned()))
}

fn refused_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => REFUSED_V4
            .iter()
            .find(|(block, length, _)| {
                (u32::from(address) ^ block).leading_zeros() >= u32::from(*length)
            })
            .map(|(_, _, kind)| *kind),
        IpAddr::V6(address) => REFUSED_V6
            .iter()
            .find(|(block, length, _)| {
                (u128::from(address) ^ block).leading_zeros() >= u32::from(*length)
            })
            .map(|(_, _, kind)| *kind)
            .or_else(|| (!is_global_unicast(address)).then_some("not global unicast")),
    }
}

fn is_global_unicast(address: Ipv6Addr) -> bool {
    Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3).contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(guard: &AddressGuard, url: &str) -> String {
        let Ok(url) = Url::parse(url) else { return "no URL".to_owned() };
        match guard.check_literal(&url) {
            Ok(()) => "passes".to_owned(),
            Err(refused) => refused.kind.to_owned(),
        }
    }

    #[test]
    fn a_refused_address_is_refused_in_every_spelling() {
        let guard = AddressGuard::default();
        for (url, wanted) in [
            // 127.0.0.1
            ("http://127.0.0.1/", "loopback"),
            ("http://127.0.0.1./", "loopback"),
            ("http://127.1/", "loopback"),
            ("http://127.0.1/", "loopback"),
            ("http://2130706433/", "loopback"),
            ("http://0x7f000001/", "loopback"),
            ("http://0x7f.0.0.1/", "loopback"),
            ("http://0x7F.1/", "loopback"),
            ("http://0177.0.0.1/", "loopback"),
            ("http://017700000001/", "loopback"),
            ("http://127.255.255.254:8080/x", "loopback"),
            ("http://①②⑦.⓪.⓪.①/", "loopback"),
            ("http://127。0。0。1/", "loopback"),
            ("http://%31%32%37.0.0.1/", "loopback"),
            ("http://example.com@127.0.0.1/", "loopback"),
            ("http://example.com:80@127.0.0.1/", "loopback"),
            ("http:127.0.0.1/", "loopback"),
            ("http:\\\\127.0.0.1\\@example.com/", "loopback"),
            ("http://127.0.0.1\\@example.com/", "loopback"),
            ("http://127.0.0.1#@example.com/", "loopback"),
            ("http://127.0.0.1?@example.com/", "loopback"),
            ("http://12\t7.0.0.1/", "loopback"),
            ("https://[::1]/", "loopback"),
            ("https://[0:0:0:0:0:0:0:1]/", "loopback"),
            ("http://[::ffff:127.0.0.1]/", "loopback"),
            ("http://[::ffff:7f00:1]/", "loopback"),
            ("http://[0:0:0:0:0:ffff:7f00:0001]/", "loopback"),
            ("http://[::127.0.0.1]/", "an IPv4 address in IPv6 clothes"),
            ("http://[::7f00:1]/", "an IPv4 address in IPv6 clothes"),
            ("http://[::ffff:0:127.0.0.1]/", "an IPv4 address in IPv6 clothes"),
            ("http://[64:ff9b::7f00:1]/", "an IPv4 address behind NAT64"),
            ("http://[64:ff9b::127.0.0.1]/", "an IPv4 address behind NAT64"),
            ("http://[64:ff9b:1::a00:1]/", "an IPv4 address behind NAT64"),
            ("http://[2002:7f00:1::]/", "a 6to4 tunnel"),
            ("http://[2001:0:53aa:64c:0:fbff:80ff:fffe]/", "a Teredo tunnel"),
            // names
            ("http://localhost/", "loopback"),
            ("http://LOCALHOST./", "loopback"),
            ("http://a.b.localhost/", "loopback"),
            // metadata
            ("http://169.254.169.254/latest/meta-data/", "a cloud metadata service"),
            ("http://0xA9FEA9FE/", "a cloud metadata service"),
            ("http://2852039166/", "a cloud metadata service"),
            ("http://0251.0376.0251.0376/", "a cloud metadata service"),
            ("http://[::ffff:169.254.169.254]/", "a cloud metadata service"),
            ("http://[::ffff:a9fe:a9fe]/", "a cloud metadata service"),
            ("http://[fd00:ec2::254]/", "a cloud metadata service"),
            ("http://[fd00:0ec2:0:0:0:0:0:254]/", "a cloud metadata service"),
            ("http://100.100.100.200/", "a cloud metadata service"),
            ("http://168.63.129.16/", "a cloud metadata service"),
            // the rest
            ("http://0/", "unspecified"),
            ("http://0.0.0.0/", "unspecified"),
            ("http://0.1.2.3/", "unspecified"),
            ("http://[::]/", "unspecified"),
            ("http://10.0.0.1/", "private"),
            ("http://10.255.255.255/", "private"),
            ("http://172.16.0.1/", "private"),
            ("http://172.31.255.255/", "private"),
            ("http://192.168.1.1/", "private"),
            ("http://192.168.257/", "private"),
            ("http://100.64.0.1/", "shared by carrier-grade NAT"),
            ("http://100.127.255.255/", "shared by carrier-grade NAT"),
            ("http://169.254.1.1/", "link-local"),
            ("http://192.0.0.192/", "reserved for protocols"),
            ("http://192.0.2.1/", "for documentation"),
            ("http://198.51.100.1/", "for documentation"),
            ("http://203.0.113.1/", "for documentation"),
            ("http://192.88.99.1/", "a 6to4 relay"),
            ("http://198.18.0.1/", "for benchmarks"),
            ("http://198.19.255.255/", "for benchmarks"),
            ("http://224.0.0.1/", "multicast"),
            ("http://239.255.255.255/", "multicast"),
            ("http://240.0.0.1/", "reserved"),
            ("http://255.255.255.255/", "broadcast"),
            ("http://4294967295/", "broadcast"),
            ("http://[fc00::1]/", "private"),
            ("http://[fdff:ffff::1]/", "private"),
            ("http://[fe80::1]/", "link-local"),
            ("http://[febf::1]/", "link-local"),
            ("http://[fec0::1]/", "private"),
            ("http://[ff02::1]/", "multicast"),
            ("http://[2001:db8::1]/", "for documentation"),
            ("http://[3fff::1]/", "for documentation"),
            ("http://[2001:2::1]/", "for benchmarks"),
            ("http://[2001:20::1]/", "reserved for protocols"),
            ("http://[100::1]/", "for discarding"),
            ("http://[4000::1]/", "not global unicast"),
            ("http://[5f00::1]/", "not global unicast"),
            // not URLs at all
            ("http://[fe80::1%25eth0]/", "no URL"),
            ("http://127.0.0.256/", "no URL"),
            ("http://1.2.3.4.5/", "no URL"),
            ("http://0x7f.0x/x y", "loopback"),
        ] {
            assert_eq!(verdict(&guard, url), wanted, "{url}");
        }
    }

    #[test]
    fn public_addresses_and_names_pass() {
        let guard = AddressGuard::default();
        for url in [
            "http://1.1.1.1/",
            "http://9.255.255.255/",
            "http://11.0.0.1/",
            "http://100.63.255.255/",
            "http://100.128.0.1/",
            "http://126.255.255.255/",
            "http://128.0.0.1/",
            "http://172.15.255.255/",
            "http://172.32.0.1/",
            "http://192.167.255.255/",
            "http://192.169.0.1/",
            "http://198.17.255.255/",
            "http://198.20.0.1/",
            "http://223.255.255.255/",
            "http://[2606:4700::1111]/",
            "http://[2a00:1450:4001:830::200e]/",
            "http://[2001:4860:4860::8888]/",
            "http://[::ffff:1.1.1.1]/",
            "https://portal.example.com/",
            "https://localhost.example.com/",
            "https://notlocalhost/",
        ] {
            assert_eq!(verdict(&guard, url), "passes", "{url}");
        }
    }

    #[test]
    fn allowed_blocks_pass_and_nothing_beside_them() {
        let guard = AddressGuard::allowing(&[
            "127.0.0.0/8",
            "10.1.2.3",
            "fd00::/8",
            "::ffff:192.168.0.0/112",
        ])
        .unwrap();
        for (url, wanted) in [
            ("http://127.0.0.1/", "passes"),
            ("http://0x7f000001/", "passes"),
            ("http://localhost/", "passes"),
            ("http://[::ffff:127.0.0.1]/", "passes"),
            ("http://[::127.0.0.1]/", "an IPv4 address in IPv6 clothes"),
            ("http://[64:ff9b::127.0.0.1]/", "an IPv4 address behind NAT64"),
            ("http://[::1]/", "loopback"),
            ("http://10.1.2.3/", "passes"),
            ("http://10.1.2.4/", "private"),
            ("http://[fd12::1]/", "passes"),
            ("http://[fc12::1]/", "private"),
            ("http://192.168.7.7/", "passes"),
            ("http://192.169.7.7/", "passes"),
            ("http://172.16.0.1/", "private"),
        ] {
            assert_eq!(verdict(&guard, url), wanted, "{url}");
        }
        let six = AddressGuard::allowing(&["::1"]).unwrap();
        assert_eq!(verdict(&six, "http://localhost/"), "passes");
        assert_eq!(verdict(&six, "http://127.0.0.1/"), "loopback");
    }

    #[test]
    fn a_block_is_an_address_or_a_cidr() {
        for bad in ["localhost", "", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "*"] {
            assert_eq!(AddressGuard::allowing(&[bad]).unwrap_err(), BadBlock(bad.to_owned()));
        }
        assert!(AddressGuard::allowing(&["10.9.8.7/8", " ::1 "]).is_ok());
    }
}
