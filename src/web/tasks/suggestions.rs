//! Suggestions for forms: the names that workers, queues, projects and the newest tasks use.

use std::collections::BTreeSet;

use super::cells::is_generated;
use crate::lang::Lang;
use crate::records::by_id;
use crate::refused::Refused;
use crate::times::{beginning, shortened};
use crate::visit::Visit;
use bloom_api::contexts::{Context, RECENT};
use bloom_api::projects::Project;
use bloom_api::queues::Queue;
use bloom_api::tasks::Task;
use bloom_api::workers::Worker;
use bloom_core::similar::similar;

/// How many workers, queues, projects and tasks are read.
const LOOKED_AT: usize = 50;
/// More contexts are read than are offered, because a batch creates many contexts whose names mean nothing to people.
const CONTEXTS: usize = 100;
/// The maximum number of names of one kind on a page.
const MOST: usize = 50;
const NAME_CHARS: usize = 100;
/// How much of a prompt is shown to distinguish contexts.
const PROMPT_CHARS: usize = 40;

/// The names, in order.
#[derive(Default)]
pub(crate) struct Known {
    pub agents: BTreeSet<String>,
    /// Whether any worker runs the tasks of all agents: those for which it has no profile run with its profile `default`.
    is_any_served: bool,
    /// The contexts and the beginnings of their newest prompts. Contexts with the newest tasks come first, generated names last.
    pub contexts: Vec<(String, String)>,
    pub projects: BTreeSet<String>,
    /// As `name=value`.
    pub labels: BTreeSet<String>,
}

impl Known {
    /// # Errors
    /// A list can't be read. Lists that the key may not see are left out.
    pub(crate) async fn of(visit: &Visit) -> Result<Self, Refused> {
        let mut known = Self::default();
        let tasks = visit
            .list(&format!("llm-tasks?limit={LOOKED_AT}"), |task: Task<'_>| {
                let labels: Vec<_> = task.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                (task.agent_slug.into_owned(), labels)
            })
            .await?;
        let mut asked = BTreeSet::new();
        for (agent, labels) in tasks.rows {
            add(&mut asked, [agent]);
            add(&mut known.labels, labels);
        }
        known.contexts = contexts(visit).await?;
        let served = |worker: Worker<'_>| {
            let names: Vec<_> = worker.capabilities.named_agents().map(str::to_owned).collect();
            (worker.capabilities.agents.is_none(), names)
        };
        let workers = visit.list_if_allowed(&format!("workers?limit={LOOKED_AT}"), served).await?;
        for (serves_any, names) in workers.into_iter().flat_map(|listed| listed.rows) {
            known.is_any_served |= serves_any;
            add(&mut known.agents, names);
        }
        // A task's agent may be misspelt, so these names are offered only if no worker says which agents it serves.
        if known.agents.is_empty() {
            known.agents = asked;
        }
        // The agent of a queue that only has tasks may be misspelt, too. If somebody has paused or limited the queue, its name is probably
        // right.
        let named =
            |queue: Queue<'_>| queue.agent_slug.filter(|_| queue.paused || queue.max_concurrency.is_some()).map(|agent| agent.into_owned());
        let queues = visit.list_if_allowed(&format!("queues?limit={LOOKED_AT}"), named).await?;
        add(&mut known.agents, queues.into_iter().flat_map(|listed| listed.rows).flatten());
        let projects =
            visit.list_if_allowed(&format!("projects?limit={LOOKED_AT}"), |project: Project<'_>| project.name.into_owned()).await?;
        add(&mut known.projects, projects.into_iter().flat_map(|listed| listed.rows));
        Ok(known)
    }

    /// The message after the creation of a task whose agent no worker serves by name: a similar name, and whether the task runs anyway.
    pub(crate) fn told_of_unknown(&self, lang: Lang, agent: &str) -> String {
        // A paused queue may have the same misspelt name.
        let others = self.agents.iter().map(String::as_str).filter(|known| *known != agent);
        let meant = match similar(agent, others) {
            Some(near) => lang.t(format!(" (did you mean {near}?)"), format!(" (може, {near}?)")),
            None => String::new(),
        };
        let runs = match self.is_any_served {
            true => lang.t(
                " As it is, it runs with a worker’s profile default.",
                " З такою назвою воно виконається за профілем default одного з воркерів.",
            ),
            false => "",
        };
        lang.t(
            format!("The task was created. No worker knows its agent by that name{meant}: check the spelling, and cancel the task if it is wrong.{runs}"),
            format!("Завдання створено. Жоден воркер не знає його агента під такою назвою{meant}: перевірте написання і скасуйте завдання, якщо назва хибна.{runs}"),
        )
    }

    /// The labels, in one line.
    pub(crate) fn labels_line(&self) -> String {
        shortened(&self.labels.iter().map(String::as_str).collect::<Vec<_>>().join(", "), 300)
    }
}

/// The contexts with the newest tasks.
async fn contexts(visit: &Visit) -> Result<Vec<(String, String)>, Refused> {
    let row = |context: Context<'_>| (context.context_id.into_owned(), context.last_task.id);
    let mut newest = visit.list(&format!("contexts?order={RECENT}&limit={CONTEXTS}"), row).await?.rows;
    newest.retain(|(name, _)| name.chars().count() <= NAME_CHARS);
    newest.sort_by_key(|(name, _)| is_generated(name));
    newest.truncate(MOST);
    let mut prompts = by_id(visit, newest.iter().map(|(_, task)| *task).collect(), |task| beginning(&task.prompt, PROMPT_CHARS)).await?;
    Ok(newest.into_iter().map(|(name, task)| (name, prompts.remove(&task).unwrap_or_default())).collect())
}

/// Leaves out long names: if they were cut, they would name something else.
fn add(names: &mut BTreeSet<String>, more: impl IntoIterator<Item = String>) {
    for name in more {
        if names.len() < MOST && name.chars().count() <= NAME_CHARS {
            names.insert(name);
        }
    }
}
