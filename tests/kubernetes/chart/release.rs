//! A release: installed, upgraded, uninstalled and installed again. No pods run here.

use std::fs;
use std::path::Path;

use super::{chart, helm, text, yaml};
use crate::cluster::{Cluster, Tenant};
use crate::support::{Database, eventually, janitor, run, unique};

const NAME: &str = "bloom-bloom-runtime";

struct Release {
    tenant: Tenant,
}

impl Release {
    fn helm(&self, arguments: &[&str]) -> String {
        self.tenant
            .call(helm().args(arguments).args(["--namespace", &self.tenant.name]), "")
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    fn upgrade(&self, chart: &Path, more: &[&str]) {
        self.helm(&[&["upgrade", "bloom", chart.to_str().unwrap()], more].concat());
    }

    fn get(&self, what: &[&str]) -> String {
        self.tenant.kubectl(&[&["get"], what].concat(), "").unwrap_or_else(|error| panic!("{what:?}: {error}"))
    }

    fn keys(&self) -> String {
        self.get(&["secret", &format!("{NAME}-keys"), "-o", "jsonpath={.data}"])
    }

    /// Whether the service account of the release may do this.
    fn may(&self, verb: &str, resource: &str, namespace: &str) -> bool {
        let account = format!("--as=system:serviceaccount:{}:{NAME}", self.tenant.name);
        self.tenant.kubectl(&["auth", "can-i", verb, resource, "--namespace", namespace, &account], "").is_ok()
    }
}

impl Release {
    /// The objects of the notes are such that the definitions of the chart allow.
    fn takes_what_the_notes_say(&self, notes: &str) {
        let block = notes.split("<<'YAML'\n").nth(1).and_then(|rest| rest.split("   YAML\n").next()).expect("objects");
        let objects = yaml(&block.lines().map(|line| format!("{}\n", line.get(3..).unwrap_or_default())).collect::<String>());
        let known: Vec<String> = bloom_operator::crds::all().unwrap().into_iter().map(|crd| crd.spec.names.kind).collect();
        let defined: Vec<_> = objects.iter().filter(|object| known.iter().any(|kind| object["kind"] == **kind)).collect();
        assert!(defined.iter().any(|object| object["kind"] == "LLMTask"), "{notes}");
        for object in defined {
            self.tenant.kubectl(&["apply", "--dry-run=server", "--validate=strict", "--filename", "-"], &object.to_string()).unwrap();
        }
    }
}

/// A chart with a later version of a definition.
fn changed_chart() -> std::path::PathBuf {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for file in fs::read_dir(from).unwrap().map(|file| file.unwrap()) {
            let to = to.join(file.file_name());
            if file.path().is_dir() {
                copy(&file.path(), &to);
            } else {
                fs::copy(file.path(), to).unwrap();
            }
        }
    }
    let changed = janitor::new_path("chart");
    copy(&chart(), &changed);
    let crd = changed.join("files/crds/taskleases.yaml");
    let later = text(&crd).replacen(
        "    plural: taskleases
",
        "    plural: taskleases
    shortNames: [later]
",
        1,
    );
    fs::write(crd, later).unwrap();
    changed
}

#[test]
fn a_release_lives_and_leaves_what_it_promises() {
    run(async {
        let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start()));
        cluster.install_roles().await;
        let release = Release { tenant: cluster.namespace().await };
        let (own, other) = (release.tenant.name.clone(), unique("other"));
        release.tenant.kubectl(&["create", "namespace", &other], "").unwrap();
        let notes = release.helm(&["install", "bloom", chart().to_str().unwrap()]);
        assert!(notes.contains(&format!("rollout status statefulset/{NAME}")) && notes.contains("kind: WorkerPool"), "{notes}");
        release.get(&["llmtasks,taskleases,workers"]);
        release.takes_what_the_notes_say(&notes);

        // The Lease of the release is that of the operators, and an upgrade leaves its holder in peace.
        let server = release.tenant.server(Database::Sqlite).start();
        let state = async || server.get("/readyz").await.expect(200).json()["kubernetes"].as_str().unwrap_or_default().to_owned();
        eventually("the operator leads", || async { (state().await == "leading").then_some(()) }).await;
        release.upgrade(&chart(), &["--set", "commonLabels.a=b"]);
        assert_eq!(release.get(&["leases", "-l", "a=b", "-o", "jsonpath={.items[*].spec.holderIdentity}"]), "operator-0");
        drop(server);

        // Keys are random, and stay.
        let keys = release.keys();
        assert_eq!(keys.matches("-key\":\"").count(), 3, "{keys}");
        release.upgrade(&chart(), &["--set", "config.taskRetentionDays=7"]);
        assert_eq!(release.keys(), keys);
        release.upgrade(&chart(), &["--set", "keys.secretKeys.worker="]);
        let left = release.keys();
        assert!(!left.contains("worker-key") && left.matches("-key\":\"").count() == 2, "{left}");

        // The operator's rights.
        assert!(release.may("create", "leases.coordination.k8s.io", &own) && !release.may("create", "leases.coordination.k8s.io", &other));
        assert!(release.may("patch", "llmtasks.bloom-runtime.dev", &other) && !release.may("list", "nodes", &other));
        release.upgrade(&chart(), &["--set", &format!("operator.namespaces={{{own}}}")]);
        assert!(release.may("patch", "llmtasks.bloom-runtime.dev", &own) && !release.may("patch", "llmtasks.bloom-runtime.dev", &other));

        // Definitions are upgraded with the chart.
        release.upgrade(&changed_chart(), &[]);
        let names = release.get(&["crd", "taskleases.bloom-runtime.dev", "-o", "jsonpath={.spec.names.shortNames}"]);
        assert_eq!(names, "[\"later\"]");

        // The definitions with their objects, and the data.
        release.helm(&["uninstall", "bloom"]);
        release.get(&["crd", "llmtasks.bloom-runtime.dev", "taskleases.bloom-runtime.dev", "workers.bloom-runtime.dev"]);
        let label = "app.kubernetes.io/instance=bloom";
        let kinds = "statefulsets,services,secrets,leases,persistentvolumeclaims,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,pods";
        // Its protection holds a claim that is being deleted, because the controller that lifts it does not run here.
        let left = release.get(&[kinds, "-l", label, "-o", "jsonpath={range .items[*]}{.metadata.name}{.metadata.deletionTimestamp}{end}"]);
        assert_eq!(left, format!("{NAME}-data"));
        release.helm(&["install", "bloom", chart().to_str().unwrap()]);
        let names = release.get(&["crd", "taskleases.bloom-runtime.dev", "-o", "jsonpath={.spec.names.shortNames}"]);
        assert_eq!(names, "");

        // A release of another name takes the definitions over, if it is told to.
        release.helm(&["uninstall", "bloom"]);
        let arguments = ["install", "other", chart().to_str().unwrap(), "--namespace", &own].map(str::to_owned);
        let refused = release.tenant.call(helm().args(&arguments), "").unwrap_err();
        assert!(refused.contains("llmtasks.bloom-runtime.dev") && refused.contains("ownership"), "{refused}");
        release.tenant.call(helm().args(&arguments).arg("--take-ownership"), "").unwrap();
        cluster.end();
    });
}
