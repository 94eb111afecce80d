//! `kubectl bloom`. There are no pods here, so the server is named by its address; the tests of a whole node forward a port to it.

use bloom_api::kubernetes::OPERATOR;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::PostParams;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cluster::{Tenant, shared};
use crate::objects::object;
use crate::support::janitor::new_path;
use crate::support::server::Server;
use crate::support::{Database, run, unique};

async fn namespace() -> Tenant {
    shared().await.namespace().await
}

impl Tenant {
    /// Runs the plugin, with the address and the key of the server.
    fn plugin(&self, server: &Server, arguments: &[&str], input: &str) -> Result<String, String> {
        let url = format!("--server={}", server.base());
        self.kubectl(&[&["bloom"], arguments, &[url.as_str()]].concat(), input)
    }

    /// An LLMTask with this status, in a namespace that no operator serves.
    fn named(&self, name: &str, status: Value) -> String {
        self.kubectl(&["create", "-f", "-"], &object(name, "a", json!({})).to_string()).unwrap();
        self.has_status(name, &status);
        name.to_owned()
    }

    /// An LLMTask with this status, as the operator of a server in the namespace `home` leaves it.
    fn taken_by(&self, home: &str, status: Value) -> String {
        let name = self.named(&unique("task"), json!({}));
        self.is_taken_by(&name, home, &status);
        name
    }

    fn is_taken_by(&self, name: &str, home: &str, status: &Value) {
        self.kubectl(&["annotate", "lt", name, &format!("{OPERATOR}={home}")], "").unwrap();
        self.has_status(name, status);
    }

    fn has_status(&self, name: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        self.kubectl(&["patch", "lt", name, "--subresource=status", "--type=merge", "-p", &patch], "").unwrap();
    }

    /// A Service that could be that of a server.
    async fn has_service(&self, name: &str) {
        let service = json!({
            "metadata": {
                "name": name, "labels": { "app.kubernetes.io/name": "bloom-runtime" },
                "annotations": { "bloom-runtime.dev/read-key": "keys/read" },
            },
            "spec": { "ports": [{ "name": "http", "port": 5000 }], "selector": { "app": "none" } },
        });
        let service: Service = serde_json::from_value(service).unwrap();
        self.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    }

    async fn has_secret(&self, name: &str, entry: &str) {
        let secret = json!({ "metadata": { "name": name }, "stringData": { entry: "a-key-that-is-never-shown" } });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        self.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    }

    /// A kubeconfig with the rights of this user.
    fn as_user(&self, name: &str) -> String {
        let config = self.kubectl(&["config", "view", "--raw", "-o", "json"], "").unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["users"][0]["user"]["as"] = name.into();
        let path = new_path("kubeconfig");
        std::fs::write(&path, config.to_string()).unwrap();
        path.display().to_string()
    }
}

#[test]
fn a_task_is_submitted_followed_and_read() {
    run(async {
        let team = namespace().await;
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
        let team = namespace().await;
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
            &["submit", "--follow", "--wait-timeout", "10s", "--agent", &unique("nobody"), "hi"],
            "is not finished after 10s; it goes on. Wait again with: kubectl bloom logs -f task-",
        );
        fails(&["result", "--kube-context", "other", "x"], "context was not found for specified context: other");
        // The object says why there is no task yet.
        let object = object("lost", "a", json!({ "promptFrom": { "configMapKeyRef": { "name": "none", "key": "k" } } }));
        team.kubectl(&["create", "-f", "-"], &object.to_string()).unwrap();
        team.shows("lost", "why", |object| object.status.as_ref().is_some_and(|status| status.message.is_some())).await;
        fails(&["logs", "lost"], "ConfigMap 'none' does not exist");
    });
}

#[test]
fn the_server_is_the_one_that_the_object_names() {
    run(async {
        let [team, home, stranger] = [namespace().await, namespace().await, namespace().await];
        let name = team.taken_by(&home.name, json!({ "phase": "Queued", "taskId": Uuid::now_v7() }));
        let told = || team.kubectl(&["bloom", "result", &name], "").unwrap_err();
        // Anyone can give a Service this label.
        stranger.has_service("bloom").await;
        stranger.has_secret("keys", "read").await;
        let text = told();
        assert!(text.contains(&format!("the namespace {} has the LLMTask, but no Service", home.name)), "{text}");
        assert!(text.contains("--server URL --key-file FILE"), "{text}");

        home.has_service("bloom").await;
        assert!(told().contains("the server's key can't be read"), "{}", told());
        home.has_secret("keys", "OTHER").await;
        assert!(told().contains(&format!("the Secret {}/keys has no entry read", home.name)), "{}", told());
        home.kubectl(&["delete", "secret", "keys"], "").unwrap();
        home.has_secret("keys", "read").await;
        let text = told();
        assert!(text.contains("can't forward a port") && text.contains("--server URL"), "{text}");
        assert!(!text.contains("never-shown"));
        home.has_service("other").await;
        let text = told();
        assert!(text.contains("several Services") && text.contains("bloom, other"), "{text}");

        let _server = team.server(Database::Sqlite).start();
        let name = team.create(&unique("agent"), json!({})).await;
        team.task_id(&name).await;
        let text = team.kubectl(&["bloom", "result", &name], "").unwrap_err();
        assert!(text.contains(&format!("the namespace {} has the LLMTask, but no Service", team.name)), "{text}");
    });
}

#[test]
fn an_object_without_a_task_says_why() {
    run(async {
        let team = namespace().await;
        let server = Server::on(Database::Sqlite).start();
        let why = |name: &str| {
            let [logs, result] = ["logs", "result"].map(|verb| team.kubectl(&["bloom", verb, name], "").unwrap_err());
            assert_eq!(logs, result);
            logs
        };
        let name = team.named("untouched", json!({}));
        assert!(why(&name).contains("no server has taken it yet; does one run with OPERATOR=true"), "{}", why(&name));
        let name = team.taken_by("bloom", json!({}));
        assert!(why(&name).contains("the server in the namespace bloom has taken it"), "{}", why(&name));
        let name = team.taken_by("bloom", json!({ "phase": "Pending", "message": "Secret 's' does not exist" }));
        assert!(why(&name).contains("has no task yet: Secret 's' does not exist"), "{}", why(&name));

        let with_task = json!({ "phase": "Queued", "taskId": Uuid::now_v7() });
        let name = team.named("of-nobody", with_task.clone());
        assert!(why(&name).contains("no server has taken it yet"), "{}", why(&name));
        for wrong in ["--all-namespaces", "a/b", ""] {
            let name = team.taken_by(wrong, with_task.clone());
            assert!(why(&name).contains(&format!("is '{wrong}', which is no name of a namespace")), "{}", why(&name));
        }
        let removed = json!({ "phase": "Failed", "reason": "Removed", "message": "It was removed", "taskId": Uuid::now_v7() });
        let name = team.taken_by("bloom", removed);
        let told = team.plugin(&server, &["logs", &name], "").unwrap_err();
        assert!(
            told.contains(&format!("of the LLMTask {name}: it was removed there")) && told.contains("Failed: It was removed"),
            "{told}"
        );
        let told = team.kubectl(&["bloom", "logs", &name, "--key-file", "key"], "").unwrap_err();
        assert!(told.contains("--key-file needs --server"), "{told}");
    });
}

#[test]
fn what_was_created_is_told_when_waiting_fails() {
    run(async {
        let [team, home] = [namespace().await, namespace().await];
        let told = team.kubectl(&["bloom", "submit", "--wait", "--wait-timeout", "0", "--name", "alone", "hi"], "").unwrap_err();
        for part in ["no server has taken it yet", "The LLMTask alone was created", "kubectl get lt alone", "kubectl bloom logs -f alone"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        // This user may submit, and nothing else.
        let config = team.as_user("alice");
        for create in [
            ["role", "submitter", "--verb=create,get", "--resource=llmtasks.bloom-runtime.dev"],
            ["rolebinding", "submitter", "--user=alice", "--role=submitter"],
        ] {
            team.kubectl(&[&["create"], &create[..]].concat(), "").unwrap();
        }
        home.has_service("bloom").await;
        let flags = [format!("--kubeconfig={config}"), format!("--namespace={}", team.name)];
        let submit = ["bloom", "submit", "--follow", "--name", "mine", &flags[0], &flags[1], "hi"];
        let told = std::thread::scope(|scope| {
            let submitted = scope.spawn(|| home.kubectl(&submit, "").unwrap_err());
            team.kubectl(&["wait", "--for=create", "lt/mine", "--timeout=300s"], "").unwrap();
            team.is_taken_by("mine", &home.name, &json!({ "phase": "Queued", "taskId": Uuid::now_v7() }));
            submitted.join().unwrap()
        });
        assert!(told.contains(&format!("can't be looked up in the namespace {}", home.name)) && told.contains("forbidden"), "{told}");
        let again = format!("kubectl get lt mine {} {}\n", flags[0], flags[1]);
        assert!(told.contains("The LLMTask mine was created") && told.contains(&again), "{told}");
    });
}

#[test]
fn dependencies_are_named_and_of_the_same_namespace() {
    run(async {
        let team = namespace().await;
        let help = team.kubectl(&["bloom", "submit", "--help"], "").unwrap();
        assert!(help.contains("--depends-on <NAME>") && help.contains("LLMTasks of the same namespace"), "{help}");
        assert!(!help.contains("task resume"), "{help}");
        for wrong in ["other/first", "lt/first", "first,other/second", "No Name"] {
            let told = team.kubectl(&["bloom", "submit", "--depends-on", wrong, "hi"], "").unwrap_err();
            assert!(told.contains("--depends-on <NAME>") && told.contains("of the same namespace"), "{told}");
        }
        assert_eq!(team.kubectl(&["get", "lt", "-o", "name"], "").unwrap(), "", "nothing was created");
    });
}
