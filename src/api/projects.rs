//! Projects: repositories that workers clone.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;
use uuid::{Builder, Uuid};

use super::git_names::{BranchPrefix, text_like};
use super::repository::RepoUrl;
use super::values::{List, ShortName, Text};
use super::wire::{Problems, Wire, body, one_of, problem};
use super::words::AnyCloneStatus;
use bloom_core::Ms;
use bloom_core::op;
use bloom_core::project::{CloneStatus, MAX_PROJECT_NAME, MAX_TARGET_PATH, is_project_name, is_target_path};

/// Workers that one call may name.
const MAX_NODES: usize = 1_000;

/// The name of a project.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProjectName(pub String);

impl Wire for ProjectName {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<0>::read(raw)?;
        if is_project_name(&text) {
            return Ok(Self(text));
        }
        problem(format!("Expected 1 to {MAX_PROJECT_NAME} of the characters A-Z a-z 0-9 space . _ - and no dot in front"))
    }

    fn describe() -> Schema {
        text_like("^[A-Za-z0-9 _-][A-Za-z0-9 ._-]*$", MAX_PROJECT_NAME)
    }
}

/// The name or the id of a project.
pub type NamedProject = Text<1, MAX_PROJECT_NAME>;

/// A path that agents map below their directory of projects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetPath(pub String);

impl Wire for TargetPath {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<0>::read(raw)?;
        if is_target_path(&text) {
            return Ok(Self(text));
        }
        problem(format!(
            "Expected a path of 1 to {MAX_TARGET_PATH} of the characters A-Z a-z 0-9 space . _ - and /, no part of it empty or with a dot in \
             front. It is below the agent's directory of projects, also if it begins with / or ~/"
        ))
    }

    fn describe() -> Schema {
        text_like("^(~?/)?[A-Za-z0-9 _-][A-Za-z0-9 ._-]*(/[A-Za-z0-9 _-][A-Za-z0-9 ._-]*)*$", MAX_TARGET_PATH)
    }
}

body! {
    /// A project to create.
    pub struct NewProject {
        /// Its name, which no other project may have. It is also the directory of its clones, unless `target_path` is set.
        name: ProjectName,
        /// The repository: a URL that begins with `https://`, `ssh://` or `git@`, without a password, because workers use their own git
        /// credentials; or with `file:///`, for a repository on the machines of workers that have `file` in `--git-protocols`.
        repo_url: RepoUrl,
        /// Where agents put the clone: a path below their directory of projects, even if it begins with `/` or `~/`. Default: the name of
        /// the project.
        target_path: Option<TargetPath>,
        /// The worker that clones it if a call names none. Default: the first worker that is asked for a clone.
        primary_node_id: Option<ShortName>,
        /// What the branches of its contexts begin with: `PREFIX/CONTEXT`. The repository must not have a branch with exactly this name,
        /// because git then allows none below it.
        branch_prefix: BranchPrefix = BranchPrefix::default(),
    }

    /// A change of a project.
    pub struct ProjectEdit {
        /// What the branches of its contexts begin with from now on: `PREFIX/CONTEXT`. A branch that was pushed keeps its name; others are renamed
        /// when the next run of the context begins.
        branch_prefix: BranchPrefix,
    }

    /// Which worker clones the project.
    #[derive(Default)]
    pub struct NewClone {
        /// The worker. Default: the project's primary worker.
        node_id: Option<ShortName>,
    }

    /// Which workers clone the project.
    #[derive(Default)]
    pub struct Propagation {
        /// The workers that clone the project: at most 1000. Default: all that lack it and have a URL.
        node_ids: Option<List<ShortName, 0, MAX_NODES>>,
    }

    /// Moves a project's memory between a worker and the control plane.
    #[derive(Default)]
    pub struct NewMemorySync {
        /// From the worker (`push`) or to it (`pull`).
        direction: Direction = Direction::Push,
        /// The worker. Default: the project's primary worker.
        node_id: Option<ShortName>,
    }
}

/// The direction in which the memory of a project is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the worker to the control plane.
    #[default]
    Push,
    /// From the control plane to the worker.
    Pull,
}

impl Direction {
    /// The word for it in the API, and in the path of the control plane.
    pub fn as_str(self) -> &'static str {
        if self == Self::Push { "push" } else { "pull" }
    }
}

impl Wire for Direction {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        match raw.get() {
            r#""push""# => Ok(Self::Push),
            r#""pull""# => Ok(Self::Pull),
            _ => problem("Invalid enum value. Expected 'push' | 'pull'"),
        }
    }

    fn describe() -> Schema {
        one_of(["push", "pull"])
    }
}

impl From<NewProject> for op::CreateProject {
    fn from(new: NewProject) -> Self {
        Self {
            name: new.name.0,
            repo_url: new.repo_url.0,
            target_path: new.target_path.map(|path| path.0),
            primary_node_id: new.primary_node_id.map(|node| node.0),
            branch_prefix: new.branch_prefix.0,
        }
    }
}

/// A repository that workers clone.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Project<'a> {
    /// The id of the project.
    pub id: Uuid,
    /// The name of the project, which no other project has.
    pub name: Cow<'a, str>,
    /// The repository.
    pub repo_url: Cow<'a, str>,
    /// What the control plane calls a project of this name: the first 16 hexadecimal digits of the name's SHA-256.
    pub canonical_id: Cow<'a, str>,
    /// Where agents put the clone: a path below their directory of projects, even if it begins with `/` or `~/`; null: the name of the
    /// project.
    pub target_path: Option<Cow<'a, str>>,
    /// The worker that clones it if a call names none: the one that was set when the project was created, otherwise the first one that was
    /// asked for a clone. If its clone has failed and it never had one, the next worker that a call names and that makes a clone takes its
    /// place.
    pub primary_node_id: Option<Cow<'a, str>>,
    /// What the branches of its contexts begin with: `PREFIX/CONTEXT`.
    pub branch_prefix: Cow<'a, str>,
    /// The last previous prefixes, newest first: a branch that was pushed under one of them keeps its name.
    pub former_branch_prefixes: Vec<Cow<'a, str>>,
    /// How the last requested clone ended; after a failure, it becomes `cloned` when a run has made a clone. If no clone was requested:
    /// `pending` until a run has used the project, then `cloned`.
    pub clone_status: AnyCloneStatus,
    /// Why the last requested clone failed.
    pub error_message: Option<Cow<'a, str>>,
    /// When it was created.
    pub created_at: Ms,
    /// When it, or the status of its clones, last changed.
    pub updated_at: Ms,
}

/// The clone of a project on a worker.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ProjectNode<'a> {
    /// An id that is derived from the project and the worker, so it stays the same.
    pub id: Uuid,
    /// The project.
    pub project_id: Uuid,
    /// The worker.
    pub node_id: Cow<'a, str>,
    /// Whether the worker has a clone: a requested one, or one that runs have made, which has no path.
    pub clone_status: AnyCloneStatus,
    /// The path of the requested clone, as the agent reported it.
    pub repo_path: Option<Cow<'a, str>>,
    /// The same as `repo_path`.
    pub clone_path: Option<Cow<'a, str>>,
    /// Why the last clone failed.
    pub error_message: Option<Cow<'a, str>>,
    /// When the worker last made the requested clone, or its first run of the project ended; null: never.
    pub last_sync_at: Option<Ms>,
    /// When the agent was last asked for the clone, or its first run of the project ended; null: never.
    pub updated_at: Option<Ms>,
}

/// A project, and its clones.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ProjectWithNodes<'a> {
    /// The project.
    #[serde(flatten)]
    pub project: Project<'a>,
    /// The workers that were asked for a clone, or have run tasks of the project.
    pub nodes: Vec<ProjectNode<'a>>,
}

/// The clone of a project on a worker, and the worker's status.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct NodeStatus<'a> {
    /// The clone.
    #[serde(flatten)]
    pub node: ProjectNode<'a>,
    /// The status of the worker; null: it was removed.
    pub worker_status: Option<Cow<'a, str>>,
}

/// A worker has cloned the project.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Cloned<'a> {
    /// `cloned`.
    pub status: Cow<'a, str>,
    /// The worker.
    pub node: Cow<'a, str>,
    /// The answer of its agent.
    #[schema(value_type = Object)]
    pub result: Map<String, Value>,
}

/// How one worker's clone ended.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct NodeResult<'a> {
    /// The worker.
    pub node_id: Cow<'a, str>,
    /// `cloned` or `failed`.
    pub status: Cow<'a, str>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<Cow<'a, str>>,
}

/// How the clones of many workers ended.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Propagated<'a> {
    /// `synced`, `partial` or `nothing_to_propagate`.
    pub status: Cow<'a, str>,
    /// The workers that were asked; absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub results: Option<Vec<NodeResult<'a>>>,
    /// Why no worker was asked; absent if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<Cow<'a, str>>,
}

/// The control plane has moved the memory.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MemorySynced<'a> {
    /// `ok`.
    pub status: Cow<'a, str>,
    /// The direction in which the memory was moved.
    pub direction: Direction,
    /// The worker.
    pub node: Cow<'a, str>,
    /// The answer of the control plane.
    pub result: Value,
}

impl<'a> From<&'a bloom_core::project::Project> for Project<'a> {
    fn from(project: &'a bloom_core::project::Project) -> Self {
        Self {
            id: project.id,
            name: (&project.name).into(),
            repo_url: (&project.repo_url).into(),
            canonical_id: canonical_id(&project.name).into(),
            target_path: project.target_path.as_deref().map(Cow::from),
            primary_node_id: project.primary_node_id.as_deref().map(Cow::from),
            branch_prefix: (&project.branch_prefix).into(),
            former_branch_prefixes: project.former_branch_prefixes.iter().map(Cow::from).collect(),
            clone_status: project.clone_status.into(),
            error_message: project.error_message.as_deref().map(Cow::from),
            created_at: project.created_at,
            updated_at: project.updated_at,
        }
    }
}

impl<'a> From<&'a bloom_core::project::ProjectNode> for ProjectNode<'a> {
    fn from(node: &'a bloom_core::project::ProjectNode) -> Self {
        let path = node.clone_path.as_deref().map(Cow::from);
        Self {
            clone_status: node.clone_status.into(),
            repo_path: path.clone(),
            clone_path: path,
            error_message: node.error_message.as_deref().map(Cow::from),
            last_sync_at: node.last_sync_at,
            updated_at: Some(node.updated_at),
            ..Self::pending(node.project_id, &node.node_id)
        }
    }
}

impl<'a> ProjectNode<'a> {
    /// A worker that was never asked for a clone, and has run no task of the project.
    pub fn pending(project_id: Uuid, node_id: &'a str) -> Self {
        let mut id = [0; 16];
        let digest = Sha256::new_with_prefix(project_id).chain_update(node_id).finalize();
        id.copy_from_slice(&digest[..16]);
        Self {
            id: Builder::from_custom_bytes(id).into_uuid(),
            project_id,
            node_id: node_id.into(),
            clone_status: CloneStatus::Pending.into(),
            repo_path: None,
            clone_path: None,
            error_message: None,
            last_sync_at: None,
            updated_at: None,
        }
    }
}

/// What the control plane calls a project of this name.
pub fn canonical_id(name: &str) -> String {
    hex::encode(&Sha256::digest(name)[..8])
}
