//! The custom resources as the API server takes them.

use std::fs;
use std::path::Path;

use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::cluster::shared;
use crate::objects::object;
use crate::support::{eventually, janitor, run, unique};
use bloom_operator::crds::{self, LLMTask};

#[test]
fn the_manifests_are_those_of_the_program() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let mut files: Vec<String> = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let manifests = crds::manifests().unwrap();
    let mut names: Vec<String> = manifests.iter().map(|(name, _)| name.clone()).collect();
    files.sort();
    names.sort();
    assert_eq!(files, names);
    for (name, manifest) in manifests {
        let kept = fs::read_to_string(dir.join(&name)).unwrap();
        assert!(kept == manifest, "{name} is not as the types are: run bloom-runtime crds --dir crds");
        // `kubectl apply` keeps the whole manifest in an annotation, which may have 256 KiB.
        assert!(manifest.len() < 200_000 && !manifest.contains("uint"), "{name}");
    }
    let out = janitor::new_path("crds");
    let mut command = std::process::Command::new(crate::support::server::BINARY);
    assert!(command.args(["crds", "--dir"]).arg(&out).status().unwrap().success());
    assert_eq!(fs::read_dir(out).unwrap().count(), files.len());
}

#[test]
fn every_field_is_documented() {
    fn check(path: &str, schema: &Value) {
        assert!(schema["description"].as_str().is_some_and(|text| !text.is_empty()), "{path} has no description");
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), field);
        }
        for (name, field) in schema["items"]["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}[].{name}"), field);
        }
    }
    for crd in crds::all().unwrap() {
        let crd = serde_json::to_value(crd).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["description"].is_string());
        let fields = schema["properties"].as_object().unwrap();
        assert!(fields.contains_key("spec"));
        fields.iter().for_each(|(name, field)| check(name, field));
    }
}

#[test]
fn kubectl_explains() {
    run(async {
        let team = shared().await.namespace().await;
        // The API server publishes its description a moment after the resource.
        let explained = || async { team.kubectl(&["explain", "lt.spec.contextId"], "").ok() };
        let text = eventually("the resource is described", explained).await;
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains("tasks with the same context continue it one after the other"), "{text}");
        assert!(team.kubectl(&["get", "bloom"], "").is_ok(), "a category");
        assert!(team.kubectl(&["get", "lt", "--field-selector", "spec.agentSlug=a,status.phase=Queued"], "").is_ok());
    });
}

#[test]
fn what_the_api_refuses_is_refused_with_its_words() {
    run(async {
        let team = shared().await.namespace().await;
        let api: Api<LLMTask> = team.api();
        let refused = async |fields: Value| {
            let object: LLMTask = serde_json::from_value(object(&unique("bad"), "a", fields)).unwrap();
            api.create(&PostParams::default(), &object).await.unwrap_err().to_string()
        };
        let long = "x".repeat(256);
        for (fields, text) in [
            (json!({ "contextId": "" }), "String must contain at least 1 character(s)"),
            (json!({ "contextId": long }), "String must contain at most 255 character(s)"),
            (json!({ "agentSlug": long }), "String must contain at most 128 character(s)"),
            (json!({ "priority": 10 }), "Number must be less than or equal to 9"),
            (json!({ "maxAttempts": 0 }), "Number must be greater than or equal to 1"),
            (json!({ "policy": { "timeoutSec": 604_801 } }), "Number must be less than or equal to 604800"),
            (json!({ "policy": { "budget": -0.5 } }), "Number must be greater than or equal to 0"),
            (json!({ "desiredFormat": "xml" }), "Invalid enum value. Expected 'json' | 'text', received 'xml'"),
            (json!({ "session": "no" }), "Invalid enum value. Expected 'context' | 'none', received 'no'"),
            (json!({ "labels": { "a": long } }), "String must contain at most 255 character(s)"),
            (json!({ "labels": { ("n".repeat(64)): "v" } }), "The name of a label: String must contain at most 63 character(s)"),
            (json!({ "prompt": "nul \0" }), "String must not contain NUL characters"),
            (json!({ "prompt": "x".repeat(131_073) }), "put a longer prompt into a ConfigMap"),
            (json!({ "ttlSecondsAfterFinished": -1 }), "Number must be greater than or equal to 0"),
            (
                json!({ "prompt": "p", "promptFrom": { "secretKeyRef": { "name": "n", "key": "k" } } }),
                "Exactly one of prompt and promptFrom",
            ),
            (json!({ "promptFrom": {} }), "Exactly one of configMapKeyRef and secretKeyRef"),
            (
                json!({ "promptFrom": { "configMapKeyRef": { "name": "../secrets/a", "key": "k" } } }),
                "spec.promptFrom.configMapKeyRef.name",
            ),
            (json!({ "dependsOn": vec!["same"; 2] }), "Duplicate value"),
            (json!({ "dependsOn": ["other/task"] }), "spec.dependsOn[0]"),
            (json!({ "dependsOn": (0..101).map(|n| format!("t{n}")).collect::<Vec<_>>() }), "Array must contain at most 100 element(s)"),
        ] {
            let told = refused(fields.clone()).await;
            assert!(told.contains(text), "{fields}: {told}");
        }
        let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("k{n}"), "v".into())).collect();
        let told = refused(json!({ "labels": many })).await;
        assert!(told.contains("Object must contain at most 32 label(s)"), "{told}");
    });
}

#[test]
fn defaults_are_those_of_the_api_besides_the_time_limit() {
    run(async {
        let team = shared().await.namespace().await;
        let name = team.create("nobody", json!({ "session": null, "policy": {} })).await;
        let spec = serde_json::to_value(team.get(&name).await.spec).unwrap();
        assert_eq!((&spec["priority"], &spec["maxAttempts"], &spec["desiredFormat"]), (&json!(5), &json!(3), &json!("text")));
        assert_eq!((&spec["session"], &spec["policy"]["timeoutSec"]), (&json!("context"), &Value::Null), "the profile may say it");
    });
}

#[test]
fn only_some_fields_can_be_edited() {
    run(async {
        let team = shared().await.namespace().await;
        let name = team.create("nobody", json!({ "exclusiveKey": "k", "labels": { "a": "b" } })).await;
        for spec in [
            json!({ "prompt": "other" }),
            json!({ "contextId": "other" }),
            json!({ "agentSlug": "other" }),
            json!({ "exclusiveKey": null }),
            json!({ "model": "other" }),
            json!({ "labels": { "a": "c" } }),
            json!({ "policy": { "budget": 2.0 } }),
            json!({ "maxAttempts": 9 }),
        ] {
            let told = team.patch(&name, spec.clone()).await.unwrap_err().to_string();
            assert!(told.contains("Field is immutable"), "{spec}: {told}");
        }
        team.patch(&name, json!({ "cancel": true, "suspend": true, "priority": 1, "ttlSecondsAfterFinished": 60 })).await.unwrap();
    });
}
