//! What a run finds in its directory, and what the agent takes from there when it has ended: the worktree of its project, and files.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde_json::json;

use super::Agent;
use super::files::{NoInput, Unsent, open_below, outputs};
use super::home::private_dir;
use super::profile::Profile;
use super::run::Run;
use super::run_dir::Record;
use super::verdict::{Stop, Verdict, not_started};
use super::worktree::{Changes, Origin, Prepared, Trouble, Worktree};
use bloom_api::complete::Completion;
use bloom_api::projects::CommitId;
use bloom_core::project::PushMode;
use bloom_core::task::{Outcome, Reason};

/// Marks the artifact of a run of which not all outputs were stored.
const OUTPUTS_INCOMPLETE: &str = "outputs_incomplete";
/// The most characters of the first line of a commit's message.
const MAX_SUBJECT: usize = 72;
/// Outputs that an event names.
const SHOWN_OUTPUTS: usize = 20;

/// Why a run can't begin.
pub enum Unprepared {
    /// Its verdict.
    Failed(Box<Verdict>),
    /// The agent was to stop it.
    Stopped,
}

/// A verdict and why.
struct Unfit {
    reason: Reason,
    why: String,
    may_pass: bool,
}

impl From<Trouble> for Unfit {
    fn from(trouble: Trouble) -> Self {
        Self { reason: trouble.reason(), why: trouble.to_string(), may_pass: trouble.may_pass() }
    }
}

impl From<NoInput> for Unfit {
    fn from(no_input: NoInput) -> Self {
        match no_input {
            NoInput::Unfit(why) => Self { reason: Reason::BadInput, why, may_pass: false },
            NoInput::Disk(why) => Self { reason: Reason::WorkerDisk, why, may_pass: true },
            NoInput::Unfetched(why) => Self { reason: Reason::SpawnFailed, why, may_pass: true },
        }
    }
}

impl Run<'_> {
    /// Prepares the directory of the task's context: the worktree of its project, and its inputs. What was prepared for this run before, by an
    /// earlier process of the agent, stays as it is.
    pub async fn prepare_workspace(&mut self, record: &mut Record) -> Result<(), Unprepared> {
        let tree = self.tree(record);
        let is_new = tree.as_ref().is_some_and(|tree| record.prepared.is_none() || !tree.exists());
        if let Some(tree) = tree.as_ref().filter(|_| is_new) {
            self.record_phase("preparing", json!({"project": record.task.project, "branch": tree.branch}));
        }
        let made = tokio::select! {
            made = prepare(self.agent, record, tree.filter(|_| is_new)) => made,
            _ = self.stop.wait_for(Option::is_some) => return Err(Unprepared::Stopped),
        };
        let prepared = made.map_err(|Unfit { reason, why, may_pass }| {
            if reason == Reason::WorkerDisk {
                self.agent.pause_for_disk(&why);
            }
            Unprepared::Failed(Box::new(not_started(record.lease.id, reason, &why, may_pass)))
        })?;
        if let Some(prepared) = prepared {
            let text = match prepared.origin {
                Origin::Kept => "goes on where the last run of the context left it",
                Origin::Fetched => "goes on where a run of the context on another worker has pushed it",
                Origin::Fresh => "begins afresh: this worker has no earlier work of the context, and none was pushed",
            };
            let (branch, commit, origin) = (&prepared.branch, &prepared.base, prepared.origin);
            self.record_phase("prepared", json!({"branch": branch, "commit": commit, "origin": origin, "text": text}));
            record.prepared = Some(prepared);
        }
        Ok(())
    }

    /// The worktree of the task, if it names a project.
    pub fn tree(&self, record: &Record) -> Option<Worktree> {
        record.lease.repository.as_ref().map(|repository| self.agent.worktree(&record.task, repository))
    }

    /// Takes what the task wants from the directory of a run that has ended: its outputs, and what it changed in its project. The verdict tells of
    /// it. A run that did not end by itself keeps all in its directory, for the next attempt.
    pub async fn take_results(&mut self, record: &Record, profile: &Profile, verdict: Verdict) -> Verdict {
        let mut completion = match &verdict {
            Verdict::Complete(completion) if completion.reason != Some(Reason::WorkerLost) => completion.clone(),
            _ => return verdict,
        };
        let mut stop = self.stop.clone();
        tokio::select! {
            () = self.fill(record, profile, &mut completion) => Verdict::Complete(completion),
            // Another worker may have the task now.
            _ = stop.wait_for(|stop| *stop == Some(Stop::LeaseLost)) => verdict,
        }
    }

    async fn fill(&mut self, record: &Record, profile: &Profile, completion: &mut Completion) {
        if !record.task.outputs.is_empty() && !self.collect(record).await {
            completion.artifact_tags.0.push(OUTPUTS_INCOMPLETE.into());
        }
        let (Some(tree), Some(begun)) = (self.tree(record), &record.prepared) else { return };
        let commit = match self.commit(record, profile, &tree, begun).await {
            Ok(commit) => commit,
            Err(trouble) => return fail(completion, &trouble),
        };
        completion.branch = Some(begun.branch.clone().into());
        completion.commit = Some(CommitId(commit.clone()));
        if record.task.push == PushMode::Branch && commit != begun.base {
            match tree.push().await {
                Ok(()) => self.record_phase("pushed", json!({"branch": begun.branch, "commit": commit})),
                Err(trouble) => fail(completion, &trouble),
            }
        }
    }

    /// Stores the outputs of the run as artifacts. Returns whether all are stored.
    async fn collect(&mut self, record: &Record) -> bool {
        let dir = self.agent.home.context_dir(&record.task.context_id);
        let (below, globs) = (dir.clone(), record.task.outputs.clone());
        let found = tokio::task::spawn_blocking(move || outputs(&below, &globs)).await.unwrap_or_default();
        let (mut stored, mut missing) = (0_usize, Vec::new());
        for output in &found.found {
            match self.store(record, "OUTPUT", &output.path, "application/octet-stream", open_below(&dir, &output.path)).await {
                Ok(()) => stored += 1,
                Err(Unsent::Refused(why)) => missing.push(format!("{} ({} bytes): {why}", output.path, output.bytes)),
                // What else there is can't be stored either.
                Err(Unsent::LeaseLost) => return false,
            }
        }
        let is_whole = missing.is_empty() && !found.is_cut;
        if found.is_cut {
            missing.push("further files: there are too many, or their names are not UTF-8".to_owned());
        }
        let text = if is_whole { String::new() } else { format!("not stored: {}", missing[..missing.len().min(SHOWN_OUTPUTS)].join("; ")) };
        self.record_phase("collected", json!({"files": stored, "text": text}));
        is_whole
    }

    async fn store(&self, record: &Record, kind: &str, name: &str, content_type: &str, file: std::io::Result<File>) -> Result<(), Unsent> {
        let file = file.map_err(|error| Unsent::Refused(format!("it can't be read: {error}")))?;
        self.agent.send_file((record.task.id, record.lease.id), kind, name, content_type, &file).await
    }

    /// Commits and shows what the run changed. Returns the commit at which the branch is now.
    async fn commit(&mut self, record: &Record, profile: &Profile, tree: &Worktree, begun: &Prepared) -> Result<String, Trouble> {
        let changes = tree.commit(begun, &message(record), &profile.commit_author, &tree.ignored()).await?;
        let Some(changes) = changes else { return Ok(begun.base.clone()) };
        let told = json!({"branch": begun.branch, "commit": changes.commit, "text": changes.stat, "left_out": changes.left_out});
        self.record_phase("committed", told);
        let name = format!("{}.patch", begun.branch.replace('/', "-"));
        let stored = self.store(record, "GIT_DIFF", &name, "text/x-diff", diff_file(&self.dir.path().join("diff"), &changes)).await;
        if let Err(Unsent::Refused(why)) = stored {
            self.record_phase("diff_not_stored", json!({"text": why}));
        }
        Ok(changes.commit)
    }
}

async fn prepare(agent: &Agent, record: &Record, tree: Option<Worktree>) -> Result<Option<Prepared>, Unfit> {
    let dir = agent.home.context_dir(&record.task.context_id);
    let prepared = match &tree {
        Some(tree) => {
            let _using = agent.worktrees.using.read().await;
            tree.note(&record.task.context_id).map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))?;
            Some(tree.prepare(record.task.git_ref.as_deref()).await?)
        }
        None => None,
    };
    let failed = |error: std::io::Error| Trouble::of_disk("the context's directory can't be prepared", &error);
    private_dir(&dir).map_err(failed)?;
    for input in tree.iter().flat_map(|tree| record.task.inputs.iter().map(move |input| (tree, input))) {
        input.0.ignore(&input.1.path).map_err(failed)?;
    }
    agent.lay_inputs(&record.task, &dir).await?;
    Ok(prepared)
}

/// A run whose changes can't be kept has not done what it was for. What it answered is stored all the same, and it is not tried again: another
/// attempt would be paid for, and meet the same.
fn fail(completion: &mut Completion, trouble: &Trouble) {
    let why = trouble.to_string();
    if completion.status == Outcome::Success {
        completion.status = Outcome::Error;
        completion.reason = Some(trouble.reason());
        completion.error_message = Some(why.into());
    } else {
        let earlier = completion.error_message.as_deref().unwrap_or_default();
        completion.error_message = Some(format!("{earlier}; {why}").into());
    }
}

/// The statistics and the patch, in one file that `git apply` reads.
fn diff_file(path: &Path, changes: &Changes) -> std::io::Result<File> {
    let mut file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
    let note = if changes.is_cut { "\n# Only the beginning of the patch.\n" } else { "" };
    write!(file, "{}{note}\n{}", changes.stat, changes.patch)?;
    Ok(file)
}

/// The message of the commit: what the task was, for people, and its ids.
fn message(record: &Record) -> String {
    let task = &record.task;
    let line = task.prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("An empty prompt");
    let printable: String = line.chars().filter(|c| !c.is_control()).collect();
    let mut subject: String = printable.chars().take(MAX_SUBJECT).collect();
    if subject.len() < printable.len() {
        subject.push('…');
    }
    format!("{subject}\n\nBloom-Task: {}\nBloom-Context: {}\n", task.id, task.context_id.replace(char::is_control, " "))
}
