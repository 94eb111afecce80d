//! `serve`: opens, connects and starts all parts of the server in order, and stops them in the reverse order.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{announce, backup, database, disks, files, gauges, membridge as membridge_command, parts, signals};
use bloom_commands::CommandError;
use bloom_config::{Flags, Serve};
use bloom_dispatch::{self as dispatch, Agents};
use bloom_engine::Engine;
use bloom_http::{self as http, AppState};
use bloom_membridge::{self as membridge, Membridge, OwnControlPlane};
use bloom_objects::{self as objects, Objects};
use bloom_operator as operator;
use bloom_reconcile as reconcile;
use bloom_store::{Fault, Store};
use bloom_telemetry::{Log, Metrics, Traces};
use bloom_tls::{Certificate, Tls};
use bloom_worker as agent;

/// `flags`: the flags from which `settings` were read.
pub async fn serve(settings: Serve, flags: Flags) -> Result<(), CommandError> {
    let (log, _flush) = Log::start(&settings.log)?;
    signals::on_hangup(move || parts::reload(&log, &flags))?;
    let keyed = settings.keys.api.is_some();
    let traces = Traces::start(settings.traces.as_ref())?;
    let shutdown = signals::listen(parts::stop_limit(&settings))?;
    let ended = run(settings, traces.clone(), shutdown, move |url, others| announce(&next_step(url, others, keyed))).await;
    traces.stop().await;
    ended
}

// Otherwise, agents and commands would use connections that the server is just closing.
const _: () = assert!(bloom_outbound::IDLE_LIMIT.as_secs() < http::server::HEAD_TIMEOUT.as_secs());

/// Serves until `shutdown`. `ready` is called once the server can be reached. It gets the URL for this machine and the URLs for other
/// machines.
pub async fn run(
    settings: Serve,
    traces: Traces,
    shutdown: CancellationToken,
    ready: impl FnOnce(&str, &[String]),
) -> Result<(), CommandError> {
    settings.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let stop = shutdown.clone();
    tokio::spawn(async move {
        stop.cancelled().await;
        tracing::info!("stopping: finishing the requests that are being answered; a second signal ends the process at once");
    });
    // The limit of open files must be raised before anything is opened.
    let connections = files::connections(&settings);
    let metrics = Metrics::new().map_err(|error| format!("metrics can't be set up: {error}"))?;
    let tls = settings.tls.clone().map(Tls::load).transpose().map_err(|fault| format!("TLS can't be set up: {fault}"))?;
    let store = database::open(&settings).await?;
    let (listener, address) = listen(&settings).await?;
    database::migrate_at_start(&settings, &store).await?;
    database::unlocked(&settings, || store.read_tables()).await?;
    database::unlocked(&settings, || store.begin_service()).await?;
    let options = parts::engine_options(&settings, traces);
    let engine =
        Engine::start(Arc::new(store.clone()), metrics.clone(), options).await.map_err(|error| database::explain(error, &settings))?;
    let own_membridge = if settings.membridge.in_server { Some(membridge_command::listen(&settings).await?) } else { None };
    let given_url = settings.membridge.server_url.as_ref().map(|url| url.as_str().trim_end_matches('/').to_owned());
    let key = settings.membridge.admin_key.clone();
    let membridge = match &own_membridge {
        Some(own) => {
            let own = OwnControlPlane { internal_url: own.url_for_server().to_owned(), url: own.url.clone() };
            Membridge::built_in(own, key)
        }
        None => Membridge::new(given_url, key),
    };
    database::unlocked(&settings, || membridge::sync::load_settings(&store, &membridge)).await?;
    let url = parts::callable(parts::scheme(&settings), address);
    let agents = Agents::new(engine.clone(), parts::agent_options(&settings, &url));
    let context = reconcile::start(&engine, parts::reconcile_options(&settings));
    engine.background.spawn(dispatch::reconcile::run(context.clone(), agents.clone()));
    engine.background.spawn(membridge::sync::workers(context.clone(), membridge.clone()));
    engine.background.spawn(membridge::sync::settings(engine.clone(), store.clone(), membridge.clone()));
    let objects = settings.objects.clone().map(|at| Objects::new(at, metrics.clone())).transpose()?;
    if let Some(objects) = &objects {
        engine.background.spawn(objects::run(context.clone(), store.clone(), objects.clone()));
    }
    gauges::start(&engine, &store, &membridge, tls.clone(), &metrics);
    engine.background.spawn(disks::follow(engine.clone(), directories(&settings, &store)));
    if let Some(schedule) = backup::Schedule::of(&settings) {
        engine.background.spawn(backup::keep_making(engine.clone(), store.clone(), schedule));
    }

    let operator = settings.kubernetes.operator.then(|| operator::start(&engine, &store, operator_options(&settings)));
    let certificate = tls.as_ref().map(Tls::certificate);
    if let Some(tls) = &tls {
        engine.background.spawn(tls.clone().follow(shutdown.clone()));
    }
    let mut http = parts::http_settings(&settings, connections);
    http.tls = tls;
    http.objects = objects;
    http.kubernetes = operator.map(|health| -> Arc<dyn Fn() -> String + Send + Sync> { Arc::new(move || health.text()) });
    let membridge_url = own_membridge.as_ref().map(|own| own.url.clone());
    if let Some(own) = own_membridge {
        own.start(&engine, &store, &agents, &metrics, &http, settings.membridge.admin_key.as_ref(), &shutdown);
    }
    let state = AppState::new(engine.clone(), store.clone(), agents, membridge, metrics, http, shutdown.clone());
    database::unlocked(&settings, || state.read_keys()).await?;
    store.serves_at(&url);
    // An address that the operator has set is right even if the server listens only on this machine, for example behind a proxy.
    let others = settings.public_address().map_or_else(|| reachable(address, certificate.as_ref()), |public| vec![public]);
    announce(&banner(&settings, &url, &others, membridge_url.as_deref()));
    ready(&url, &others);
    if let Some(Certificate { names, not_after, .. }) = certificate {
        tracing::info!(names = names.join(", "), %not_after, "https, with this certificate");
    }
    tracing::info!(%address, database = settings.shown_database_url(), connections, "serving");
    engine.background.spawn(parts::stop_after_import(engine.clone(), store.clone(), shutdown.clone()));
    http::server::serve(listener, state, bloom_web::pages(), shutdown).await;
    engine.stop().await;
    store.close().await;
    if let Some(fault @ Fault::Imported) = store.lasting_fault() {
        return Err(fault.text().to_owned().into());
    }
    tracing::info!("stopped");
    Ok(())
}

async fn listen(settings: &Serve) -> Result<(TcpListener, SocketAddr), CommandError> {
    parts::listen_at(&settings.network.host, settings.network.port, ["--host or HOST", "--port or PORT"]).await
}

fn operator_options(settings: &Serve) -> operator::OperatorOptions {
    let bare = |url: &url::Url| url.as_str().trim_end_matches('/').to_owned();
    operator::OperatorOptions {
        namespaces: settings.kubernetes.namespaces.clone(),
        namespace: settings.kubernetes.pod_namespace.clone(),
        identity: settings.kubernetes.pod_name.clone().unwrap_or_else(agent::hostname),
        public_url: settings.network.public_url.as_ref().map(bare),
        agent_image: settings.kubernetes.agent_image.clone(),
        agent_server: settings.kubernetes.agent_server.as_ref().or(settings.network.public_url.as_ref()).map(bare),
        agent_keys: match (&settings.keys.api, settings.has_key()) {
            (Some(_), _) => operator::AgentKeys::Named,
            (None, true) => operator::AgentKeys::Impossible,
            (None, false) => operator::AgentKeys::NotNeeded,
        },
        max_timeout_sec: settings.work.max_timeout_sec,
    }
}

/// The directories whose disks are measured.
fn directories(settings: &Serve, store: &Store) -> Vec<disks::Named> {
    let named = [("data", store.directory()), ("backups", settings.data.backup_dir.clone())];
    named.into_iter().filter_map(|(word, path)| Some((word, path?))).collect()
}

/// The URL by which programs on this machine call a server with these settings.
pub fn own_url(settings: &Serve) -> String {
    match settings.network.host.parse::<IpAddr>() {
        Ok(ip) => parts::callable(parts::scheme(settings), SocketAddr::new(ip, settings.network.port)),
        Err(_) => format!("{}://{}:{}", parts::scheme(settings), settings.network.host, settings.network.port),
    }
}

/// The URLs by which other machines can call a server that listens on all addresses. They use the names of its certificate. Without a
/// certificate, they use the host name and the addresses from which this machine would call others.
fn reachable(address: SocketAddr, certificate: Option<&Certificate>) -> Vec<String> {
    if !address.ip().is_unspecified() {
        return Vec::new();
    }
    let port = address.port();
    if let Some(certificate) = certificate {
        let is_of_others =
            |name: &&String| !name.contains('*') && *name != "localhost" && !name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        let names = certificate.names.iter().filter(is_of_others);
        return names
            .map(|name| if name.contains(':') { format!("https://[{name}]:{port}") } else { format!("https://{name}:{port}") })
            .collect();
    }
    // Connecting a datagram socket only chooses a route: nothing is sent to these addresses, which are reserved for documentation.
    let own = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|own| own.ip()).filter(|ip| !ip.is_loopback())
    };
    let ips = [own("0.0.0.0:0", "192.0.2.1:9"), own("[::]:0", "[2001:db8::1]:9").filter(|_| address.is_ipv6())];
    let ips = ips.into_iter().flatten().map(|ip| parts::callable("http", SocketAddr::new(ip, port)));
    std::iter::once(format!("http://{}:{port}", agent::hostname())).chain(ips).collect()
}

fn banner(settings: &Serve, url: &str, reachable: &[String], membridge: Option<&str>) -> String {
    let membridge = membridge.map(|url| format!("  membridge    {url}\n")).unwrap_or_default();
    let others = if reachable.is_empty() { String::new() } else { format!("  for others   {}\n", reachable.join(", ")) };
    let keys = if settings.keys.api.is_some() { "a key is needed" } else { "open: no RUNTIME_API_KEY is set" };
    format!(
        "bloom-runtime {version}\n  \
         listens on   {url}\n{others}{membridge}  \
         database     {database}\n  \
         access       {keys}\n",
        version = super::VERSION,
        database = settings.shown_database_url(),
    )
}

/// `others`: the URLs that [`reachable`] returns. An address is preferred to the host name, which other machines may not be able to
/// resolve. Of the names of a certificate, the first one is used.
fn next_step(url: &str, others: &[String], keyed: bool) -> String {
    let key = if keyed { "BLOOM_KEY=… " } else { "" };
    let (place, server) = match others.get(1).filter(|url| url.starts_with("http:")).or_else(|| others.first()) {
        Some(server) => ("this machine or another", server.as_str()),
        None => ("this machine", url),
    };
    format!("\nNext, run tasks on {place} (the whole API: {url}/docs):\n  {key}bloom-runtime agent --server {server}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_config::{Environment, load_from};

    #[test]
    fn the_address_told_can_be_called() {
        for (bound, told) in [
            ("0.0.0.0:5000", "http://127.0.0.1:5000"),
            ("[::]:5000", "http://[::1]:5000"),
            ("[fe80::1]:1", "http://[fe80::1]:1"),
            ("192.0.2.1:80", "http://192.0.2.1:80"),
        ] {
            assert_eq!(parts::callable("http", bound.parse().unwrap()), told);
        }
    }

    #[test]
    fn only_a_server_on_all_addresses_names_those_for_others() {
        assert!(reachable("127.0.0.1:5000".parse().unwrap(), None).is_empty());
        let told = reachable("0.0.0.0:5000".parse().unwrap(), None);
        assert_eq!(told[0], format!("http://{}:5000", agent::hostname()));
        assert!(told.iter().all(|url| !url.contains("127.0.0.1") && !url.contains("0.0.0.0")), "{told:?}");
        let names = ["localhost", "*.example", "127.0.0.1", "::1", "bloom.example", "2001:db8::1"].map(str::to_owned).to_vec();
        let certificate = Certificate { names, not_before: Default::default(), not_after: Default::default(), is_authority: false };
        let told = reachable("0.0.0.0:5000".parse().unwrap(), Some(&certificate));
        assert_eq!(told, ["https://bloom.example:5000", "https://[2001:db8::1]:5000"]);
    }

    #[test]
    fn the_next_step_names_an_address_that_others_can_reach() {
        let others = ["http://host:5000".to_owned(), "http://192.0.2.7:5000".to_owned()];
        let told = |others: &[String]| next_step("http://127.0.0.1:5000", others, false);
        assert!(told(&others).contains("this machine or another") && told(&others).contains("agent --server http://192.0.2.7:5000\n"));
        assert!(told(&others[..1]).contains("agent --server http://host:5000\n"));
        let named = ["https://bloom.example:5000".to_owned(), "https://other.example:5000".to_owned()];
        assert!(told(&named).contains("agent --server https://bloom.example:5000\n"));
        assert!(!told(&[]).contains("another") && told(&[]).contains("agent --server http://127.0.0.1:5000\n"));
    }

    #[test]
    fn the_banner_keeps_secrets() {
        let secrets = [("RUNTIME_API_KEY", "very-secret"), ("DATABASE_URL", "postgres://u:hidden@h/d")];
        let environment: Environment = secrets.into_iter().collect();
        let text = banner(&load_from(&Flags::default(), &environment).into_serve().unwrap(), "http://h", &[], None);
        assert!(text.contains("a key is needed") && !text.contains("very-secret") && !text.contains("hidden"), "{text}");
    }
}
