//! The hosts and ports that runs may reach: the list in a profile, and the addresses that a name may resolve to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The maximum number of entries.
const MAX_ENTRIES: usize = 100;
/// The limits of DNS names and their labels, in bytes.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// The accepted forms of an entry, for errors.
const FORM: &str = "write HOST:PORT, *.SUFFIX:PORT, ADDRESS:PORT or [ADDRESS]:PORT";

/// The list in a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct AllowList(Vec<Entry>);

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    One(Target),
    /// All names below this one, but not the name itself.
    Below(String, u16),
}

/// The destination of a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Host {
    Address(IpAddr),
    /// In lower case and without a trailing dot.
    Name(String),
}

impl AllowList {
    /// # Errors
    /// An entry can't be used. The text names it and says what to do.
    pub fn new(entries: &[String]) -> Result<Self, String> {
        if entries.is_empty() {
            return Err("the list is empty: name what runs may reach, or write network = false".to_owned());
        }
        if entries.len() > MAX_ENTRIES {
            return Err(format!(
                "the list has {} entries, and at most {MAX_ENTRIES} are allowed: *.SUFFIX:PORT names all hosts below a domain",
                entries.len()
            ));
        }
        entries
            .iter()
            .map(|entry| Entry::parse(entry).map_err(|why| format!("the entry {entry:?} {why}: {FORM}")))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub fn allows(&self, target: &Target) -> bool {
        self.0.iter().any(|entry| entry.covers(target))
    }

    /// Whether a connection to this address may be made for a host that the list allows. A name must not resolve to an internal address,
    /// unless the list also contains the address.
    pub fn may_connect(&self, address: IpAddr, port: u16) -> bool {
        is_public(address) || self.allows(&Target { host: Host::Address(address.to_canonical()), port })
    }

    /// Whether the list names this host, with any port.
    pub fn names(&self, wanted: &Host) -> bool {
        self.0.iter().any(|entry| matches!(entry, Entry::One(target) if target.host == *wanted))
    }
}

impl Entry {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.contains("://") {
            return Err("has a scheme");
        }
        if text.contains(char::is_whitespace) {
            return Err("has a blank");
        }
        let Some(suffix) = text.strip_prefix("*.") else { return Target::parse(text).map(Self::One) };
        match Target::parse(suffix)? {
            Target { host: Host::Name(suffix), port } => Ok(Self::Below(suffix, port)),
            Target { host: Host::Address(_), .. } => Err("has a * before an address"),
        }
    }

    fn covers(&self, target: &Target) -> bool {
        match (self, &target.host) {
            (Self::One(own), _) => own == target,
            (Self::Below(suffix, port), Host::Name(name)) => {
                *port == target.port && name.strip_suffix(suffix.as_str()).is_some_and(|below| below.len() > 1 && below.ends_with('.'))
            }
            (Self::Below(..), Host::Address(_)) => false,
        }
    }
}

impl Target {
    /// Parses `HOST:PORT`. An IPv6 address must be in brackets.
    ///
    /// # Errors
    /// The text has another form. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, port) = text.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).ok_or("has no port")?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port != 0).ok_or("has no port from 1 to 65535")?;
        Ok(Self { host: Host::parse(host)?, port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            Host::Address(address) => write!(f, "{address}:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let address: Ipv6Addr = address.parse().map_err(|_| "has no address in its brackets")?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(is_letter)
        };
        if name.len() > MAX_NAME || !name.split('.').all(is_label) {
            return Err("has no name of a host in ASCII, and no address");
        }
        // Resolvers accept such names as addresses, in octal or with parts left out.
        if name.rsplit('.').next().is_some_and(|last| last.starts_with(|first: char| first.is_ascii_digit())) {
            return Err("has a name that ends with a number, and is no address of four numbers");
        }
        Ok(Self::Name(name))
    }
}

/// Whether the address is a public one of the internet, and not an address of this machine, its networks, or a multicast group.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_inside = address.is_loopback() || address.is_private() || address.is_link_local() || (a == 100 && (64..128).contains(&b));
    // "This network", protocol assignments, benchmarks, multicast, and reserved addresses including broadcast.
    let is_special = a == 0 || (a, b, c) == (192, 0, 0) || (a == 198 && (b & 0xfe) == 18) || a >= 224;
    !is_inside && !is_special && !address.is_documentation()
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        // Translation and tunnel addresses, which lead to the IPv4 address that they contain.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => is_public_v4(v4(high, low)),
        // Teredo and documentation addresses.
        [0x2001, 0 | 0xdb8, ..] => false,
        // Addresses assigned to the internet: 2000::/3.
        [first, ..] => (first & 0xe000) == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Result<AllowList, String> {
        AllowList::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_listed_is_allowed_and_nothing_else() {
        let list = list(&["API.example.com.:443", "*.npmjs.org:443", "10.1.2.3:8080", "[fd00::1]:80"]).unwrap();
        let allows = |target: &str| list.allows(&Target::parse(target).unwrap());
        for allowed in [
            "api.example.com:443",
            "Api.Example.Com.:443",
            "registry.npmjs.org:443",
            "a.b.npmjs.org:443",
            "10.1.2.3:8080",
            "[::ffff:10.1.2.3]:8080",
            "[fd00:0::1]:80",
        ] {
            assert!(allows(allowed), "{allowed}");
        }
        for refused in [
            "api.example.com:80",
            "example.com:443",
            "x.api.example.com:443",
            "npmjs.org:443",
            "evilnpmjs.org:443",
            "registry.npmjs.org.evil.com:443",
            "10.1.2.3:80",
            "10.1.2.4:8080",
            "[fd00::2]:80",
        ] {
            assert!(!allows(refused), "{refused}");
        }
    }

    #[test]
    fn a_bad_entry_is_named() {
        for (entry, why) in [
            ("example.com", "has no port"),
            ("example.com:", "has no port from"),
            ("example.com:0", "has no port from"),
            ("example.com:65536", "has no port from"),
            ("example.com:+80", "has no port from"),
            ("[::1]", "has no port"),
            ("::1:80", "has no name"),
            (" example.com:80", "has a blank"),
            ("example.com :80", "has a blank"),
            ("https://example.com:443", "has a scheme"),
            ("*:443", "has no name"),
            ("*.:443", "has no name"),
            ("a.*.com:443", "has no name"),
            ("*.10.0.0.1:80", "has a * before an address"),
            ("user@example.com:80", "has no name"),
            ("example.com/path:80", "has no name"),
            ("127.1:80", "ends with a number"),
            ("0x7f000001:80", "ends with a number"),
            ("ex\u{e4}mple.com:80", "has no name"),
            (":80", "has no name"),
        ] {
            let error = list(&[entry]).unwrap_err();
            assert!(error.contains(&format!("{entry:?}")) && error.contains(why) && error.contains("write HOST:PORT"), "{error}");
        }
        assert!(list(&[]).unwrap_err().contains("is empty"));
        assert!(list(&["a.com:1"; 101]).unwrap_err().contains("101 entries"));
        assert!(list(&["a.com:1"; 100]).is_ok());
    }

    #[test]
    fn a_name_leads_to_addresses_of_the_internet_only() {
        let list = list(&["inside.example.com:80", "10.1.2.3:80"]).unwrap();
        let may = |address: &str| list.may_connect(address.parse().unwrap(), 80);
        for public in ["93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::5db8:d822"] {
            assert!(may(public), "{public}");
        }
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:192.168.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
            "2001::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!may(inside), "{inside}");
        }
        assert!(may("10.1.2.3") && may("::ffff:10.1.2.3"), "the list names the address itself");
        assert!(!list.may_connect("10.1.2.3".parse().unwrap(), 81));
    }
}
