//! Clients, identified by their addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::HeaderMap;
use ipnet::IpNet;

/// Both ends of the connection, and what TLS has established about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub address: SocketAddr,
    /// This server's address.
    pub local: Option<IpAddr>,
    pub security: Security,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Plain,
    Tls,
    /// The client has a certificate from an authority in `TLS_CLIENT_CA_FILE`.
    VerifiedClient,
}

/// The client's address. An entry of `X-Forwarded-For` counts only if a trusted proxy has added it.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer.to_canonical();
    let lines = headers.get_all("x-forwarded-for");
    let mut claimed = lines.iter().rev().filter_map(|line| line.to_str().ok()).flat_map(|line| line.rsplit(','));
    while trusts(trusted, client)
        && let Some(address) = claimed.next().and_then(|text| parse_address(text.trim()))
    {
        client = address.to_canonical();
    }
    client
}

pub(crate) fn trusts(trusted: &[IpNet], address: IpAddr) -> bool {
    trusted.iter().any(|net| net.contains(&address.to_canonical()))
}

/// Some proxies add the port.
fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

/// The network that counts as one client: with IPv6 a /64, because a host can use any address in it.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_addresses_count_only_from_trusted_proxies() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap()];
        let check = |peer: &str, header: &str, client: &str| {
            let headers = HeaderMap::from_iter([("x-forwarded-for".parse().unwrap(), header.parse().unwrap())]);
            assert_eq!(client_address(peer.parse().unwrap(), &headers, &trusted), client.parse::<IpAddr>().unwrap(), "{peer} {header}");
        };
        check("192.0.2.1", "1.2.3.4", "192.0.2.1");
        check("10.0.0.1", "1.2.3.4", "1.2.3.4");
        check("::ffff:10.0.0.1", "1.2.3.4:999", "1.2.3.4");
        check("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.0.0.2", "1.2.3.4");
        check("10.0.0.1", "1.2.3.4, nonsense", "10.0.0.1");
        check("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3");
    }
}
