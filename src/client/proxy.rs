//! The proxy that the environment sets for calls, for error texts.

use std::error::Error as _;

use hyper_util::client::proxy::matcher::Matcher;
use url::Url;

use bloom_outbound::cause;

/// The proxy of calls, and the variable that sets it.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// Host and port, without the user and the password that the variable may contain.
    address: String,
    variable: &'static str,
}

impl Proxy {
    /// The proxy for calls to this address. It is chosen in the same way as for the calls themselves, taking NO_PROXY into account.
    pub(crate) fn of_environment(server: &Url) -> Option<Self> {
        let server = server.as_str().parse().ok()?;
        let chosen = Matcher::from_env().intercept(&server)?;
        let names = match server.scheme_str() {
            Some("https") => ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
            _ => ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
        };
        let says_so = |name: &&str| {
            let value = std::env::var(name).unwrap_or_default();
            Matcher::builder().all(value).build().intercept(&server).is_some_and(|proxy| proxy.uri() == chosen.uri())
        };
        Some(Self { address: chosen.uri().authority()?.to_string(), variable: names.into_iter().find(says_so)? })
    }

    /// Why there is no connection, if that is the proxy's fault.
    pub(crate) fn told(&self, error: &reqwest::Error, server: &str) -> Option<String> {
        let Self { address, variable } = self;
        let why = cause(error);
        if !error.is_connect() {
            return None;
        }
        if why.starts_with("tunnel error") {
            return Some(format!("the proxy of the environment ({variable}: {address}) makes no connection to {server}: {why}"));
        }
        // An established connection leads to the proxy too, and may then fail at the server's TLS.
        let is_before = |error: &dyn std::error::Error| ["tcp connect error", "dns error"].contains(&error.to_string().as_str());
        let is_unreachable = error.is_timeout() || std::iter::successors(error.source(), |&error| error.source()).any(is_before);
        is_unreachable.then(|| {
            format!(
                "can't connect to the proxy {address} that {variable} names: {why}. Start or correct it; or call {server} without it: unset \
                 {variable}, or name the server's host in NO_PROXY"
            )
        })
    }
}
