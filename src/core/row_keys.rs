//! The rows that commands need.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::api_key::ApiKey;
use super::file::FileId;
use super::ids::{LeaseId, TaskId, WorkerId};
use super::project::ProjectId;

/// A set of rows that can absorb another set.
trait Merge {
    fn merge(&mut self, other: &Self);
}

impl Merge for bool {
    fn merge(&mut self, other: &Self) {
        *self |= other;
    }
}

impl<T: Clone + Ord> Merge for BTreeSet<T> {
    fn merge(&mut self, other: &Self) {
        self.extend(other.iter().cloned());
    }
}

/// A struct whose fields are merged one by one.
macro_rules! keys {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl $name {
            /// Adds the rows that another one asks for.
            pub fn merge(&mut self, other: &Self) {
                $(self.$field.merge(&other.$field);)+
            }
        }
    };
}

keys! {
    /// The rows that a batch needs. Each field tells the store what to look up before it locks rows.
    pub struct RowKeys {
        /// Tasks to load and lock.
        pub tasks: BTreeSet<TaskId>,
        /// Workers to load and lock.
        pub workers: BTreeSet<WorkerId>,
        /// Workers to read without a lock. Their state is only a hint.
        pub observed_workers: BTreeSet<WorkerId>,
        /// Load and lock every worker. A command asks for this before it answers that no worker is available.
        pub all_workers: bool,
        /// Workers whose used slots are read from the database after locking.
        pub exact_slots: BTreeSet<WorkerId>,
        /// Load the tasks that these workers hold.
        pub worker_tasks: BTreeSet<WorkerId>,
        /// Load the tasks that these active leases hold.
        pub leases: BTreeSet<LeaseId>,
        /// Leases whose records are needed, in case they have ended.
        pub past_leases: BTreeSet<LeaseId>,
        /// Idempotency keys whose tasks are needed, if such tasks exist.
        pub idempotency: BTreeSet<String>,
        /// Kubernetes objects whose tasks are needed, by uid.
        pub objects: BTreeSet<Uuid>,
        /// Contexts for which it is needed which tasks run in them, and where their tasks ran last.
        pub contexts: BTreeSet<String>,
        /// Pairs of a context and a task for which the newest unfinished session task before that task is needed. `Uuid::max` stands for a
        /// task that is still to be created.
        pub predecessors: BTreeSet<(String, TaskId)>,
        /// Exclusive keys whose holders are needed.
        pub exclusive: BTreeSet<String>,
        /// Tasks whose lists of dependencies are needed.
        pub dependencies: BTreeSet<TaskId>,
        /// Load and lock the named keys of the API, and let nobody create another one meanwhile. Keys of WorkerPools, which may be many,
        /// are only counted, except those that the next two fields select.
        pub api_keys: bool,
        /// Names of keys to load even if they belong to WorkerPools.
        pub key_names: BTreeSet<String>,
        /// Workers whose keys are loaded even if they belong to WorkerPools.
        pub key_workers: BTreeSet<WorkerId>,
        /// Let no other transaction add a worker, so that a name without a row stays free until the end of this transaction.
        pub free_names: bool,
        /// Load the queues of the queued tasks because leases may be made, and lock these queues against changes until the end of the
        /// transaction.
        pub places: bool,
        /// Queues to change. No other transaction makes a lease meanwhile.
        pub queues: BTreeSet<String>,
        /// Contexts to reset. No other transaction makes a lease meanwhile.
        pub resets: BTreeSet<String>,
        /// Load and lock all projects, and let nobody create another one meanwhile.
        pub projects: bool,
        /// Projects whose clones are loaded too. It has an effect only together with `projects`.
        pub project_nodes: BTreeSet<ProjectId>,
        /// Names or ids of projects to look up without a lock.
        pub named_projects: BTreeSet<String>,
        /// Rows of the control plane that are loaded and locked.
        pub control_plane: ControlPlaneKeys,
        /// Files to load and lock, together with whether a task uses them.
        pub files: BTreeSet<FileId>,
        /// Leases whose files are needed, together with the total size of their tasks' files.
        pub lease_files: BTreeSet<(TaskId, LeaseId)>,
        /// Submit keys whose unused uploads are counted; the empty name stands for all keys that are neither submit nor member keys.
        pub unused_uploads: BTreeSet<String>,
        /// Keys whose quotas, and the use of them, are loaded and locked.
        pub quotas: BTreeSet<String>,
    }
}

/// A node of a project of the control plane: the canonical id of the project, and the node's name.
pub type NodeKey = (String, String);

keys! {
    /// Rows of the control plane. Loading any of them also counts all rows, and keeps other transactions from changing them.
    pub struct ControlPlaneKeys {
        /// Only count the rows.
        pub counts: bool,
        /// Names of agents.
        pub agents: BTreeSet<String>,
        /// Names or canonical ids of projects.
        pub projects: BTreeSet<String>,
        /// Nodes to load. The other nodes are only counted.
        pub nodes: BTreeSet<NodeKey>,
    }
}

impl ControlPlaneKeys {
    /// Whether nothing of the control plane is needed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RowKeys {
    /// Adds the named key of this name.
    pub(crate) fn add_api_key(&mut self, name: &str) {
        self.api_keys = true;
        self.key_names.insert(name.to_owned());
    }

    /// Whether this named key must be loaded.
    pub fn wants_key(&self, key: &ApiKey) -> bool {
        let of_worker = key.worker.as_ref().is_some_and(|worker| self.key_workers.contains(worker));
        self.api_keys && (key.pool_namespace().is_none() || of_worker || self.key_names.contains(&key.name))
    }
}

/// Sorts after every task id: selects the newest task of a context.
pub const AFTER_ALL: TaskId = Uuid::max();
