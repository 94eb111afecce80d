//! A release: installed, upgraded, uninstalled and installed again. No pods run here.

use std::fs;
use std::path::Path;

use super::{chart, helm, text};
use crate::cluster::{Cluster, Tenant};
use crate::support::{janitor, run, unique};

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
        cluster.is_ready().await;
        let release = Release { tenant: cluster.namespace().await };
        let (own, other) = (release.tenant.name.clone(), unique("other"));
        release.tenant.kubectl(&["create", "namespace", &other], "").unwrap();
        let notes = release.helm(&["install", "bloom", chart().to_str().unwrap()]);
        assert!(notes.contains(&format!("rollout status statefulset/{NAME}")) && notes.contains("kind: WorkerPool"), "{notes}");
        release.get(&["llmtasks,taskleases,workers"]);

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
        let kinds =
            "statefulsets,services,secrets,persistentvolumeclaims,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,pods";
        let left = release.get(&[kinds, "-l", label, "-o", "name"]);
        assert_eq!(left.trim(), format!("persistentvolumeclaim/{NAME}-data"));
        release.helm(&["install", "bloom", chart().to_str().unwrap()]);
        let names = release.get(&["crd", "taskleases.bloom-runtime.dev", "-o", "jsonpath={.spec.names.shortNames}"]);
        assert_eq!(names, "");
        cluster.end();
    });
}
