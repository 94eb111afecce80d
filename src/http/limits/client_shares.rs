//! How much of a shared resource one client may hold. A client is an address or a named key.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

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

    /// Takes more permits for something that already holds `own` permits, for example for a growing body. `None` if the client also holds
    /// other permits and would exceed its share.
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
    /// Adds the permits of `other`, which must belong to the same client.
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
    use crate::identity::clients::network;

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
