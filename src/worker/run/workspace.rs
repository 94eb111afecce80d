//! What a run finds in its directory, and what the agent collects from there when the run has ended: the worktree of its project, and
//! files.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

use crate::Agent;
use crate::contexts::note_use;
use crate::git::worktree::{Changes, Origin, Prepared, Trouble, Worktree};
use crate::home::private_dir;
use crate::machine::open_below::fresh_at;
use crate::profile::Profile;
use crate::run::disk_use;
use crate::run::files::{MAX_OUTPUTS, NoInput, Unsent, open_output, outputs};
use crate::run::run_dir::{Record, RunDir};
use crate::run::spool::EventLog;
use crate::run::verdict::{Stop, Verdict, not_started};
use crate::sandbox::confinement::{Confinement, end_commands};
use bloom_api::complete::Completion;
use bloom_api::git_names::{CommitId, GitRef};
use bloom_api::values::Int;
use bloom_client::now_ms;
use bloom_core::project::PushMode;
use bloom_core::task::{Outcome, Reason};
use bloom_core::{Ms, limits};

/// What was collected of the outputs of a run.
struct Collected {
    /// Whether all matching files are stored; there may be none.
    is_whole: bool,
    /// What would surprise a person who asked for files.
    warning: Option<String>,
}

/// Marks the artifact of a run whose outputs were not all stored.
const OUTPUTS_INCOMPLETE: &str = "outputs_incomplete";
/// The maximum number of characters in the first line of a commit message.
const MAX_SUBJECT: usize = 72;
/// How long a task waits if its repository can't be fetched. It is handed back up to 20 times, so an outage of ten minutes does not harm a
/// task.
const AWAY_MS: Ms = 30_000;
/// The maximum number of outputs that an event names.
const SHOWN_OUTPUTS: usize = 20;

/// Why a run can't begin.
pub(crate) enum Unprepared {
    /// It fails with this verdict.
    Failed(Box<Verdict>),
    /// The agent was told to stop it.
    Stopped,
}

/// Why a run can't begin.
struct Unfit {
    reason: Reason,
    why: String,
    may_pass: bool,
    /// Whether the repository's server can't be reached. That costs no attempt, and lasts longer than a moment.
    is_away: bool,
}

impl Unfit {
    fn new(reason: Reason, why: String, may_pass: bool) -> Self {
        Self { reason, why, may_pass, is_away: false }
    }

    fn verdict(&self, lease: Uuid) -> Verdict {
        let mut verdict = not_started(lease, self.reason, &self.why, self.may_pass);
        if let (Verdict::Complete(completion), true) = (&mut verdict, self.is_away) {
            completion.keep_attempt = true;
            completion.retry_at = Some(Int::nearest(now_ms() + AWAY_MS));
        }
        verdict
    }
}

impl From<Trouble> for Unfit {
    fn from(trouble: Trouble) -> Self {
        let is_away = matches!(trouble, Trouble::Repository(_));
        Self { is_away, ..Self::new(trouble.reason(), trouble.to_string(), trouble.may_pass()) }
    }
}

impl From<NoInput> for Unfit {
    fn from(no_input: NoInput) -> Self {
        match no_input {
            NoInput::Unfit(why) => Self::new(Reason::BadInput, why, false),
            NoInput::Disk(why) => Self::new(Reason::WorkerDisk, why, true),
            NoInput::Unfetched(why) => Self::new(Reason::SpawnFailed, why, true),
        }
    }
}

/// The directory of a run, and what the agent needs to prepare it and to collect its results.
pub(crate) struct Workspace<'a> {
    pub agent: &'a Agent,
    pub dir: &'a RunDir,
    pub log: &'a mut EventLog,
    pub stop: watch::Receiver<Option<Stop>>,
}

/// The worktree of the task, if it names a project.
pub(crate) fn tree(agent: &Agent, record: &Record) -> Option<Worktree> {
    let tree = agent.worktree(&record.task, record.lease.repository.as_ref()?);
    Some(match &record.prepared {
        Some(prepared) => tree.on(&prepared.branch),
        None => tree,
    })
}

impl Workspace<'_> {
    /// Prepares the directory of the task's context: the worktree of its project, and its inputs. If an earlier process of the agent has
    /// already prepared it for this run, it stays as it is.
    pub(crate) async fn prepare(&mut self, record: &mut Record, profile: &Profile) -> Result<(), Unprepared> {
        let tree = tree(self.agent, record);
        let is_new = tree.as_ref().is_some_and(|tree| record.prepared.is_none() || !tree.exists());
        if is_new {
            let project = record.task.project.as_deref().unwrap_or_default();
            self.log.phase("preparing", json!({"project": project, "text": format!("fetches {project}")}));
        }
        let made = tokio::select! {
            made = prepared(self.agent, self.dir, record, profile, tree.filter(|_| is_new)) => made,
            () = reached(&mut self.stop, |stop| stop.is_some()) => {
                end_commands(self.dir).await;
                return Err(Unprepared::Stopped);
            }
        };
        let prepared = made.map_err(|unfit| {
            if unfit.reason == Reason::WorkerDisk {
                self.agent.pause_for_disk(&unfit.why);
            }
            Unprepared::Failed(Box::new(unfit.verdict(record.lease.id)))
        })?;
        if let Some(prepared) = prepared {
            let text = match (prepared.origin, &prepared.unfetched) {
                (_, Some(why)) => format!("goes on where the last run of the context left it; {why}"),
                (Origin::Kept, _) => "goes on where the last run of the context left it".to_owned(),
                (Origin::Fetched, _) => "goes on where it was pushed; what another worker did not push is not here".to_owned(),
                (Origin::Merged, _) => {
                    "goes on where the last run of the context left it, merged with what others have pushed to its branch".to_owned()
                }
                (Origin::Fresh, _) => {
                    let from = record.task.git_ref.as_deref().unwrap_or("the default branch");
                    format!("begins at {from}: this worker has no earlier work of the context, and none was pushed")
                }
            };
            let (branch, commit, origin) = (&prepared.branch, &prepared.base, prepared.origin);
            self.log.phase("prepared", json!({"branch": branch, "commit": commit, "origin": origin, "text": text}));
            record.prepared = Some(prepared);
        }
        Ok(())
    }

    /// Takes the results of a run that has ended from its directory: its outputs, and its changes in the project. Reports them in the
    /// verdict. A run that did not end by itself keeps everything in its directory, for the next attempt.
    pub(crate) async fn take_results(&mut self, record: &Record, profile: &Profile, verdict: Verdict) -> Verdict {
        let mut completion = match verdict {
            Verdict::Complete(completion) if completion.reason != Some(Reason::WorkerLost) => completion,
            other => return other,
        };
        let mut stop = self.stop.clone();
        // The changes of a cancelled run are committed, too. But a person who does not want to wait for that may cancel what follows a run.
        let was_cancelled = *stop.borrow() == Some(Stop::Cancelled);
        let is_whole = tokio::select! {
            () = self.fill(record, profile, &mut completion) => true,
            // Another worker may have the task now, and will push its own changes.
            () = reached(&mut stop, |stop| *stop == Some(Stop::LeaseLost) || (!was_cancelled && *stop == Some(Stop::Cancelled))) => {
                end_commands(self.dir).await;
                false
            }
        };
        let leaves = !record.task.outputs.is_empty() || record.task.push == PushMode::Branch;
        if !is_whole && *stop.borrow() == Some(Stop::Cancelled) {
            completion.status = Outcome::Error;
            completion.reason = Some(Reason::Cancelled);
            completion.error_message = Some("cancelled while what the run left was stored; its files are in its directory".into());
        } else if !is_whole && leaves && completion.status == Outcome::Success {
            completion.status = Outcome::Error;
            completion.reason = Some(Reason::WorkerLost);
            completion.error_message = Some("the lease was lost before the outputs and the branch were stored".into());
            (completion.retryable, completion.keep_attempt) = (true, true);
        }
        Verdict::Complete(completion)
    }

    async fn fill(&mut self, record: &Record, profile: &Profile, completion: &mut Completion) {
        if !record.task.outputs.is_empty() {
            let Collected { is_whole, warning } = self.collect(record).await;
            if !is_whole {
                completion.artifact_tags.0.push(OUTPUTS_INCOMPLETE.into());
            }
            // Clients that wait for the answer do not look at the events.
            if let Some(text) = warning.filter(|_| completion.warnings.0.len() < limits::WARNINGS) {
                completion.warnings.0.push(text.chars().take(limits::WARNING_CHARS).collect::<String>().into());
            }
        }
        let (Some(tree), Some(begun)) = (tree(self.agent, record), &record.prepared) else { return };
        let commit = match self.commit_confined(record, profile, &tree, begun).await {
            Ok(commit) => commit,
            Err(trouble) => return fail(completion, &trouble),
        };
        completion.branch = Some(GitRef(begun.branch.clone()));
        completion.commit = Some(CommitId(commit.clone()));
        // This also happens if this run changed nothing: an earlier run may have left commits that could not be pushed.
        if record.task.push == PushMode::Branch {
            match tree.push().await {
                Ok(Some(pushed)) => {
                    let merged = if pushed == commit { "" } else { ", merged with what others had pushed meanwhile" };
                    let text = format!("pushed {}{merged}", told(&begun.branch, &pushed));
                    self.log.phase("pushed", json!({"branch": begun.branch, "commit": pushed, "text": text}));
                }
                Ok(None) => {
                    let text = format!("nothing to push: the project's repository has {}", told(&begun.branch, &commit));
                    self.log.phase("nothing_to_push", json!({"branch": begun.branch, "commit": commit, "text": text}));
                }
                Err(trouble) => {
                    // A person who resolves this needs what others have pushed.
                    if let Ok(confinement) = confinement(self.agent, self.dir, record, profile).await {
                        tree.show_refs(&confinement).await;
                        end_commands(self.dir).await;
                    }
                    fail(completion, &trouble);
                }
            }
        }
    }

    /// Stores the outputs of the run as artifacts.
    async fn collect(&mut self, record: &Record) -> Collected {
        let dir = self.agent.home.context_dir(&record.task.context_id);
        let (below, globs) = (dir.clone(), record.task.outputs.clone());
        let found = tokio::task::spawn_blocking(move || outputs(&below, &globs)).await.unwrap_or_default();
        let (mut stored, mut missing) = (0_usize, found.odd);
        for output in &found.found {
            match self.store(record, "OUTPUT", &output.path, "application/octet-stream", open_output(&dir, &output.path).await).await {
                Ok(()) => stored += 1,
                Err(Unsent::Refused(why)) => missing.push(format!("{} ({} bytes): {why}", output.path, output.bytes)),
                // The remaining files can't be stored either.
                Err(Unsent::LeaseLost) => return Collected { is_whole: false, warning: None },
            }
        }
        let is_whole = missing.is_empty() && !found.is_cut;
        if found.is_cut {
            missing.push(format!("further files: only {MAX_OUTPUTS} are kept, and only those whose names are UTF-8"));
        }
        let left = if is_whole { String::new() } else { format!("; not kept: {}", missing[..missing.len().min(SHOWN_OUTPUTS)].join("; ")) };
        let text = match found.found.is_empty() {
            true => format!("no file matches the outputs: {}{left}", record.task.outputs.join(", ")),
            false => format!("files kept: {stored}{left}"),
        };
        self.log.phase("collected", json!({"files": stored, "text": text}));
        let is_as_asked = is_whole && stored > 0;
        Collected { is_whole, warning: (!is_as_asked).then_some(text) }
    }

    async fn store(&self, record: &Record, kind: &str, name: &str, content_type: &str, file: std::io::Result<File>) -> Result<(), Unsent> {
        let file = file.map_err(|error| Unsent::Refused(format!("it can't be read: {error}")))?;
        self.agent.send_file((record.task.id, record.lease.id), kind, name, content_type, &file).await
    }

    async fn commit_confined(&mut self, record: &Record, profile: &Profile, tree: &Worktree, begun: &Prepared) -> Result<String, Trouble> {
        let confinement = confinement(self.agent, self.dir, record, profile).await?;
        let committed = self.commit(&confinement, record, profile, tree, begun).await;
        end_commands(self.dir).await;
        committed
    }

    /// Commits the changes of the run, and records them as an event and an artifact. Returns the commit at which the branch is now.
    async fn commit(
        &mut self,
        confinement: &Confinement,
        record: &Record,
        profile: &Profile,
        tree: &Worktree,
        begun: &Prepared,
    ) -> Result<String, Trouble> {
        let of_notes = tree.clone();
        let ignored =
            tokio::task::spawn_blocking(move || of_notes.ignored()).await.map_err(std::io::Error::other).and_then(|ignored| ignored);
        let ignored = ignored.map_err(|error| Trouble::of_disk("the changes can't be committed", &error))?;
        let changes = tree.commit(confinement, begun, &message(record, tree), &profile.commit_author, &ignored).await?;
        tree.closed();
        let Some(changes) = changes else { return Ok(begun.base.clone()) };
        let text = format!("committed {}\n{}", told(&begun.branch, &changes.commit), changes.stat);
        let (branch, commit, left_out) = (&begun.branch, &changes.commit, &changes.left_out);
        self.log.phase("committed", json!({"branch": branch, "commit": commit, "text": text, "left_out": left_out}));
        let name = format!("{}.patch", begun.branch.replace('/', "-"));
        let stored = self.store(record, "GIT_DIFF", &name, "text/x-diff", diff_file(&self.dir.path().join("diff"), &changes)).await;
        if let Err(Unsent::Refused(why)) = stored {
            self.log.phase("diff_not_stored", json!({"text": why}));
        }
        Ok(changes.commit)
    }
}

/// Waits for an order to stop.
async fn reached(stop: &mut watch::Receiver<Option<Stop>>, is_meant: impl FnMut(&Option<Stop>) -> bool) {
    let _ = stop.wait_for(is_meant).await;
}

/// A branch and its commit, for people.
fn told(branch: &str, commit: &str) -> String {
    format!("{branch} at {}", commit.get(..12).unwrap_or(commit))
}

async fn confinement(agent: &Agent, dir: &RunDir, record: &Record, profile: &Profile) -> Result<Confinement, Trouble> {
    let begun = Confinement::begin(agent, dir, profile, record.lease.id).await;
    begun.map_err(|error| Trouble::of_disk("git can't be confined to what the run may do", &error))
}

async fn prepared(
    agent: &Agent,
    run: &RunDir,
    record: &Record,
    profile: &Profile,
    tree: Option<Worktree>,
) -> Result<Option<Prepared>, Unfit> {
    let dir = agent.home.context_dir(&record.task.context_id);
    if let Some(limit) = profile.limits.disk_bytes()
        && disk_use::is_over(&agent.home, &record.task.context_id, limit).await
    {
        // The run would be ended at once, whatever it does.
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let why = format!(
            "the directory of its context takes more than the {} MiB of limits.disk_mib already: have files in contexts/{name} of the agent's \
             work directory removed on worker {}, or use another context",
            limit >> 20,
            agent.name
        );
        return Err(Unfit::new(Reason::DiskLimit, why, true));
    }
    let using = agent.worktrees.using.read().await;
    let prepared = match &tree {
        Some(tree) => {
            if !tree.exists() {
                tree.check_free()?;
            }
            let noted = tree.opened(&record.task.context_id, &record.task.inputs);
            noted.map_err(|error| Trouble::of_disk("the worktree can't be prepared", &error))?;
            let confinement = confinement(agent, run, record, profile).await?;
            let is_pushed = record.task.push == PushMode::Branch;
            let mut made = tree.prepare(&confinement, record.task.git_ref.as_deref(), is_pushed).await;
            if let Ok(begun) = &made
                && is_pushed
            {
                made = tree.check_branch_name(&begun.branch).await.and(made);
            }
            end_commands(run).await;
            tree.forget_unless_made();
            Some(made?)
        }
        None => None,
    };
    let failed =
        |error: std::io::Error| Unfit::new(Reason::SpawnFailed, format!("the context's directory can't be created: {error}"), true);
    if record.lease.repository.is_none() {
        note_use(&agent.home, &record.task.context_id).map_err(failed)?;
    }
    private_dir(&dir).map_err(failed)?;
    drop(using);
    agent.lay_inputs(&record.task, &dir).await?;
    Ok(prepared)
}

/// Turns the success of a run whose changes can't be kept into a failure, because the run has not done what it was for. Its answer is
/// stored all the same, and it is not retried: another attempt would cost money and fail in the same way.
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

/// The statistics and the patch, in one file that `git apply` accepts.
fn diff_file(path: &Path, changes: &Changes) -> std::io::Result<File> {
    let mut file = fresh_at(path)?;
    let note = if changes.is_cut { "\n# Only the beginning of the patch.\n" } else { "" };
    file.write_all(&[format!("{}{note}\n", changes.stat).as_bytes(), &changes.patch].concat())?;
    Ok(file)
}

/// The message of the commit: the task for people, and its ids.
fn message(record: &Record, tree: &Worktree) -> String {
    let task = &record.task;
    let line = task.prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("An empty prompt");
    let printable: String = line.chars().filter(|c| !c.is_control()).collect();
    let mut subject: String = printable.chars().take(MAX_SUBJECT).collect();
    if subject.len() < printable.len() {
        subject.push('…');
    }
    format!("{subject}\n\nBloom-Task: {}\n{}\n", task.id, tree.trailer())
}
