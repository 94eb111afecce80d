//! `healthcheck`: asks the server on this machine whether it can serve requests.

use std::time::Duration;

use bloom_commands::{CommandError, term};
use bloom_config::Serve;

use super::serve::own_url;

const LIMIT: Duration = Duration::from_secs(10);

pub async fn run(settings: Serve) -> Result<(), CommandError> {
    if settings.network.port == 0 {
        let what = "PORT is 0, so the address of the server is not known: give the port that it told at its start, with --port";
        return Err(what.to_owned().into());
    }
    let url = own_url(&settings);
    // The certificate is for the name by which other machines call the server, so it is not verified. No secret is sent.
    let client = bloom_outbound::client(|builder| builder.tls_danger_accept_invalid_certs(true))?;
    let wrong = |what: String| CommandError::from(format!("the server at {url} {what}; bloom-runtime doctor says more"));
    match bloom_outbound::send(client.get(format!("{url}/readyz")), LIMIT).await {
        Ok(reply) if reply.is_success() => Ok(term::print(&format!("the server at {url} is ready\n"))?),
        Ok(reply) => Err(wrong(format!("is not ready (status {}): {}", reply.status, String::from_utf8_lossy(&reply.body)))),
        Err(error) => Err(wrong(format!("does not answer: {}", error.text))),
    }
}
