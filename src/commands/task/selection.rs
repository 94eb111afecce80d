//! The tasks that a command is about, named by their ids or by filters.

use std::collections::BTreeSet;

use clap::Args;
use clap_complete::ArgValueCompleter;
use serde_json::Value;
use uuid::Uuid;

use super::filters::Filters;
use super::list;
use crate::CommandError;
use crate::confirm::confirm;
use crate::for_each;
use crate::interrupt::or_interrupted;
use crate::progress::{Progress, number, tasks};
use crate::server_calls::{Server, failed, read, with_query};
use crate::{ids, shell_completion, term};
use bloom_api::lists::MAX_IDS;
use bloom_api::tasks::Task;
use bloom_core::task::Status;

/// How many tasks filters choose for one command.
const MAX_CHOSEN: usize = 10_000;
const PAGE: usize = 1000;

#[derive(Args, Debug)]
pub struct Selection {
    /// Ids of tasks; or use filters
    #[arg(value_name = "ID", add = ArgValueCompleter::new(shell_completion::tasks))]
    pub ids: Vec<String>,
    #[command(flatten)]
    pub filters: Filters,
}

/// Flags of commands that change tasks.
#[derive(Args, Debug)]
pub struct Changed {
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Only show how many tasks match
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub selection: Selection,
}

/// What a command does to each task that is chosen.
pub struct Act {
    /// The command, which is also the word for what it does.
    pub verb: &'static str,
    /// What has happened to a task then.
    pub done: &'static str,
    /// Filters choose only tasks with these statuses, because the others can't be changed so.
    pub statuses: &'static [Status],
    /// Of these, only such tasks.
    pub fits: fn(&Task) -> bool,
    /// Statuses by which people choose tasks for this.
    pub usual: &'static str,
}

impl Act {
    /// A command that changes no task, and so is about tasks with any status.
    pub const fn reading(verb: &'static str, usual: &'static str) -> Self {
        Self { verb, done: "", statuses: Status::ALL, fits: |_| true, usual }
    }
}

/// The tasks that were found.
pub struct Chosen {
    /// In the order in which they were given, or were created.
    pub ids: Vec<String>,
    /// Why others were not found.
    pub failures: Vec<CommandError>,
    /// It was one id, so that the command is about exactly this task.
    pub is_one: bool,
    pub is_by_filter: bool,
    /// More tasks match the filters.
    pub more: bool,
}

impl Selection {
    /// # Errors
    /// There are neither ids nor filters, or both.
    pub fn check(&self, verb: &str, usual: &str) -> Result<(), CommandError> {
        match (self.ids.is_empty(), self.filters.is_empty()) {
            (true, true) => Err(CommandError::usage(format!(
                "no tasks are named: give ids, or filters such as --status {usual}; see task {verb} --help"
            ))),
            (false, false) => Err(CommandError::usage("give either ids or filters, not both")),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// As [`check`](Self::check), or a list can't be read.
    pub async fn find(&self, act: &Act, server: &Server) -> Result<Chosen, CommandError> {
        self.check(act.verb, act.usual)?;
        if self.ids.is_empty() {
            let filters = self.filters.clone().resolved(server).await?;
            let (ids, more) = matching(&filters, act, server).await?;
            if ids.is_empty() {
                list::hint(server, &filters).await;
            }
            return Ok(Chosen { ids, failures: Vec::new(), is_one: false, is_by_filter: true, more });
        }
        let (mut ids, failures) = ids::each(server, &self.ids).await;
        let mut seen = BTreeSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        Ok(Chosen { ids, failures, is_one: self.ids.len() == 1, is_by_filter: false, more: false })
    }

    /// As [`find`](Self::find), for commands that show tasks, all or none.
    ///
    /// # Errors
    /// As [`find`](Self::find), no task matches, or too many do.
    pub async fn find_all(&self, act: &Act, server: &Server) -> Result<Chosen, CommandError> {
        let chosen = self.find(act, server).await?;
        if chosen.more {
            let most = number(MAX_CHOSEN as u64);
            return Err(CommandError::usage(format!("more than {most} tasks match: choose fewer, such as with --since or --label")));
        }
        if chosen.is_by_filter && chosen.ids.is_empty() {
            return Err("no task matches: check the filters with bloom-runtime task list".to_owned().into());
        }
        Ok(chosen)
    }
}

/// The ids of the tasks that match, oldest first, and whether there are more. Only the ids are kept, because prompts may be long.
async fn matching(filters: &Filters, act: &Act, server: &Server) -> Result<(Vec<String>, bool), CommandError> {
    let mut ids = BTreeSet::new();
    for status in act.statuses.iter().map(|status| status.as_str()).filter(|status| filters.allows(status)) {
        let mut query = filters.query(Some(status));
        query.push(("limit", PAGE.to_string()));
        let mut next = Some(with_query("api/runtime/llm-tasks", &query));
        while let Some(page) = next.take() {
            let (tasks, after) = server.page(&page).await.map_err(failed)?;
            for task in &tasks {
                let task: Task = read(task)?;
                if !(act.fits)(&task) {
                    continue;
                }
                if ids.len() == MAX_CHOSEN {
                    return Ok((ids.into_iter().collect(), true));
                }
                ids.insert(task.id.to_string());
            }
            next = after;
        }
    }
    Ok((ids.into_iter().collect(), false))
}

impl Changed {
    /// The tasks to change, after the user has agreed. `None`: nothing is to be changed. Filters always ask; `asks`: ids, too.
    ///
    /// # Errors
    /// As [`Selection::find`]; nobody can be asked; or, if nothing is changed, ids that name no task.
    pub async fn chosen(&self, act: &Act, asks: bool, server: &Server) -> Result<Option<Chosen>, CommandError> {
        let mut chosen = self.selection.find(act, server).await?;
        if asks && !self.yes && !chosen.is_by_filter {
            chosen.leave_out_missing(server).await?;
        }
        let count = tasks(chosen.ids.len() as i64);
        let count = if chosen.more { format!("{count} or more") } else { count };
        if self.dry_run || (chosen.is_by_filter && chosen.ids.is_empty()) {
            term::info(&format!("{count} to {}", act.verb));
        } else if chosen.ids.is_empty() || self.yes || !(asks || chosen.is_by_filter) || confirm(act.verb, &count).await? {
            return Ok(Some(chosen));
        } else {
            term::info("Nothing was changed.");
        }
        CommandError::all(&chosen.failures).map(|()| None)
    }
}

impl Chosen {
    /// Takes the ids that name no task for failures: nobody is asked about these. Whole ids were not looked up.
    async fn leave_out_missing(&mut self, server: &Server) -> Result<(), CommandError> {
        let mut existing = BTreeSet::new();
        let wanted: Vec<Uuid> = self.ids.iter().filter_map(|id| id.parse().ok()).collect();
        for some in wanted.chunks(MAX_IDS) {
            let found = ids::existing(server, some).await?;
            existing.extend(found.iter().filter_map(|task| task["id"].as_str()).map(str::to_owned));
        }
        let (found, missing): (Vec<String>, Vec<String>) = self.ids.drain(..).partition(|id| existing.contains(id));
        self.ids = found;
        self.failures.extend(missing.iter().map(|id| CommandError::from("Task not found".to_owned()).about(id)));
        Ok(())
    }

    /// Changes each of the tasks by a call, and returns the answers. The error then tells what could not be changed; the others are.
    ///
    /// # Errors
    /// Ctrl-C.
    pub async fn change<'a, F: Future<Output = Result<Value, CommandError>>>(
        &'a self,
        act: &Act,
        call: impl Fn(&'a str) -> F,
    ) -> Result<(Vec<Value>, Result<(), CommandError>), CommandError> {
        let total = self.ids.len() as u64;
        let progress = Progress::unless(!self.is_by_filter, total);
        let calls = for_each::answers(&self.ids, |id| {
            let call = call(id);
            let progress = &progress;
            async move { call.await.inspect(|_| progress.add(1)) }
        });
        let told = || {
            format!(
                "interrupted: {} of {}: {}; the server may still carry out the last calls. Give the same command again to go on with the others.",
                number(progress.done()),
                tasks(total as i64),
                act.done
            )
        };
        let (answers, mut failures) = or_interrupted(async { Ok(calls.await) }, told).await?;
        drop(progress);
        if self.is_by_filter {
            term::info(&format!("{}: {}", tasks(answers.len() as i64), act.done));
        }
        failures.extend(self.failures.iter().map(|failure| CommandError { message: failure.message.clone(), ..*failure }));
        if self.more {
            failures.push(format!("there are more: run the command again to {} them as well", act.verb).into());
        }
        Ok((answers, CommandError::all(&failures)))
    }
}
