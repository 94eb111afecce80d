//! The connection to the cluster.

use std::time::Duration;

use kube::{Client, Config};

/// Limit of connecting; calls have limits of their own.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects as the service account of the pod, or else with the kubeconfig. Also returns the namespace of the configuration.
///
/// # Errors
/// There is no usable configuration; the text says why.
pub(crate) async fn connect() -> Result<(Client, String), String> {
    let mut config = Config::infer().await.map_err(|error| format!("no configuration of a cluster was found: {error}"))?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // No retries here: the reconciler repeats a failed call, and considers what has changed meanwhile.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).map_err(|error| format!("the configuration of the cluster can't be used: {error}"))?;
    Ok((client, namespace))
}
