//! The agent's own key, which it gets in exchange for a join token and stores in its directory.

use std::io;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::home::{Home, read_json, write_json_durably};
use crate::server_calls::report::Backoff;
use bloom_api::keys::{CreatedKey, EnrolledName, NewEnrollment};
use bloom_api::values::Id;
use bloom_client::Client;
use uuid::Uuid;

#[derive(Deserialize, Serialize)]
struct Kept {
    /// The server and the worker that the key is for. It is sent to no other server.
    server: String,
    worker: String,
    /// The digest of the join token that the key was exchanged for. With another token, the worker is enrolled again.
    token: String,
    key: String,
}

/// The stored key. If there is a join token that was not used here before, it is exchanged for a new key, which is stored.
///
/// # Errors
/// The server refuses the token, or the key can't be stored. The text says what to do.
pub(crate) async fn key(home: &Home, client: &Client, worker: &str, token: Option<&SecretString>) -> Result<Option<SecretString>, String> {
    let server = client.server();
    let kept = read_json::<Kept>(&home.key_path()).filter(|kept| kept.server == server && kept.worker == worker);
    let Some(token) = token else { return Ok(kept.map(|kept| SecretString::from(kept.key))) };
    let digest = hex::encode(Sha256::digest(token.expose_secret().as_bytes()));
    if let Some(kept) = kept.filter(|kept| kept.token == digest) {
        return Ok(Some(SecretString::from(kept.key)));
    }
    let (instance, _) = home.instance()?;
    let key = exchange(client, worker, instance, token).await?;
    let kept = Kept { server: server.to_owned(), worker: worker.to_owned(), token: digest, key };
    let failed = |error: io::Error| {
        let path = home.key_path();
        format!("the worker's key can't be stored in {}: {error}; the join token is used up, create another one", path.display())
    };
    write_json_durably(&home.key_path(), &kept).map_err(failed)?;
    tracing::info!(worker, server, "enrolled");
    Ok(Some(SecretString::from(kept.key)))
}

async fn exchange(client: &Client, worker: &str, instance: Uuid, token: &SecretString) -> Result<String, String> {
    let (server, client) = (client.server(), client.with_key(token).map_err(|error| error.to_string())?);
    let wanted = NewEnrollment { worker: EnrolledName(worker.to_owned()), instance: Some(Id(instance)) };
    let mut backoff = Backoff::default();
    loop {
        match client.post::<CreatedKey>("api/runtime/enroll", &wanted).await {
            Ok(created) => return Ok(created.key.into_owned()),
            Err(error) if error.is_passing() => {
                let wait = backoff.wait(&error);
                tracing::warn!(%error, "this worker could not be enrolled; trying again");
                tokio::time::sleep(wait).await;
            }
            Err(error) if error.status() == Some(401) => {
                return Err(format!(
                    "the server {server} refuses the join token: it was used before, was revoked or has expired; create another one with: \
                     bloom-runtime key create NAME --scope join --worker {worker} --out FILE"
                ));
            }
            Err(error) => return Err(format!("the server {server} did not enroll the worker {worker}: {error}")),
        }
    }
}
