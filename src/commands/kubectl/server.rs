//! How the plugin reaches the server, which has the output of the runs.

use std::path::PathBuf;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Args;
use secrecy::SecretString;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::cluster::{Cluster, name_of};
use super::forward::Forward;
use super::taken::Taken;
use crate::CommandError;
use crate::ids::path;
use crate::key_file::read_key;
use crate::retry::Retry;
use crate::server_calls::{Server, failed};
use bloom_client::Tls;

/// The label that the Services of servers have.
const LABEL: &str = "app.kubernetes.io/name=bloom-runtime";
/// The annotation of a Service that names the Secret of its namespace with a key that may read, and the entry: `SECRET/ENTRY`.
const READ_KEY: &str = "bloom-runtime.dev/read-key";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// The server's address [default: a port-forward to the Service of the server that has taken the LLMTask]
    #[arg(long, global = true, value_name = "URL")]
    server: Option<String>,
    /// File with a key for --server [default: without --server, the key in the server's Secret]
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// PEM file with authorities that the certificate of --server may come from, in addition to those of the operating system
    #[arg(long, global = true, value_name = "FILE", requires = "server")]
    ca_file: Option<PathBuf>,
}

/// A server that can be called as long as this exists.
pub(crate) struct Reached {
    pub server: Server,
    _forward: Option<Forward>,
}

/// The Service of a server.
struct Service {
    namespace: String,
    name: String,
    /// The Secret and the entry with a key of the server.
    key: Option<(String, String)>,
}

impl ServerArgs {
    /// # Errors
    /// A key is given without the address that it is for.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        // Everyone who may edit an LLMTask decides which server it names. A key must go only to the server for which it was made.
        if self.key_file.is_some() && self.server.is_none() {
            return Err(CommandError::usage("--key-file needs --server, the address of the server that the key is for"));
        }
        Ok(())
    }

    /// The server that has this task.
    ///
    /// # Errors
    /// The server is not known, can't be reached, or does not have the task.
    pub(crate) async fn reach(&self, cluster: &Cluster, taken: &Taken) -> Result<Reached, CommandError> {
        match &self.server {
            Some(url) => {
                let key = self.key_file.as_deref().map(read_key).transpose()?;
                let tls = Tls::trusting(self.ca_file.as_deref()).map_err(failed)?;
                let reached = Reached { server: Server::new(url, key.as_ref(), &tls)?, _forward: None };
                reached.must_have(taken).await?;
                Ok(reached)
            }
            None => by_service(cluster, taken).await.map_err(|failure| CommandError {
                message: format!("{}\nElse give the server's address, and a key for it: --server URL --key-file FILE", failure.message),
                ..failure
            }),
        }
    }
}

/// The server in the namespace that the LLMTask names.
async fn by_service(cluster: &Cluster, taken: &Taken) -> Result<Reached, CommandError> {
    let service = Service::find(cluster, taken.server_namespace()?).await?;
    let key = service.key(cluster).await?;
    let forward = Forward::start(cluster, &service.namespace, &service.name).await?;
    let reached = Reached { server: Server::new(&forward.url(), key.as_ref(), &Tls::default())?, _forward: Some(forward) };
    reached.must_have(taken).await?;
    Ok(reached)
}

fn told(what: &str, failure: CommandError) -> CommandError {
    CommandError { message: format!("{what}: {}", failure.message), ..failure }
}

impl Reached {
    /// Makes sure that this server has the task.
    async fn must_have(&self, taken: &Taken) -> Result<(), CommandError> {
        let mut retry = Retry::new(true, false);
        loop {
            match self.server.client.get::<IgnoredAny>(&path(&taken.id, "")).await {
                Ok(_) => return Ok(()),
                Err(error) if error.status() == Some(404) => return Err(taken.is_not_there()),
                Err(error) => retry.pause(error).await?,
            }
        }
    }
}

impl Service {
    /// The Service of the server in this namespace. Services of other namespaces don't count: anyone can make one there.
    async fn find(cluster: &Cluster, namespace: &str) -> Result<Self, CommandError> {
        let arguments = ["get", "services", &format!("--selector={LABEL}"), &format!("--namespace={namespace}")];
        let found = cluster.call(&arguments, None).await;
        let found =
            found.map_err(|failure| told(&format!("the server's Service can't be looked up in the namespace {namespace}"), failure))?;
        let services: Vec<Self> = found["items"].as_array().into_iter().flatten().filter_map(Self::of).collect();
        match <[Self; 1]>::try_from(services) {
            Ok([service]) => Ok(service),
            Err(services) => {
                let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
                Err(match names.as_slice() {
                    [] => format!("the server in the namespace {namespace} has the LLMTask, but no Service there has the label {LABEL}"),
                    names => format!("several Services in the namespace {namespace} have the label {LABEL}: {}", names.join(", ")),
                }
                .into())
            }
        }
    }

    /// `None` if it is a Service for other purposes.
    fn of(object: &Value) -> Option<Self> {
        let ports = object["spec"]["ports"].as_array()?;
        if object["spec"]["clusterIP"] == "None" || !ports.iter().any(|port| port["name"] == "http") {
            return None;
        }
        let metadata = &object["metadata"];
        Some(Self {
            namespace: metadata["namespace"].as_str()?.to_owned(),
            name: name_of(object).ok()?,
            key: metadata["annotations"][READ_KEY].as_str().and_then(|text| text.split_once('/')).map(|(a, b)| (a.into(), b.into())),
        })
    }

    /// The key in the Secret that the Service names; `None` if it names none.
    async fn key(&self, cluster: &Cluster) -> Result<Option<SecretString>, CommandError> {
        let (Some((secret, entry)), namespace) = (&self.key, &self.namespace) else { return Ok(None) };
        let found = cluster.call(&["get", &format!("--namespace={namespace}"), "secrets", "--", secret], None).await;
        let found = found.map_err(|failure| told("the server's key can't be read", failure))?;
        let key = found["data"][entry].as_str().and_then(|key| String::from_utf8(BASE64_STANDARD.decode(key).ok()?).ok());
        let key = key.ok_or_else(|| format!("the Secret {namespace}/{secret} has no entry {entry}"))?;
        Ok(Some(SecretString::from(key.trim_end_matches(['\r', '\n']))))
    }
}
