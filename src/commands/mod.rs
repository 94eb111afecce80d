//! Commands that call a server by its API.
//!
//! Data goes to standard output, everything else to standard error, so that a pipe gets only the data.

#![warn(missing_docs, unreachable_pub)]

mod account;
mod audit;
mod columns;
mod confirm;
mod connection;
mod context_file;
mod contexts;
mod conversation;
mod describe;
pub mod dev_key;
mod error;
mod field_flags;
mod for_each;
mod ids;
mod interrupt;
mod key;
mod key_file;
mod key_quota;
mod known_agents;
pub mod kubectl;
mod local_repository;
pub mod number;
mod output_format;
mod progress;
mod project;
mod queue;
mod quota;
mod records;
mod retry;
mod revocation;
mod server_calls;
mod shell_completion;
mod show;
mod start_event;
mod stats;
mod table;
mod task;
pub mod term;
mod usage;
mod when;
mod words;
mod worker;

use clap::Subcommand;

use account::AccountCommand;
use audit::AuditArgs;
use connection::Connection;
pub use connection::{DEFAULT_SERVER, default_key_for, is_called_by_default};
use contexts::ContextCommand;
use conversation::ConversationCommand;
pub use error::CommandError;
use key::KeyCommand;
pub use key_file::read_key;
pub use progress::{Progress, number as with_commas};
use project::ProjectCommand;
use queue::QueueCommand;
use records::LeaseCommand;
use show::Shown;
use stats::{Every, StatsArgs};
use task::TaskCommand;
use usage::UsageArgs;
use worker::WorkerCommand;

/// The commands that call a server
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Submit, show, wait for, edit, suspend, resume, cancel, requeue and delete tasks
    #[command(after_help = task::EXAMPLES)]
    Task {
        /// What to do with tasks
        #[command(subcommand)]
        action: TaskCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show workers, and take them out of service
    Worker {
        /// What to do with workers
        #[command(subcommand)]
        action: WorkerCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the queues of agents; pause, resume and limit them
    Queue {
        /// What to do with queues
        #[command(subcommand)]
        action: QueueCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show and reset the conversations (contexts) of tasks; for servers and their keys, see `context`
    ///
    /// Tasks with one --context continue one conversation. The command `context` is about something else: stored servers and their keys.
    Conversation {
        /// What to do with conversations
        #[command(subcommand)]
        action: ConversationCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// List paused accounts and profiles, and end the pause of an account
    Account {
        /// What to do with accounts
        #[command(subcommand)]
        action: AccountCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Add, list, show, clone and delete projects: repositories that workers clone
    #[command(after_help = project::EXAMPLES)]
    Project {
        /// What to do with projects
        #[command(subcommand)]
        action: ProjectCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show leases: which worker has which task, and until when
    Lease {
        /// What to do with leases
        #[command(subcommand)]
        action: LeaseCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the audit trail, newest entries first, or follow it
    #[command(after_help = audit::EXAMPLES)]
    Audit {
        /// Which entries to show
        #[command(flatten)]
        args: AuditArgs,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Count tasks, leases and workers
    Stats {
        /// Whether to show the counts again and again, and how often
        #[command(flatten)]
        args: StatsArgs,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the counts of tasks, leases and workers again and again; the same as `stats --watch`
    Top {
        /// How often to count
        #[command(flatten)]
        every: Every,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Show how many tokens and US dollars runs have used
    #[command(after_help = usage::EXAMPLES)]
    Usage {
        /// Which runs to count, and how to group them
        #[command(flatten)]
        args: UsageArgs,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Create, list, rotate and revoke named keys, and show what a key allows
    #[command(after_help = key::EXAMPLES)]
    Key {
        /// What to do with keys
        #[command(subcommand)]
        action: KeyCommand,
        /// The server to call
        #[command(flatten)]
        to: Connection,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
    /// Store servers and their keys under names; for the conversations of tasks, see `conversation`
    ///
    /// A context is a server and the key to it, stored in $XDG_CONFIG_HOME/bloom-runtime/config.toml
    /// (else ~/.config/bloom-runtime/config.toml), readable by you alone.
    ///
    /// A command calls the server given by --server or --use-context, else by BLOOM_SERVER, else by
    /// BLOOM_CONTEXT, else by the context in use, else http://127.0.0.1:5000. The key of a context is
    /// sent to the server of that context only. The --context of `task submit` is something else: the
    /// conversation that the task belongs to; see `bloom-runtime conversation`.
    #[command(verbatim_doc_comment)]
    Context {
        /// What to do with contexts
        #[command(subcommand)]
        action: ContextCommand,
        /// How the result is shown
        #[command(flatten)]
        shown: Shown,
    },
}

/// The words of the command line. Those that are no text are shown with replacement characters.
pub fn given_words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Runs a command.
///
/// # Errors
/// The command failed, or its flags contradict each other.
pub async fn run(command: Command) -> Result<(), CommandError> {
    interrupt::always(run_command(command)).await
}

async fn run_command(command: Command) -> Result<(), CommandError> {
    match command {
        Command::Task { action, to, shown } => task::run(action, &to.server()?, shown).await,
        Command::Worker { action, to, shown } => worker::run(action, &to.server()?, shown).await,
        Command::Queue { action, to, shown } => queue::run(action, &to.server()?, shown).await,
        Command::Conversation { action, to, shown } => conversation::run(action, &to.server()?, shown).await,
        Command::Account { action, to, shown } => account::run(action, &to.server()?, shown).await,
        Command::Project { action, to, shown } => project::run(action, &to.server()?, shown).await,
        Command::Lease { action, to, shown } => records::leases(action, &to.server()?, shown).await,
        Command::Audit { args, to, shown } => audit::run(args, &to.server()?, shown).await,
        Command::Stats { args, to, shown } => stats::run(args, &to.server()?, shown).await,
        Command::Top { every, to, shown } => stats::watch(&every, &to.server()?, shown).await,
        Command::Usage { args, to, shown } => usage::run(args, &to.server()?, shown).await,
        Command::Key { action, to, shown } => key::run(action, &to.server()?, shown).await,
        Command::Context { action, shown } => contexts::run(action, shown).await,
    }
}
