//! A port-forward to the server, which kubectl runs.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::cluster::{Cluster, not_started};
use crate::CommandError;

/// How long kubectl may take to start forwarding.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long kubectl waits for a running pod.
const POD_LIMIT: &str = "--pod-running-timeout=10s";
/// The pause before kubectl is restarted after its pod has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// The maximum length of a line of kubectl, and of its error text.
const LINE: usize = 4096;

/// A local port that is forwarded to the server until this is dropped. If the pod ends, the port is soon forwarded to another one.
pub(crate) struct Forward {
    port: u16,
    keeper: JoinHandle<()>,
}

impl Forward {
    pub(crate) async fn start(cluster: &Cluster, namespace: &str, service: &str) -> Result<Self, CommandError> {
        let namespace = format!("--namespace={namespace}");
        let service = format!("service/{service}");
        let command = |ports: &str| cluster.kubectl(&["port-forward", &namespace, "--address=127.0.0.1", POD_LIMIT, "--", &service, ports]);
        let (mut child, port) = started(command(":http")).await?;
        // The port must stay the same, because the calls use it.
        let mut again = command(&format!("{port}:http"));
        let keeper = tokio::spawn(async move {
            loop {
                let _ = child.wait().await;
                child = loop {
                    sleep(PAUSE).await;
                    // Meanwhile, calls fail and are retried.
                    if let Ok((child, _)) = started_by(&mut again).await {
                        break child;
                    }
                };
            }
        });
        Ok(Self { port, keeper })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn started(mut command: Command) -> Result<(Child, u16), CommandError> {
    started_by(&mut command).await
}

/// Starts kubectl, and waits until it forwards. Returns the process and the local port.
async fn started_by(command: &mut Command) -> Result<(Child, u16), CommandError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| not_started(&error))?;
    let (Some(out), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("the output of kubectl can't be read".to_owned().into());
    };
    let mut out = BufReader::new(out);
    let ready = async {
        while let Some(line) = line(&mut out).await {
            if let Some(port) = port_of(&line) {
                return Some(port);
            }
        }
        None
    };
    let port = match timeout(START_LIMIT, ready).await {
        Ok(Some(port)) => port,
        Ok(None) => {
            let why = line(&mut BufReader::new(errors)).await.unwrap_or_default();
            return Err(format!("kubectl can't forward a port to the server: {}", why.trim()).into());
        }
        Err(_) => {
            return Err(format!("kubectl did not forward a port to the server in {} s", START_LIMIT.as_secs()).into());
        }
    };
    // kubectl writes a line for each connection, and would block if nobody read them.
    tokio::spawn(async move { while line(&mut out).await.is_some() {} });
    tokio::spawn(async move {
        let mut errors = BufReader::new(errors);
        while line(&mut errors).await.is_some() {}
    });
    Ok((child, port))
}

/// The next line, or a part of it if it is very long; `None` at the end.
async fn line(from: &mut BufReader<impl AsyncRead + Unpin>) -> Option<String> {
    let mut bytes = Vec::new();
    let mut limited = tokio::io::AsyncReadExt::take(from, LINE as u64);
    let read = limited.read_until(b'\n', &mut bytes).await.ok()?;
    (read > 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The local port in a line such as `Forwarding from 127.0.0.1:40123 -> 5000`.
fn port_of(line: &str) -> Option<u16> {
    line.strip_prefix("Forwarding from 127.0.0.1:")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read() {
        assert_eq!(port_of("Forwarding from 127.0.0.1:40123 -> 5000\n"), Some(40_123));
        assert_eq!(port_of("Handling connection for 40123"), None);
    }
}
