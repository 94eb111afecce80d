//! The OpenAPI document is complete and consistent.

use std::collections::BTreeSet;

use crate::on_both;
use crate::support::*;

/// Every documented call, by method and path.
const CALLS: &[&str] = &[
    "get /api/runtime/config",
    "post /api/runtime/config",
    "post /api/runtime/test-connection",
    "get /api/runtime/workers",
    "post /api/runtime/workers",
    "get /api/runtime/workers/{id}",
    "delete /api/runtime/workers/{id}",
    "post /api/runtime/workers/{id}/claim",
    "post /api/runtime/workers/{id}/heartbeat",
    "post /api/runtime/workers/{id}/complete",
    "post /api/runtime/workers/{id}/contexts",
    "post /api/runtime/workers/{id}/events",
    "post /api/runtime/workers/{id}/cordon",
    "post /api/runtime/workers/{id}/uncordon",
    "post /api/runtime/workers/{id}/drain",
    "get /api/runtime/workers/{id}/agent-health",
    "post /api/runtime/workers/{id}/agent-update",
    "post /api/runtime/workers/{id}/agent-restart",
    "post /api/runtime/workers/{id}/agent-uninstall",
    "get /api/runtime/contexts",
    "get /api/runtime/contexts/{context_id}",
    "post /api/runtime/contexts/{context_id}/reset",
    "get /api/runtime/accounts",
    "post /api/runtime/accounts/{name}/resume",
    "get /api/runtime/queues",
    "post /api/runtime/queues/{agent_slug}/pause",
    "post /api/runtime/queues/{agent_slug}/resume",
    "post /api/runtime/queues/{agent_slug}/limit",
    "post /api/runtime/queues:pause",
    "post /api/runtime/queues:resume",
    "get /api/runtime/agent-install-script",
    "get /api/runtime/llm-tasks",
    "post /api/runtime/llm-tasks",
    "get /api/runtime/llm-tasks/{id}",
    "patch /api/runtime/llm-tasks/{id}",
    "delete /api/runtime/llm-tasks/{id}",
    "post /api/runtime/llm-tasks/{id}/lease",
    "post /api/runtime/llm-tasks/{id}/dispatch",
    "post /api/runtime/llm-tasks/{id}/heartbeat",
    "post /api/runtime/llm-tasks/{id}/complete",
    "post /api/runtime/llm-tasks/{id}/requeue",
    "post /api/runtime/llm-tasks/{id}/cancel",
    "post /api/runtime/llm-tasks/{id}/suspend",
    "post /api/runtime/llm-tasks/{id}/resume",
    "post /api/runtime/llm-tasks/{id}/release",
    "get /api/runtime/llm-tasks/{id}/question",
    "post /api/runtime/llm-tasks/{id}/question",
    "post /api/runtime/llm-tasks/{id}/answer",
    "get /api/runtime/llm-tasks/{id}/result",
    "get /api/runtime/llm-tasks/{id}/wait",
    "get /api/runtime/llm-tasks/{id}/events",
    "post /api/runtime/llm-tasks/{id}/events",
    "post /api/runtime/llm-tasks:batch",
    "post /api/runtime/llm-tasks:cancel",
    "post /api/runtime/llm-tasks:requeue",
    "get /api/runtime/leases",
    "get /api/runtime/runs",
    "get /api/runtime/artifacts",
    "get /api/runtime/artifacts/{id}/content",
    "post /api/runtime/artifacts",
    "delete /api/runtime/artifacts/{id}",
    "get /api/runtime/audit",
    "get /api/runtime/stats",
    "get /api/runtime/health",
    "get /api/runtime/usage",
    "get /api/runtime/watch",
    "get /api/runtime/reconcilers",
    "get /api/runtime/keys",
    "post /api/runtime/keys",
    "delete /api/runtime/keys/{id}",
    "post /api/runtime/keys/{id}/rotate",
    "post /api/runtime/keys/{id}/quota",
    "delete /api/runtime/keys/{id}/quota",
    "post /api/runtime/enroll",
    "get /api/runtime/whoami",
    "get /api/membridge/health",
    "get /api/runtime/projects",
    "post /api/runtime/projects",
    "get /api/runtime/projects/{id}",
    "patch /api/runtime/projects/{id}",
    "delete /api/runtime/projects/{id}",
    "post /api/runtime/projects/{id}/clone",
    "post /api/runtime/projects/{id}/propagate",
    "post /api/runtime/projects/{id}/sync-memory",
    "get /api/runtime/projects/{id}/node-status",
    "get /api/membridge/projects",
    "get /api/membridge/projects/{cid}/leadership",
    "get /api/membridge/projects/{cid}/nodes",
    "get /api/membridge/jobs",
    "post /api/membridge/projects/{cid}/leadership/select",
    "get /health",
    "get /metrics",
    "get /healthz",
    "get /readyz",
];

fn calls(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    paths
        .iter()
        .flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |(method, call)| (format!("{method} {path}"), call)))
        .filter(|(_, call)| call.get("responses").is_some())
        .collect()
}

/// The call without the names of its path's parameters, which the contract leaves open.
fn unnamed(call: &str) -> String {
    let parts = call.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Collects every `$ref`.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                found.insert(target);
            }
            map.values().for_each(|inner| references(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

/// Collects properties without a description, and objects that are neither a list of properties nor a map of typed values.
fn check_schema(place: &str, schema: &Value, wrong: &mut Vec<String>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let place = format!("{place}.{name}");
        if property["description"].as_str().is_none_or(str::is_empty) {
            wrong.push(format!("{place} has no description"));
        }
        check_schema(&place, property, wrong);
    }
    // `false`: a body that is refused if it has other fields.
    if let Some(values) = schema.get("additionalProperties").filter(|values| **values != json!(false)) {
        if properties.is_some()
            || !(values["type"].is_string() || values["type"].is_array() || values["$ref"].is_string() || values["items"].is_object())
        {
            wrong.push(format!("{place} has additionalProperties that are not values of one type: {values}"));
        }
    } else if schema["type"] == "object" && properties.is_none() && !FREE_FORM.contains(&place) {
        wrong.push(format!("{place} is an object of which nothing is known"));
    }
    for alternatives in ["oneOf", "anyOf", "allOf"] {
        for part in schema.get(alternatives).and_then(Value::as_array).into_iter().flatten() {
            check_schema(place, part, wrong);
        }
    }
    if let Some(items) = schema.get("items") {
        check_schema(place, items, wrong);
    }
}

/// Objects of other programs, which are passed on as they are.
const FREE_FORM: &[&str] = &["ConnectionTest.health", "Cloned.result", "MemorySynced.result"];

on_both! {
    async fn every_call_is_described(server) {
        let document = server.get("/openapi.json").await.ok();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let described = calls(&document).into_iter().map(|(call, _)| unnamed(&call)).collect::<BTreeSet<_>>();
        let wanted = CALLS.iter().map(|call| unnamed(call)).collect::<BTreeSet<_>>();
        let missing = wanted.difference(&described).collect::<Vec<_>>();
        assert!(missing.is_empty(), "{missing:?}");
        let more = described.difference(&wanted).filter(|call| call.contains("/api/")).collect::<Vec<_>>();
        assert!(more.is_empty(), "not in the contract: {more:?}");
    }

    async fn every_reference_leads_somewhere(server) {
        let document = server.get("/openapi.json").await.ok();
        let mut targets = BTreeSet::new();
        references(&document, &mut targets);
        assert!(!targets.is_empty());
        for target in targets {
            assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
        }
    }

    async fn every_call_says_what_it_may_answer(server) {
        let document = server.get("/openapi.json").await.ok();
        let mut names = BTreeSet::new();
        for (what, call) in calls(&document) {
            let name = call["operationId"].as_str().unwrap_or_else(|| panic!("{what} has no operationId"));
            assert!(names.insert(name), "{name} is used twice");
            let answers = call["responses"].as_object().unwrap();
            assert!(answers.keys().any(|status| status.starts_with('2')), "{what}");
            if what.contains("/api/") {
                assert!(answers.contains_key("429"), "{what} can answer 429");
            }
            // Completions of `workers/{id}/complete` are checked one by one, so an unknown worker is no 404.
            if what.contains('{') && what.contains("/api/runtime/") && !what.ends_with("workers/{id}/complete") {
                assert!(answers.contains_key("404"), "{what} can answer 404");
            }
            for (status, answer) in answers {
                assert!(answer["description"].as_str().is_some_and(|text| !text.is_empty()) || answer.get("$ref").is_some(), "{what} {status}");
            }
        }
    }

    async fn every_call_is_told_in_words_and_by_examples(server) {
        let document = server.get("/openapi.json").await.ok();
        let tags = document["tags"].as_array().expect("tags").iter().map(|tag| &tag["name"]).collect::<Vec<_>>();
        assert_eq!(tags.first(), Some(&&json!("tasks")), "what most people check_schema for comes first");
        let mut missing = Vec::new();
        for (what, call) in calls(&document) {
            let mut need = |holds: bool, part: String, place: &str| {
                if !holds {
                    missing.push(format!("{what}: {part}: {place}"));
                }
            };
            for part in ["summary", "description"] {
                let place = "the handler's comment: one line, an empty line, and the rest";
                need(call[part].as_str().is_some_and(|text| !text.is_empty()), part.into(), place);
            }
            let known = call["tags"].as_array().is_some_and(|all| all.len() == 1 && tags.contains(&&all[0]));
            need(known, format!("the tag {}", call["tags"]), "TAGS in src/http/openapi/common.rs");
            for parameter in call.get("parameters").and_then(Value::as_array).into_iter().flatten() {
                let is_documented = parameter["description"].is_string() && parameter.get("example").is_some();
                let place = "describe_id in src/http/openapi/common.rs, or the list of parameters";
                need(is_documented, format!("description and example of the parameter {}", parameter["name"]), place);
            }
            let body = call.get("requestBody").and_then(|body| body["content"].as_object());
            for (kind, content) in body.into_iter().flatten() {
                let place = format!("of_schema in src/http/openapi/examples.rs, for {}", content["schema"]);
                need(content.get("example").is_some(), format!("an example of the body as {kind}"), &place);
            }
            for (status, answer) in call["responses"].as_object().unwrap() {
                let named = answer["$ref"].as_str().map(|name| document.pointer(name.trim_start_matches('#')).expect(name));
                let answer = named.unwrap_or(answer);
                need(answer["headers"].get("X-Request-Id").is_some(), format!("the header X-Request-Id of {status}"), "src/http/openapi/common.rs");
                for (kind, content) in answer["content"].as_object().unwrap() {
                    let place = format!("src/http/openapi/examples.rs, for {}", content["schema"]);
                    need(content.get("example").is_some(), format!("an example of the answer {status} as {kind}"), &place);
                    let schema = content["schema"]["$ref"].as_str().unwrap_or_default();
                    let is_error = ["Error", "NotDispatched"].iter().any(|name| schema.ends_with(&format!("/{name}")));
                    need(status.starts_with('2') || is_error, format!("the error shape in {status}"), "body = ErrorText");
                }
            }
        }
        assert!(missing.is_empty(), "{} parts are missing:\n{}", missing.len(), missing.join("\n"));
    }

    async fn every_property_is_described(server) {
        let document = server.get("/openapi.json").await.ok();
        let mut wrong = Vec::new();
        for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
            check_schema(name, schema, &mut wrong);
            if !schema["description"].is_string() {
                wrong.push(format!("{name} has no description"));
            }
        }
        assert!(wrong.is_empty(), "add comments to these types and fields in src/api:\n{}", wrong.join("\n"));
    }

    async fn words_are_described_as_they_are_sent(server) {
        let document = server.get("/openapi.json").await.ok();
        let schemas = &document["components"]["schemas"];
        assert_eq!(schemas["Status"]["enum"], json!(["queued", "leased", "running", "completed", "failed", "dead", "cancelled"]));
        assert!(schemas["Status"]["description"].is_string());
        assert_eq!(schemas["EntityType"]["enum"], json!(["llm_task", "lease", "worker", "queue", "config", "project", "key", "context"]));
        let waits_for = server.crew().task().create().await.waits_for().await;
        let words = schemas["WaitingReason"]["enum"].as_array().expect("an enum");
        assert!(words.contains(&json!(waits_for)), "{waits_for} is none of {words:?}");
    }

    async fn the_command_prints_what_the_server_serves(server) {
        let output = std::process::Command::new(server::BINARY).env_clear().arg("openapi").output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed, server.get("/openapi.json").await.ok());
    }
}
