//! `agent`: runs tasks on this machine.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;
use tokio::net::TcpListener;

use super::agent_keys::{Source, key, one_of};
use super::{announce, block_on, signals};
use bloom_client::{Client, Files, IdentityFiles, Tls};
use bloom_commands::CommandError;
use bloom_commands::DEFAULT_SERVER;
use bloom_commands::number::within;
use bloom_config::{self as config, LogFormat, LogSettings};
use bloom_core::masked_urls::masked_url;
use bloom_core::project::is_project_name;
use bloom_telemetry::{Log, Traces};
use bloom_worker::git::GitSettings;
use bloom_worker::profiles::Profiles;
use bloom_worker::program::find_program;
use bloom_worker::{self as agent, Ended, MembridgeSettings, PushServer, RenewableFiles, Settings, WorktreeLimits};

/// Run tasks on this machine
///
/// Registers with the server, waits for tasks, runs each one on the Claude CLI in the directory of its context, and reports back. If the
/// agent dies, its runs go on until their leases expire, and the next start of the agent watches them again. While the server can't be
/// reached, results are kept on disk.
///
/// On SIGTERM or SIGINT, the agent takes no new tasks, lets runs finish for --grace-seconds, and hands back the remaining tasks. A second
/// signal ends the agent at once; its runs go on, and the next start watches them again.
#[derive(Args, Debug)]
pub struct AgentArgs {
    /// The server's address
    #[arg(long, env = "BLOOM_SERVER", value_name = "URL", default_value = DEFAULT_SERVER)]
    server: String,
    /// The server's worker key, if it has one; the list of processes shows it, so prefer the environment or --key-file [env: BLOOM_KEY]
    #[arg(long, conflicts_with = "key_file")]
    key: Option<String>,
    /// File with the value of --key [env: BLOOM_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// File with a join token, which the first start exchanges for a key of this worker; the key is kept in --work-dir [env:
    /// BLOOM_JOIN_TOKEN_FILE]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "key_file"])]
    join_token_file: Option<PathBuf>,
    /// PEM file with authorities that the server's certificate may come from, in addition to those of the operating system
    #[arg(long, env = "BLOOM_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// PEM file with the certificate that the agent presents, for a server with TLS_CLIENT_CA_FILE
    #[arg(long, env = "BLOOM_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert-file
    #[arg(long, env = "BLOOM_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Labels that are shown with the worker
    #[arg(long = "label", env = "BLOOM_LABELS", value_name = "TEXT", value_delimiter = ',')]
    labels: Vec<String>,
    /// Serve only the LLMTasks of these Kubernetes namespaces, and no other tasks [default: what the worker's key is limited to, else all]
    #[arg(long, env = "BLOOM_NAMESPACES", value_name = "NAME", value_delimiter = ',', value_parser = namespace)]
    namespaces: Vec<String>,
    #[command(flatten)]
    work: WorkArgs,
    /// Also accept pushed tasks at this address, such as 0.0.0.0:7000; needs --agent-key
    #[arg(long, env = "BLOOM_LISTEN", value_name = "ADDRESS:PORT", value_parser = address_and_port)]
    listen: Option<String>,
    /// The key that servers must send as X-MEMBRIDGE-AGENT [env: MEMBRIDGE_AGENT_KEY]
    #[arg(long, conflicts_with = "agent_key_file")]
    agent_key: Option<String>,
    /// File with the value of --agent-key [env: MEMBRIDGE_AGENT_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    agent_key_file: Option<PathBuf>,
    /// URL at which servers reach --listen [default: http:// and the host name]
    #[arg(long, env = "BLOOM_AGENT_URL", value_name = "URL", requires = "listen")]
    url: Option<String>,
    /// Control plane to register with instead of the server; the server reads the worker from there
    #[arg(long, env = "BLOOM_MEMBRIDGE", value_name = "URL")]
    membridge: Option<String>,
    /// The key of --membridge, sent as X-MEMBRIDGE-ADMIN [env: MEMBRIDGE_ADMIN_KEY]
    #[arg(long, conflicts_with = "membridge_key_file")]
    membridge_key: Option<String>,
    /// File with the value of --membridge-key [env: MEMBRIDGE_ADMIN_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    membridge_key_file: Option<PathBuf>,
    /// Directory with the memory of a project, of which --membridge keeps versions; may be repeated
    #[arg(long = "memory", env = "BLOOM_MEMORY", value_name = "PROJECT=DIR", value_delimiter = ',', value_parser = memory)]
    memories: Vec<(String, PathBuf)>,
    /// Do not claim tasks; accept only those that the server pushes to --listen
    #[arg(long, env = "BLOOM_PUSH_ONLY", requires = "listen")]
    push_only: bool,
    /// Shell command that POST /self-update runs; afterwards the agent restarts as the new program
    #[arg(long, env = "BLOOM_UPDATE_COMMAND", value_name = "COMMAND", requires = "listen")]
    update_command: Option<String>,
    /// File that the log is written to instead of standard error; SIGHUP reopens it
    #[arg(long, env = "LOG_FILE", value_name = "FILE", value_parser = |text: &str| log_file(text))]
    log_file: Option<PathBuf>,
    /// Log format: text or json
    #[arg(long, env = "LOG_FORMAT", default_value = "text", value_parser = |text: &str| config::log_format(text))]
    log_format: LogFormat,
    /// Log level: error, warn, info, debug, trace or off; also per module, as in info,sqlx=warn
    #[arg(long, env = "LOG_LEVEL", default_value = "info")]
    log_level: String,
}

/// The settings of an agent that `dev` has, too.
#[derive(Args, Debug)]
pub struct WorkArgs {
    /// The worker's name, which no other agent may have [default: the stored name; at the first start, made from the host name; of
    /// `bloom-runtime dev`: dev]
    #[arg(long, env = "BLOOM_AGENT_NAME", value_parser = name)]
    name: Option<String>,
    /// Maximum number of tasks at a time
    #[arg(long, env = "BLOOM_MAX_CONCURRENCY", default_value_t = 1, value_name = "NUMBER", value_parser = within(1..=32_u32))]
    max_concurrency: u32,
    /// Directory of the agent: contexts, sessions and runs [default: agent in $XDG_DATA_HOME/bloom-runtime, else in
    /// ~/.local/share/bloom-runtime]
    #[arg(long, env = "BLOOM_WORK_DIR", value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// What runs tasks that have no profile: claude, echo, or the name of a profile in --profiles [default: claude, unless there are
    /// profiles]
    #[arg(long, env = "BLOOM_RUNNER", value_name = "claude|echo|PROFILE")]
    runner: Option<String>,
    /// TOML file with profiles: a table [profiles.SLUG] says how the tasks of an agent slug are run
    #[arg(long, env = "BLOOM_PROFILES", value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Project whose tasks it takes, by name; may be repeated [default: those of all projects, if git is installed]
    #[arg(long = "project", env = "BLOOM_PROJECTS", value_name = "NAME", value_delimiter = ',', value_parser = project)]
    projects: Vec<String>,
    /// Protocols by which repositories of projects are fetched; file is for those on this machine, http and git are not encrypted [default:
    /// https,ssh; of dev: https,ssh,file]
    #[arg(long, env = "BLOOM_GIT_PROTOCOLS", value_name = "NAME", value_delimiter = ',', value_parser = ["https", "ssh", "http", "git", "file"])]
    git_protocols: Vec<String>,
    /// Largest clone of a repository, in MiB
    #[arg(long, env = "BLOOM_MAX_CLONE_MIB", default_value_t = 10_240, value_name = "MIB", value_parser = within(1..=1_048_576_u64))]
    max_clone_mib: u64,
    /// Days for which the directory of a context, such as a worktree, stays after its last run; its branch stays longer; 0 = until its
    /// tasks are removed
    #[arg(long, env = "BLOOM_WORKTREE_DAYS", default_value_t = 14, value_name = "DAYS", value_parser = within(0..=3_650_u32))]
    worktree_days: u32,
    /// Maximum disk space of the directories of all contexts together, in MiB; above it, those that were not used for longest are removed
    #[arg(long, env = "BLOOM_MAX_WORKTREES_MIB", default_value_t = 51_200, value_name = "MIB", value_parser = within(1..=1_073_741_824_u64))]
    max_worktrees_mib: u64,
    /// Seconds that runs may go on after a stop or a drain, before their tasks are handed back
    #[arg(long, env = "BLOOM_GRACE_SECONDS", default_value_t = 300, value_name = "SECONDS", value_parser = within(0..=86_400_u64))]
    grace_seconds: u64,
}

/// By which an agent fetches unless others are given.
const GIT_PROTOCOLS: [&str; 2] = ["https", "ssh"];

impl WorkArgs {
    /// The settings of an agent that works for this server.
    pub fn settings(&self, server: String, key: Option<SecretString>, default_dir: PathBuf) -> Result<Settings, CommandError> {
        let runner = self.runner.as_deref().filter(|runner| !runner.is_empty());
        let profiles = Profiles::load(given(self.profiles.clone()).as_deref(), runner).map_err(CommandError::usage)?;
        Ok(Settings {
            server,
            key,
            join_token: None,
            renewable: RenewableFiles::default(),
            tls: Tls::default(),
            name: self.name.clone().filter(|name| !name.is_empty()),
            max_concurrency: self.max_concurrency,
            labels: Vec::new(),
            namespaces: None,
            work_dir: given(self.work_dir.clone()).unwrap_or(default_dir),
            key_files: Vec::new(),
            profiles,
            projects: chosen(&self.projects),
            worktrees: WorktreeLimits { days: self.worktree_days, max_bytes: self.max_worktrees_mib << 20 },
            git: GitSettings {
                protocols: chosen(&self.git_protocols).unwrap_or_else(|| GIT_PROTOCOLS.map(str::to_owned).into()),
                max_bytes: self.max_clone_mib << 20,
            },
            grace: self.grace(),
            push_server: None,
            membridge: None,
            traces: Traces::default(),
        })
    }

    pub fn grace(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.grace_seconds)
    }

    /// Fetches from repositories on this machine, too, unless other protocols are given.
    pub fn or_local_repositories(&mut self) {
        if chosen(&self.git_protocols).is_none() {
            self.git_protocols = GIT_PROTOCOLS.iter().chain(&["file"]).map(|name| (*name).to_owned()).collect();
        }
    }

    /// Chooses the echo runner if neither --runner nor --profiles is given and the Claude CLI is not installed. Returns whether it did.
    pub fn or_echo(&mut self) -> bool {
        let echoes = self.runner.is_none() && self.profiles.is_none() && find_program("claude".as_ref(), "".as_ref()).is_none();
        if echoes {
            self.runner = Some("echo".to_owned());
        }
        echoes
    }
}

/// The names that were given. An empty variable counts as unset.
fn chosen(names: &[String]) -> Option<Vec<String>> {
    let names: Vec<String> = names.iter().filter(|name| !name.is_empty()).cloned().collect();
    (!names.is_empty()).then_some(names)
}

/// An empty variable counts as unset.
fn given(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

/// A file in a directory that exists. An empty variable counts as unset.
fn log_file(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Ok(PathBuf::new()) } else { config::log_file(text) }
}

fn name(text: &str) -> Result<String, String> {
    match text.chars().count() {
        // An empty variable counts as unset.
        0..=128 if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => Err("a name must have 1 to 128 characters and no control characters".to_owned()),
    }
}

/// The name of a project. An empty variable counts as unset.
fn project(text: &str) -> Result<String, String> {
    let is_right = text.is_empty() || is_project_name(text);
    if is_right { Ok(text.to_owned()) } else { Err("the name of a project has letters, digits, spaces and . _ -".to_owned()) }
}

/// The name of a namespace. An empty variable counts as unset.
fn namespace(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { config::namespace(text) }
}

/// An address with its port. An empty variable counts as unset.
fn address_and_port(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(address, _)| !address.is_empty() && (!address.contains(':') || address.ends_with(']')));
    if text.is_empty() || parts.is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        return Ok(text.to_owned());
    }
    Err("give an address with the port, such as 127.0.0.1:7000, or 0.0.0.0:7000 for all networks".to_owned())
}

/// A project and its directory. An empty variable counts as unset.
fn memory(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        _ if text.is_empty() => Ok((String::new(), PathBuf::new())),
        Some((project, dir)) if (1..=256).contains(&project.chars().count()) && !dir.is_empty() => Ok((project.to_owned(), dir.into())),
        _ => Err("give the project and its directory, such as house=/srv/memory/house".to_owned()),
    }
}

/// The control plane. An empty variable counts as unset.
fn membridge(
    url: Option<String>,
    [value, file]: [Option<OsString>; 2],
    memories: Vec<(String, PathBuf)>,
) -> Result<Option<MembridgeSettings>, CommandError> {
    let memories: Vec<_> = memories.into_iter().filter(|(project, _)| !project.is_empty()).collect();
    let Some(url) = url.filter(|url| !url.is_empty()) else {
        return if memories.is_empty() { Ok(None) } else { Err(CommandError::usage("--memory needs the control plane: give --membridge")) };
    };
    if memories.len() > MAX_MEMORIES {
        return Err(CommandError::usage(format!("--memory can be given {MAX_MEMORIES} times")));
    }
    Ok(Some(MembridgeSettings { url, key: key(value, file.map(PathBuf::from))?, memories }))
}

/// The most memories of an agent.
const MAX_MEMORIES: usize = 32;

/// What the agent needs to call a server over TLS.
fn tls(ca: Option<PathBuf>, certificate: Option<PathBuf>, key: Option<PathBuf>) -> Result<Tls, CommandError> {
    let identity = match (given(certificate), given(key)) {
        (Some(certificate), Some(key)) => Some(IdentityFiles { certificate, key }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(CommandError::usage("--tls-cert-file needs the private key of the certificate: give --tls-key-file, too"));
        }
        (None, Some(_)) => return Err(CommandError::usage("--tls-key-file needs the certificate of the key: give --tls-cert-file, too")),
    };
    Tls::read(Files { authorities: given(ca), identity }).map_err(|error| CommandError::usage(error.to_string()))
}

pub fn run(args: AgentArgs) -> Result<(), CommandError> {
    let ended = std::cell::Cell::new(Ended::Stopped);
    block_on(async {
        ended.set(serve(args).await?);
        Ok(())
    })?;
    if ended.get() == Ended::Restart {
        // `exec` keeps the pid, so a supervisor does not notice that the agent ends.
        let mut command = std::process::Command::new("/proc/self/exe");
        if let Ok(program) = std::env::current_exe() {
            // After an update, the path of the running program contains the new one. The kernel marks this path as deleted.
            let path = program.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
            command = std::process::Command::new(path);
        }
        let error = command.args(std::env::args_os().skip(1)).exec();
        return Err(format!("the agent could not be started again: {error}").into());
    }
    Ok(())
}

async fn serve(args: AgentArgs) -> Result<Ended, CommandError> {
    let (log, _flush) = Log::start(&LogSettings { format: args.log_format, level: args.log_level, file: given(args.log_file) })?;
    signals::on_hangup(move || {
        if let Err(error) = log.reopen() {
            tracing::error!("{error}");
        }
    })?;
    let shutdown = signals::listen(agent::stop_limit(args.work.grace()))?;
    let environment = config::Environment::of_process();
    let of_traces = config::traces_of_agent(&environment).map_err(|mistakes| {
        let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        CommandError::usage(lines.join("\n"))
    })?;
    let [server_key, key_file, join_token_file] = one_of(
        [
            Source::new("BLOOM_KEY", args.key),
            Source::new("BLOOM_KEY_FILE", args.key_file),
            Source::new("BLOOM_JOIN_TOKEN_FILE", args.join_token_file),
        ],
        &environment,
    )?;
    let [agent_key, agent_key_file] = one_of(
        [Source::new("MEMBRIDGE_AGENT_KEY", args.agent_key), Source::new("MEMBRIDGE_AGENT_KEY_FILE", args.agent_key_file)],
        &environment,
    )?;
    let [plane_key, plane_key_file] = one_of(
        [Source::new("MEMBRIDGE_ADMIN_KEY", args.membridge_key), Source::new("MEMBRIDGE_ADMIN_KEY_FILE", args.membridge_key_file)],
        &environment,
    )?;
    let [key_file, join_token_file, agent_key_file] = [key_file, join_token_file, agent_key_file].map(|file| file.map(PathBuf::from));
    // The file with the profiles is hidden from runs, too, because it may contain keys in the environment of a profile.
    let hidden = [given(args.tls_key_file.clone()), given(args.work.profiles.clone()), plane_key_file.clone().map(PathBuf::from)];
    let key_files = [&key_file, &join_token_file, &agent_key_file].into_iter().chain(&hidden).flatten().cloned().collect();
    let renewable = RenewableFiles { key: key_file.clone(), join_token: join_token_file.clone() };
    let (server_key, agent_key, join_token) = (key(server_key, key_file)?, key(agent_key, agent_key_file)?, key(None, join_token_file)?);
    let server = if args.server.is_empty() { DEFAULT_SERVER.to_owned() } else { args.server };
    let tls = tls(args.ca_file, args.tls_cert_file, args.tls_key_file)?;
    Client::new(&server, server_key.as_ref(), &tls).map_err(|error| CommandError::usage(error.to_string()))?;
    let mut settings = args.work.settings(server, server_key, config::default_data_dir().join("agent"))?;
    settings.tls = tls;
    settings.key_files = key_files;
    settings.renewable = renewable;
    settings.join_token = join_token;
    settings.membridge = membridge(args.membridge, [plane_key, plane_key_file], args.memories)?;
    settings.namespaces = chosen(&args.namespaces);
    settings.labels = args.labels.into_iter().filter(|label| !label.is_empty()).collect();
    let listener = match args.listen.filter(|address| !address.is_empty()) {
        None => None,
        Some(address) => {
            let key = agent_key.ok_or_else(|| {
                CommandError::usage("--listen needs the key that servers must send: set --agent-key-file or MEMBRIDGE_AGENT_KEY")
            })?;
            let wrong = |error| CommandError::from(format!("can't listen on {address}: {error}; choose another address with --listen"));
            let listener = TcpListener::bind(&address).await.map_err(wrong)?;
            let local = listener.local_addr().map_err(wrong)?;
            let host = if local.ip().is_unspecified() { agent::hostname() } else { local.ip().to_string() };
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            let url = args.url.unwrap_or_else(|| format!("http://{host}:{}", local.port()));
            settings.push_server = Some(PushServer { key, url, push_only: args.push_only, update_command: args.update_command });
            Some(listener)
        }
    };
    announce(&format!(
        "bloom-runtime agent {}\n  server      {}\n  tasks       {} at a time\n  work dir    {}\n{}{}\n",
        super::VERSION,
        masked_url(&settings.server),
        settings.max_concurrency,
        settings.work_dir.display(),
        settings.projects.as_ref().map(|names| format!("  projects    only {}\n", names.join(", "))).unwrap_or_default(),
        settings.push_server.as_ref().map(|push_server| format!("  listens on  {}\n", push_server.url)).unwrap_or_default(),
    ));
    let traces = Traces::start(of_traces.as_ref())?;
    settings.traces = traces.clone();
    let ended = agent::run(settings, listener, shutdown).await;
    traces.stop().await;
    Ok(ended?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_no_address() {
        for right in ["", "127.0.0.1:5055", "0.0.0.0:0", "[::1]:7000", "host.example:7000"] {
            assert_eq!(address_and_port(right), Ok(right.to_owned()));
        }
        for wrong in ["5055", ":5055", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1", "::1:7000", "127.0.0.1:http"] {
            assert!(address_and_port(wrong).unwrap_err().contains("such as 127.0.0.1:7000"), "{wrong}");
        }
    }
}
