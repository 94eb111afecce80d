//! Checks of the headers that name the host and the site of a request, against requests by web pages of other sites.
//!
//! A web page can make the browser send requests to every server that its machine can reach. The browser then names the page's site
//! (`Origin`, `Sec-Fetch-Site`). If an attacker's DNS name resolves to this server's address, the browser sends that name as `Host`.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, Version};
use ipnet::IpNet;
use url::{Host, Url};

use crate::Settings;
use crate::identity::clients::{Peer, Security, trusts};
use crate::messages::refusal::Refusal;

const FORWARDED_HOST: &str = "x-forwarded-host";

/// The scheme and host that the client called. `None` if the request names no host. A target with a host (`GET http://host/…`) takes
/// precedence over `Host`, as HTTP requires.
///
/// # Errors
/// The request names several hosts, or an invalid one.
pub(crate) fn called(target: &Uri, headers: &HeaderMap, peer: Option<Peer>, trusted: &[IpNet]) -> Result<Option<Url>, Refusal> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Refusal::BadHost);
    }
    let is_proxied = is_proxied(peer, trusted);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let forwarded = |name: &str| header(name).filter(|_| is_proxied).and_then(|text| text.split(',').next()).map(str::trim);
    let own_tls = peer.is_some_and(|peer| peer.security != Security::Plain);
    let is_https = forwarded("x-forwarded-proto").map_or(own_tls, |scheme| scheme.eq_ignore_ascii_case("https"));
    let scheme = if is_https { "https" } else { "http" };
    let text = match (forwarded(FORWARDED_HOST), host) {
        (Some(host), _) => host,
        (None, Some(host)) => host.to_str().map_err(|_| Refusal::BadHost)?,
        (None, None) => return Ok(None),
    };
    let named = url_of(scheme, text).ok_or(Refusal::BadHost)?;
    match target.authority().filter(|_| forwarded(FORWARDED_HOST).is_none()) {
        Some(authority) => url_of(scheme, authority.as_str()).map(Some).ok_or(Refusal::BadHost),
        None => Ok(Some(named)),
    }
}

/// Whether a trusted proxy has sent the request, so that its `X-Forwarded-*` headers count.
fn is_proxied(peer: Option<Peer>, trusted: &[IpNet]) -> bool {
    peer.is_some_and(|peer| trusts(trusted, peer.address.ip()))
}

/// The URL of a host with its port. `None` if the text is not one.
fn url_of(scheme: &str, host: &str) -> Option<Url> {
    // These characters are invalid in a host, but the URL parser would accept them as the start of another part of the URL.
    let is_bare = !host.is_empty() && !host.contains(['/', '\\', '?', '#', '@']);
    Url::parse(&format!("{scheme}://{host}")).ok().filter(|_| is_bare)
}

/// Checks that the request names a host. If no keys are configured, it must be one of this server's names.
///
/// # Errors
/// The host is missing, or it is not this server's.
pub(crate) fn check_host(
    called: Option<&Url>,
    target: &Uri,
    headers: &HeaderMap,
    version: Version,
    peer: Option<Peer>,
    settings: &Settings,
) -> Result<(), Refusal> {
    let is_open = settings.keys.is_empty();
    match called {
        Some(_)
            if is_open && !hosts(target, headers, peer, settings).all(|host| host.is_some_and(|host| is_ours(&host, peer, settings))) =>
        {
            Err(Refusal::UnknownHost)
        }
        // If keys are configured, an HTTP/1.0 request may leave out the host, as some health checks do.
        None if is_open || version != Version::HTTP_10 => Err(Refusal::BadHost),
        _ => Ok(()),
    }
}

/// Every host that the request names; `None` for a value that is not a host. A page can make its browser send any `X-Forwarded-Host`, but
/// not any `Host`, and a proxy may append its own value to the client's. So no value is trusted alone.
fn hosts<'a>(target: &'a Uri, headers: &'a HeaderMap, peer: Option<Peer>, settings: &Settings) -> impl Iterator<Item = Option<Host>> + 'a {
    let is_proxied = is_proxied(peer, &settings.trusted_proxies);
    let forwarded = headers.get_all(FORWARDED_HOST).iter().filter(move |_| is_proxied);
    let texts = headers.get_all(HOST).iter().chain(forwarded).flat_map(|value| value.to_str().unwrap_or_default().split(','));
    let texts = texts.chain(target.authority().map(Authority::as_str));
    texts.map(|text| Some(url_of("http", text.trim())?.host()?.to_owned()))
}

fn is_ours(host: &Host, peer: Option<Peer>, settings: &Settings) -> bool {
    let listens_on = peer.and_then(|peer| peer.local);
    let is_here = |address: IpAddr| {
        let address = address.to_canonical();
        address.is_loopback() || listens_on == Some(address)
    };
    let public = settings.public_url.as_ref().and_then(Url::host).map(|host| host.to_owned());
    let named = |ours: &Host| match (ours, host) {
        (Host::Domain(ours), Host::Domain(name)) => without_dot(ours) == without_dot(name),
        _ => ours == host,
    };
    let is_local = match host {
        Host::Domain(name) => without_dot(name) == "localhost",
        Host::Ipv4(address) => is_here((*address).into()),
        Host::Ipv6(address) => is_here((*address).into()),
    };
    is_local || settings.hosts.iter().chain(&public).any(named)
}

/// Removes the final dot of a DNS name, which stands for the root and does not change the meaning.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Checks that the request was sent by a program or by a page of this server.
///
/// # Errors
/// It was sent by a page of another site.
pub(crate) fn check_site(headers: &HeaderMap, called: Option<&Url>, settings: &Settings) -> Result<(), Refusal> {
    let ours = || called.into_iter().chain(&settings.public_url).map(Url::origin);
    let is_own = |origin: &str| Url::parse(origin).is_ok_and(|origin| ours().any(|own| own == origin.origin()));
    let is_from =
        |wanted: &str| headers.get_all("sec-fetch-site").iter().any(|site| site.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()));
    // If a proxy has set `Referrer-Policy: no-referrer`, browsers send `Origin: null`, but `Sec-Fetch-Site` still says that the origin is
    // the same.
    let is_same = is_from("same-origin") && headers.get_all("sec-fetch-site").iter().count() == 1;
    let own_origin =
        headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(|origin| is_own(origin) || (is_same && origin == "null")));
    // Another port of this host is the same site but another origin, and without `Origin` the request does not say which port.
    let is_cross_site = is_from("cross-site") || (is_from("same-site") && !headers.contains_key(ORIGIN));
    if own_origin && !is_cross_site { Ok(()) } else { Err(Refusal::CrossSite) }
}

/// Whether a page of another site loads this, for example as an image. False if a person follows a link, and for programs.
pub(crate) fn is_loaded_by_other_site(headers: &HeaderMap) -> bool {
    let has = |name: &str, test: fn(&str) -> bool| headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(test);
    has("sec-fetch-site", |site| site.eq_ignore_ascii_case("cross-site")) && has("sec-fetch-mode", |mode| mode != "navigate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_one_that_was_called() {
        let check_target =
            |target: &'static str, headers: &[(&'static str, &'static str)], by_proxy, expected: Result<Option<&str>, ()>| {
                let map = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
                let trusted = if by_proxy { vec!["192.0.2.1/32".parse().unwrap()] } else { Vec::new() };
                let peer = Peer { address: "192.0.2.1:9".parse().unwrap(), local: None, security: Security::Plain };
                let url = called(&Uri::from_static(target), &map, Some(peer), &trusted)
                    .map(|url| url.map(|url| url.origin().ascii_serialization()));
                assert_eq!(url.as_ref().map(Option::as_deref).map_err(|_| ()), expected, "{headers:?}");
            };
        let check = |headers: &[(&'static str, &'static str)], by_proxy, expected| check_target("/x", headers, by_proxy, expected);
        check_target("http://b:1/x", &[("host", "a")], false, Ok(Some("http://b:1")));
        check_target("http://u@b/x", &[("host", "a")], false, Err(()));
        check_target("http://b/x", &[], false, Ok(None));
        check_target("http://b/x", &[("host", "")], false, Err(()));
        check_target("http://b/x", &[("host", "a"), ("x-forwarded-host", "c")], true, Ok(Some("http://c")));
        check(&[("host", "bloom.example:5000")], false, Ok(Some("http://bloom.example:5000")));
        check(&[("host", "[::1]:5000")], false, Ok(Some("http://[::1]:5000")));
        check(&[("host", "a"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "b")], false, Ok(Some("http://a")));
        check(&[("host", "a"), ("x-forwarded-proto", "https")], true, Ok(Some("https://a")));
        check(&[("host", "a"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "b, c")], true, Ok(Some("https://b")));
        let over_tls = Peer { address: "192.0.2.1:9".parse().unwrap(), local: None, security: Security::Tls };
        let headers = HeaderMap::from_iter([(HOST, "a".parse().unwrap())]);
        assert_eq!(called(&Uri::from_static("/x"), &headers, Some(over_tls), &[]).unwrap().unwrap().as_str(), "https://a/");
        for wrong in ["", "a/b", "a/", "u@a", "a?b", "a b", "a#b"] {
            check(&[("host", wrong)], false, Err(()));
        }
        check(&[], false, Ok(None));
    }
}
