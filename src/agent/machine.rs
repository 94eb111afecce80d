//! What the agent tells of the machine it runs on.

use std::net::{ToSocketAddrs, UdpSocket};

use url::Url;

/// The system's name and the kind of processor.
pub fn os_info() -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or(std::env::consts::OS);
    let name: String = name.trim_matches('"').chars().take(100).collect();
    format!("{name} {}", std::env::consts::ARCH)
}

/// The address that this machine has towards the server: where it would send from. Nothing is sent to learn it.
pub fn addresses(server: &str) -> Vec<String> {
    let find = || {
        let url = Url::parse(server).ok()?;
        let target = (url.host_str()?.trim_matches(['[', ']']), url.port_or_known_default()?).to_socket_addrs().ok()?.next()?;
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    };
    find().into_iter().collect()
}
