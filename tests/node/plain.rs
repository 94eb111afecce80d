//! The images alone, without the chart: a server and an agent as plain pods under the restricted Pod Security level.

use crate::cluster::Cluster;
use crate::images::{AGENT, Image, SERVER};
use crate::support::claude::Anthropic;
use bloom_test_support::waiting::finish;

const NAMESPACE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: { name: plain, labels: { pod-security.kubernetes.io/enforce: restricted } }
---
apiVersion: v1
kind: Secret
metadata: { name: keys, namespace: plain }
stringData: { api: an-administrators-key, worker: a-key-of-workers }
"#;

/// What the restricted level asks for, and a root that can't be written to.
const RESTRICTED: &str = "{ allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, \
    capabilities: { drop: [ALL] }, seccompProfile: { type: RuntimeDefault } }";

fn server() -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{ name: server, namespace: plain, labels: {{ app: server }} }}
spec:
  automountServiceAccountToken: false
  securityContext: {{ fsGroup: 65532 }}
  volumes: [{{ name: data, emptyDir: {{}} }}, {{ name: keys, secret: {{ secretName: keys }} }}]
  containers:
    - name: server
      image: {SERVER}
      securityContext: {RESTRICTED}
      env:
        - {{ name: RUNTIME_API_KEY_FILE, value: /keys/api }}
        - {{ name: RUNTIME_WORKER_KEY_FILE, value: /keys/worker }}
        - {{ name: BLOOM_KEY_FILE, value: /keys/api }}
      volumeMounts: [{{ name: data, mountPath: /var/lib/bloom-runtime }}, {{ name: keys, mountPath: /keys }}]
      readinessProbe: {{ httpGet: {{ path: /readyz, port: 5000 }}, periodSeconds: 1 }}
---
apiVersion: v1
kind: Service
metadata: {{ name: server, namespace: plain }}
spec: {{ selector: {{ app: server }}, ports: [{{ name: http, port: 5000 }}] }}
"#
    )
}

fn agent(api: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: ConfigMap
metadata: {{ name: profiles, namespace: plain }}
data:
  profiles.toml: |
    [profiles.default]
    [profiles.script]
    runner = "command"
    command = ["sh"]
---
apiVersion: v1
kind: Pod
metadata: {{ name: agent, namespace: plain }}
spec:
  automountServiceAccountToken: false
  securityContext: {{ fsGroup: 65532 }}
  volumes:
    - {{ name: work, emptyDir: {{}} }}
    - {{ name: temporary, emptyDir: {{}} }}
    - {{ name: keys, secret: {{ secretName: keys }} }}
    - {{ name: profiles, configMap: {{ name: profiles }} }}
  containers:
    - name: agent
      image: {AGENT}
      securityContext: {RESTRICTED}
      env:
        - {{ name: BLOOM_SERVER, value: "http://server.plain.svc.cluster.local:5000" }}
        - {{ name: BLOOM_AGENT_NAME, value: agent }}
        - {{ name: BLOOM_KEY_FILE, value: /keys/worker }}
        - {{ name: BLOOM_PROFILES, value: /profiles/profiles.toml }}
        - {{ name: ANTHROPIC_BASE_URL, value: "{api}" }}
        - {{ name: ANTHROPIC_API_KEY, value: none }}
        - {{ name: CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC, value: "1" }}
      volumeMounts:
        - {{ name: work, mountPath: /var/lib/bloom-agent }}
        - {{ name: temporary, mountPath: /tmp }}
        - {{ name: keys, mountPath: /keys }}
        - {{ name: profiles, mountPath: /profiles }}
"#
    )
}

#[test]
fn both_images_run_as_restricted_pods() {
    let cluster = Cluster::start();
    cluster.import(&Image::server());
    cluster.import(&Image::agent());
    let api = finish(async { Anthropic::on(tokio::net::TcpListener::from_std(cluster.listen()).expect("a listener")) });
    let kubectl =
        |arguments: &[&str], input: &str| cluster.kubectl(arguments, input).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));

    kubectl(&["apply", "--filename=-"], NAMESPACE);
    kubectl(&["apply", "--filename=-"], &server());
    kubectl(&["apply", "--filename=-"], &agent(&api.url));
    kubectl(&["wait", "--namespace=plain", "--for=condition=Ready", "pod/server", "pod/agent", "--timeout=300s"], "");

    let submit = |words: &[&str]| {
        let command = [&["exec", "--namespace=plain", "server", "--", "/bloom-runtime", "task", "submit", "--wait"], words].concat();
        kubectl(&command, "")
    };
    // The CLI runs in the agent's image: it reached the stub, and its answer came back.
    assert_eq!(submit(&["SAY: hello from a pod"]).trim(), "hello from a pod");

    // What the CLI and its tools need is there, and the runs' user has a name.
    let tools = submit(&["--agent=script", "git --version && rg --version && ssh -V 2>&1 && id -un"]);
    for word in ["git version", "ripgrep", "OpenSSH", "bloom"] {
        assert!(tools.contains(word), "{tools}");
    }

    // A process that loses its parent is reaped when it ends.
    let orphan = submit(&["--agent=script", "sh -c 'setsid sleep 0.1 >/dev/null 2>&1 & echo $!'"]);
    let state = format!("while [ -e /proc/{} ]; do sleep 0.1; done; cat /proc/1/comm", orphan.trim());
    assert_eq!(kubectl(&["exec", "--namespace=plain", "agent", "--", "timeout", "30", "sh", "-c", &state], "").trim(), "tini");

    // The agent is told to end, and does so before it would be killed.
    kubectl(&["delete", "--namespace=plain", "pod", "agent", "--grace-period=60", "--timeout=30s"], "");
}
