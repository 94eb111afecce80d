//! Commands for people: they call a server over its API, whichever it is.
//!
//! Data goes to standard output, everything else to standard error, so that a pipe gets nothing but what it asked for.

mod columns;
mod connect;
mod contexts;
mod error;
mod records;
mod show;
mod task;
pub mod term;
mod when;
mod worker;

use clap::Subcommand;

use connect::Connection;
pub use connect::{DEFAULT_SERVER, read_key};
use contexts::ContextCommand;
pub use error::CommandError;
use records::{AuditArgs, LeaseCommand, UsageArgs};
use show::Shown;
use task::TaskCommand;
use worker::WorkerCommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Submit tasks, look at them, wait for them, stop them
    #[command(after_help = task::EXAMPLES)]
    Task {
        #[command(subcommand)]
        action: TaskCommand,
        #[command(flatten)]
        to: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Look at workers, and take them out of service
    Worker {
        #[command(subcommand)]
        action: WorkerCommand,
        #[command(flatten)]
        to: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Look at leases: which worker has which task, and until when
    Lease {
        #[command(subcommand)]
        action: LeaseCommand,
        #[command(flatten)]
        to: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show what was done, and by whom, newest first
    Audit {
        #[command(flatten)]
        args: AuditArgs,
        #[command(flatten)]
        to: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Count tasks, leases and workers
    Stats {
        #[command(flatten)]
        to: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Sum up the tokens and US dollars that runs have used
    Usage {
        #[command(flatten)]
        args: UsageArgs,
        #[command(flatten)]
        to: Connection,
        #[command(flatten)]
        shown: Shown,
    },
    /// Keep servers and their keys under names
    ///
    /// A context is a server and the key to it, kept in $XDG_CONFIG_HOME/bloom-runtime/config.toml
    /// (else ~/.config/bloom-runtime/config.toml), readable by you alone.
    ///
    /// Which server a command calls is said by --server or --use-context, else by BLOOM_SERVER, else
    /// by BLOOM_CONTEXT, else by the context in use, else it is http://127.0.0.1:5000. A context's key
    /// goes to that context's server only. The --context of `task submit` is another thing: the
    /// conversation that the task belongs to.
    #[command(verbatim_doc_comment)]
    Context {
        #[command(subcommand)]
        action: ContextCommand,
        #[command(flatten)]
        shown: Shown,
    },
}

/// Runs one of them.
///
/// # Errors
/// It failed, or the command line does not make sense.
pub async fn run(command: Command) -> Result<(), CommandError> {
    match command {
        Command::Task { action, to, shown } => task::run(action, &to.server()?, shown).await,
        Command::Worker { action, to, shown } => worker::run(action, &to.server()?, shown).await,
        Command::Lease { action, to, shown } => records::leases(action, &to.server()?, shown).await,
        Command::Audit { args, to, shown } => records::audit(args, &to.server()?, shown).await,
        Command::Stats { to, shown } => records::stats(&to.server()?, shown).await,
        Command::Usage { args, to, shown } => records::usage(args, &to.server()?, shown).await,
        Command::Context { action, shown } => contexts::run(action, shown),
    }
}
