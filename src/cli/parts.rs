//! Parts of the start that the server and the standalone control plane have in common.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use url::Host;

use bloom_commands::CommandError;
use bloom_config::{self as config, Flags, Serve};
use bloom_dispatch as dispatch;
use bloom_engine::{Engine, EngineOptions};
use bloom_http::{self as http, Keys};
use bloom_reconcile as reconcile;
use bloom_store::{Fault, Store};
use bloom_telemetry::{Log, Traces};

/// Reopens the log file and reads the log level again. The level comes from the settings file, because the environment of a process never
/// changes.
pub fn reload(log: &Log, flags: &Flags) {
    // The file is reopened first, so that it receives the errors.
    if let Err(error) = log.reopen() {
        tracing::error!("{error}");
    }
    let changed = match config::load(flags).into_serve() {
        Ok(settings) => log.set_level(&settings.log.level).map(|()| settings.log.level),
        Err(mistakes) => Err(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
    };
    match changed {
        Ok(level) => tracing::info!(level, "reloaded: the log level was read again"),
        Err(wrong) => {
            tracing::error!(%wrong, "the log level stays as it is until these settings are corrected")
        }
    }
}

/// The options of the engine, which takes its time and its randomness from the machine.
pub fn engine_options(settings: &Serve, traces: Traces) -> EngineOptions {
    EngineOptions {
        session_wait_ms: settings.work.session_wait_ms,
        named_agent_wait_ms: settings.work.named_agent_wait_ms,
        worker_offline_after_ms: settings.work.worker_offline_after_ms,
        traces,
        manual_clock: None,
        seed: None,
    }
}

/// Stops a server after an import, because its memory no longer matches the database.
pub async fn stop_after_import(engine: Engine, store: Store, shutdown: CancellationToken) {
    tokio::select! {
        () = engine.background.stopped() => {}
        fault = store.lasting_fault_occurs() => if fault == Fault::Imported {
            shutdown.cancel();
        }
    }
}

/// `names`: the names of the settings for the host and the port.
pub async fn listen_at(host: &str, port: u16, names: [&str; 2]) -> Result<(TcpListener, SocketAddr), CommandError> {
    let [host_setting, port_setting] = names;
    let bound = async {
        let listener = TcpListener::bind((host, port)).await?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound.await.map_err(|error: std::io::Error| {
        let next = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "port {port} is used by another program: stop that program, or choose another port with {port_setting} (0 = any free port)"
                )
            }
            std::io::ErrorKind::PermissionDenied => format!("port {port} needs more rights than this user has: choose a port from 1024 on"),
            std::io::ErrorKind::AddrNotAvailable => format!("{host} is not an address of this machine: correct {host_setting}"),
            _ => format!("{error}; correct {host_setting}, and {port_setting}"),
        };
        format!("can't listen on {host}:{port}: {next}").into()
    })
}

pub fn http_settings(settings: &Serve, max_connections: usize) -> http::Settings {
    http::Settings {
        keys: Keys::new(settings.keys.api.as_ref(), settings.keys.worker.as_ref(), settings.keys.read.as_ref()),
        rate_limit_per_minute: settings.limits.requests_per_minute,
        test_connection_per_minute: settings.limits.test_connection_per_minute,
        worker_rate_limit_per_minute: settings.limits.worker_requests_per_minute,
        public_url: settings.network.public_url.clone(),
        // Clients may also call the server by the name on which it listens, and the agents of pools by the name that they are given.
        hosts: {
            let of_agents = settings.kubernetes.agent_server.as_ref().and_then(|url| url.host().map(|host| host.to_owned()));
            settings.network.allowed_hosts.iter().cloned().chain(Host::parse(&settings.network.host).ok()).chain(of_agents).collect()
        },
        trusted_proxies: settings.network.trusted_proxies.clone(),
        max_body_bytes: settings.limits.body_bytes,
        max_output_bytes: settings.limits.output_bytes,
        max_artifact_bytes: settings.limits.artifact_bytes,
        request_timeout: settings.limits.request_timeout,
        head_timeout: http::server::HEAD_TIMEOUT,
        write_timeout: http::server::WRITE_TIMEOUT,
        held_bytes: http::HELD_BYTES,
        max_connections,
        tls: None,
        kubernetes: None,
        objects: None,
        lease_ttl_ms: settings.work.lease_ttl_ms,
        max_timeout_sec: settings.work.max_timeout_sec,
    }
}

pub fn reconcile_options(settings: &Serve) -> reconcile::ReconcileOptions {
    reconcile::ReconcileOptions {
        worker_offline_after_ms: settings.work.worker_offline_after_ms,
        worker_sync_ms: settings.membridge.worker_sync_ms,
        lease_ttl_ms: settings.work.lease_ttl_ms,
        task_retention_days: settings.data.task_retention_days,
        audit_retention_days: settings.data.audit_retention_days,
        audit_is_flushed: settings.objects.is_some(),
    }
}

pub fn agent_options(settings: &Serve, own_url: &str) -> dispatch::DispatchOptions {
    dispatch::DispatchOptions {
        key: settings.membridge.agent_key.clone(),
        public_url: settings.public_address(),
        own_url: own_url.to_owned(),
    }
}

/// The maximum duration of a stop, unless threads of the process hang: enough for the requests in progress and the current work of the
/// background loops.
pub fn stop_limit(settings: &Serve) -> Duration {
    settings.limits.request_timeout + Duration::from_secs(120)
}

pub fn scheme(settings: &Serve) -> &'static str {
    if settings.tls.is_some() { "https" } else { "http" }
}

/// The URL by which programs on this machine call the server. An unspecified address can't be called, so it is replaced by loopback.
pub fn callable(scheme: &str, address: SocketAddr) -> String {
    let host = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "[::1]".to_owned(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
        SocketAddr::V4(v4) => v4.ip().to_string(),
    };
    format!("{scheme}://{host}:{}", address.port())
}
