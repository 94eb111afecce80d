//! How the plugin reaches the server, which has the output of the runs.

use std::path::PathBuf;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Args;
use secrecy::SecretString;
use serde_json::Value;

use super::super::connect::Server;
use super::super::key_file::read_key;
use super::cluster::{Cluster, name_of};
use super::forward::Forward;
use crate::CommandError;

/// The label that the Services of servers have.
const LABEL: &str = "app.kubernetes.io/name=bloom-runtime";
/// The annotation of a Service that names the Secret of its namespace with a key that may read, and the entry: `SECRET/ENTRY`.
const READ_KEY: &str = "bloom-runtime.dev/read-key";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server's address [default: a port-forward to the server's Service]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "server_namespace")]
    server: Option<String>,
    /// The namespace of the server's Service [default: all namespaces are searched for it]
    #[arg(long, global = true, value_name = "NAME")]
    server_namespace: Option<String>,
    /// File with a key of the server [default: the key in the server's Secret]
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// A server that can be called as long as this exists.
pub struct Reached {
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
    pub async fn reach(&self, cluster: &Cluster) -> Result<Reached, CommandError> {
        let key = self.key_file.as_deref().map(read_key).transpose()?;
        if let Some(url) = &self.server {
            return Ok(Reached { server: Server::new(url, key.as_ref())?, _forward: None });
        }
        let service = self.find(cluster).await?;
        let key = match key {
            None => service.key(cluster).await?,
            given => given,
        };
        let forward = Forward::start(cluster, &service.namespace, &service.name).await?;
        Ok(Reached { server: Server::new(&forward.url(), key.as_ref())?, _forward: Some(forward) })
    }

    async fn find(&self, cluster: &Cluster) -> Result<Service, CommandError> {
        let place = self.server_namespace.as_ref().map_or("--all-namespaces".to_owned(), |name| format!("--namespace={name}"));
        let found = cluster.call(&["get", "services", &format!("--selector={LABEL}"), &place], None).await;
        let found = found.map_err(|failure| CommandError {
            message: format!(
                "the server's Service can't be looked up: {}\nName its namespace with --server-namespace, or its address with --server",
                failure.message
            ),
            ..failure
        })?;
        let services: Vec<Service> = found["items"].as_array().into_iter().flatten().filter_map(Service::of).collect();
        match <[Service; 1]>::try_from(services) {
            Ok([service]) => Ok(service),
            Err(none) if none.is_empty() => Err(format!(
                "no Service has the label {LABEL}: name the server's namespace with --server-namespace, or its address with --server"
            )
            .into()),
            Err(several) => {
                let names: Vec<String> = several.iter().map(|service| format!("{}/{}", service.namespace, service.name)).collect();
                Err(CommandError::usage(format!("there are several servers: {}; choose one with --server-namespace", names.join(", "))))
            }
        }
    }
}

impl Service {
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
        let found = found.map_err(|failure| CommandError {
            message: format!("the server's key can't be read: {}\nGive a key with --key-file", failure.message),
            ..failure
        })?;
        let key = found["data"][entry].as_str().and_then(|key| String::from_utf8(BASE64_STANDARD.decode(key).ok()?).ok());
        let key = key.ok_or_else(|| format!("the Secret {namespace}/{secret} has no entry {entry}: give a key with --key-file"))?;
        Ok(Some(SecretString::from(key.trim_end_matches(['\r', '\n']))))
    }
}
