//! The chart as a person would use it: a release in a namespace that enforces the restricted Pod Security level.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bloom_test_support::waiting::finish;

use crate::cluster::Cluster;
use crate::images::Image;
use crate::support::claude::Anthropic;
use crate::support::{Value, janitor};

pub const NAMESPACE: &str = "team";
/// The release, and so its objects.
pub const NAME: &str = "bloom-runtime";
/// The images of the tests; an image that is missing must not be looked for in a registry.
const IMAGES: [&str; 5] = [
    "--set=image.repository=localhost/bloom-runtime",
    "--set=image.tag=test",
    "--set=image.pullPolicy=Never",
    "--set=operator.agentImage.repository=localhost/bloom-runtime-agent",
    "--set=operator.agentImage.tag=test",
];
/// How long something may take that kubectl can't wait for.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Release {
    pub cluster: Cluster,
    /// What the agents' Claude CLI calls.
    pub api: Anthropic,
}

impl Release {
    /// A cluster with the images, an empty namespace, and the credentials of the Claude CLI in a Secret.
    pub fn prepare() -> Self {
        let cluster = Cluster::start();
        for image in [Image::server(), Image::agent()] {
            cluster.import(&image);
        }
        let api = finish(async { Anthropic::on(tokio::net::TcpListener::from_std(cluster.listen()).expect("a listener")) });
        let release = Self { cluster, api };
        release.apply(&format!(
            r#"
apiVersion: v1
kind: Namespace
metadata: {{ name: {NAMESPACE}, labels: {{ pod-security.kubernetes.io/enforce: restricted }} }}
---
apiVersion: v1
kind: Secret
metadata: {{ name: claude, namespace: {NAMESPACE} }}
stringData: {{ ANTHROPIC_API_KEY: none, ANTHROPIC_BASE_URL: "{}", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1" }}
"#,
            release.api.url
        ));
        release
    }

    pub fn helm(&self, arguments: &[&str]) -> String {
        let all = [arguments, &["--namespace", NAMESPACE]].concat();
        self.cluster.helm(&all).unwrap_or_else(|error| panic!("helm {arguments:?}: {error}"))
    }

    /// `helm install` or `helm upgrade` with the images of the tests. It returns when all pods are ready.
    pub fn deploy(&self, action: &str, chart: &Path, settings: &[&str]) {
        let chart = chart.display().to_string();
        self.helm(&[&[action, NAME, &chart, "--wait", "--timeout=300s"], &IMAGES[..], settings].concat());
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.cluster.kubectl(&[&["--namespace", NAMESPACE], arguments].concat(), "")
    }

    pub fn apply(&self, objects: &str) {
        self.cluster.kubectl(&["apply", "--filename=-"], objects).unwrap_or_else(|error| panic!("{objects}: {error}"));
    }

    /// The objects of a kind, as `kubectl get` prints them.
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.kubectl(&["get", kind, "--output=json"])).expect("a list");
        list["items"].as_array().expect("items").clone()
    }

    /// Waits until a condition holds that `kubectl wait` can't express.
    pub fn until<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs a command of the program in a pod of the server, with the key that allows everything.
    pub fn command(&self, pod: &str, words: &[&str]) -> String {
        let key = ["--key-file", "/etc/bloom-runtime/keys/api"];
        self.kubectl(&[&["exec", pod, "--container=server", "--", "/bloom-runtime"], words, &key].concat())
    }

    pub fn submit(&self, name: &str, prompt: &str) {
        self.apply(&format!(
            "{{apiVersion: bloom-runtime.dev/v1alpha1, kind: LLMTask, metadata: {{name: {name}, namespace: {NAMESPACE}}}, \
             spec: {{contextId: {name}, agentSlug: writer, prompt: '{prompt}'}}}}"
        ));
    }

    /// Waits until a task is completed, and returns the beginning of its result.
    pub fn result(&self, name: &str) -> String {
        let task = format!("llmtask/{name}");
        self.kubectl(&["wait", "--for=condition=Complete", &task, "--timeout=300s"]);
        self.kubectl(&["get", &task, "--output=jsonpath={.status.resultPreview}"])
    }

    /// A pool whose agents run the real Claude CLI.
    pub fn pool(&self, name: &str, replicas: u32) {
        self.apply(&format!(
            "{{apiVersion: bloom-runtime.dev/v1alpha1, kind: WorkerPool, metadata: {{name: {name}, namespace: {NAMESPACE}}}, \
             spec: {{replicas: {replicas}, envFrom: [{{secretRef: {{name: claude}}}}]}}}}"
        ));
        self.kubectl(&["wait", "--for=condition=Ready", &format!("workerpool/{name}"), "--timeout=300s"]);
    }

    /// The names of the objects of a kind, but for those that a namespace has by itself.
    pub fn names(&self, kind: &str) -> Vec<String> {
        let name = |object: &Value| object["metadata"]["name"].as_str().expect("a name").to_owned();
        let own = |name: &String| name != "default" && name != "kube-root-ca.crt";
        self.objects(kind).iter().map(name).filter(own).collect()
    }
}

pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/bloom-runtime")
}

/// A copy of the chart in which the custom resource of LLMTasks has one more column.
pub fn changed_chart() -> PathBuf {
    let copy = janitor::new_path("chart");
    assert!(Command::new("cp").arg("-r").arg(chart()).arg(&copy).status().expect("cp").success());
    let file = copy.join("files/crds/llmtasks.yaml");
    let text = std::fs::read_to_string(&file).expect("the custom resource");
    let columns = "additionalPrinterColumns:\n";
    let more = format!("{columns}    - {{ name: Changed, type: string, jsonPath: .metadata.name }}\n");
    std::fs::write(&file, text.replacen(columns, &more, 1)).expect("the changed custom resource");
    copy
}
