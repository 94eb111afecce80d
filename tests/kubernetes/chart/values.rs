//! The values: the schema is closed and complete, and what can't be is refused with a text that tells what to do.

use std::collections::BTreeSet;

use bloom_config::SETTINGS;
use serde_json::Value;

use super::{chart, offline, set, sets, template, text};

/// Settings that have a value of their own, or that the chart decides.
const SET_BY_THE_CHART: [&str; 28] = [
    "port",
    "data_dir",
    "database_url",
    "runtime_api_key",
    "runtime_worker_key",
    "runtime_read_key",
    "allow_no_key",
    "membridge_admin_key",
    "membridge_agent_key",
    "with_membridge",
    "membridge_host",
    "membridge_port",
    // For the control plane without a server.
    "membridge_database_url",
    "minio_access_key",
    "minio_secret_key",
    "aws_access_key_id",
    "aws_secret_access_key",
    "operator",
    "operator_namespaces",
    "operator_agent_image",
    "operator_agent_server",
    "pod_namespace",
    "pod_name",
    "log_file",
    // The chart's servers speak plain http: TLS ends before them.
    "tls_cert_file",
    "tls_key_file",
    "tls_client_ca_file",
    // A secret of the collector, for which `extraEnv` names a Secret.
    "otel_exporter_otlp_headers",
];

fn schema() -> Value {
    serde_json::from_str(&text(&chart().join("values.schema.json"))).unwrap()
}

fn resolved<'a>(document: &'a Value, part: &'a Value) -> &'a Value {
    part["$ref"].as_str().map_or(part, |name| document.pointer(name.trim_start_matches('#')).expect("a definition"))
}

#[test]
fn every_set_of_values_is_sound() {
    for values in sets() {
        offline(&["lint", "--strict", chart().to_str().unwrap(), "--values", values.to_str().unwrap()])
            .unwrap_or_else(|error| panic!("{}: {error}", values.display()));
    }
}

/// No object may have members that the schema does not know, but for parts that the API server checks, and maps.
#[test]
fn the_schema_is_closed_and_limits_everything() {
    fn check(path: &str, part: &Value) {
        let has = |name: &str| part.get(name).is_some();
        match part["type"].as_str() {
            Some("object") => {
                let open = part["additionalProperties"] == Value::Bool(true);
                let checked_elsewhere = ["/definitions/kubernetesObject", "/properties/global"].contains(&path);
                assert!(has("additionalProperties") && open == checked_elsewhere, "{path} is open");
                assert!(part["additionalProperties"].is_boolean() || has("maxProperties"), "{path} may have any number of members");
            }
            Some("array") => assert!(has("maxItems") && has("items"), "{path} has no limit"),
            Some("string") => assert!(has("maxLength") || has("enum") || has("pattern"), "{path} has no limit"),
            Some("integer") => assert!(has("minimum") && has("maximum"), "{path} has no limit"),
            _ => {}
        }
        for members in ["properties", "definitions"] {
            for (name, member) in part[members].as_object().into_iter().flatten() {
                check(&format!("{path}/{members}/{name}"), member);
            }
        }
        for items in ["items", "additionalProperties"] {
            if let Some(part) = part.get(items) {
                check(&format!("{path}/{items}"), part);
            }
        }
        for (n, choice) in part["oneOf"].as_array().into_iter().flatten().enumerate() {
            check(&format!("{path}/oneOf/{n}"), choice);
        }
    }
    check("", &schema());
}

/// What values.yaml has, the schema knows, and the other way round.
#[test]
fn the_schema_has_the_values_of_the_chart() {
    fn compare(document: &Value, path: &str, part: &Value, value: &Value) {
        let (Some(known), Some(given)) = (resolved(document, part)["properties"].as_object(), value.as_object()) else { return };
        // The limits of probes and resources are those of Kubernetes, and settings have their defaults in the program.
        let has_more = ["/config", "/resources", "/startupProbe", "/livenessProbe", "/readinessProbe"].contains(&path);
        for name in known.keys().filter(|name| !has_more && *name != "global") {
            assert!(given.contains_key(name), "values.yaml has no {path}/{name}");
        }
        for (name, value) in given {
            compare(
                document,
                &format!("{path}/{name}"),
                known.get(name).unwrap_or_else(|| panic!("the schema has no {path}/{name}")),
                value,
            );
        }
    }
    let values: Value = serde_norway::from_str(&text(&chart().join("values.yaml"))).unwrap();
    let schema = schema();
    compare(&schema, "", &schema, &values);
}

#[test]
fn every_setting_of_the_server_can_be_set() {
    let camel = |key: &str| {
        let mut words = key.split('_');
        let first = words.next().unwrap().to_owned();
        words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
    };
    let left: BTreeSet<String> =
        SETTINGS.iter().map(|setting| setting.key).filter(|key| !SET_BY_THE_CHART.contains(key)).map(camel).collect();
    let known: BTreeSet<String> = schema()["properties"]["config"]["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(known, left, "the properties of config in values.schema.json");
}

#[test]
fn values_that_can_not_be_are_refused_with_a_reason() {
    for (given, reasons) in [
        (&["replicaCount=2"][..], &["additional properties 'replicaCount' not allowed"][..]),
        (&["config.leaseTtl=5"], &["at '/config'", "additional properties 'leaseTtl' not allowed"]),
        (&["config.leaseTtlSeconds=0"], &["at '/config/leaseTtlSeconds'", "minimum: got 0, want 1"]),
        (&["config.logFormat=xml"], &["at '/config/logFormat'", "'text', 'json'"]),
        (&["operator.enabled=maybe"], &["at '/operator/enabled'", "got string, want boolean"]),
        (&["operator.namespaces={Team}"], &["at '/operator/namespaces/0'"]),
        (&["persistence.size=big"], &["at '/persistence/size'"]),
        (&["keys.secretKeys.api="], &["at '/keys/secretKeys/api'", "minLength"]),
        (&["postgresql.secretKey="], &["at '/postgresql/secretKey'", "minLength"]),
        (&["image.digest=latest"], &["at '/image/digest'"]),
        (&["httpRoute.timeouts.request=1 hour"], &["at '/httpRoute/timeouts/request'"]),
        (&["replicas=2"], &["replicas is 2, but an SQLite file belongs to one server", "set postgresql.existingSecret"]),
        (&["serviceMonitor.enabled=true", "keys.secretKeys.read="], &["Prometheus needs the read key", "set keys.secretKeys.read"]),
        (&["config.backupDir=/backup", "postgresql.existingSecret=url"], &["config.backupDir is for SQLite", "leave it out"]),
        (&["membridge.enabled=true"], &["membridge.enabled is true, but there is no key", "set membridge.existingSecret"]),
        (
            &["membridge.enabled=true", "membridge.existingSecret=keys", "config.membridgeServerUrl=http://h"],
            &["leave out config.membridgeServerUrl"],
        ),
        (&["ingress.enabled=true"], &["ingress.hosts is empty"]),
        (&["httpRoute.enabled=true"], &["httpRoute.parentRefs is empty"]),
        (&["serviceAccount.create=false"], &["serviceAccount.name is empty"]),
    ] {
        let more: Vec<&str> = given.iter().flat_map(|value| ["--set", value]).collect();
        let told = template("here", &set("default"), &more).expect_err(&given.join(" "));
        for reason in reasons {
            assert!(told.contains(reason), "{given:?} without {reason:?}: {told}");
        }
    }
}
