//! `kubectl bloom`. There are no pods here, so the server is named by its address; the tests of a whole node forward a port to it.

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::cluster::{Tenant, shared};
use crate::support::server::Server;
use crate::support::{Database, run, unique};

impl Tenant {
    /// Runs the plugin, with the address and the key of the server.
    fn plugin(&self, server: &Server, arguments: &[&str], input: &str) -> Result<String, String> {
        let url = format!("--server={}", server.base());
        self.kubectl(&[&["bloom"], arguments, &[url.as_str()]].concat(), input)
    }
}

#[test]
fn a_task_is_submitted_followed_and_read() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let _agent = server.agent(&unique("runner")).shell().start();
        let prompt = "echo hello from the plugin";
        let submit = ["submit", "--agent", slug.as_str(), "--session", "none", "--name"];
        let followed = team.plugin(&server, &[&submit[..], &["first", "--follow", prompt]].concat(), "").unwrap();
        assert_eq!(followed, "hello from the plugin\n");
        let named = ["second", "--wait", "--depends-on", "first", "--timeout", "5m", "--ttl", "1h", "--not-before", "2026-01-01"];
        let waited = team.plugin(&server, &[&submit[..], &named].concat(), prompt).unwrap();
        assert_eq!(waited, "hello from the plugin\n", "the prompt may come from standard input");
        let spec: Value = serde_json::from_str(&team.kubectl(&["get", "lt/second", "-o", "json"], "").unwrap()).unwrap();
        let spec = &spec["spec"];
        assert_eq!((&spec["dependsOn"], &spec["policy"]["timeoutSec"]), (&json!(["first"]), &json!(300)));
        assert_eq!(spec["ttlSecondsAfterFinished"], 3600);

        assert_eq!(team.plugin(&server, &["result", "first"], "").unwrap(), "hello from the plugin\n");
        let logs = team.plugin(&server, &["logs", "-f", "first"], "").unwrap();
        assert!(logs.contains("hello from the plugin"), "{logs}");
        let name = team.plugin(&server, &["submit", "--agent", &slug, prompt], "").unwrap();
        assert!(name.starts_with("task-"), "{name}");
        team.kubectl(&["get", "lt", name.trim()], "").unwrap();
    });
}

#[test]
fn mistakes_are_told() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let fails = |arguments: &[&str], expected: &str| {
            let told = team.plugin(&server, arguments, "").unwrap_err();
            assert!(told.contains(expected), "{arguments:?}: {told}");
        };
        fails(&["result", "nobody"], "\"nobody\" not found");
        fails(&["logs", "--namespace", "elsewhere", "nobody"], "not found");
        fails(&["submit", "two", "words"], "kubectl bloom submit \"two words\"");
        fails(&["submit", "--wait-timeout", "1m", "hi"], "--wait-timeout needs");
        fails(&["submit", "--name", "No Name", "hi"], "No Name");
        fails(&["submit", "--agent", &"x".repeat(300), "hi"], "agentSlug");
        fails(
            &["submit", "--follow", "--wait-timeout", "1s", "--agent", &unique("nobody"), "hi"],
            "is not finished after 1s; it goes on. Wait again with: kubectl bloom logs -f task-",
        );
        fails(&["result", "--kube-context", "other", "x"], "context was not found for specified context: other");
        // The object says why there is no task yet.
        let object = crate::objects::object("lost", "a", json!({ "promptFrom": { "configMapKeyRef": { "name": "none", "key": "k" } } }));
        team.kubectl(&["create", "-f", "-"], &object.to_string()).unwrap();
        team.shows("lost", "why", |object| object.status.as_ref().is_some_and(|status| status.message.is_some())).await;
        fails(&["logs", "lost"], "ConfigMap 'none' does not exist");
    });
}

#[test]
fn the_server_is_found_by_its_service() {
    run(async {
        let team = shared().await.namespace().await;
        let server = team.server(Database::Sqlite).start();
        let slug = unique("agent");
        let name = team.create(&slug, json!({})).await;
        team.task_id(&name).await;
        let here = format!("--server-namespace={}", team.name);
        let told = || team.kubectl(&["bloom", "result", &name, &here], "").unwrap_err();
        assert!(told().contains("no Service has the label"), "{}", told());

        let service = |name: &str| -> Service {
            serde_json::from_value(json!({
                "metadata": {
                    "name": name, "labels": { "app.kubernetes.io/name": "bloom-runtime" },
                    "annotations": { "bloom-runtime.dev/read-key": "keys/read" },
                },
                "spec": { "ports": [{ "name": "http", "port": 5000 }], "selector": { "app": "none" } },
            }))
            .unwrap()
        };
        let create = PostParams::default();
        team.api::<Service>().create(&create, &service("bloom")).await.unwrap();
        assert!(told().contains("the server's key can't be read") && told().contains("--key-file"), "{}", told());
        let keys: Secret = serde_json::from_value(json!({ "metadata": { "name": "keys" }, "stringData": { "OTHER": "x" } })).unwrap();
        team.api::<Secret>().create(&create, &keys).await.unwrap();
        assert!(told().contains("has no entry read"), "{}", told());
        let entry = json!({ "stringData": { "read": "a-key-that-is-never-shown" } });
        team.kubectl(&["patch", "secret", "keys", "-p", &entry.to_string()], "").unwrap();
        let told_of_pods = told();
        assert!(told_of_pods.contains("can't forward a port") && told_of_pods.contains("--server"), "{told_of_pods}");
        assert!(!told_of_pods.contains("never-shown"));
        team.api::<Service>().create(&create, &service("other")).await.unwrap();
        assert!(told().contains("several servers"), "{}", told());
        drop(server);
    });
}
