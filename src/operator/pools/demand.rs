//! The tasks that the workers of an autoscaled pool could take.

use bloom_core::cache::{Part, Projects, Scope};
use bloom_core::ids::TaskId;

use super::pod::Setup;
use super::{Pools, Problem};
use crate::object::Error;

/// How many tasks are read at a time.
const PAGE: usize = 1_000;
/// The most agents whose tasks are counted one by one. That is needed only if queues are paused or limited, or if the pool serves only some
/// agents.
const MAX_AGENTS: usize = 512;

impl Pools {
    /// The ready tasks that the pool could take, as far as it can grow; none if it is not autoscaled.
    pub(super) async fn ready(&self, setup: &Setup<'_>) -> Result<Result<Vec<TaskId>, Problem>, Error> {
        let spec = &setup.pool.spec;
        let Some(max) = spec.max_replicas else { return Ok(Ok(Vec::new())) };
        let agents = match self.agents(setup).await? {
            Ok(agents) => agents,
            Err(problem) => return Ok(Err(problem)),
        };
        // Tasks with a project do not make a pool grow whose pods have no git. Before the first pod has registered, it is unknown whether
        // they have it.
        let workers = self.workers(setup.identity);
        let has_git = workers.is_empty() || workers.iter().any(|(worker, _)| worker.capabilities.git);
        let projects = if has_git { Projects::All } else { Projects::None };
        let part = |namespace: &String| Part { namespace: Some(namespace.clone()), projects: projects.clone() };
        let parts: Vec<Part> = setup.namespaces.iter().map(part).collect();
        let most = usize::try_from(max.saturating_mul(spec.slots)).unwrap_or(0);
        self.ready_of(&parts, agents.as_deref(), most).await.map(Ok)
    }

    async fn ready_of(&self, parts: &[Part], agents: Option<&[String]>, most: usize) -> Result<Vec<TaskId>, Error> {
        let replica = &self.context.engine.replica;
        let queued = replica.tasks_by_agent().into_iter().filter(|(_, tasks)| tasks.queued > 0).map(|(slug, _)| slug);
        let queued: Vec<String> = queued.filter(|slug| agents.is_none_or(|agents| agents.contains(slug))).collect();
        let mut found = Vec::new();
        if queued.is_empty() {
            return Ok(found);
        }
        if agents.is_none() && replica.queues().is_empty() {
            for part in parts {
                self.read_ready(&Scope::of(part.clone(), None), most, &mut found).await?;
            }
            return Ok(found);
        }
        for agent_slug in queued.into_iter().take(MAX_AGENTS) {
            let room = usize::try_from(replica.room_in_queue(&agent_slug)).unwrap_or(0);
            let most = found.len().saturating_add(room).min(most);
            for part in parts {
                self.read_ready(&Scope::of(part.clone(), Some(&agent_slug)), most, &mut found).await?;
            }
        }
        Ok(found)
    }

    /// Adds the ready tasks of this scope until there are `most` tasks in total.
    async fn read_ready(&self, scope: &Scope, most: usize, found: &mut Vec<TaskId>) -> Result<(), Error> {
        let mut after = None;
        while found.len() < most {
            let limit = PAGE.min(most - found.len());
            let page = self.context.store.ready_page(scope, after, i64::try_from(limit).unwrap_or(i64::MAX)).await?;
            let Some(last) = page.last() else { break };
            after = Some((last.rank, last.id));
            found.extend(page.iter().map(|row| row.id));
        }
        Ok(())
    }
}
