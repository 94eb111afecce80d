//! What the agent reports about its machine.

use tokio::net::{UdpSocket, lookup_host};
use url::Url;

/// The name of the operating system and the processor architecture.
pub(crate) fn os_info() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or(std::env::consts::OS);
    let name: String = name.trim_matches('"').chars().take(100).collect();
    format!("{name} {}", std::env::consts::ARCH)
}

/// The local address from which this machine would send to the server. Connecting a UDP socket finds it without sending anything.
pub(crate) async fn addresses(server: &str) -> Vec<String> {
    address(server).await.into_iter().collect()
}

async fn address(server: &str) -> Option<String> {
    let url = Url::parse(server).ok()?;
    let target = lookup_host((url.host_str()?.trim_matches(['[', ']']), url.port_or_known_default()?)).await.ok()?.next()?;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(target).await.ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}
