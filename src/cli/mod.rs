//! The command line of the program.
//!
//! Exit status: 0 success, 1 failure (of the call, or of the task that was waited for), 2 the command line or a setting is wrong,
//! 3 the time limit of waiting was reached, 130 interrupted. If the reader of the output closes it early, a command ends with 0.

mod agent;
mod agent_keys;
mod backup;
mod config_check;
mod database;
mod dev;
mod disks;
mod doctor;
mod files;
mod gauges;
mod generate;
mod healthcheck;
mod hints;
mod init;
mod membridge;
mod moving;
mod parts;
mod serve;
mod signals;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bloom_commands::kubectl::{self, Plugin};
use bloom_commands::{CommandError, term};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};

use bloom_config::{self as config, Flags, Serve};

const NAME: &str = "bloom-runtime";
/// With the commit, where it is known (`src/build.rs`).
const VERSION: &str = env!("BLOOM_VERSION");
/// The environment variable with which a shell asks for completions.
const COMPLETE: &str = "BLOOM_COMPLETE";
/// The script of clap does not know that bash splits words at `=`.
const FOR_BASH: &str = include_str!("completions.bash");

/// Runs LLM tasks on a fleet of worker machines
///
/// The server takes tasks over HTTP, gives them to workers under leases, and drives every task to a final status. It stores everything in
/// an SQLite file of its own, or in PostgreSQL, which any number of servers can share. Start it with: bloom-runtime serve
#[derive(Debug, Parser)]
///
/// Exit status: 0 success; 1 failure, or the task that was waited for did not complete; 2 the command
/// line or a setting is wrong; 3 the time limit of waiting was reached; 130 interrupted.
#[command(name = "bloom-runtime", version = VERSION, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the server
    ///
    /// Applies pending migrations, listens, and runs until SIGTERM or SIGINT. Then it finishes the
    /// requests that are being answered, and ends. A second signal ends it at once.
    ///
    /// Each setting is taken from its flag, else from its environment variable, else from the TOML
    /// file of --config. `bloom-runtime config check` with the same flags shows the values in force.
    /// A secret can also be read from a file, by the same name with -file or _FILE at the end.
    #[command(verbatim_doc_comment)]
    Serve(ServerArgs),
    /// Start a membridge control plane as a separate process
    ///
    /// It has the HTTP API of membridge: agents register with it, nodes of projects send heartbeats, and
    /// a project's leader stores its memory for the others. It listens on MEMBRIDGE_HOST and
    /// MEMBRIDGE_PORT, asks callers for MEMBRIDGE_ADMIN_KEY if it is set, and keeps everything in
    /// MEMBRIDGE_DATABASE_URL. To use it, set MEMBRIDGE_SERVER_URL of a server. A server with
    /// WITH_MEMBRIDGE runs one itself.
    #[command(verbatim_doc_comment)]
    Membridge(ServerArgs),
    Dev(dev::DevArgs),
    Agent(Box<agent::AgentArgs>),
    #[command(flatten)]
    Client(Box<bloom_commands::Command>),
    /// Show or apply the migrations of the database's schema
    ///
    /// `serve` applies pending migrations at each start; this command does it as a separate step.
    Migrate {
        #[command(subcommand)]
        action: Migrate,
    },
    /// Copy the SQLite database into a file, also while the server runs
    ///
    /// Run it on the machine of the server, as its user, with its flags and its environment. The file is a compact, consistent copy of one
    /// moment, and is checked before it gets its name. For backups at an interval, set BACKUP_DIR for the server. PostgreSQL has pg_dump.
    Backup(backup::BackupArgs),
    /// Replace the SQLite database with a backup, while no server runs
    ///
    /// The command first checks that the backup is not damaged and that this program can work with it. An existing database is not
    /// overwritten: with --force, it is kept beside the new one, under a name that the command prints.
    Restore(backup::RestoreArgs),
    /// Write everything that is stored into a file, from SQLite or PostgreSQL, also while servers run
    ///
    /// `import` reads the file into a database of either kind, so the two commands move an installation from one to the other. Run it with
    /// the flags and the environment of the server. With --from, it reads the database of the earlier runtime instead, whose tables are
    /// llm_tasks, leases, workers, runtime_artifacts, llm_results, audit_logs and runtime_settings.
    Export(moving::ExportArgs),
    /// Read a file of `export` into an empty database, while no server runs
    ///
    /// Run it with the flags and the environment of the server. The whole file is checked first. An import that was interrupted goes on
    /// when it is repeated, and a second import of the same file changes nothing.
    Import(moving::ImportArgs),
    /// Print the OpenAPI description of the HTTP API as JSON
    Openapi,
    /// Print the manifests of the Kubernetes custom resources
    ///
    /// For kubectl: bloom-runtime crds | kubectl apply --server-side -f -
    Crds {
        /// Write one file per resource into this directory instead
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Show the settings
    Config {
        #[command(subcommand)]
        action: ConfigCommand,
    },
    /// Check everything that a server needs, and say how to fix what is wrong
    ///
    /// Run it on the machine of the server, as its user, with its flags and its environment, whether the server runs or not. It checks the
    /// settings, the database with its schema, disk, clock and open transactions, the scheduled backups, the running server, its keys, the
    /// control plane and the workers, and changes nothing. Exits with 1 if the server can't do its work.
    Doctor {
        #[command(flatten)]
        server: ServerArgs,
        /// PEM file with the authority of the server's certificate, if this machine does not trust it
        #[arg(long, env = "BLOOM_CA_FILE", value_name = "FILE")]
        ca_file: Option<PathBuf>,
        /// Also exit with 1 for warnings, such as a worker that is offline; for scheduled jobs
        #[arg(long)]
        strict: bool,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Ask the server on this machine whether it can serve requests: for services and containers
    ///
    /// Run it with the flags and the environment of the server. Exits with 1 if the server does not answer within 10 s or is not ready. It
    /// does not check the certificate of the server, and sends no key.
    Healthcheck(ServerArgs),
    /// Print completions for a shell
    ///
    /// They complete commands, flags and values, and the ids, workers, contexts and labels that the server has. bash, in ~/.bashrc:
    /// source <(bloom-runtime completions bash); zsh, in ~/.zshrc after compinit: source <(bloom-runtime completions zsh); fish:
    /// bloom-runtime completions fish > ~/.config/fish/completions/bloom-runtime.fish
    Completions {
        shell: Shell,
    },
    /// Write the manual pages into a directory, one per command
    ///
    /// For all users: bloom-runtime man /usr/local/share/man/man1
    Man {
        /// The directory; it is created if it does not exist
        dir: PathBuf,
    },
    Bench(bloom_bench::BenchArgs),
}

#[derive(Debug, Subcommand)]
enum Migrate {
    /// Apply pending migrations
    Up(ServerArgs),
    /// List the migrations, applied and pending
    Status(ServerArgs),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show each setting, its value and where it comes from; secrets are masked
    ///
    /// Run it with the flags and the environment of the server. Exits with 1 and lists all errors if there are any.
    Check {
        #[command(flatten)]
        server: ServerArgs,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

#[derive(Args, Debug)]
struct ServerArgs {
    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Runs the command that the process was given.
pub fn run() -> ExitCode {
    // Internal words with which an agent starts this program. They are not commands for users, so clap does not know them.
    if let Some(done) = std::env::args_os().nth(1).and_then(|word| bloom_worker::called_by_itself(&word)) {
        return ended(done.map_err(|error| CommandError::from(error.to_string())));
    }
    // The completion script of a shell starts the program with this variable.
    if std::env::var_os(COMPLETE).is_some() {
        term::mute();
    }
    if is_plugin() {
        return match Plugin::try_parse() {
            Ok(plugin) => ended(block_on(kubectl::run(plugin))),
            Err(error) if error.use_stderr() => error.exit(),
            Err(asked) => ended(show(&asked)),
        };
    }
    CompleteEnv::with_factory(command).var(COMPLETE).complete();
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(std::env::args_os()).and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let line = match parsed {
        Ok(line) => line,
        Err(error) if error.use_stderr() => hints::told(error, &command, &bloom_commands::given_words()).exit(),
        // The help and the version are ordinary output, and writing them may fail.
        Err(asked) => return ended(show(&asked)),
    };
    let is_service = matches!(line.command, Command::Serve(_) | Command::Membridge(_) | Command::Agent(_));
    let done = match line.command {
        Command::Serve(args) => settings(&args).and_then(|settings| block_on(serve::serve(settings, args.flags))),
        Command::Membridge(args) => membridge::settings(&args.flags).and_then(|settings| block_on(membridge::run(settings, args.flags))),
        Command::Dev(_) | Command::Agent(_) if std::process::id() == 1 => block_on(init::run()),
        Command::Dev(args) => block_on(dev::run(args)),
        Command::Agent(args) => agent::run(*args),
        Command::Migrate { action: Migrate::Up(args) } => settings(&args).and_then(|settings| block_on(database::migrate(settings))),
        Command::Migrate { action: Migrate::Status(args) } => settings(&args).and_then(|settings| block_on(database::status(settings))),
        Command::Client(command) => block_on(bloom_commands::run(*command)),
        Command::Backup(args) => settings(&args.server).and_then(|settings| block_on(backup::make(args, settings))),
        Command::Restore(args) => settings(&args.server).and_then(|settings| block_on(backup::restore(args, settings))),
        Command::Export(args) => settings(&args.server).and_then(|settings| block_on(moving::export(args, settings))),
        Command::Import(args) => settings(&args.server).and_then(|settings| block_on(moving::import(args, settings))),
        Command::Openapi => generate::openapi(),
        Command::Crds { dir } => generate::crds(dir.as_deref()),
        Command::Config { action: ConfigCommand::Check { server, output } } => config_check::run(&server.flags, output),
        Command::Doctor { server, ca_file, strict, output } => {
            block_on(async move { doctor::run(&server.flags, ca_file, strict, output).await })
        }
        Command::Healthcheck(args) => settings(&args).and_then(|settings| block_on(healthcheck::run(settings))),
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => generate::man(&dir),
        Command::Bench(args) => block_on(async move { Ok(bloom_bench::run(&args).await?) }),
    };
    // If a service can't start, its supervisor starts it again and again. The error gets a time like the lines of the log, so that the
    // attempts can be distinguished.
    if is_service && done.as_ref().is_err_and(|failure| !failure.message.is_empty()) && !std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr().lock(), "{:.6} ", jiff::Timestamp::now());
    }
    ended(done)
}

/// Whether the program was called by the name of the plugin of kubectl.
fn is_plugin() -> bool {
    let program = std::env::args_os().next().map(PathBuf::from);
    program.is_some_and(|program| program.file_name().is_some_and(|name| name == kubectl::NAME))
}

fn command() -> clap::Command {
    hints::negative_values(Cli::command().mut_subcommand("dev", dev::with_short_help))
}

fn ended(done: Result<(), CommandError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                complain(&failure.message);
            }
            ExitCode::from(failure.status)
        }
    }
}

/// The settings in force, or an error with all mistakes, one per line.
fn settings(args: &ServerArgs) -> Result<Serve, CommandError> {
    usable(config::load(&args.flags))
}

fn usable(report: config::Report) -> Result<Serve, CommandError> {
    report.into_serve().map_err(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(|mistake| format!("  {mistake}")).collect();
        CommandError::usage(format!(
            "these settings can't be used:\n{}\nShow all settings in force with: bloom-runtime config check",
            lines.join("\n")
        ))
    })
}

fn block_on(work: impl Future<Output = Result<(), CommandError>>) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| format!("the process can't start its threads: {error}"))?.block_on(work)
}

/// The script registers the program with the shell; the program itself finds what completes a line.
fn completions(shell: Shell) -> Result<(), CommandError> {
    if shell == Shell::Bash {
        return term::print(FOR_BASH);
    }
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).ok_or_else(|| format!("there are no completions for {shell}"))?;
    let mut script = Vec::new();
    let written = completer.write_registration(COMPLETE, NAME, NAME, NAME, &mut script);
    written.map_err(|error| format!("the completions can't be written: {error}"))?;
    term::print(&String::from_utf8_lossy(&script))
}

/// Prints the help or the version, which the parser returns as an error.
fn show(asked: &clap::Error) -> Result<(), CommandError> {
    let text = asked.render();
    term::print(&if term::has_colors() { text.ansi().to_string() } else { text.to_string() })
}

/// Prints how a server or an agent was started. It works even if that can't be written or read.
fn announce(text: &str) {
    if let Err(failure) = term::print(text) {
        tracing::warn!("{failure}");
    }
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "bloom-runtime: {}", term::safe(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    fn refused(line: &str) -> String {
        let mut command = command();
        let error = command.try_get_matches_from_mut(line.split(' ')).unwrap_err();
        hints::told(error, &command, &line.split(' ').map(str::to_owned).collect::<Vec<_>>()).to_string()
    }

    #[test]
    fn a_command_without_its_group_is_told_with_it() {
        assert!(refused("bloom-runtime submit x").contains("bloom-runtime task submit"));
        assert!(refused("bloom-runtime retry x").contains("bloom-runtime task retry"));
        let said = refused("bloom-runtime list");
        assert!(
            said.contains("bloom-runtime task list, bloom-runtime worker list") && said.contains("bloom-runtime context list"),
            "{said}"
        );
        let said = refused("bloom-runtime task uncordon x");
        assert!(!said.contains("worker"), "the group was given: {said}");
        assert!(refused("bloom-runtime task status x").contains("here it is: bloom-runtime task get, bloom-runtime task describe"));
        assert!(refused("bloom-runtime version").contains("here it is: bloom-runtime --version"));
        let said = refused("bloom-runtime task diff --status completed x");
        assert!(said.contains("'--status'") && !said.contains("as a value"), "{said}");
        let said = refused("bloom-runtime wroker");
        assert!(said.contains("'worker'") && !said.contains("another command"), "{said}");
        let said = refused("bloom-runtime task sumbit x");
        assert!(said.contains("'submit'") && !said.contains("another command"), "{said}");
    }

    #[test]
    fn tips_fit_what_was_given() {
        for (line, told) in [
            ("run hi", "here it is: bloom-runtime task submit"),
            ("queue describe x", "here it is: bloom-runtime queue list"),
            ("key show x", "here it is: bloom-runtime key list, bloom-runtime key whoami"),
            ("context show x", "conversation are in: bloom-runtime conversation"),
            ("conversation use x", "their keys are in: bloom-runtime context"),
            ("dev --listen 0.0.0.0:5000", "here it is: --host and --port"),
            ("task lst", "'list', "),
            ("task list -o xml", "jsonpath="),
        ] {
            let said = refused(&format!("bloom-runtime {line}"));
            assert!(said.contains(told) && !said.contains("--tls-client") && !said.contains("a similar value"), "{line}: {said}");
        }
    }

    #[test]
    fn what_shows_one_object_has_the_words_of_other_tools() {
        for group in ["task", "worker", "project", "conversation"] {
            for word in ["get", "describe", "show"] {
                assert!(command().try_get_matches_from(["bloom-runtime", group, word, "x"]).is_ok(), "{group} {word}");
            }
        }
    }

    #[test]
    fn a_message_may_stand_behind_the_task_that_is_denied() {
        let parse = |more: &[&str]| command().try_get_matches_from([&["bloom-runtime", "task", "deny", "abcd"], more].concat());
        assert!(parse(&["not now"]).is_ok() && parse(&["--message", "no"]).is_ok() && parse(&["no", "--message", "no"]).is_err());
    }

    #[test]
    fn a_negative_number_is_told_by_the_flag_that_has_it() {
        for (line, flag, expected) in [
            ("task submit --priority -1 p", "--priority", "0 to 9"),
            ("task submit --max-attempts -1 p", "--max-attempts", "1 to 10"),
            ("task submit --budget -1 p", "--budget", "US dollars"),
            ("task submit --timeout -1 p", "--timeout", "like 90"),
            ("task submit --timeout -5m p", "--timeout", "like 90"),
            ("task edit --priority -1 abcd", "--priority", "0 to 9"),
            ("task list --limit -1", "--limit", "1 to 100000"),
            ("task list -n x", "--limit", "1 to 100000"),
            ("task list --since -2h", "--since", "how long ago, like 2h"),
            ("audit --until -2h", "--until", "how long ago, like 2h"),
            ("usage --from -2h", "--since", "how long ago, like 2h"),
            ("top --interval -1", "--interval", "like 90"),
            ("queue limit --agent a -1", "N|none", "1 to 10000"),
            ("agent --max-concurrency -1", "--max-concurrency", "1 to 32"),
        ] {
            let said = refused(&format!("bloom-runtime {line}"));
            assert!(said.contains(flag) && said.contains(expected) && !said.contains("unexpected"), "{line}: {said}");
        }
        assert!(
            command().try_get_matches_from(["bloom-runtime", "serve", "--port", "-1"]).is_ok(),
            "settings are checked with their sources"
        );
    }

    #[test]
    fn the_short_help_of_dev_has_the_usual_flags() {
        let mut cli = command();
        let dev = cli.find_subcommand_mut("dev").unwrap();
        let (short, long) = (dev.render_help().to_string(), dev.render_long_help().to_string());
        for flag in ["--host ", "--port ", "--data-dir ", "--max-concurrency ", "--runner ", "--profiles ", "--help lists all"] {
            assert!(short.contains(flag), "{flag} is missing in\n{short}");
        }
        assert!(short.lines().count() < 40 && !short.contains("--database-url"), "{short}");
        assert!(long.contains("--database-url ") && long.contains("--grace-seconds "), "{long}");
    }

    #[test]
    fn each_setting_is_in_the_help_of_serve() {
        let mut cli = command();
        let help = cli.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        for setting in config::SETTINGS {
            assert!(help.contains(&format!("--{} ", setting.flag_name())), "{} is missing in\n{help}", setting.key);
            assert!(help.contains(&setting.env_name()), "{}", setting.key);
        }
    }
}
