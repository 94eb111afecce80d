//! Projects: repositories that workers clone, and the state of each worker's clone.

use uuid::Uuid;

use super::Ms;
use super::ids::WorkerId;
use super::words::words;

words! {
    /// How far a project, or its clone on one worker, is.
    CloneStatus {
        /// No worker was asked for a clone, and no run has used the project yet.
        Pending = "pending",
        /// The worker has a clone; a project: the last clone that was asked for was made, or a run has made the first one, or one after a failure.
        Cloned = "cloned",
        /// A project: every worker that was asked when it was propagated has a clone.
        Synced = "synced",
        /// A project: some of the workers that were asked when it was propagated have no clone.
        Partial = "partial",
        /// The last clone that was asked for failed, and no run has made one since.
        Failed = "failed",
    }
}

words! {
    /// What becomes of the commits of a run in a project.
    PushMode {
        /// They stay at the worker.
        Never = "never",
        /// The agent pushes the branch of the task's context to the repository.
        Branch = "branch",
    }
}

/// An id is never reused: a project that is created again under the same name gets another one.
pub type ProjectId = Uuid;

/// The maximum number of projects that a worker names.
pub const MAX_WORKER_PROJECTS: usize = 100;
/// Characters of the name of a branch, a tag or a commit.
pub const MAX_GIT_REF: usize = 255;

/// The maximum number of projects.
pub const MAX_PROJECTS: usize = 1_000;
/// The maximum number of workers whose clones of a project are recorded.
pub const MAX_PROJECT_NODES: usize = 10_000;
/// Bytes of the name of a project.
pub const MAX_PROJECT_NAME: usize = 256;
/// Bytes of the path of a project's clone.
pub const MAX_TARGET_PATH: usize = 256;
/// Characters of the prefix of a project's branches.
pub const MAX_BRANCH_PREFIX: usize = 100;
/// The maximum number of earlier prefixes that a project keeps.
pub const MAX_FORMER_PREFIXES: usize = 10;
/// The prefix of projects that were created without one.
pub const DEFAULT_BRANCH_PREFIX: &str = "bloom";
/// The maximum length, in characters, of the stored reason of a failed clone.
pub const MAX_CLONE_ERROR: usize = 2_000;

/// A repository that workers clone, and on whose branches tasks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// The project's id, which tasks of the project keep.
    pub id: ProjectId,
    /// The name, which is unique among projects.
    pub name: String,
    /// The URL that git clones from.
    pub repo_url: String,
    /// Where agents put the clone ([`is_target_path`]); `None` = in a directory with the project's name.
    pub target_path: Option<String>,
    /// The worker that clones the project if a request names none: the one that the project was created with, or otherwise the first one
    /// that was asked.
    pub primary_node_id: Option<WorkerId>,
    /// The prefix of the branches of contexts, which a `/` follows ([`is_branch_prefix`]).
    pub branch_prefix: String,
    /// The earlier prefixes, newest first.
    pub former_branch_prefixes: Vec<String>,
    /// The state of its clones, from the outcome of the last clones that were requested.
    pub clone_status: CloneStatus,
    /// Why the last clone failed.
    pub error_message: Option<String>,
    /// When the project was created.
    pub created_at: Ms,
    /// When the project, or the record of one of its clones, last changed.
    pub updated_at: Ms,
}

/// The record of a project's clone on one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectNode {
    /// The project that was cloned.
    pub project_id: ProjectId,
    /// The worker that was asked for the clone, or that made it for a run.
    pub node_id: WorkerId,
    /// The state of this clone: `cloned` or `failed`.
    pub clone_status: CloneStatus,
    /// The path of the clone, as the agent reports it.
    pub clone_path: Option<String>,
    /// Why the last clone failed; `None` if it did not fail.
    pub error_message: Option<String>,
    /// When a clone was last made. It stays when a later one fails.
    pub last_sync_at: Option<Ms>,
    /// When the worker last answered, or cloned the project for a run.
    pub updated_at: Ms,
}

/// The project of a task, as it was when the task was created. The task goes on if the project is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProject {
    /// The project's id. In a task that is to be created, it is the nil id, and `name` is the project's name or id as the client sent it.
    pub id: ProjectId,
    /// The name of the project when the task was created, which workers must serve.
    pub name: String,
    /// The URL that git clones from, as it was when the task was created.
    pub repo_url: String,
    /// The branch, tag or commit to begin with; `None` = the default branch of the repository.
    pub git_ref: Option<String>,
    /// What happens to the commits of the task's runs.
    pub push: PushMode,
}

/// Whether git accepts this text as the name of a branch or a tag, or as a commit. Agents pass it to git, so it must not be an option, a
/// range or an expression.
pub fn is_git_ref(text: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    (1..=MAX_GIT_REF).contains(&text.chars().count())
        && text.split('/').all(is_part)
        && !text.starts_with('-')
        && !text.ends_with('.')
        && text != "@"
        && !text.contains("..")
        && !text.contains("@{")
        && !text.chars().any(|c| c.is_ascii_control() || " ~^:?*[\\".contains(c))
}

/// Whether git accepts this text as the first part of a branch's name, and neither git nor people can mistake such a branch for something
/// else. Git creates directories from it, whose names have a length limit.
pub fn is_branch_prefix(text: &str) -> bool {
    let is_shown_otherwise = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let first = text.split('/').next().unwrap_or_default();
    is_git_ref(text)
        && !["refs", "HEAD", "origin"].contains(&first)
        && !text.contains(is_shown_otherwise)
        && text.chars().count() <= MAX_BRANCH_PREFIX
        && text.split('/').all(|part| part.len() <= 200)
}

/// Whether this is the id of a commit, as git prints it.
pub fn is_commit_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Whether this can be the name of a project. Agents create a directory with this name, so it must not be hidden or lead elsewhere.
pub fn is_project_name(name: &str) -> bool {
    (1..=MAX_PROJECT_NAME).contains(&name.len()) && is_directory_name(name)
}

/// Whether this is a path that agents map below their directory of projects. It may be absolute or begin at the home directory (`~/`), as
/// clients of the documented runtime write it; see [`path_below`].
pub fn is_target_path(path: &str) -> bool {
    (1..=MAX_TARGET_PATH).contains(&path.len()) && path_below(path).split('/').all(is_directory_name)
}

/// A target path without its absolute prefix: the path below the agent's directory of projects.
pub fn path_below(target_path: &str) -> &str {
    target_path.strip_prefix("~/").or_else(|| target_path.strip_prefix('/')).unwrap_or(target_path)
}

fn is_directory_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" ._-".contains(&byte))
}
