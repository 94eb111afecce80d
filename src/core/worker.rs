//! Workers: machines that run tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Ms;
use super::ids::{InstanceId, WorkerId};
use super::limits;
use super::pause::{Pause, PauseKind};
use super::requirement::Requirement;
use super::words::words;

words! {
    /// Whether a worker is there and takes tasks: `syncing` and `error` workers are there, but take none.
    WorkerStatus { Online = "online", Offline = "offline", Syncing = "syncing", Error = "error", Unknown = "unknown" }
}
words! {
    /// How a worker gets tasks if it does not claim them: `manual` by lease and dispatch calls, `push` also by the server itself.
    DispatchMode { Manual = "manual", Push = "push" }
}

/// The maximum number of tasks that one worker may hold.
pub const MAX_CONCURRENCY: i64 = 32;

/// What a worker can run, according to its registration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether it can run the Claude CLI. Lease and dispatch calls choose only such workers; claims do not require it.
    pub claude_cli: bool,
    /// How many tasks the worker runs at a time: the number of its slots.
    pub max_concurrency: i64,
    /// Labels of the worker, for people. Placement ignores them.
    pub labels: Vec<String>,
    /// The agent slugs that the worker serves; `None` = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<String>>,
    /// The agent slugs for which it has separate profiles. It runs the tasks of all other agents that it serves with its profile `default`.
    /// Placement ignores this list: it only helps people to find misspelt names. `None` = its agent does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Vec<String>>,
    /// The Kubernetes namespaces whose tasks the worker serves; `None` = all tasks, including those of no namespace. It has a separate
    /// column, because an older replica that rewrites the other capabilities drops what it does not know.
    #[serde(skip)]
    pub namespaces: Option<Vec<String>>,
    /// Whether the worker can clone any project. It has a separate column, like `projects`.
    #[serde(skip)]
    pub git: bool,
    /// The names of the projects that the worker serves, whether or not it has `git`. `None` = all if it has `git`, otherwise none.
    #[serde(skip)]
    pub projects: Option<Vec<String>>,
    /// Further capabilities that its agent reports, as JSON texts by name. They are stored and shown unchanged.
    #[serde(skip)]
    pub other: BTreeMap<String, String>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            claude_cli: true,
            max_concurrency: 1,
            labels: Vec::new(),
            agents: None,
            profiles: None,
            namespaces: None,
            git: false,
            projects: None,
            other: BTreeMap::new(),
        }
    }
}

impl Capabilities {
    /// Whether the worker serves tasks with this requirement.
    pub fn serves(&self, required: Requirement<'_>) -> bool {
        self.serves_but_for_project(required) && self.serves_project(required.project)
    }

    /// Like [`serves`](Self::serves), but ignores the project.
    pub fn serves_but_for_project(&self, required: Requirement<'_>) -> bool {
        self.serves_agent(required.agent_slug) && self.serves_namespace(required.namespace)
    }

    /// Whether the worker serves tasks of this agent, in at least some namespace or in none.
    pub fn serves_agent(&self, agent_slug: &str) -> bool {
        self.agents.as_ref().is_none_or(|slugs| slugs.iter().any(|slug| slug == agent_slug))
    }

    /// The agents that it knows by name: those that it names, and those that it has profiles for.
    pub fn known_agents(&self) -> impl Iterator<Item = &String> {
        self.agents.iter().chain(&self.profiles).flatten()
    }

    /// Whether it serves all agents without reporting which it has profiles for.
    pub fn serves_untold(&self) -> bool {
        self.agents.is_none() && self.profiles.is_none()
    }

    /// Whether the worker names this agent, instead of serving it because it serves all agents.
    pub fn names_agent(&self, agent_slug: &str) -> bool {
        self.agents.is_some() && self.serves_agent(agent_slug)
    }

    fn serves_namespace(&self, namespace: Option<&str>) -> bool {
        let Some(served) = &self.namespaces else { return true };
        namespace.is_some_and(|namespace| served.iter().any(|one| one == namespace))
    }

    fn serves_project(&self, project: Option<&str>) -> bool {
        let Some(project) = project else { return true };
        self.projects.as_ref().map_or(self.git, |served| served.iter().any(|one| one == project))
    }

    /// Whether it serves different tasks than these capabilities do.
    pub fn serves_others_than(&self, other: &Self) -> bool {
        (&self.agents, &self.namespaces, self.git, &self.projects) != (&other.agents, &other.namespaces, other.git, &other.projects)
    }

    /// The number of combinations of a namespace, an agent and a project that it names. Tasks without a project count as one more project.
    /// A claim looks at the tasks of each combination.
    pub fn combinations(&self) -> usize {
        let number = |names: &Option<Vec<String>>| names.as_ref().map_or(1, Vec::len);
        let projects = self.projects.as_ref().map_or(1, |named| named.len() + 1);
        number(&self.namespaces).saturating_mul(number(&self.agents)).saturating_mul(projects)
    }
}

/// The names of the capabilities that this program interprets.
pub const KNOWN_CAPABILITIES: [&str; 8] =
    ["claude_cli", "max_concurrency", "labels", "agents", "profiles", "namespaces", "git", "projects"];

/// Checks capabilities that this program does not interpret, and returns them.
///
/// # Errors
/// A message for the caller who named them.
pub fn other_capabilities(named: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    if named.len() > limits::OTHER_CAPABILITIES {
        return Err(format!("At most {} capabilities besides those that this server knows", limits::OTHER_CAPABILITIES));
    }
    if let Some(name) = named.keys().find(|name| name.chars().count() > limits::OTHER_CAPABILITY_NAME_CHARS || name.contains('\0')) {
        let shown: String = name.chars().filter(|c| *c != '\0').take(limits::OTHER_CAPABILITY_NAME_CHARS).collect();
        return Err(format!("{shown}: a name must have at most {} characters, and no NUL", limits::OTHER_CAPABILITY_NAME_CHARS));
    }
    if named.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>() > limits::OTHER_CAPABILITIES_BYTES {
        return Err(format!("Capabilities that this server does not know must have at most {} bytes", limits::OTHER_CAPABILITIES_BYTES));
    }
    if named.values().any(|text| text.contains("\\u0000")) {
        return Err("Text must not contain NUL characters".to_owned());
    }
    Ok(named)
}

/// The agent that works under a worker's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The agent's own id, which it sends with its calls.
    pub id: InstanceId,
    /// When it took the name.
    pub since: Ms,
}

/// A registered worker: a machine, or a program that runs tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// The worker's name.
    pub id: WorkerId,
    /// Rises with every change of this row except `last_seen`, even across a removal and a new registration.
    pub revision: i64,
    /// The stamp of the row's last change.
    pub updated_at: Ms,
    /// The URL of its agent. If it is empty, nothing is pushed to the worker.
    pub url: String,
    /// The status that the worker, an operator or the control plane set last.
    pub status: WorkerStatus,
    /// Whether it was not seen for too long. The API shows `offline` then, whatever `status` is, until the worker is seen again.
    pub lost: bool,
    /// What the worker can run, according to its last registration.
    pub capabilities: Capabilities,
    /// Its addresses, for people.
    pub ip_addrs: Vec<String>,
    /// How many observations its memory database has, according to the control plane's list; 0 if it is not listed.
    pub obs_count: i64,
    /// The digest of its memory database, according to the control plane's list; empty if it is not listed.
    pub db_sha: String,
    /// When its name was first registered, or registered again after a removal.
    pub registered_at: Ms,
    /// The version of its agent: `unknown` if none was reported, `uninstalled` after its agent was removed from the machine.
    pub agent_version: String,
    /// Its operating system, for people; may be empty.
    pub os_info: String,
    /// How its agent was installed, for people; `manual` if nothing was reported.
    pub install_method: String,
    /// Whether the server pushes tasks to it by itself.
    pub dispatch: DispatchMode,
    /// The worker gets no new tasks.
    pub cordoned: bool,
    /// Whether it is cordoned, and was asked to release or finish the tasks that it holds.
    pub draining: bool,
    /// Whether its capacity was lowered while it may hold more tasks. The database guards each slot but not the number of used slots, so
    /// placement reads the slots from the database until they fit again.
    pub recount_slots: bool,
    /// The agent that works under the name; `None` if no agent that sends its instance has registered.
    pub instance: Option<Instance>,
    /// Why it takes no tasks, or no tasks of some agents, as its agent reports.
    pub pauses: Vec<Pause>,
    /// When the last recorded sign of life was.
    pub last_seen: Ms,
}

impl Worker {
    /// A worker that is being registered and has reported nothing yet: online, with one slot, and not pushed to.
    pub fn new(id: WorkerId, now: Ms) -> Self {
        Self {
            id,
            revision: 0,
            updated_at: now,
            url: String::new(),
            status: WorkerStatus::Online,
            lost: false,
            capabilities: Capabilities::default(),
            ip_addrs: Vec::new(),
            obs_count: 0,
            db_sha: String::new(),
            registered_at: now,
            agent_version: "unknown".into(),
            os_info: String::new(),
            install_method: "manual".into(),
            dispatch: DispatchMode::Manual,
            cordoned: false,
            draining: false,
            recount_slots: false,
            instance: None,
            pauses: Vec::new(),
            last_seen: now,
        }
    }

    /// The status that the API shows: `offline` for a worker that is lost.
    pub fn shown_status(&self) -> WorkerStatus {
        if self.lost { WorkerStatus::Offline } else { self.status }
    }

    /// Whether another agent works under the name. A caller that does not send its instance matches any agent.
    pub fn is_of_other(&self, instance: Option<InstanceId>) -> bool {
        self.instance.zip(instance).is_some_and(|(known, named)| known.id != named)
    }

    /// Whether an agent may take the name: no other agent has it, or the agent that has it is offline.
    pub fn may_become(&self, instance: InstanceId) -> bool {
        self.shown_status() == WorkerStatus::Offline || !self.is_of_other(Some(instance))
    }

    /// Whether its shown status is `online`. It then takes tasks, unless it is cordoned.
    pub fn is_online(&self) -> bool {
        self.shown_status() == WorkerStatus::Online
    }

    /// The pause that keeps the worker from taking tasks with this requirement. If there are several, every account that could run the
    /// tasks is paused, so the pause that ends by itself first counts. A pause of the whole worker takes precedence, because it must end in
    /// any case.
    pub fn pause_of(&self, required: Requirement<'_>) -> Option<&Pause> {
        let Requirement { agent_slug, namespace, project } = required;
        let serves = self.capabilities.serves_namespace(namespace) && self.capabilities.serves_project(project);
        let is_there = !self.lost && self.status != WorkerStatus::Offline && serves;
        let concerns = |pause: &&Pause| match &pause.agents {
            Some(slugs) => slugs.iter().any(|slug| slug == agent_slug),
            None => self.capabilities.serves_agent(agent_slug),
        };
        let order = |pause: &&Pause| (pause.kind == PauseKind::Worker, pause.cause.is_passing(), Reverse(pause.until));
        self.pauses.iter().filter(|_| is_there).filter(concerns).max_by_key(order)
    }

    /// Whether the worker serves tasks with this requirement, and no pause closes their agent.
    pub fn serves(&self, required: Requirement<'_>) -> bool {
        self.capabilities.serves(required) && !self.is_closed_for(required.agent_slug)
    }

    /// The agents that pauses close on a worker that names no agents. A worker that names agents names only those that are open.
    pub fn closed_agents(&self) -> impl Iterator<Item = &String> {
        self.pauses.iter().filter(|_| self.capabilities.agents.is_none()).flat_map(|pause| pause.agents.iter().flatten())
    }

    /// Whether pauses close some agents on a worker that serves all others.
    pub fn has_closed_agents(&self) -> bool {
        self.closed_agents().next().is_some()
    }

    /// Whether a pause closes this agent on a worker that names no agents.
    pub fn is_closed_for(&self, agent_slug: &str) -> bool {
        self.closed_agents().any(|slug| slug == agent_slug)
    }

    /// Whether the worker serves tasks of this agent, in at least some namespace or in none, and no pause closes it.
    pub fn serves_agent(&self, agent_slug: &str) -> bool {
        self.capabilities.serves_agent(agent_slug) && !self.is_closed_for(agent_slug)
    }

    /// Whether the worker gets tasks when it claims. A worker that is lost does, because claiming brings it back.
    pub fn takes_tasks(&self) -> bool {
        self.status == WorkerStatus::Online && !self.cordoned && !self.draining
    }

    /// Whether a task with this requirement should be reserved for the worker.
    pub fn is_worth_waiting_for(&self, required: Requirement<'_>) -> bool {
        self.takes_tasks() && !self.lost && self.serves(required)
    }

    /// Whether the leader pushes tasks to the worker.
    pub fn is_pushed_to(&self) -> bool {
        self.dispatch == DispatchMode::Push && !self.url.is_empty()
    }
}
