//! Rate limits: fixed windows of a minute for each client, in tables of bounded size.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;

use crate::identity::clients::network;

const WINDOW: Duration = Duration::from_secs(60);
/// Limit of the clients in each of the two tables. Beyond that, the oldest window is removed before its end.
const MAX_CLIENTS: usize = 65_536;

/// One limit.
pub(crate) struct Limiter {
    limit: u32,
    policy: HeaderValue,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    below: Table,
    /// The windows of clients that exceeded the limit. They have a table of their own, so that a client with many addresses does not push
    /// them out.
    over: Table,
}

#[derive(Default)]
struct Table {
    by_client: HashMap<IpAddr, Window>,
    by_age: VecDeque<IpAddr>,
}

#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    count: u32,
}

/// The state of a limit after a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Standing {
    pub allowed: bool,
    limit: u32,
    remaining: u32,
    /// Seconds until the window ends, rounded up.
    pub reset_sec: u64,
}

impl Limiter {
    /// `None` for 0, which means no limit.
    pub(crate) fn new(per_minute: u32) -> Option<Self> {
        let policy = HeaderValue::try_from(format!("{per_minute};w={}", WINDOW.as_secs())).ok()?;
        (per_minute > 0).then(|| Self { limit: per_minute, policy, windows: Mutex::default() })
    }

    pub(crate) fn count(&self, address: IpAddr, now: Instant) -> Standing {
        let Window { start, count } = self.windows.lock().count(network(address), self.limit, now);
        let left = (start + WINDOW).saturating_duration_since(now);
        Standing {
            allowed: count <= self.limit,
            limit: self.limit,
            remaining: self.limit.saturating_sub(count),
            reset_sec: left.as_millis().div_ceil(1000) as u64,
        }
    }

    pub(crate) fn write_headers(&self, standing: &Standing, headers: &mut HeaderMap) {
        headers.insert("ratelimit-policy", self.policy.clone());
        headers.insert("ratelimit-limit", standing.limit.into());
        headers.insert("ratelimit-remaining", standing.remaining.into());
        headers.insert("ratelimit-reset", standing.reset_sec.into());
    }
}

impl Windows {
    /// Counts this request. Returns the client's window.
    fn count(&mut self, client: IpAddr, limit: u32, now: Instant) -> Window {
        if let Some(window) = self.over.window(client, now) {
            window.count = window.count.saturating_add(1);
            return *window;
        }
        let window = match self.below.window(client, now) {
            Some(window) => window,
            None => self.below.add(client, Window { start: now, count: 0 }, now),
        };
        window.count += 1;
        let window = *window;
        if window.count > limit {
            self.below.by_client.remove(&client);
            self.over.add(client, window, now);
        }
        window
    }
}

impl Table {
    /// The client's window, unless it is over.
    fn window(&mut self, client: IpAddr, now: Instant) -> Option<&mut Window> {
        self.by_client.get_mut(&client).filter(|window| !window.is_over(now))
    }

    fn add(&mut self, client: IpAddr, window: Window, now: Instant) -> &mut Window {
        while let Some(&oldest) = self.by_age.front() {
            let is_gone = self.by_client.get(&oldest).is_none_or(|window| window.is_over(now));
            if !is_gone && self.by_age.len() < MAX_CLIENTS {
                break;
            }
            self.by_client.remove(&oldest);
            self.by_age.pop_front();
        }
        self.by_age.push_back(client);
        self.by_client.entry(client).insert_entry(window).into_mut()
    }
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.start) >= WINDOW
    }
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
    fn a_full_table_makes_room_and_forgives_nobody() {
        let limiter = Limiter::new(1).unwrap();
        let start = Instant::now();
        let offender = address(u32::MAX);
        limiter.count(offender, start);
        assert!(!limiter.count(offender, start).allowed);
        for n in 0..2 * MAX_CLIENTS as u32 + 10 {
            assert!(limiter.count(address(n), start).allowed);
        }
        assert!(!limiter.count(offender, start).allowed, "the client has to wait for the end of its window");
        let sizes = |table: &Table| (table.by_client.len(), table.by_age.len());
        assert_eq!(sizes(&limiter.windows.lock().below), (MAX_CLIENTS, MAX_CLIENTS));
        for n in 0..MAX_CLIENTS as u32 + 10 {
            limiter.count(address(n), start);
            limiter.count(address(n), start);
        }
        assert_eq!(sizes(&limiter.windows.lock().over), (MAX_CLIENTS, MAX_CLIENTS));
        assert!(limiter.count(address(1), start + WINDOW).allowed);
    }

    #[test]
    fn a_client_that_comes_again_and_again_is_known_once() {
        let limiter = Limiter::new(1).unwrap();
        let start = Instant::now();
        for minute in 0..100 {
            for _ in 0..3 {
                limiter.count(address(1), start + WINDOW * minute);
            }
        }
        let windows = limiter.windows.lock();
        for table in [&windows.below, &windows.over] {
            assert!(table.by_client.len() <= 1 && table.by_age.len() <= 1, "{} entries by age", table.by_age.len());
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let limiter = Limiter::new(1).unwrap();
        let start = Instant::now();
        let allowed = |address: &str| limiter.count(address.parse().unwrap(), start).allowed;
        assert!(allowed("2001:db8::1"));
        assert!(!allowed("2001:db8::ffff:0:0:1"));
        assert!(allowed("2001:db8:0:1::1"));
    }
}
