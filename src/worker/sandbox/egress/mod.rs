//! The network of runs whose profile lists what they may reach.
//!
//! Such a run has its own network namespace, which contains only loopback. Its program is started by the `helper`, which forwards
//! connections to a Unix socket, the only way out. At the other end of the socket, the agent's `proxy` reads a `request`, checks it against
//! the `allow_list`, and connects to the host (`upstream`). `network` is the profile's setting.

mod allow_list;
mod helper;
mod network;
mod proxy;
mod request;
mod upstream;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use url::Url;

use allow_list::{AllowList, Target};
pub(crate) use helper::run as run_helper;
pub(crate) use network::Network;
use proxy::Proxy;

use crate::home::private_dir;
use crate::machine::environment;
use crate::machine::program::own_program;
use crate::run::spool::EventLog;

/// The first argument that makes this program the helper of a run.
pub(crate) const HELPER: &str = "run-behind-proxy";
/// The directory of the socket in the sandbox. The directory is mounted and not the socket, because a later agent creates a new socket.
const DIR_IN_SANDBOX: &str = "/run/bloom-egress";
const SOCKET: &str = "socket";
const SOCKET_IN_SANDBOX: &str = "/run/bloom-egress/socket";
/// The variables through which programs find the proxy.
const PROXY_VARIABLES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
/// What programs reach without the proxy: the run's own servers, unless the list names the address.
const LOOPBACK: [&str; 2] = ["localhost", "127.0.0.1"];
/// The maximum number of connections of all runs. Each connection uses two files, and together they may use a quarter of the files that the
/// agent may open.
const MAX_CONNECTIONS: u64 = 4096;
/// The maximum of one run. It also may not have more than a quarter of all connections, because others need some.
const MAX_OF_RUN: usize = 256;
/// The maximum number of names that are resolved concurrently for a run. Each look-up occupies a thread, even after the run has given up.
const MAX_LOOK_UPS: usize = 8;
const DEFAULT_API: &str = "https://api.anthropic.com";

/// The way out of a sandbox.
#[derive(Debug)]
pub struct WayOut {
    /// The path of this program, which also serves as the helper.
    program: PathBuf,
    dir: PathBuf,
    no_proxy: String,
}

impl WayOut {
    /// Makes the directory of the socket, if the network is a list.
    pub fn prepare(network: &Network, dir: &Path) -> io::Result<Option<Self>> {
        let Some(list) = network.allow_list() else { return Ok(None) };
        private_dir(dir)?;
        let direct = LOOPBACK.into_iter().filter(|name| !is_named(list, name));
        let no_proxy = direct.collect::<Vec<_>>().join(",");
        Ok(Some(Self { program: own_program()?, dir: dir.to_owned(), no_proxy }))
    }

    /// The mounts of the sandbox, as pairs of source and target.
    pub fn mounts(&self) -> [(&Path, &Path); 2] {
        [(&self.dir, Path::new(DIR_IN_SANDBOX)), (&self.program, &self.program)]
    }

    /// The variables that replace those of the agent, whose proxy URL may contain a password. The helper sets the run's proxy.
    pub fn env(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let proxies = PROXY_VARIABLES.into_iter().map(|name| (name, ""));
        proxies.chain(["NO_PROXY", "no_proxy"].map(|name| (name, self.no_proxy.as_str())))
    }

    /// The arguments before the run's own program.
    pub fn words(&self) -> [&OsStr; 2] {
        [self.program.as_os_str(), HELPER.as_ref()]
    }
}

fn is_named(list: &AllowList, host: &str) -> bool {
    Target::parse(&format!("{host}:1")).is_ok_and(|target| list.names(&target.host))
}

/// The number of connections that all runs of the agent may have together.
fn of_all_runs() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((files / 8).clamp(1, MAX_CONNECTIONS)).unwrap_or(1)
}

pub(crate) fn connections() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(of_all_runs()))
}

/// The agent's proxy for a run whose network is a list of hosts. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Egress(Option<Serving>);

#[derive(Debug)]
struct Serving {
    proxy: Arc<Proxy>,
    task: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Egress {
    /// Serves the run whose socket is in this directory. `profile` is the name of its profile, for messages.
    pub(crate) fn start(network: &Network, profile: Option<&str>, dir: &Path, permits: &Arc<Semaphore>) -> Self {
        let Some(list) = network.allow_list() else { return Self(None) };
        let listener = match listen(dir) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(dir = %dir.display(), %error, "the run reaches no network, because the socket of its proxy can't be made");
                return Self(None);
            }
        };
        let proxy = Arc::new(Proxy {
            list: list.clone(),
            profile: profile.unwrap_or_default().to_owned(),
            of_all_runs: permits.clone(),
            of_one_run: (of_all_runs() / 4).clamp(1, MAX_OF_RUN),
            look_ups: Arc::new(Semaphore::new(MAX_LOOK_UPS)),
            told: Mutex::default(),
            moved: AtomicU64::new(0),
        });
        Self(Some(Serving { task: tokio::spawn(proxy.clone().serve(listener)), proxy }))
    }

    /// Records the refusals since the last call as events.
    pub(crate) fn tell(&self, log: &mut EventLog) {
        let Some(Serving { proxy, .. }) = &self.0 else { return };
        let new = std::mem::take(&mut proxy.told.lock().new);
        for refused in new {
            log.phase("egress_refused", json!({"target": refused.target, "text": refused.why}));
        }
    }

    /// Records how many bytes the run has transferred.
    pub(crate) fn tell_end(&self, log: &mut EventLog) {
        self.tell(log);
        if let Some(Serving { proxy, .. }) = &self.0 {
            log.phase("egress", json!({"bytes": proxy.moved.load(Ordering::Relaxed)}));
        }
    }
}

fn listen(dir: &Path) -> io::Result<UnixListener> {
    private_dir(dir)?;
    if let Err(error) = fs::remove_file(dir.join(SOCKET))
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    // The path leads through the open directory, because the paths of sockets must be short.
    let open = fs::File::open(dir)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd()))
}

/// Why the Claude CLI will not reach its model: the list does not contain the server of its API.
pub(crate) fn lacks_api(network: &Network, env: &BTreeMap<String, String>) -> Option<String> {
    let list = network.allow_list().filter(|_| !environment::uses_other_backend(env))?;
    let url = env.get("ANTHROPIC_BASE_URL").cloned().or_else(|| std::env::var("ANTHROPIC_BASE_URL").ok());
    let url = Url::parse(&url.unwrap_or_else(|| DEFAULT_API.to_owned())).ok()?;
    let api = Target::parse(&format!("{}:{}", url.host_str()?, url.port_or_known_default()?)).ok()?;
    (!list.allows(&api)).then(|| api.to_string())
}
