//! Projects: repositories that workers clone, and on which worker each of them was cloned.

use uuid::Uuid;

use super::Ms;
use super::ids::WorkerId;
use super::words::words;

words! {
    /// How far a project, or its clone on one worker, is.
    CloneStatus {
        /// Nobody has asked for a clone yet.
        Pending = "pending",
        /// The worker has a clone; a project: the last clone that was asked for was made.
        Cloned = "cloned",
        /// A project: every worker that was asked when it was propagated has a clone.
        Synced = "synced",
        /// A project: some of the workers that were asked when it was propagated have no clone.
        Partial = "partial",
        /// The last clone that was asked for failed.
        Failed = "failed",
    }
}

pub type ProjectId = Uuid;

/// The most projects.
pub const MAX_PROJECTS: usize = 1_000;
/// The most workers of which a project remembers a clone.
pub const MAX_PROJECT_NODES: usize = 10_000;
pub const MAX_PROJECT_NAME: usize = 256;
pub const MAX_TARGET_PATH: usize = 256;
/// Characters that are kept of why a clone failed.
pub const MAX_CLONE_ERROR: usize = 2_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    pub id: ProjectId,
    /// No two projects have the same.
    pub name: String,
    pub repo_url: String,
    /// Where agents put the clone, below their directory of projects; `None` = under the name.
    pub target_path: Option<String>,
    /// The worker that clones it if a request names none.
    pub primary_node_id: Option<WorkerId>,
    pub clone_status: CloneStatus,
    /// Why the last clone failed.
    pub error_message: Option<String>,
    pub created_at: Ms,
    pub updated_at: Ms,
}

/// What is known of the clone of a project on one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectNode {
    pub project_id: ProjectId,
    pub node_id: WorkerId,
    pub clone_status: CloneStatus,
    /// Where the agent says that the clone is.
    pub clone_path: Option<String>,
    pub error_message: Option<String>,
    pub updated_at: Ms,
}

/// Whether this can be the name of a project. Agents make a directory of it, so it is none that is hidden or leads elsewhere.
pub fn is_project_name(name: &str) -> bool {
    (1..=MAX_PROJECT_NAME).contains(&name.len()) && is_directory_name(name)
}

/// Whether this is a path below the directory of projects.
pub fn is_target_path(path: &str) -> bool {
    (1..=MAX_TARGET_PATH).contains(&path.len()) && path.split('/').all(is_directory_name)
}

fn is_directory_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" ._-".contains(&byte))
}
