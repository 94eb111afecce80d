//! How many tasks the workers of an autoscaled pool have or could take.

use bloom_core::cache::Scope;
use bloom_core::worker::Worker;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use super::pod::Setup;
use super::{Pools, Problem};
use crate::api::within_limit;
use crate::object::Error;

/// Tasks that are read at a time.
const PAGE: i64 = 1_000;
/// Agents whose tasks are counted one by one, which is needed only if queues are paused or limited, or if the pool serves only some agents.
const MAX_AGENTS: usize = 512;
/// The profile for all agents that have none of their own.
const DEFAULT_PROFILE: &str = "default";

impl Pools {
    /// The number of these tasks, as far as the pool can grow.
    pub(super) async fn demand(&self, setup: &Setup<'_>, most: i64, workers: &[(Worker, usize)]) -> Result<Result<i64, Problem>, Error> {
        let agents = match self.agents(setup).await? {
            Ok(agents) => agents,
            Err(problem) => return Ok(Err(problem)),
        };
        let held: i64 = workers.iter().filter_map(|(_, leases)| i64::try_from(*leases).ok()).sum();
        let ready = self.ready(setup, agents.as_deref(), (most - held).max(0)).await?;
        Ok(Ok(held + ready))
    }

    /// The agents whose tasks the workers run: those of the profiles; `None` = all.
    async fn agents(&self, setup: &Setup<'_>) -> Result<Result<Option<Vec<String>>, Problem>, Error> {
        let spec = &setup.pool.spec;
        let Some(profiles) = spec.profiles.as_ref().filter(|_| spec.runner.is_none()) else { return Ok(Ok(None)) };
        let maps: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), &setup.identity.namespace);
        let name = &profiles.config_map_name;
        let problem = |message: String| Ok(Err(Problem::new("ProfilesNotUsable", message)));
        let text = match within_limit(maps.get_opt(name)).await {
            Err(error) => return Problem::of(error, &format!("The ConfigMap '{name}' of the profiles can't be read")).map(Err),
            Ok(None) => return problem(format!("The ConfigMap '{name}' of the profiles does not exist")),
            Ok(Some(map)) => map.data.and_then(|mut data| data.remove(&profiles.key)),
        };
        let Some(text) = text else { return problem(format!("The ConfigMap '{name}' has no key '{}'", profiles.key)) };
        Ok(match slugs(&text) {
            Ok(slugs) => Ok(slugs),
            Err(error) => return problem(format!("The profiles in the ConfigMap '{name}' can't be read: {error}")),
        })
    }

    async fn ready(&self, setup: &Setup<'_>, agents: Option<&[String]>, most: i64) -> Result<i64, Error> {
        let replica = &self.context.engine.replica;
        let queued = replica.tasks_by_agent().into_iter().filter(|(_, tasks)| tasks.queued > 0).map(|(slug, _)| slug);
        let queued: Vec<String> = queued.filter(|slug| agents.is_none_or(|agents| agents.contains(slug))).collect();
        if queued.is_empty() {
            return Ok(0);
        }
        let mut found = 0;
        if agents.is_none() && replica.queues().is_empty() {
            for namespace in &setup.namespaces {
                found += self.count(&Scope::Namespace(namespace.clone()), most - found).await?;
            }
            return Ok(found);
        }
        for agent_slug in queued.into_iter().take(MAX_AGENTS) {
            let mut room = replica.room_in_queue(&agent_slug).max(0);
            for namespace in &setup.namespaces {
                let scope = Scope::AgentInNamespace { namespace: namespace.clone(), agent_slug: agent_slug.clone() };
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

/// The agents that these profiles name; `None` = all.
fn slugs(text: &str) -> Result<Option<Vec<String>>, String> {
    let file: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let profiles = match file.get("profiles") {
        None => return Ok(None),
        Some(profiles) => profiles.as_table().ok_or("profiles is not a table")?,
    };
    let serves_all = profiles.is_empty() || profiles.contains_key(DEFAULT_PROFILE);
    Ok((!serves_all).then(|| profiles.keys().cloned().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_tell_which_agents_are_served() {
        assert_eq!(slugs("[profiles.coder]\n[profiles.writer]").unwrap().unwrap(), ["coder", "writer"]);
        assert_eq!(slugs("[profiles.coder]\n[profiles.default]"), Ok(None));
        assert_eq!(slugs(""), Ok(None));
        assert!(slugs("profiles = 7").is_err() && slugs("[").is_err());
    }
}
