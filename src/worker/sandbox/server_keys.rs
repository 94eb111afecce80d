//! Checks that the server needs keys if it is on this machine and runs in a sandbox can reach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::IgnoredAny;
use url::Url;

use crate::profiles::Profiles;
use crate::sandbox::bubblewrap::Sandbox;
use bloom_client::{Client, Tls};

/// # Errors
/// Runs of a profile with a sandbox could call the server without a key. Then the sandbox would be no boundary, because runs could make the
/// server execute other programs outside of it.
pub(crate) async fn check(profiles: &Profiles, server: &str, tls: &Tls) -> Result<(), String> {
    let Some((addresses, port)) = on_this_machine(server) else { return Ok(()) };
    let reaches = |sandbox: &Sandbox| addresses.iter().any(|address| sandbox.network.reaches(*address, port));
    let Some((slug, _)) = profiles.all().find(|(_, profile)| profile.sandbox.as_ref().is_some_and(reaches)) else { return Ok(()) };
    let without_key = Client::new(server, None, tls).map_err(|error| error.to_string())?;
    match without_key.get::<IgnoredAny>("api/runtime/workers?limit=1").await {
        Ok(_) => Err(format!(
            "profile {slug}: the runs in its sandbox reach the server {server}, which needs no key, so they could have anything run on this \
             machine: start the server with RUNTIME_API_KEY, or set network = false (or a list of hosts) in the sandbox"
        )),
        // The server needs a key. If it can't be reached now, it is asked again at the next start; it was reachable when the agent
        // registered.
        Err(_) => Ok(()),
    }
}

/// The addresses and the port of a server on this machine; `None` if it is on another machine.
fn on_this_machine(server: &str) -> Option<(Vec<IpAddr>, u16)> {
    let url = Url::parse(server).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) if host == "localhost" => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        Err(_) => return None,
    };
    Some((addresses, url.port_or_known_default()?)).filter(|(addresses, _)| addresses.iter().all(IpAddr::is_loopback))
}
