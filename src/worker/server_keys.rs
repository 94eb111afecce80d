//! Whether the server on this machine needs keys, where runs in a sandbox reach it.

use std::net::IpAddr;

use serde::de::IgnoredAny;
use url::Url;

use super::profiles::Profiles;
use super::sandbox::Sandbox;
use bloom_client::{Client, Tls};

/// # Errors
/// Runs of a profile with a sandbox could call the server without a key: the sandbox would be no boundary, because they could have other
/// programs run, without a sandbox.
pub async fn check(profiles: &Profiles, server: &str, tls: &Tls) -> Result<(), String> {
    let reaches = |sandbox: &Sandbox| sandbox.network;
    let Some((slug, _)) = profiles.all().find(|(_, profile)| profile.sandbox.as_ref().is_some_and(reaches)) else { return Ok(()) };
    if !is_on_this_machine(server) {
        return Ok(());
    }
    let without_key = Client::new(server, None, tls).map_err(|error| error.to_string())?;
    match without_key.get::<IgnoredAny>("api/runtime/workers?limit=1").await {
        Ok(_) => Err(format!(
            "profile {slug}: the runs in its sandbox reach the server {server}, which needs no key, so they could have anything run on this \
             machine: start the server with RUNTIME_API_KEY, or set network = false in the sandbox"
        )),
        // It needs one. A server that can't be reached has just registered this agent, and is asked again at the next start.
        Err(_) => Ok(()),
    }
}

fn is_on_this_machine(server: &str) -> bool {
    let url = Url::parse(server).ok();
    let host = url.as_ref().and_then(Url::host_str).map(|host| host.trim_matches(['[', ']']));
    host.is_some_and(|host| host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()))
}
