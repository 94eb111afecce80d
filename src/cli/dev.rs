//! `dev`: a server and an agent in one process, without configuration.

use std::fs::File;
use std::path::PathBuf;

use clap::{Args, Command};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use super::agent::WorkArgs;
use super::{ServerArgs, announce, complain, parts, serve, settings, signals};
use bloom_commands::{CommandError, dev_key, is_called_by_default};
use bloom_config::{self as config, Serve};
use bloom_telemetry::{Log, Traces};
use bloom_worker::profile::{Profile, Runner};
use bloom_worker::profiles::Profiles;
use bloom_worker::program::find_program;
use bloom_worker::{self as agent, Access, access};

/// Start a server and an agent in one process, to try things out
///
/// The server uses an SQLite file in the data directory. Tasks run on the Claude CLI if `claude` is installed, else on an echo runner that
/// answers with the prompt. Without RUNTIME_API_KEY, the server has a key of its own, in the file dev.key of the data directory; commands
/// of the same user find it there if the directory is the default one. The flags and environment variables of `serve` also work here.
#[derive(Args, Debug)]
#[command(
    after_help = "These are the most common flags; --help lists all flags, including those of `serve`.",
    after_long_help = "Example:\n  bloom-runtime dev --port 5050 --data-dir bloom"
)]
pub struct DevArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    work: WorkArgs,
}

/// The flags in the short help, by the names of their settings. All of a server's would hide them.
const USUAL: [&str; 6] = ["host", "port", "data_dir", "max_concurrency", "runner", "profiles"];

/// The command with a short help for those who try things out.
pub fn with_short_help(dev: Command) -> Command {
    dev.mut_args(|arg| {
        let is_usual = USUAL.contains(&arg.get_id().as_str());
        arg.hide_short_help(!is_usual)
    })
}

pub async fn run(mut args: DevArgs) -> Result<(), CommandError> {
    let mut settings = settings(&args.server)?;
    if settings.tls.is_some() {
        return Err(CommandError::usage(
            "dev speaks plain http, for this machine: leave out TLS_CERT_FILE and TLS_KEY_FILE, or use `bloom-runtime serve`",
        ));
    }
    if is_for_this_machine_only(&settings) && !is_given(&args.server, "rate_limit_per_minute") {
        // All clients belong to the user of this machine, and a limit would only obstruct their scripts.
        settings.limits.requests_per_minute = 0;
    }
    let (_, _flush) = Log::start(&settings.log)?;
    let asks = if settings.keys.api.is_some() { Asks::Given } else { own_key(&mut settings)? };
    let echoes = args.work.or_echo();
    args.work.or_local_repositories();
    let key = settings.keys.worker.clone().or_else(|| settings.keys.api.clone());
    let mut agent_settings = args.work.settings(String::new(), key, settings.data.dir.join("dev-agent"))?;
    if let Asks::Own(path, ..) = &asks {
        agent_settings.key_files.push(path.clone());
    }
    agent_settings.name.get_or_insert_with(|| "dev".to_owned());
    let traces = Traces::start(settings.traces.as_ref())?;
    agent_settings.traces = traces.clone();
    let mut runs = if echoes { ECHOES.to_owned() } else { runners(&agent_settings.profiles) };
    if !echoes && agent_settings.profiles.all().any(|(_, profile)| is_login_unseen(profile)) {
        runs.push_str(SIGN_IN);
    }
    // Without a profile `default`, no worker takes a task that names no agent.
    let agent = agent_settings.profiles.slugs().and_then(|slugs| slugs.into_iter().next());
    let signal = signals::listen(agent::stop_limit(agent_settings.grace) + parts::stop_limit(&settings))?;
    let (server_stop, agent_stop) = (CancellationToken::new(), signal.clone());
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let mut server =
        tokio::spawn(serve::run(settings, traces.clone(), server_stop.clone(), move |url, _| drop(ready.send(url.to_owned()))));
    let ended = match is_ready.await {
        Ok(url) => match told_where(&asks, &url) {
            Err(error) => Err(error),
            Ok(()) => {
                announce(&next_steps(&url, &runs, agent.as_deref(), &asks));
                agent_settings.server = url;
                tokio::select! {
                    ended = agent::run(agent_settings, None, agent_stop) => ended.map(drop).map_err(CommandError::from),
                    // The agent can't work without the server.
                    ended = &mut server => return ended.map_err(|error| format!("the server ended unexpectedly: {error}"))?,
                }
            }
        },
        // The server did not start. Its error is returned below.
        Err(_) => Ok(()),
    };
    if let Err(failure) = &ended {
        complain(&format!("the agent: {failure}"));
    }
    // The agent stops first, because it reports its end to the server.
    server_stop.cancel();
    let stopped = server.await.map_err(|error| format!("the server ended unexpectedly: {error}"));
    traces.stop().await;
    stopped??;
    ended
}

const ECHOES: &str = "the echo runner, which answers with the prompt, because `claude` is not installed\n               \
    (npm install -g @anthropic-ai/claude-code)";

const SIGN_IN: &str =
    "\n\nSign in first, unless `claude` works here already: start `claude` in another terminal. Tasks wait until it is signed in.";

fn is_login_unseen(profile: &Profile) -> bool {
    matches!(profile.runner, Runner::Claude) && profile.program.is_none() && matches!(access(profile), Access::Unseen)
}

/// What runs tasks: one line, or one for each profile.
fn runners(profiles: &Profiles) -> String {
    let runner = |profile: &Profile| match profile.runner {
        Runner::Echo => "the echo runner, which answers with the prompt".to_owned(),
        Runner::Claude if profile.program.is_none() => match access(profile) {
            Access::Variable("ANTHROPIC_API_KEY") => "the Claude CLI, with the API key of ANTHROPIC_API_KEY".to_owned(),
            Access::Variable(name) => format!("the Claude CLI, with what {name} says"),
            Access::Login => "the Claude CLI, with the account that `claude` is logged in to".to_owned(),
            Access::Unseen => "the Claude CLI, of which no login is seen here".to_owned(),
        },
        Runner::Claude => format!("the Claude CLI {}", profile.program().display()),
        Runner::Command => format!("the command {}", profile.program().display()),
    };
    match profiles.all().collect::<Vec<_>>().as_slice() {
        [("default", profile)] => runner(profile),
        all => {
            let lines = all.iter().map(|(slug, profile)| {
                let whose = if *slug == "default" { "all other agents".to_owned() } else { format!("agent {slug}") };
                format!("\n    {whose}: {}", runner(profile))
            });
            lines.collect()
        }
    }
}

fn is_for_this_machine_only(settings: &Serve) -> bool {
    settings.is_loopback() && settings.keys.api.is_none() && settings.network.trusted_proxies.is_empty()
}

/// Whether this setting is set by a flag, the environment or the file.
fn is_given(server: &ServerArgs, setting: &str) -> bool {
    config::load(&server.flags).rows.iter().any(|row| row.setting == setting && row.origin != "default")
}

/// Which key the server asks for.
enum Asks {
    Given,
    /// The one in this file, which it has made for itself, and locks while it runs.
    Own(PathBuf, SecretString, #[expect(dead_code, reason = "it is open while this process runs")] File),
    Nothing,
}

/// Gives the server a key of its own, unless the user wants none: whoever reaches a server without keys, such as a run in a sandbox with
/// network, can have everything run.
fn own_key(settings: &mut Serve) -> Result<Asks, CommandError> {
    if settings.keys.allow_none {
        return Ok(Asks::Nothing);
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| format!("no random bytes for a key: {error}"))?;
    let (key, file) = dev_key::locked(&settings.data.dir, &hex::encode(random))?;
    settings.keys.api = Some(key.clone());
    Ok(Asks::Own(dev_key::path(&settings.data.dir), key, file))
}

/// Commands of the same user send the key to this address only.
fn told_where(asks: &Asks, url: &str) -> Result<(), CommandError> {
    let Asks::Own(path, ..) = asks else { return Ok(()) };
    let data_dir = path.parent().unwrap_or(path);
    dev_key::listens(data_dir, url).map_err(|error| format!("where dev listens can't be written to {}: {error}", data_dir.display()).into())
}

fn next_steps(url: &str, runs: &str, agent: Option<&str>, asks: &Asks) -> String {
    let (mut server, mut key, mut page) = (format!(" --server {url}"), "", format!("Or use the web page: {url}/\n\n"));
    let own = match asks {
        Asks::Nothing => None,
        Asks::Given => {
            key = "BLOOM_KEY=… ";
            None
        }
        Asks::Own(path, value, _) => {
            // The path must be absolute, because another terminal may have another current directory.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            server.push_str(&format!(" --key-file {}", path.display()));
            page = format!("Or use the web page: {url}/\nIt asks for the key in the file {}\n\n", path.display());
            Some(value)
        }
    };
    // The flags are left out only if the commands find this server without them. They would not if it listens elsewhere, or if the user's
    // contexts or environment name another one.
    if is_called_by_default(url, own) {
        server.clear();
    }
    let agent = agent.map_or_else(String::new, |slug| format!(" --agent {slug}"));
    let program = program();
    format!(
        "  tasks run on {runs}\n\nIn another terminal, submit a task and wait for the answer:\n  {key}{program} task submit{server}{agent} --wait \"Say hello\"\n\n{page}"
    )
}

/// The command by which a user calls this program from the current directory.
fn program() -> String {
    let name = "bloom-runtime";
    if find_program(name.as_ref(), "".as_ref()).is_some() {
        return name.to_owned();
    }
    let path = std::env::current_exe().unwrap_or_else(|_| name.into());
    let here = std::env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok().map(ToOwned::to_owned));
    here.unwrap_or(path).display().to_string()
}
