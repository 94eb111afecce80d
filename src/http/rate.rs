//! Rate limits: fixed windows of a minute for each client address, in a table of bounded size.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use parking_lot::Mutex;

const WINDOW: Duration = Duration::from_secs(60);
/// Addresses known at a time. Beyond it the oldest window is forgotten, early.
const MAX_ADDRESSES: usize = 65_536;

/// One limit. Every window lasts as long, so the order of their starts is the order of their ends.
pub struct Limiter {
    limit: u32,
    policy: HeaderValue,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    by_address: HashMap<IpAddr, Window>,
    by_start: VecDeque<IpAddr>,
}

struct Window {
    start: Instant,
    count: u32,
}

/// How a request stands to a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    pub allowed: bool,
    limit: u32,
    remaining: u32,
    /// Until the window ends, rounded up.
    pub reset_sec: u64,
}

impl Limiter {
    /// `None` for 0: no limit.
    pub fn new(per_minute: u32) -> Option<Self> {
        let policy = HeaderValue::try_from(format!("{per_minute};w={}", WINDOW.as_secs())).ok()?;
        (per_minute > 0).then(|| Self { limit: per_minute, policy, windows: Mutex::default() })
    }

    pub fn count(&self, address: IpAddr, now: Instant) -> Standing {
        let mut windows = self.windows.lock();
        let Window { start, count } = windows.window(address, now);
        *count = count.saturating_add(1);
        let left = (*start + WINDOW).saturating_duration_since(now);
        Standing {
            allowed: *count <= self.limit,
            limit: self.limit,
            remaining: self.limit.saturating_sub(*count),
            reset_sec: left.as_millis().div_ceil(1000) as u64,
        }
    }

    pub fn write_headers(&self, standing: &Standing, headers: &mut HeaderMap) {
        headers.insert("ratelimit-policy", self.policy.clone());
        headers.insert("ratelimit-limit", standing.limit.into());
        headers.insert("ratelimit-remaining", standing.remaining.into());
        headers.insert("ratelimit-reset", standing.reset_sec.into());
    }
}

impl Windows {
    fn window(&mut self, address: IpAddr, now: Instant) -> &mut Window {
        while let Some(oldest) = self.by_start.front() {
            let over = self.by_address.get(oldest).is_none_or(|window| now.saturating_duration_since(window.start) >= WINDOW);
            let full = self.by_address.len() >= MAX_ADDRESSES && !self.by_address.contains_key(&address);
            if !over && !full {
                break;
            }
            self.by_address.remove(oldest);
            self.by_start.pop_front();
        }
        self.by_address.entry(address).or_insert_with(|| {
            self.by_start.push_back(address);
            Window { start: now, count: 0 }
        })
    }
}

/// The address that a request came from. What a header claims counts only as far as trusted proxies vouch for it.
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer.to_canonical();
    let trusts = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let lines = headers.get_all("x-forwarded-for");
    let mut claimed = lines.iter().rev().filter_map(|line| line.to_str().ok()).flat_map(|line| line.rsplit(','));
    while trusts(&client)
        && let Some(address) = claimed.next().and_then(|text| parse_address(text.trim()))
    {
        client = address.to_canonical();
    }
    client
}

/// Some proxies add the port.
fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(n).into()
    }

    #[test]
    fn a_window_starts_with_its_first_request_and_lasts_a_minute() {
        let limiter = Limiter::new(2).unwrap();
        let start = Instant::now();
        let check = |after_ms, allowed, remaining, reset_sec| {
            let standing = limiter.count(address(1), start + Duration::from_millis(after_ms));
            assert_eq!(standing, Standing { allowed, limit: 2, remaining, reset_sec }, "after {after_ms} ms");
        };
        check(0, true, 1, 60);
        check(30_001, true, 0, 30);
        check(59_999, false, 0, 1);
        check(60_000, true, 1, 60);
        assert!(limiter.count(address(2), start).allowed, "another address has its own window");
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(Limiter::new(0).is_none());
    }

    #[test]
    fn the_table_stays_bounded() {
        let limiter = Limiter::new(1).unwrap();
        let start = Instant::now();
        for n in 0..MAX_ADDRESSES as u32 + 10 {
            assert!(limiter.count(address(n), start).allowed);
        }
        let windows = limiter.windows.lock();
        assert_eq!((windows.by_address.len(), windows.by_start.len()), (MAX_ADDRESSES, MAX_ADDRESSES));
    }

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
