//! The profiles of a pool's agents, which are in a ConfigMap.

use bloom_api::kubernetes::is_object_name;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use super::pod::Setup;
use super::{Pools, Problem};
use crate::api::within_limit;
use crate::object::Error;

/// The profile for all agents that have none of their own.
const DEFAULT_PROFILE: &str = "default";

impl Pools {
    /// The agents whose tasks the workers run, according to the profiles; `None` = all.
    pub(super) async fn agents(&self, setup: &Setup<'_>) -> Result<Result<Option<Vec<String>>, Problem>, Error> {
        let spec = &setup.pool.spec;
        let Some(profiles) = &spec.profiles else { return Ok(Ok(None)) };
        let maps: Api<ConfigMap> = Api::namespaced(self.context.client.clone(), &setup.identity.namespace);
        let name = &profiles.config_map_name;
        let problem = |message: String| Ok(Err(Problem::new("ProfilesNotUsable", message)));
        if !is_object_name(name) {
            return problem(format!("spec.profiles.configMapName: '{name}' can't be the name of a ConfigMap"));
        }
        let text = match within_limit(maps.get_opt(name)).await {
            Err(error) => return Problem::of(error, &format!("The ConfigMap '{name}' of the profiles can't be read")).map(Err),
            Ok(None) => return problem(format!("The ConfigMap '{name}' of the profiles does not exist")),
            Ok(Some(map)) => map.data.and_then(|mut data| data.remove(&profiles.key)),
        };
        let Some(text) = text else { return problem(format!("The ConfigMap '{name}' has no key '{}'", profiles.key)) };
        Ok(match slugs(&text) {
            Ok(slugs) => Ok(slugs.filter(|_| spec.runner.is_none())),
            Err(error) => return problem(format!("The profiles in the ConfigMap '{name}' can't be read: {error}")),
        })
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
