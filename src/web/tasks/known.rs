//! What a form can offer: the names that workers, queues, projects and the newest tasks have.

use std::collections::{BTreeMap, BTreeSet};

use crate::refused::Refused;
use crate::times::{beginning, shortened};
use crate::visit::Visit;
use bloom_api::projects::Project;
use bloom_api::queues::Queue;
use bloom_api::tasks::Task;
use bloom_api::workers::{Capabilities, Worker};

/// Workers, queues, projects and tasks that are looked at.
const LOOKED_AT: usize = 50;
/// Names of one kind, which a page has room for.
const MOST: usize = 50;
const NAME_CHARS: usize = 100;
/// How much of a prompt tells a context from others.
const PROMPT_CHARS: usize = 40;

/// Names in their order.
#[derive(Default)]
pub(crate) struct Known {
    pub agents: BTreeSet<String>,
    /// With the beginnings of their newest prompts.
    pub contexts: BTreeMap<String, String>,
    pub projects: BTreeSet<String>,
    /// As `name=value`.
    pub labels: BTreeSet<String>,
}

impl Known {
    /// # Errors
    /// A list can't be read. What the key does not allow to see is left out.
    pub(crate) async fn of(visit: &Visit) -> Result<Self, Refused> {
        let mut known = Self::default();
        let tasks = visit
            .list(&format!("llm-tasks?limit={LOOKED_AT}"), |task: Task<'_>| {
                let labels: Vec<_> = task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                (task.agent_slug.into_owned(), task.context_id.into_owned(), beginning(&task.prompt, PROMPT_CHARS), labels)
            })
            .await?;
        let mut asked = BTreeSet::new();
        // The newest first.
        for (agent, context, prompt, labels) in tasks.rows {
            add(&mut asked, [agent]);
            if context.chars().count() <= NAME_CHARS {
                known.contexts.entry(context).or_insert(prompt);
            }
            add(&mut known.labels, labels);
        }
        let served = |worker: Worker<'_>| {
            let Capabilities { agents, profiles, .. } = worker.capabilities;
            agents.iter().chain(&profiles).flat_map(|names| names.iter().cloned()).collect::<Vec<_>>()
        };
        let workers = visit.list_if_allowed(&format!("workers?limit={LOOKED_AT}"), served).await?;
        add(&mut known.agents, workers.into_iter().flat_map(|listed| listed.rows).flatten());
        // Of tasks, an agent may be misspelt: it is offered only where no worker tells what it serves.
        if known.agents.is_empty() {
            known.agents = asked;
        }
        // A queue that only has tasks counts as they do; one that somebody has paused or limited has the name that was meant.
        let named =
            |queue: Queue<'_>| queue.agent_slug.filter(|_| queue.paused || queue.max_concurrency.is_some()).map(|agent| agent.into_owned());
        let queues = visit.list_if_allowed(&format!("queues?limit={LOOKED_AT}"), named).await?;
        add(&mut known.agents, queues.into_iter().flat_map(|listed| listed.rows).flatten());
        let projects =
            visit.list_if_allowed(&format!("projects?limit={LOOKED_AT}"), |project: Project<'_>| project.name.into_owned()).await?;
        add(&mut known.projects, projects.into_iter().flat_map(|listed| listed.rows));
        Ok(known)
    }

    /// The labels in one line.
    pub(crate) fn labels_line(&self) -> String {
        shortened(&self.labels.iter().map(String::as_str).collect::<Vec<_>>().join(", "), 300)
    }
}

/// A long name would be cut, so that it meant another, and is left out.
fn add(names: &mut BTreeSet<String>, more: impl IntoIterator<Item = String>) {
    for name in more {
        if names.len() < MOST && name.chars().count() <= NAME_CHARS {
            names.insert(name);
        }
    }
}
