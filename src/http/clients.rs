//! Clients, identified by their addresses or by their named keys, and how much of a shared resource one client may hold.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::http::HeaderMap;
use ipnet::IpNet;
use parking_lot::Mutex;

/// Both ends of the connection, and what TLS says of it.
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
    /// The client has a certificate of an authority in `TLS_CLIENT_CA_FILE`.
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

/// Counts the permits that each client holds, so that no client holds more than its share.
pub(crate) struct Shares<Client> {
    most: usize,
    held: Held<Client>,
}

type Held<Client> = Arc<Mutex<HashMap<Client, usize>>>;

/// Permits that a client holds until this is dropped.
pub(crate) struct ClientPermit<Client: Eq + Hash> {
    client: Client,
    count: usize,
    held: Held<Client>,
}

impl<Client> Clone for Shares<Client> {
    fn clone(&self) -> Self {
        Self { most: self.most, held: self.held.clone() }
    }
}

impl<Client: Clone + Eq + Hash> Shares<Client> {
    /// Each client may hold this many permits.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), held: Arc::default() }
    }

    /// `None` if the client already holds its share.
    pub(crate) fn take(&self, client: Client) -> Option<ClientPermit<Client>> {
        self.take_beside(0, client, 1)
    }

    /// Permits for something that holds some already, for example for a body that grows. `None` if the client holds others beside these, and
    /// would have more than its share.
    pub(crate) fn take_beside(&self, own: usize, client: Client, count: usize) -> Option<ClientPermit<Client>> {
        let mut held = self.held.lock();
        let all = held.get(&client).copied().unwrap_or_default();
        if all > own && all + count > self.most {
            return None;
        }
        held.insert(client.clone(), all + count);
        drop(held);
        Some(ClientPermit { client, count, held: self.held.clone() })
    }
}

impl<Client: Eq + Hash> ClientPermit<Client> {
    /// Adds the permits of another one of the same client.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
    }
}

#[cfg(test)]
impl<Client> Shares<Client> {
    pub(crate) fn is_unused(&self) -> bool {
        self.held.lock().is_empty()
    }
}

impl Shares<IpAddr> {
    /// One address may hold half of the permits: enough for a fleet behind one address, and the other half remains for others.
    pub(crate) fn by_address(permits: usize) -> Self {
        Self::new(permits / 2)
    }
}

impl<Client: Eq + Hash> Drop for ClientPermit<Client> {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        if let Some(count) = held.get_mut(&self.client) {
            *count -= self.count;
            if *count == 0 {
                held.remove(&self.client);
            }
        }
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

    #[test]
    fn a_client_has_its_share_and_leaves_nothing_behind() {
        let shares = Shares::by_address(4);
        let address = |text: &str| network(text.parse::<IpAddr>().unwrap());
        let (one, two) = (shares.take(address("2001:db8::1")).unwrap(), shares.take(address("2001:db8::ffff:2")));
        assert!(two.is_some() && shares.take(address("2001:db8::3")).is_none(), "addresses of one network have one share");
        assert!(shares.take(address("2001:db8:0:1::1")).is_some(), "another network has a share of its own");
        drop(one);
        assert!(shares.take(address("2001:db8::3")).is_some());
        drop(two);
        assert!(shares.is_unused());
        assert_eq!(address("::ffff:192.0.2.1"), "192.0.2.1".parse::<IpAddr>().unwrap());
    }
}
