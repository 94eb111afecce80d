//! What the chart renders is what the API server takes.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{of_kind, rendered, root, set, sets, template, text, the, yaml};
use crate::cluster::{Tenant, shared};
use crate::support::run;

/// A namespace of a cluster that knows the kinds of the Gateway API and of the Prometheus operator, and has the namespaces of the sets.
async fn prepared() -> &'static Tenant {
    static PREPARED: tokio::sync::OnceCell<Tenant> = tokio::sync::OnceCell::const_new();
    PREPARED
        .get_or_init(async || {
            let tenant = shared().await.namespace().await;
            let dir = PathBuf::from(std::env::var_os("KUBERNETES_RESOURCES").expect("KUBERNETES_RESOURCES: run tests/run kubernetes"));
            for file in fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).filter(|path| path.extension().is_some()) {
                tenant.kubectl(&["apply", "--server-side", "--filename", file.to_str().unwrap()], "").unwrap();
            }
            for crd in
                ["httproutes.gateway.networking.k8s.io", "servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"]
            {
                tenant.kubectl(&["wait", "--for=condition=Established", "crd", crd, "--timeout=300s"], "").unwrap();
            }
            for name in ["team-a", "team-b"] {
                tenant.kubectl(&["create", "namespace", name], "").unwrap();
            }
            // The controller that makes it does not run here. Pods of `helm test` use it.
            tenant.kubectl(&["create", "serviceaccount", "default"], "").unwrap();
            tenant
        })
        .await
}

#[test]
fn the_api_server_takes_every_set() {
    run(async {
        let tenant = prepared().await;
        for values in sets() {
            let objects = template(&tenant.name, &values, &[]).unwrap();
            let arguments = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-"];
            tenant.kubectl(&arguments, &objects).unwrap_or_else(|error| panic!("{}: {error}", values.display()));
        }
    });
}

#[test]
fn the_api_server_takes_the_manifests_for_kubectl() {
    run(async {
        let tenant = prepared().await;
        // Only a namespace that exists takes objects in a dry run, so that of the manifests stands for it.
        for (name, least) in [("crds", 3), ("install", 9), ("install-namespaced", 8)] {
            let objects = text(&root().join(format!("manifests/kubernetes/{name}.yaml")));
            let objects = objects.replace("namespace: bloom-runtime\n", &format!("namespace: {}\n", tenant.name));
            let arguments = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename", "-"];
            let said = tenant.kubectl(&arguments, &objects).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(said.lines().count() >= least, "{name}: {said}");
        }
    });
}

/// The templates of workloads, and pods.
fn pods(objects: &[Value]) -> Vec<Value> {
    let templates = objects.iter().filter(|object| object.pointer("/spec/template/spec").is_some()).map(|object| {
        let mut pod = object["spec"]["template"].clone();
        pod["metadata"]["name"] = object["metadata"]["name"].clone();
        pod
    });
    let mut pods: Vec<Value> = templates.chain(of_kind(objects, "Pod").into_iter().cloned()).collect();
    for pod in &mut pods {
        (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    }
    pods
}

#[test]
fn pods_fulfil_the_restricted_level() {
    run(async {
        let tenant = prepared().await;
        tenant.kubectl(&["label", "namespace", &tenant.name, "pod-security.kubernetes.io/enforce=restricted"], "").unwrap();
        let mut seen = 0;
        for values in sets() {
            let objects = yaml(&template(&tenant.name, &values, &[]).unwrap());
            let accounts = of_kind(&objects, "ServiceAccount");
            for account in accounts {
                tenant.kubectl(&["apply", "--filename", "-"], &account.to_string()).unwrap();
            }
            for mut pod in pods(&objects) {
                let create =
                    |pod: &Value| tenant.kubectl(&["create", "--dry-run=server", "--validate=strict", "--filename", "-"], &pod.to_string());
                create(&pod).unwrap_or_else(|error| panic!("{}: {error}", values.display()));
                pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
                let refused = create(&pod).unwrap_err();
                assert!(refused.contains("violates PodSecurity \"restricted"), "{refused}");
                for container in pod["spec"]["containers"].as_array().unwrap().iter().filter(|container| container["name"] == "server") {
                    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
                }
                seen += 1;
            }
        }
        assert!(seen > sets().len(), "{seen} pods");
    });
}

#[test]
fn the_definitions_are_those_of_the_program() {
    let objects = rendered("default", &[]);
    let known = bloom_operator::crds::all().unwrap();
    let crds = of_kind(&objects, "CustomResourceDefinition");
    assert_eq!(crds.len(), known.len());
    for crd in crds {
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        let of_program = known.iter().find(|known| crd["metadata"]["name"] == known.metadata.name.clone().unwrap()).unwrap();
        assert_eq!(crd["spec"], serde_json::to_value(&of_program.spec).unwrap());
    }
    assert!(of_kind(&rendered("default", &["--set", "crds.install=false"]), "CustomResourceDefinition").is_empty());
}

#[test]
fn sqlite_is_one_pod_on_a_claim_that_stays() {
    let objects = rendered("default", &[]);
    let workload = the(&objects, "StatefulSet");
    assert_eq!(workload["spec"]["replicas"], 1);
    let claim = the(&objects, "PersistentVolumeClaim");
    assert_eq!(claim["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    let volumes = workload["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    assert!(volumes.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]), "{volumes:?}");
    assert!(of_kind(&objects, "PodDisruptionBudget").is_empty(), "it would keep the node of the only pod from being drained");
}

#[test]
fn postgresql_is_replicas_of_a_deployment() {
    let objects = rendered("postgresql", &[]);
    assert_eq!(the(&objects, "Deployment")["spec"]["replicas"], 3);
    assert!(of_kind(&objects, "PersistentVolumeClaim").is_empty() && of_kind(&objects, "Secret").is_empty());
    let pod = &the(&objects, "Deployment")["spec"]["template"];
    let selected = |selector: &Value| {
        let labels = selector["matchLabels"].as_object().unwrap();
        labels.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value)
    };
    assert!(selected(&the(&objects, "PodDisruptionBudget")["spec"]["selector"]));
    assert!(selected(&the(&objects, "NetworkPolicy")["spec"]["podSelector"]));
    assert!(pod["spec"]["topologySpreadConstraints"].as_array().unwrap().iter().all(|spread| selected(&spread["labelSelector"])));
    let endpoint = &the(&objects, "ServiceMonitor")["spec"]["endpoints"][0];
    assert_eq!(endpoint["authorization"]["credentials"], json!({ "name": "bloom-keys", "key": "read-key" }));
}

#[test]
fn the_policy_lets_out_only_what_the_server_calls() {
    let ports = |name: &str, more: &[&str]| {
        let objects = rendered(name, more);
        let rules = the(&objects, "NetworkPolicy")["spec"]["egress"].as_array().unwrap().clone();
        let of_rule =
            |rule: &Value| rule["ports"].as_array().unwrap().iter().map(|port| port["port"].as_i64().unwrap()).collect::<Vec<_>>();
        rules.iter().map(of_rule).collect::<Vec<_>>()
    };
    let on = ["--set", "networkPolicy.enabled=true"];
    assert_eq!(ports("default", &on), [vec![53, 53], vec![443, 6443]]);
    assert_eq!(ports("postgresql", &[]), [vec![53, 53], vec![443, 6443], vec![5432]]);
    assert_eq!(ports("plain", &on), [vec![53, 53]], "without the operator, the server does not call the API server");
    assert_eq!(ports("everything", &[]), [vec![53, 53], vec![443, 6443], vec![5432], vec![8080]]);
}

/// Streams last for hours and long polls for a minute, which the usual limits of proxies would cut.
#[test]
fn routes_leave_time_for_streams() {
    let objects = rendered("everything", &[]);
    let annotations = &the(&objects, "Ingress")["metadata"]["annotations"];
    assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"], "3600");
    assert_eq!(the(&objects, "HTTPRoute")["spec"]["rules"][0]["timeouts"], json!({ "request": "0s", "backendRequest": "0s" }));
    let public = template("here", &set("default"), &["--set", "ingress.enabled=true,ingress.hosts[0].host=b.example"]).unwrap();
    assert!(public.contains("value: \"http://b.example\""), "PUBLIC_URL follows from the host");
}

#[test]
fn the_service_names_the_key_for_kubectl_bloom() {
    let named = |more: &[&str]| {
        let objects = rendered("default", more);
        let named = the(&objects, "Service")["metadata"]["annotations"]["bloom-runtime.dev/read-key"].as_str().unwrap().to_owned();
        let secret = the(&objects, "Secret");
        let (name, entry) = named.split_once('/').unwrap();
        assert!(secret["metadata"]["name"] == name && secret["data"][entry].is_string(), "{named}");
        entry.to_owned()
    };
    assert_eq!(named(&[]), "read-key");
    assert_eq!(named(&["--set", "keys.secretKeys.read="]), "api-key");
}

#[test]
fn a_control_plane_of_its_own_has_a_port() {
    let on = ["--set", "membridge.enabled=true,membridge.existingSecret=keys,networkPolicy.enabled=true"];
    let objects = rendered("default", &on);
    let ports = |of: &Value| of.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(ports(&the(&objects, "Service")["spec"]["ports"]), ["http", "membridge"]);
    assert_eq!(the(&objects, "Service")["spec"]["ports"][1]["port"], 8000);
    let server = &the(&objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(ports(&server["ports"]), ["http", "membridge"]);
    let variable =
        |name: &str| server["env"].as_array().unwrap().iter().find(|variable| variable["name"] == name).unwrap()["value"].clone();
    assert_eq!((variable("WITH_MEMBRIDGE"), variable("MEMBRIDGE_HOST")), ("true".into(), "0.0.0.0".into()));
    let allowed = &the(&objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"];
    assert_eq!(allowed.as_array().unwrap().len(), 2);
    let without = rendered("default", &[]);
    assert_eq!(ports(&the(&without, "Service")["spec"]["ports"]), ["http"]);
}
