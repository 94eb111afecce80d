//! The chart on PostgreSQL, with two servers, of which the leader is killed.

use crate::images::{Image, POSTGRES};
use crate::release::{NAME, NAMESPACE, Release, chart};

/// PostgreSQL beside the release, in the same namespace, and the Secret with its URL.
fn postgresql() -> String {
    let start = "initdb --username=bloom --pwfile=/password/password --auth=scram-sha-256 --encoding=UTF8 --locale=C -D /data/cluster \
        && exec postgres -D /data/cluster -c listen_addresses=* -c unix_socket_directories=/tmp \
        -c hba_file=/password/hba.conf";
    format!(
        r#"
apiVersion: v1
kind: Secret
metadata: {{ name: postgres, namespace: {NAMESPACE} }}
stringData:
  password: a-password
  hba.conf: "host all all all scram-sha-256"
  database-url: postgres://bloom:a-password@postgres.{NAMESPACE}.svc:5432/postgres
---
apiVersion: v1
kind: Service
metadata: {{ name: postgres, namespace: {NAMESPACE} }}
spec: {{ selector: {{ app: postgres }}, ports: [{{ port: 5432 }}] }}
---
apiVersion: v1
kind: Pod
metadata: {{ name: postgres, namespace: {NAMESPACE}, labels: {{ app: postgres }} }}
spec:
  automountServiceAccountToken: false
  securityContext: {{ runAsNonRoot: true, fsGroup: 65532, seccompProfile: {{ type: RuntimeDefault }} }}
  volumes:
    - {{ name: data, emptyDir: {{}} }}
    - {{ name: temporary, emptyDir: {{}} }}
    - {{ name: password, secret: {{ secretName: postgres, defaultMode: 0440 }} }}
  containers:
    - name: postgres
      image: {POSTGRES}
      imagePullPolicy: Never
      args: ["{start}"]
      securityContext: {{ allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{ drop: [ALL] }} }}
      readinessProbe: {{ tcpSocket: {{ port: 5432 }}, periodSeconds: 1 }}
      volumeMounts:
        - {{ name: data, mountPath: /data }}
        - {{ name: temporary, mountPath: /tmp }}
        - {{ name: password, mountPath: /password }}
"#
    )
}

#[test]
fn a_release_on_postgresql() {
    let release = Release::prepare();
    release.cluster.import(&Image::postgres());
    release.apply(&postgresql());
    release.kubectl(&["wait", "--for=condition=Ready", "pod/postgres", "--timeout=300s"]);

    release.deploy("install", &chart(), &["--set=replicas=2", "--set=postgresql.existingSecret=postgres"]);
    release.helm(&["test", NAME]);
    release.pool("agents", 2);
    release.submit("greet", "SAY: hello from PostgreSQL");
    assert_eq!(release.result("greet"), "hello from PostgreSQL");

    another_replica_leads_when_the_leader_is_killed(&release);

    release.kubectl(&["delete", "workerpools,llmtasks", "--all", "--timeout=300s"]);
    release.helm(&["uninstall", NAME, "--wait", "--timeout=300s"]);
    assert_eq!(release.names("secrets"), ["claude", "postgres"]);
    assert_eq!(release.names("persistentvolumeclaims,deployments,poddisruptionbudgets"), [""; 0]);
}

fn another_replica_leads_when_the_leader_is_killed(release: &Release) {
    let leader = || release.kubectl(&["get", "lease/bloom-runtime", "--output=jsonpath={.spec.holderIdentity}"]);
    let first = leader();
    release.submit("long", "MODE-WAIT SAY: it went on");
    release.until("the run has begun", || (!release.api.seen_with("it went on").is_empty()).then_some(()));

    let pod = release.names("pods").into_iter().find(|name| first.contains(name.as_str())).expect("the leader's pod");
    release.cluster.kill(NAMESPACE, &pod);
    release.kubectl(&["delete", "pod", &pod, "--grace-period=0", "--force"]);
    let second = release.until("another replica leads", || Some(leader()).filter(|holder| !holder.is_empty() && *holder != first));
    assert!(!second.contains(&pod), "{second}");

    release.api.go_on();
    assert_eq!(release.result("long"), "it went on");
    release.submit("after", "SAY: hello after the leader");
    assert_eq!(release.result("after"), "hello after the leader");
    release.kubectl(&["rollout", "status", "deployment/bloom-runtime", "--timeout=300s"]);
}
