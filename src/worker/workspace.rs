//! What a run finds in its directory, and what the agent takes from there when it has ended: the worktree of its project, and files.

use serde_json::json;

use super::home::private_dir;
use super::profile::Profile;
use super::run::Run;
use super::run_dir::Record;
use super::verdict::{Stop, Verdict, not_started};
use super::worktree::{Changes, Origin, Prepared, Trouble, Worktree};
use bloom_core::task::{Outcome, Reason};

/// The most characters of the first line of a commit's message.
const MAX_SUBJECT: usize = 72;

/// Why a run can't begin.
pub enum Unprepared {
    /// Its verdict.
    Failed(Box<Verdict>),
    /// The agent was to stop it.
    Stopped,
}

impl Run<'_> {
    /// Prepares the directory of the task's context. What was prepared for this run before, by an earlier process of the agent, stays as it is.
    pub async fn prepare_workspace(&mut self, record: &mut Record) -> Result<(), Unprepared> {
        let lease = record.lease.id;
        let Some(tree) = self.tree(record) else {
            let dir = self.agent.home.context_dir(&record.task.context_id);
            return private_dir(&dir).map_err(|error| {
                let why = format!("the context's directory can't be created: {error}");
                Unprepared::Failed(Box::new(not_started(lease, Reason::SpawnFailed, &why, true)))
            });
        };
        if record.prepared.is_some() && tree.exists() {
            return Ok(());
        }
        let project = record.task.project.clone().unwrap_or_default();
        self.record_phase("preparing", json!({"project": project, "branch": tree.branch}));
        let made = tokio::select! {
            made = prepare(self.agent, &tree, record) => made,
            _ = self.stop.wait_for(Option::is_some) => return Err(Unprepared::Stopped),
        };
        let prepared = made.map_err(|trouble| {
            if let Trouble::Disk(why) = &trouble {
                self.agent.pause_for_disk(why);
            }
            Unprepared::Failed(Box::new(not_started(lease, trouble.reason(), &trouble.to_string(), trouble.may_pass())))
        })?;
        let text = match prepared.origin {
            Origin::Kept => "goes on where the last run of the context left it",
            Origin::Fetched => "goes on where a run of the context on another worker has pushed it",
            Origin::Fresh => "begins afresh: this worker has no earlier work of the context, and none was pushed",
        };
        let told = json!({"project": project, "branch": prepared.branch, "commit": prepared.base, "origin": prepared.origin, "text": text});
        self.record_phase("prepared", told);
        record.prepared = Some(prepared);
        Ok(())
    }

    pub fn tree(&self, record: &Record) -> Option<Worktree> {
        record.lease.repository.as_ref().map(|repository| self.agent.worktree(&record.task, repository))
    }

    /// Commits what the run changed, shows it, and pushes it if the task says so. The verdict tells of it. A run that did not end by itself keeps its
    /// changes in the worktree, for the next attempt.
    pub async fn take_changes(&mut self, record: &Record, profile: &Profile, verdict: Verdict) -> Verdict {
        let (Some(tree), Some(begun), Verdict::Complete(mut completion)) = (self.tree(record), &record.prepared, verdict.clone()) else {
            return verdict;
        };
        if completion.reason == Some(Reason::WorkerLost) {
            return verdict;
        }
        let mut stop = self.stop.clone();
        let taken = tokio::select! {
            taken = self.commit_and_push(record, profile, &tree, begun) => taken,
            // Another worker may have the task now.
            _ = stop.wait_for(|stop| *stop == Some(Stop::LeaseLost)) => return verdict,
        };
        match taken {
            Ok(commit) => {
                completion.branch = Some(begun.branch.clone().into());
                completion.commit = Some(commit.into());
            }
            Err(trouble) if completion.status == Outcome::Success => {
                // What the run answered is stored all the same. Another attempt would be paid for again, and meet the same.
                completion.status = Outcome::Error;
                completion.reason = Some(trouble.reason());
                completion.error_message = Some(trouble.to_string().into());
            }
            Err(trouble) => {
                let earlier = completion.error_message.as_deref().unwrap_or_default();
                completion.error_message = Some(format!("{earlier}; {trouble}").into());
            }
        }
        Verdict::Complete(completion)
    }

    /// The commit at which the branch is now.
    async fn commit_and_push(&mut self, record: &Record, profile: &Profile, tree: &Worktree, begun: &Prepared) -> Result<String, Trouble> {
        let changes = tree.commit(begun, &message(record), &profile.commit_author, &tree.ignored()).await?;
        let Some(changes) = changes else { return Ok(begun.base.clone()) };
        self.record_phase("committed", json!({"branch": begun.branch, "commit": changes.commit, "text": changes.stat, "left_out": changes.left_out}));
        self.agent.send_diff(record, &begun.branch, &changes).await?;
        if record.task.push == Push::Branch {
            tree.push().await?;
            self.record_phase("pushed", json!({"branch": begun.branch, "commit": changes.commit}));
        }
        Ok(changes.commit)
    }
}

async fn prepare(agent: &super::Agent, tree: &Worktree, record: &Record) -> Result<Prepared, Trouble> {
    let _using = agent.worktrees.using.read().await;
    tree.note(&record.task.context_id).map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))?;
    tree.prepare(record.task.git_ref.as_deref()).await
}

/// The message of the commit: what the task was, for people, and its ids.
fn message(record: &Record) -> String {
    let task = &record.task;
    let line = task.prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("A run without words");
    let printable: String = line.chars().filter(|c| !c.is_control()).collect();
    let mut subject: String = printable.chars().take(MAX_SUBJECT).collect();
    if subject.len() < printable.len() {
        subject.push('…');
    }
    format!("{subject}\n\nBloom-Task: {}\nBloom-Context: {}\n", task.id, task.context_id.replace(char::is_control, " "))
}
