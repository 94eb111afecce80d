//! `worker`: shows workers, takes them out of service and back, and removes them.

use std::time::Duration;

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;
use clap_complete::ArgValueCandidates;
use serde_json::Value;
use tokio::time::sleep;

use super::confirm::confirm;
use super::interrupt::or_interrupted;
use super::records::{self, Limit};
use super::server_calls::Server;
use super::show::{self, Form, Shown};
use super::{columns, describe, shell_completion, term};
use crate::CommandError;
use bloom_client::part;
use bloom_core::similar::similar;
use bloom_core::worker::WorkerStatus;

/// The most workers that are read to find the one that was meant.
const MAX_WORKERS: usize = 1000;

/// The interval at which a drain is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// List workers
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        limit: Limit,
    },
    /// Show workers; with -o json also their active leases
    Get {
        /// Names, as `worker list` shows them
        #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        names: Vec<String>,
    },
    /// Show all about a worker: what it runs, its last leases and how they ended, its history
    #[command(visible_alias = "show")]
    Describe {
        /// Its name
        #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        name: String,
    },
    /// Give workers no new tasks; their running tasks go on
    Cordon {
        /// Names, as `worker list` shows them
        #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        names: Vec<String>,
    },
    /// Give workers tasks again, after cordon or drain
    Uncordon {
        /// Names, as `worker list` shows them
        #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        names: Vec<String>,
    },
    /// Give workers no new tasks, and ask them to finish or hand back those that they have
    Drain {
        /// Names, as `worker list` shows them
        #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        names: Vec<String>,
        /// Wait until they have no tasks any more, so that their machines can be switched off
        #[arg(long)]
        wait: bool,
    },
    /// Remove workers; their tasks go back to the queue
    ///
    /// A worker that still runs comes back when it registers again, so the command asks first if one is online; stop its agent before. A
    /// worker that the control plane lists comes back when the list is read the next time.
    #[command(aliases = ["delete", "remove"])]
    Rm {
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Names, as `worker list` shows them
        #[arg(required = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCandidates::new(shell_completion::workers))]
        names: Vec<String>,
    },
}

pub(crate) async fn run(command: WorkerCommand, server: &Server, shown: Shown) -> Result<(), CommandError> {
    match command {
        WorkerCommand::List { limit } => records::pages(server, "api/runtime/workers", &[], limit, shown, &columns::WORKERS).await,
        WorkerCommand::Get { names } => {
            let (found, all) = server.get_each(&names, |name| path(name, "")).await?;
            show::found(shown.form_or(Form::Table), &columns::WORKERS, (found, corrected(server, &names, all).await))
        }
        WorkerCommand::Describe { name } => {
            let described = describe::worker(&name, server, shown).await;
            corrected(server, std::slice::from_ref(&name), described).await
        }
        WorkerCommand::Cordon { names } => change_cordon(server, &names, "/cordon", shown).await,
        WorkerCommand::Uncordon { names } => change_cordon(server, &names, "/uncordon", shown).await,
        WorkerCommand::Drain { names, wait } => {
            let (mut changed, mut all) = server.post_each(&names, |name| path(name, "/drain")).await;
            if wait && all.is_ok() {
                let told = || "interrupted; the workers go on with what they have, and get no new tasks".to_owned();
                (changed, all) = or_interrupted(drained(server, &names), told).await?;
            }
            show::found(shown.form_or(Form::Table), &columns::WORKERS, (changed, corrected(server, &names, all).await))
        }
        WorkerCommand::Rm { names, yes } => remove(server, &names, yes).await,
    }
}

async fn remove(server: &Server, names: &[String], yes: bool) -> Result<(), CommandError> {
    // Missing workers are reported after the others are removed.
    let (found, _) = server.get_each(names, |name| path(name, "")).await?;
    let online: Vec<&Value> = found.iter().filter(|worker| worker["status"] == WorkerStatus::Online.as_str()).collect();
    for name in online.iter().filter_map(|worker| worker["id"].as_str()) {
        term::info(&format!("{name} is online: its agent registers it again unless it is stopped."));
    }
    let count = if found.len() == 1 { "1 worker".to_owned() } else { format!("{} workers", found.len()) };
    if !online.is_empty() && !yes && !confirm("remove", &count).await? {
        term::info("Nothing was changed.");
        return Ok(());
    }
    let removed = server.delete_each(names, |name| path(name, ""), |name| format!("{name} is removed.")).await;
    corrected(server, names, removed).await
}

/// Waits until no worker has a task, and returns the workers.
async fn drained(server: &Server, names: &[String]) -> Result<(Vec<Value>, Result<(), CommandError>), CommandError> {
    loop {
        let (found, all) = server.get_each(names, |name| path(name, "")).await?;
        if all.is_err() || found.iter().all(|worker| worker["active_leases"] == 0) {
            return Ok((found, all));
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn change_cordon(server: &Server, names: &[String], tail: &str, shown: Shown) -> Result<(), CommandError> {
    let (changed, all) = server.post_each(names, |name| path(name, tail)).await;
    show::found(shown.form_or(Form::Table), &columns::WORKERS, (changed, corrected(server, names, all).await))
}

/// The outcome of a command on workers. If it failed, its error tells which names were probably meant in place of those that no worker has.
async fn corrected(server: &Server, names: &[String], outcome: Result<(), CommandError>) -> Result<(), CommandError> {
    let Err(failure) = outcome else { return Ok(()) };
    // The command has already failed, so an error about the list is not reported.
    let (rows, _) = server.list("api/runtime/workers", &[], MAX_WORKERS).await.unwrap_or_default();
    let known: Vec<&str> = rows.iter().filter_map(|worker| worker["id"].as_str()).collect();
    let meant = names.iter().filter(|name| !known.contains(&name.as_str())).filter_map(|name| similar(name, known.iter().copied()));
    let mut meant: String = meant.map(|meant| format!("\nDid you mean {meant}?")).collect();
    if failure.message.contains("Worker not found") {
        meant.push_str("\nSee those that exist with: bloom-runtime worker list");
    }
    Err(CommandError { message: failure.message + &meant, ..failure })
}

fn path(name: &str, tail: &str) -> String {
    format!("api/runtime/workers/{}{tail}", part(name))
}
