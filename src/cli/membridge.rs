//! The control plane of this program: `bloom-runtime membridge`, and the one that runs in a server.

use std::sync::Arc;

use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{announce, database, files, gauges, parts, signals, usable};
use bloom_commands::CommandError;
use bloom_config::{self as config, Flags, Serve};
use bloom_dispatch::Agents;
use bloom_engine::Engine;
use bloom_http as http;
use bloom_http::control_plane::{ControlPlane, settings_of};
use bloom_membridge::Membridge;
use bloom_reconcile as reconcile;
use bloom_store::{Fault, Store};
use bloom_telemetry::{Log, Metrics, Traces};
use bloom_tls::Tls;

/// The settings in force, or an error with all mistakes, one per line.
pub fn settings(flags: &Flags) -> Result<Serve, CommandError> {
    usable(config::load_membridge(flags)).map(Serve::into_membridge)
}

/// The listeners of a control plane.
pub struct Listening {
    listener: TcpListener,
    /// A second listener for the server of this process, if that server can't use the first one: because the first one uses https, or
    /// listens on a single address other than loopback.
    for_server: Option<(TcpListener, String)>,
    /// The URL by which programs on this machine reach it.
    pub url: String,
}

pub async fn listen(settings: &Serve) -> Result<Listening, CommandError> {
    let own = &settings.membridge;
    let names = ["--membridge-host or MEMBRIDGE_HOST", "--membridge-port or MEMBRIDGE_PORT"];
    let (listener, address) = parts::listen_at(&own.host, own.port, names).await?;
    let url = parts::callable(parts::scheme(settings), address);
    let ip = address.ip();
    let is_usable = settings.tls.is_none() && (ip.is_loopback() || ip.is_unspecified());
    let for_server = if own.in_server && !is_usable {
        let (listener, address) = parts::listen_at("127.0.0.1", 0, names).await?;
        Some((listener, parts::callable("http", address)))
    } else {
        None
    };
    Ok(Listening { listener, for_server, url })
}

impl Listening {
    /// The URL by which the server of this process reaches it.
    pub fn url_for_server(&self) -> &str {
        self.for_server.as_ref().map_or(&self.url, |(_, url)| url)
    }

    /// Serves until `shutdown`, alongside the server with these settings.
    #[expect(clippy::too_many_arguments, reason = "these are the parts of the server that it shares")]
    pub fn start(
        self,
        engine: &Engine,
        store: &Store,
        agents: &Agents,
        metrics: &Metrics,
        server: &http::Settings,
        key: Option<&SecretString>,
        shutdown: &CancellationToken,
    ) {
        let plane = |settings| {
            let (engine, store, agents, metrics) = (engine.clone(), store.clone(), agents.clone(), metrics.clone());
            ControlPlane::new(engine, store, agents, metrics, settings, key, shutdown.clone())
        };
        let settings = settings_of(server, key);
        if let Some((listener, _)) = self.for_server {
            let plain = http::Settings { tls: None, ..settings.clone() };
            engine.background.spawn(plane(plain).serve(listener, shutdown.clone()));
        }
        engine.background.spawn(plane(settings).serve(self.listener, shutdown.clone()));
    }
}

/// `bloom-runtime membridge`. `flags`: the flags from which `settings` were read.
pub async fn run(settings: Serve, flags: Flags) -> Result<(), CommandError> {
    let (log, _flush) = Log::start(&settings.log)?;
    signals::on_hangup(move || parts::reload(&log, &flags))?;
    let shutdown = signals::listen(parts::stop_limit(&settings))?;
    let connections = files::connections(&settings);
    let metrics = Metrics::new().map_err(|error| format!("metrics can't be set up: {error}"))?;
    let tls = settings.tls.clone().map(Tls::load).transpose().map_err(|fault| format!("TLS can't be set up: {fault}"))?;
    let store = database::open(&settings).await?;
    let listening = listen(&settings).await?;
    database::migrate_at_start(&settings, &store).await?;
    refuse_used(&settings, &store).await?;
    database::unlocked(&settings, || store.begin_service()).await?;
    let options = parts::engine_options(&settings, Traces::default());
    let engine =
        Engine::start(Arc::new(store.clone()), metrics.clone(), options).await.map_err(|error| database::explain(error, &settings))?;
    let agents = Agents::new(engine.clone(), parts::agent_options(&settings, &listening.url));
    // The reconcilers keep the tables of commits small, and record that the database is served.
    reconcile::start(&engine, parts::reconcile_options(&settings));
    gauges::start(&engine, &store, &Membridge::new(None, None), tls.clone(), &metrics);
    if let Some(tls) = &tls {
        engine.background.spawn(tls.clone().follow(shutdown.clone()));
    }
    let mut server = parts::http_settings(&settings, connections);
    server.tls = tls;
    let key = settings.membridge.admin_key.as_ref();
    store.serves_at(&listening.url);
    announce(&banner(&settings, &listening.url));
    tracing::info!(url = listening.url, database = settings.shown_database_url(), connections, "the control plane is serving");
    engine.background.spawn(parts::stop_after_import(engine.clone(), store.clone(), shutdown.clone()));
    let settings_of_plane = settings_of(&server, key);
    let plane = ControlPlane::new(engine.clone(), store.clone(), agents, metrics, settings_of_plane, key, shutdown.clone());
    plane.serve(listening.listener, shutdown).await;
    engine.stop().await;
    store.close().await;
    if let Some(fault @ Fault::Imported) = store.lasting_fault() {
        return Err(fault.text().to_owned().into());
    }
    tracing::info!("stopped");
    Ok(())
}

/// Refuses the database of a server. On such a database, this program would become the leader, but do only a part of a leader's work.
async fn refuse_used(settings: &Serve, store: &Store) -> Result<(), CommandError> {
    if !database::unlocked(settings, || store.has_work()).await? {
        return Ok(());
    }
    Err(format!(
        "the database {} is that of a server: it has tasks or workers. Give the control plane another database with \
         MEMBRIDGE_DATABASE_URL, or run it in the server: bloom-runtime serve --with-membridge",
        settings.shown_database_url()
    )
    .into())
}

fn banner(settings: &Serve, url: &str) -> String {
    let keys = if settings.membridge.admin_key.is_some() { "a key is needed" } else { "open: no MEMBRIDGE_ADMIN_KEY is set" };
    format!(
        "bloom-runtime membridge {version}\n  listens on   {url}\n  database     {database}\n  access       {keys}\n",
        version = super::VERSION,
        database = settings.shown_database_url(),
    )
}
