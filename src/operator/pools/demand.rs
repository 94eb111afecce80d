//! How many tasks the workers of an autoscaled pool have or could take.

use bloom_core::cache::{Part, Projects, Scope};
use bloom_core::worker::Worker;

use super::pod::Setup;
use super::{Pools, Problem};
use crate::object::Error;

/// Tasks that are read at a time.
const PAGE: i64 = 1_000;
/// Agents whose tasks are counted one by one, which is needed only if queues are paused or limited, or if the pool serves only some agents.
const MAX_AGENTS: usize = 512;

impl Pools {
    /// The number of these tasks, as far as the pool can grow.
    pub(super) async fn demand(&self, setup: &Setup<'_>, most: i64, workers: &[(Worker, usize)]) -> Result<Result<i64, Problem>, Error> {
        let agents = match self.agents(setup).await? {
            Ok(agents) => agents,
            Err(problem) => return Ok(Err(problem)),
        };
        let held: i64 = workers.iter().filter_map(|(_, leases)| i64::try_from(*leases).ok()).sum();
        // What pods without git do not serve does not make the pool grow. Before the first one has registered, that is not known.
        let has_git = workers.is_empty() || workers.iter().any(|(worker, _)| worker.capabilities.git);
        let projects = if has_git { Projects::All } else { Projects::None };
        let part = |namespace: &String| Part { namespace: Some(namespace.clone()), projects: projects.clone() };
        let parts: Vec<Part> = setup.namespaces.iter().map(part).collect();
        let ready = self.ready(&parts, agents.as_deref(), (most - held).max(0)).await?;
        Ok(Ok(held + ready))
    }

    async fn ready(&self, parts: &[Part], agents: Option<&[String]>, most: i64) -> Result<i64, Error> {
        let replica = &self.context.engine.replica;
        let queued = replica.tasks_by_agent().into_iter().filter(|(_, tasks)| tasks.queued > 0).map(|(slug, _)| slug);
        let queued: Vec<String> = queued.filter(|slug| agents.is_none_or(|agents| agents.contains(slug))).collect();
        if queued.is_empty() {
            return Ok(0);
        }
        let mut found = 0;
        if agents.is_none() && replica.queues().is_empty() {
            for part in parts {
                found += self.count(&Scope::of(part.clone(), None), most - found).await?;
            }
            return Ok(found);
        }
        for agent_slug in queued.into_iter().take(MAX_AGENTS) {
            let mut room = replica.room_in_queue(&agent_slug).max(0);
            for part in parts {
                let scope = Scope::of(part.clone(), Some(&agent_slug));
                let counted = self.count(&scope, room.min(most - found)).await?;
                (room, found) = (room - counted, found + counted);
            }
        }
        Ok(found)
    }

    /// The number of ready tasks of this scope, up to `most`.
    async fn count(&self, scope: &Scope, most: i64) -> Result<i64, Error> {
        let (mut found, mut after) = (0, None);
        while found < most {
            let page = self.context.store.ready_page(scope, after, PAGE.min(most - found)).await?;
            let Some(last) = page.last() else { break };
            after = Some((last.rank, last.id));
            found += page.len() as i64;
        }
        Ok(found)
    }
}
