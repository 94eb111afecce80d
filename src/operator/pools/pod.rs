//! The pod of a pool: a pure function of the pool and of the number of the pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EnvVar, KeyToPath, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec, ResourceRequirements, SeccompProfile,
    SecretVolumeSource, SecurityContext, Volume, VolumeMount, VolumeResourceRequirements,
};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::de::Error as _;
use sha2::{Digest, Sha256};

use crate::crds::WorkerPool;
use crate::crds::pool::Workspace;
use crate::object::Identity;

/// The label of a pool's objects, with the name of the pool.
pub(crate) const POOL: &str = "bloom-runtime.dev/pool";
/// The digest of the template that a pod was made from.
pub(crate) const TEMPLATE: &str = "bloom-runtime.dev/template";
/// Why a pod is being drained.
pub(crate) const DRAIN: &str = "bloom-runtime.dev/drain";
/// The entry of a pod's Secret that contains the key.
pub(crate) const KEY: &str = "key";

const CONTAINER: &str = "agent";
/// The user of the image, as a number, so that the cluster sees that it is not root.
const USER: i64 = 65_532;
const WORK_DIR: &str = "/var/lib/bloom-agent";
const HOME: &str = "/var/lib/bloom-agent/home";
const KEY_DIR: &str = "/etc/bloom-runtime/key";
const PROFILES_DIR: &str = "/etc/bloom-runtime/profiles";
/// Only the user and the group of the agent can read its key. The agent warns about a file that everybody can read.
const KEY_MODE: i32 = 0o440;
/// How long an agent needs after its grace period to stop runs and hand their tasks back.
const HAND_BACK_SECONDS: i64 = 30;
/// Keeps the cluster autoscaler from moving pods, because their runs would end.
const KEEP_ON_NODE: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";

/// A pool with everything that its pods are made from.
pub(crate) struct Setup<'a> {
    pub pool: &'a WorkerPool,
    pub identity: &'a Identity,
    pub image: String,
    /// The URL of the server.
    pub server: String,
    /// The namespaces whose tasks the workers run, in order.
    pub namespaces: Vec<String>,
    /// Whether each worker has a key in a Secret.
    pub has_keys: bool,
}

/// The prefix of the names of a pool's workers. Names of namespaces contain no dot, so no other pool has the same prefix.
pub(crate) fn worker_prefix(identity: &Identity) -> String {
    format!("{}.{}-", identity.namespace, identity.name)
}

pub(crate) fn worker_name(identity: &Identity, ordinal: u32) -> String {
    format!("{}{ordinal}", worker_prefix(identity))
}

/// The name of a pod, and of its Secret.
pub(crate) fn pod_name(identity: &Identity, ordinal: u32) -> String {
    format!("{}-{ordinal}", identity.name)
}

fn claim_name(identity: &Identity, ordinal: u32) -> String {
    format!("workspace-{}", pod_name(identity, ordinal))
}

/// The number at the end of a name; `None` if the name belongs to another pool, or is not written in the way of this program.
pub(crate) fn ordinal_of(prefix: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    digits.parse().ok().filter(|ordinal: &u32| ordinal.to_string() == digits)
}

/// Whether this is an object of the pool.
pub(crate) fn belongs_to(metadata: &ObjectMeta, pool: &Identity) -> bool {
    let uid = pool.uid.to_string();
    metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid && owner.controller == Some(true))
}

impl Setup<'_> {
    fn metadata(&self, name: String) -> ObjectMeta {
        let own = [
            (POOL, self.identity.name.as_str()),
            ("app.kubernetes.io/name", "bloom-agent"),
            ("app.kubernetes.io/managed-by", "bloom-runtime"),
        ];
        let labels: BTreeMap<String, String> = own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.identity.namespace.clone()),
            labels: Some(labels),
            owner_references: self.pool.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    /// The metadata of a Secret with the pod's key.
    pub(crate) fn secret_metadata(&self, ordinal: u32) -> ObjectMeta {
        self.metadata(pod_name(self.identity, ordinal))
    }

    /// The digest of the template. Pods with another one are replaced.
    pub(crate) fn template(&self) -> serde_json::Result<String> {
        let pod = serde_json::to_vec(&self.bare_pod(0)?)?;
        Ok(hex::encode(Sha256::digest(pod).iter().take(8).copied().collect::<Vec<_>>()))
    }

    /// # Errors
    /// The affinity of the pool is not valid.
    pub(crate) fn pod(&self, ordinal: u32) -> serde_json::Result<Pod> {
        let mut pod = self.bare_pod(ordinal)?;
        pod.metadata.annotations.get_or_insert_default().insert(TEMPLATE.to_owned(), self.template()?);
        Ok(pod)
    }

    fn bare_pod(&self, ordinal: u32) -> serde_json::Result<Pod> {
        let spec = &self.pool.spec;
        let mut metadata = self.metadata(pod_name(self.identity, ordinal));
        let labels = spec.pod_labels.clone().into_iter().chain(metadata.labels.take().unwrap_or_default());
        metadata.labels = Some(labels.collect());
        let annotations = [(KEEP_ON_NODE.to_owned(), "false".to_owned())].into_iter().chain(spec.pod_annotations.clone());
        metadata.annotations = Some(annotations.collect());
        let affinity: Option<Affinity> = match &spec.affinity {
            Some(affinity) => {
                Some(serde_json::from_value(affinity.clone()).map_err(|error| serde_json::Error::custom(format!("affinity: {error}")))?)
            }
            None => None,
        };
        let pod = PodSpec {
            affinity,
            automount_service_account_token: Some(false),
            containers: vec![self.container(ordinal)],
            enable_service_links: Some(false),
            image_pull_secrets: some(&spec.image_pull_secrets),
            node_selector: (!spec.node_selector.is_empty()).then(|| spec.node_selector.clone()),
            priority_class_name: spec.priority_class_name.clone(),
            restart_policy: Some("Always".into()),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                fs_group_change_policy: Some("OnRootMismatch".into()),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
                ..PodSecurityContext::default()
            }),
            service_account_name: spec.service_account_name.clone(),
            termination_grace_period_seconds: Some(spec.termination_grace_period_seconds),
            tolerations: some(&spec.tolerations),
            volumes: Some(self.volumes(ordinal)),
            ..PodSpec::default()
        };
        Ok(Pod { metadata, spec: Some(pod), status: None })
    }

    fn container(&self, ordinal: u32) -> Container {
        let spec = &self.pool.spec;
        let resources = spec.resources.as_ref().map(|resources| ResourceRequirements {
            limits: (!resources.limits.is_empty()).then(|| resources.limits.clone()),
            requests: (!resources.requests.is_empty()).then(|| resources.requests.clone()),
            ..ResourceRequirements::default()
        });
        let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
            name: name.into(),
            mount_path: path.into(),
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        };
        let mut mounts = vec![mount("work", WORK_DIR, false), mount("tmp", "/tmp", false)];
        mounts.extend(self.has_keys.then(|| mount("key", KEY_DIR, true)));
        mounts.extend(spec.profiles.is_some().then(|| mount("profiles", PROFILES_DIR, true)));
        Container {
            name: CONTAINER.into(),
            image: Some(self.image.clone()),
            image_pull_policy: spec.image_pull_policy.map(|policy| format!("{policy:?}")),
            args: Some(vec!["agent".into()]),
            env: Some(self.environment(ordinal)),
            env_from: some(&spec.env_from),
            resources,
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".into()]) }),
                read_only_root_filesystem: Some(true),
                run_as_non_root: Some(true),
                ..SecurityContext::default()
            }),
            // If the agent ends with an error, the pool shows the end of its log.
            termination_message_policy: Some("FallbackToLogsOnError".into()),
            volume_mounts: Some(mounts),
            ..Container::default()
        }
    }

    /// The environment of the container. The operator's own variables come last, so that no others replace them. Only HOME may be set by
    /// the pool.
    fn environment(&self, ordinal: u32) -> Vec<EnvVar> {
        let spec = &self.pool.spec;
        let has_home = spec.env.iter().any(|one| one.name == "HOME");
        let home = (!has_home).then(|| ("HOME", HOME.to_owned()));
        let key_file = self.has_keys.then(|| ("BLOOM_KEY_FILE", format!("{KEY_DIR}/{KEY}")));
        let profiles = spec.profiles.as_ref().map(|profiles| ("BLOOM_PROFILES", format!("{PROFILES_DIR}/{}", profiles.key)));
        let runner = spec.runner.clone().map(|runner| ("BLOOM_RUNNER", runner));
        let grace = spec.termination_grace_period_seconds.saturating_sub(HAND_BACK_SECONDS).max(0);
        let own = [
            ("BLOOM_SERVER", self.server.clone()),
            ("BLOOM_AGENT_NAME", worker_name(self.identity, ordinal)),
            ("BLOOM_WORK_DIR", WORK_DIR.to_owned()),
            ("BLOOM_NAMESPACES", self.namespaces.join(",")),
            ("BLOOM_MAX_CONCURRENCY", spec.slots.to_string()),
            ("BLOOM_GRACE_SECONDS", grace.to_string()),
        ];
        let own = home.into_iter().chain(own).chain(key_file).chain(profiles).chain(runner);
        let own = own.map(|(name, value)| EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
        // An object that was created before the schema forbade such names may have them.
        spec.env.iter().filter(|one| !one.name.starts_with("BLOOM_")).cloned().chain(own).collect()
    }

    fn volumes(&self, ordinal: u32) -> Vec<Volume> {
        let named = |name: &str| Volume { name: name.into(), ..Volume::default() };
        let workspace = self.workspace();
        let work = if workspace.volume_claim.is_some() {
            let claim_name = claim_name(self.identity, ordinal);
            Volume { persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }), ..named("work") }
        } else {
            let empty_dir = EmptyDirVolumeSource { medium: None, size_limit: workspace.size_limit };
            Volume { empty_dir: Some(empty_dir), ..named("work") }
        };
        let tmp = Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..named("tmp") };
        let key = self.has_keys.then(|| Volume {
            secret: Some(SecretVolumeSource {
                secret_name: Some(pod_name(self.identity, ordinal)),
                default_mode: Some(KEY_MODE),
                items: Some(vec![KeyToPath { key: KEY.into(), path: KEY.into(), mode: None }]),
                optional: None,
            }),
            ..named("key")
        });
        let profiles = self.pool.spec.profiles.as_ref().map(|profiles| Volume {
            config_map: Some(ConfigMapVolumeSource { name: profiles.config_map_name.clone(), ..ConfigMapVolumeSource::default() }),
            ..named("profiles")
        });
        [work, tmp].into_iter().chain(key).chain(profiles).collect()
    }

    fn workspace(&self) -> Workspace {
        self.pool.spec.workspace.clone().unwrap_or_default()
    }

    /// The claim of the pod's volume, if it has one. It belongs to the pool, so it stays when the pod goes.
    pub(crate) fn claim(&self, ordinal: u32) -> Option<PersistentVolumeClaim> {
        let wanted = self.workspace().volume_claim?;
        let modes = if wanted.access_modes.is_empty() { vec!["ReadWriteOnce".to_owned()] } else { wanted.access_modes };
        Some(PersistentVolumeClaim {
            metadata: self.metadata(claim_name(self.identity, ordinal)),
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(modes),
                storage_class_name: wanted.storage_class_name,
                resources: Some(VolumeResourceRequirements {
                    requests: Some(BTreeMap::from([("storage".to_owned(), wanted.storage)])),
                    limits: None,
                }),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        })
    }
}

fn some<T: Clone>(items: &[T]) -> Option<Vec<T>> {
    (!items.is_empty()).then(|| items.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use uuid::Uuid;

    fn identity() -> Identity {
        Identity { namespace: "team-a".into(), name: "coders".into(), uid: Uuid::from_u128(7) }
    }

    fn pool(spec: serde_json::Value) -> WorkerPool {
        let metadata = json!({ "name": "coders", "namespace": "team-a", "uid": Uuid::from_u128(7) });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    fn pod(spec: serde_json::Value, ordinal: u32) -> Pod {
        let (pool, identity) = (pool(spec), identity());
        setup(&pool, &identity).pod(ordinal).unwrap()
    }

    fn setup<'a>(pool: &'a WorkerPool, identity: &'a Identity) -> Setup<'a> {
        Setup {
            pool,
            identity,
            image: "agent:1".into(),
            server: "http://bloom:5000".into(),
            namespaces: vec!["team-a".into()],
            has_keys: true,
        }
    }

    #[test]
    fn numbers_are_read_back_from_names() {
        let prefix = worker_prefix(&identity());
        assert_eq!(worker_name(&identity(), 12), "team-a.coders-12");
        assert_eq!(ordinal_of(&prefix, "team-a.coders-12"), Some(12));
        for other in ["team-a.coders-012", "team-a.coders-", "team-a.coders-a-1", "team-b.coders-1", "team-a.coders-+1"] {
            assert_eq!(ordinal_of(&prefix, other), None, "{other}");
        }
    }

    #[test]
    fn the_template_changes_with_what_pods_are_made_from() {
        let template = |spec| pod(spec, 0).metadata.annotations.unwrap()[TEMPLATE].clone();
        let plain = template(json!({}));
        assert_eq!(plain, pod(json!({ "replicas": 9, "maxReplicas": 3 }), 4).metadata.annotations.unwrap()[TEMPLATE]);
        for other in [
            json!({ "slots": 2 }),
            json!({ "env": [{ "name": "A", "value": "b" }] }),
            json!({ "podLabels": { "a": "b" } }),
            json!({ "workspace": { "volumeClaim": { "storage": 5 } } }),
            json!({ "affinity": { "podAntiAffinity": {} } }),
            json!({ "terminationGracePeriodSeconds": 90 }),
        ] {
            assert_ne!(plain, template(other.clone()), "{other}");
        }
    }

    #[test]
    fn variables_of_the_pool_win() {
        let env = json!([{ "name": "BLOOM_SERVER", "value": "http://other" }, { "name": "HOME", "value": "/tmp" }, { "name": "A", "value": "b" }]);
        let pod = pod(json!({ "env": env, "runner": "echo", "profiles": { "configMapName": "p" } }), 3);
        let env = pod.spec.unwrap().containers.remove(0).env.unwrap();
        let value = |name: &str| env.iter().filter(|one| one.name == name).map(|one| one.value.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(value("BLOOM_SERVER"), ["http://bloom:5000"]);
        assert_eq!(value("HOME"), ["/tmp"]);
        assert_eq!(value("BLOOM_AGENT_NAME"), ["team-a.coders-3"]);
        assert_eq!(value("BLOOM_GRACE_SECONDS"), ["300"]);
        assert_eq!(value("BLOOM_PROFILES"), ["/etc/bloom-runtime/profiles/profiles.toml"]);
        assert_eq!((value("A"), value("BLOOM_RUNNER")), (vec!["b".to_owned()], vec!["echo".to_owned()]));
    }

    #[test]
    fn labels_of_the_pool_win() {
        let pod = pod(json!({ "podLabels": { POOL: "other", "team": "a" } }), 0);
        let labels = pod.metadata.labels.unwrap();
        assert_eq!((labels[POOL].as_str(), labels["team"].as_str()), ("coders", "a"));
    }

    #[test]
    fn a_wrong_affinity_is_named() {
        let (pool, identity) = (pool(json!({ "affinity": { "nodeAffinity": 7 } })), identity());
        assert!(setup(&pool, &identity).pod(0).unwrap_err().to_string().starts_with("affinity: "));
    }
}
