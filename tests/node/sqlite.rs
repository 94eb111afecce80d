//! The chart with its defaults: one server, on an SQLite file in a claim.

use crate::release::{NAME, NAMESPACE, Release, changed_chart, chart};

const SERVER: &str = "bloom-runtime-0";

#[test]
fn a_release_on_sqlite() {
    let release = Release::prepare();
    release.deploy("install", &chart(), &[]);
    release.helm(&["test", NAME]);

    let task = agents_of_a_pool_run_tasks(&release);
    the_plugin_finds_the_server(&release);
    scaling_down_waits_for_a_busy_worker(&release);
    an_upgrade_changes_custom_resources_and_keeps_the_rest(&release);
    uninstalling_leaves_what_it_promises(&release);
    a_new_release_continues_with_the_claim(&release, &task);
}

/// Returns the id of a task in the HTTP API.
fn agents_of_a_pool_run_tasks(release: &Release) -> String {
    release.pool("agents", 1);
    release.submit("greet", "SAY: hello from a pool");
    assert_eq!(release.result("greet"), "hello from a pool");

    let id = release.kubectl(&["get", "llmtask/greet", "--output=jsonpath={.status.taskId}"]);
    let log = release.kubectl(&["logs", "agents-0"]);
    assert!(log.contains(&id), "{log}");
    id
}

/// By the Service, with the key from the Secret.
fn the_plugin_finds_the_server(release: &Release) {
    let plugin = |words: &[&str]| release.cluster.kubectl(&[&["bloom", "--namespace", NAMESPACE], words].concat(), "");
    let followed = plugin(&["submit", "--name", "by-plugin", "--agent", "writer", "--follow", "SAY: hello to the plugin"]);
    assert_eq!(followed.as_deref(), Ok("hello to the plugin\n"));
    assert_eq!(plugin(&["result", "by-plugin"]).as_deref(), Ok("hello to the plugin\n"));
}

fn scaling_down_waits_for_a_busy_worker(release: &Release) {
    release.submit("long", "MODE-WAIT SAY: it was not killed");
    release.kubectl(&["wait", "--for=jsonpath={.status.phase}=Running", "llmtask/long", "--timeout=300s"]);
    release.until("the run has begun", || (!release.api.seen_with("it was not killed").is_empty()).then_some(()));

    release.kubectl(&["scale", "workerpool/agents", "--replicas=0"]);
    release.kubectl(&["wait", "--for=jsonpath={.status.desiredReplicas}=0", "workerpool/agents", "--timeout=300s"]);
    // It is drained: its worker takes no more tasks. Its pod stays until the run has ended.
    release.kubectl(&["wait", "--for=jsonpath={.spec.unschedulable}=true", "workers.bloom-runtime.dev", "--all", "--timeout=300s"]);
    let ending = release.kubectl(&["get", "pod/agents-0", "--output=jsonpath={.status.phase} {.metadata.deletionTimestamp}"]);
    assert_eq!(ending, "Running ");

    release.api.go_on();
    assert_eq!(release.result("long"), "it was not killed");
    release.kubectl(&["wait", "--for=delete", "pod/agents-0", "--timeout=300s"]);
}

fn an_upgrade_changes_custom_resources_and_keeps_the_rest(release: &Release) {
    let keys = release.objects("secrets");
    let keys = keys.iter().find(|secret| secret["metadata"]["name"] == "bloom-runtime-keys").expect("the keys")["data"].clone();
    let uid = |release: &Release| release.kubectl(&["get", "pod", SERVER, "--output=jsonpath={.metadata.uid}"]);
    let before = uid(release);

    release.deploy("upgrade", &changed_chart(), &["--set=config.logLevel=debug"]);
    assert!(release.kubectl(&["get", "llmtasks"]).contains("CHANGED"), "the custom resource has its new column");
    assert_ne!(uid(release), before, "the server has its new setting");
    let after = release.objects("secrets");
    assert!(after.iter().any(|secret| secret["data"] == keys), "the keys stay");

    // What was done is still there, and work goes on.
    assert_eq!(release.result("greet"), "hello from a pool");
    release.kubectl(&["scale", "workerpool/agents", "--replicas=1"]);
    release.submit("after", "SAY: hello after the upgrade");
    assert_eq!(release.result("after"), "hello after the upgrade");
}

fn uninstalling_leaves_what_it_promises(release: &Release) {
    release.kubectl(&["delete", "workerpools,llmtasks", "--all", "--timeout=300s"]);
    release.kubectl(&["wait", "--for=delete", "workers.bloom-runtime.dev", "--all", "--timeout=300s"]);
    release.helm(&["uninstall", NAME, "--wait", "--timeout=300s"]);
    release.kubectl(&["wait", "--for=delete", "pods", "--all", "--timeout=300s"]);
    assert_eq!(release.names("persistentvolumeclaims"), ["bloom-runtime-data"]);
    assert_eq!(release.names("secrets"), ["claude"]);
    for kind in ["all", "configmaps", "serviceaccounts", "roles", "rolebindings", "leases", "workers.bloom-runtime.dev"] {
        assert_eq!(release.names(kind), [""; 0], "{kind}");
    }
    let everywhere = "clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations";
    assert_eq!(release.kubectl(&["get", everywhere, "--selector=app.kubernetes.io/instance=bloom-runtime", "--output=name"]), "");
    let kept = release.kubectl(&["get", "customresourcedefinitions", "--output=name"]);
    assert!(kept.contains("llmtasks.bloom-runtime.dev") && kept.contains("workerpools.bloom-runtime.dev"), "{kept}");
}

fn a_new_release_continues_with_the_claim(release: &Release, task: &str) {
    release.deploy("install", &chart(), &[]);
    assert_eq!(release.command(SERVER, &["task", "result", task]).trim(), "hello from a pool");
}
