//! The prompt of an object, from the object itself or from an entry of a ConfigMap or Secret.

use bloom_api::kubernetes::is_object_name;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;

use super::status::Problem;
use super::{Error, Identity, Tasks};
use crate::api::{is_status, within_limit};
use crate::crds::task::LLMTaskSpec;

/// Secrets may be used as prompts only if they have this label with the value `true`. A user who creates LLMTasks may see their prompts,
/// but may not be allowed to read the Secrets of the namespace.
const FOR_PROMPTS: &str = "bloom-runtime.dev/prompt";

fn is_for_prompts(secret: &Secret) -> bool {
    secret.metadata.labels.as_ref().and_then(|labels| labels.get(FOR_PROMPTS)).is_some_and(|value| value == "true")
}

impl Tasks {
    pub(super) async fn prompt(&self, spec: &LLMTaskSpec, identity: &Identity) -> Result<Result<String, Problem>, Error> {
        let Some(source) = &spec.prompt_from else {
            return Ok(spec.prompt.clone().ok_or_else(|| Problem::invalid("prompt: Required".into())));
        };
        let names = [&source.config_map_key_ref, &source.secret_key_ref];
        if let Some(wrong) = names.into_iter().flatten().find(|key_ref| !is_object_name(&key_ref.name)) {
            let message = format!("promptFrom: '{}' can't be the name of a ConfigMap or Secret", wrong.name);
            return Ok(Err(Problem::invalid(message)));
        }
        let (client, namespace) = (self.context.client.clone(), &identity.namespace);
        let (kind, key_ref, found) = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(key_ref), _) => {
                let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
                let found = within_limit(maps.get_opt(&key_ref.name)).await;
                let value = |map: ConfigMap| map.data?.remove(&key_ref.key).map(String::into_bytes);
                ("ConfigMap", key_ref, found.map(|map| map.map(value)))
            }
            (None, Some(key_ref)) => {
                let secrets: Api<Secret> = Api::namespaced(client, namespace);
                let found = within_limit(secrets.get_opt(&key_ref.name)).await;
                if found.as_ref().is_ok_and(|secret| secret.as_ref().is_some_and(|secret| !is_for_prompts(secret))) {
                    let message =
                        format!("Secret '{0}' is not marked as one for prompts: kubectl label secret {0} {FOR_PROMPTS}=true", key_ref.name);
                    return Ok(Err(Problem::missing("PromptForbidden", message)));
                }
                let value = |secret: Secret| secret.data?.remove(&key_ref.key).map(|bytes| bytes.0);
                ("Secret", key_ref, found.map(|secret| secret.map(value)))
            }
            (None, None) => {
                return Ok(Err(Problem::invalid("promptFrom: Exactly one of configMapKeyRef and secretKeyRef is required".into())));
            }
        };
        let (name, key) = (&key_ref.name, &key_ref.key);
        Ok(match found {
            Ok(Some(Some(prompt))) => String::from_utf8(prompt)
                .map_err(|_| Problem::missing("PromptNotText", format!("Key '{key}' of {kind} '{name}' is not text in UTF-8"))),
            Ok(Some(None)) => Err(Problem::missing("PromptNotFound", format!("{kind} '{name}' has no key '{key}'"))),
            Ok(None) => Err(Problem::missing("PromptNotFound", format!("{kind} '{name}' does not exist in namespace '{namespace}'"))),
            Err(error) if is_status(&error, 403) => {
                Err(Problem::missing("PromptForbidden", format!("The operator may not read {kind} '{name}'")))
            }
            Err(error) => return Err(error.into()),
        })
    }
}
