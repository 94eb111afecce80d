//! The parts of the description that all calls share: tags, names of parameters, headers of answers, examples, and the common error
//! answers.

use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use crate::openapi::examples;
use bloom_api::error::Code;

/// The groups of calls, in the order in which a reader needs them.
const TAGS: &[(&str, &str)] = &[
    ("tasks", "Create, list, edit, cancel, requeue and delete tasks, and read their results."),
    ("events", "Follow what runs do, and every change of tasks, leases and workers."),
    ("questions", "What runs ask a person: to allow a tool, or to answer questions with a text."),
    ("queues", "The tasks for one agent are its queue: pause and resume queues, and limit how many of their tasks run at a time."),
    ("contexts", "The conversations that tasks continue: list them, and reset one so that its next run begins a new session."),
    ("workers", "The machines that run tasks: register, list, cordon, drain and remove them."),
    ("accounts", "The accounts and profiles that are paused on workers: list them, and end the pause of an account."),
    ("worker protocol", "The calls of a program that runs tasks: claim, heartbeat, complete. A worker key allows them."),
    ("leases", "Lease single tasks to workers, renew, complete and hand back. The worker protocol does this for many tasks at once."),
    ("agents", "The agents on worker machines: push tasks to them, install them, and send them orders."),
    ("records", "Artifacts, audit trail, statistics, usage, and what the reconcilers do."),
    ("keys", "Named keys: create, list and revoke them, and exchange join tokens for the keys of workers."),
    ("config", "The settings of the control plane."),
    ("projects", "Repositories that workers clone, and the memory of projects."),
    ("membridge", "Calls that the server forwards to the membridge control plane."),
    ("probes", "Health, readiness and metrics, for monitors and orchestrators."),
];

/// Error answers that are the same everywhere: name, status, description, example text.
const SHARED: &[(&str, u16, &str, &str)] = &[
    ("Unauthorized", 401, "The key is missing or wrong.", "Unauthorized"),
    ("BodyTimeout", 408, "The body did not arrive in time.", "The request's body did not arrive in time"),
    (
        "TooLarge",
        413,
        "The body is too large.",
        "Request body is too large: at most 1048576 bytes are taken (the server's limit: MAX_BODY_BYTES)",
    ),
    ("RateLimited", 429, "Too many requests; try again after the seconds in Retry-After.", "Too many requests, please try again later"),
    ("InternalError", 500, "An internal error of the server.", "Internal error; see the server's log for this request id"),
    (
        "Unavailable",
        503,
        "Temporarily unavailable; try again after the seconds in Retry-After.",
        "The database is not reachable right now, try again",
    ),
];

/// The name of the shared answer with this status.
pub(crate) fn shared(status: u16) -> Option<&'static str> {
    SHARED.iter().find(|(_, known, ..)| *known == status).map(|(name, ..)| *name)
}

const RATE_HEADERS: [&str; 4] = ["RateLimit-RoutePolicy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];

fn headers() -> Value {
    let header =
        |description: &str, schema: Value, example: Value| json!({ "description": description, "schema": schema, "example": example });
    let number = || json!({ "type": "integer", "minimum": 0 });
    json!({
        "X-Request-Id": header(
            "The id of the request, for logs and the audit trail: the one that the client sent, if it is valid, else a new one.",
            json!({ "type": "string", "maxLength": 128 }), json!("5f1c9a0e42d7b368-1f"),
        ),
        "RateLimit-RoutePolicy": header("The limit and its window in seconds.", json!({ "type": "string" }), json!("100;w=60")),
        "RateLimit-Limit": header("Requests that the window allows. Absent if the limit is off.", number(), json!(100)),
        "RateLimit-Remaining": header("Requests that are left in the window.", number(), json!(97)),
        "RateLimit-Reset": header("Seconds until the window ends.", number(), json!(42)),
        "Retry-After": header("Seconds to wait before the next try.", number(), json!(1)),
        "Link": header(
            "The next page, if there is one.", json!({ "type": "string" }),
            json!("</api/runtime/llm-tasks?limit=20&cursor=019c936e-3800-7000-8000-000000000002>; rel=\"next\""),
        ),
    })
}

/// Adds the shared parts to the description that was made from the routes.
///
/// # Errors
/// The description can't be serialized, which is a bug.
pub(crate) fn complete(api: &OpenApi) -> Result<Value, serde_json::Error> {
    let mut api = serde_json::to_value(api)?;
    name_times(&mut api);
    api["tags"] = TAGS.iter().map(|(name, description)| json!({ "name": name, "description": description })).collect();
    let shared = SHARED.iter().map(|(name, status, description, text)| {
        let content =
            json!({ "schema": { "$ref": "#/components/schemas/Error" }, "example": { "error": text, "code": Code::of(*status) } });
        let mut answer = json!({ "description": description, "content": { "application/json": content } });
        add_headers(&mut answer, &status.to_string(), true);
        ((*name).to_owned(), answer)
    });
    let components = &mut api["components"];
    describe_nullable(&mut components["schemas"]);
    components["headers"] = headers();
    components["responses"] = shared.collect::<Map<_, _>>().into();
    for (path, item) in api["paths"].as_object_mut().into_iter().flatten() {
        for (_, call) in item.as_object_mut().into_iter().flatten().filter(|(_, call)| call.get("responses").is_some()) {
            complete_call(path, call);
        }
    }
    Ok(api)
}

/// utoipa puts the description of a nullable property into the first of its two alternatives. This moves it to the property, where readers
/// look for it.
fn describe_nullable(schemas: &mut Value) {
    for (_, schema) in schemas.as_object_mut().into_iter().flatten() {
        for (_, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            let first = property.pointer_mut("/oneOf/0").and_then(Value::as_object_mut);
            if let Some(text) = first.and_then(|first| first.remove("description")) {
                property["description"] = text;
            }
        }
    }
}

/// Renames the schema of times: utoipa names it after the type that `Ms` is an alias of.
fn name_times(value: &mut Value) {
    if let Some(schemas) = value.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.remove("i64");
        let time = json!({ "type": "integer", "format": "int64", "description": "Milliseconds since the epoch.", "example": 1_772_000_000_000_i64 });
        schemas.insert("Timestamp".into(), time);
    }
    fn rename(value: &mut Value) {
        match value {
            Value::String(text) if text == "#/components/schemas/i64" => *text = "#/components/schemas/Timestamp".into(),
            Value::Array(items) => items.iter_mut().for_each(rename),
            Value::Object(members) => members.values_mut().for_each(rename),
            _ => {}
        }
    }
    rename(value);
}

fn complete_call(path: &str, call: &mut Value) {
    let operation = call["operationId"].as_str().unwrap_or_default().to_owned();
    let parameters = call.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter(|one| one["in"] == "path") {
        describe_id(path, parameter);
    }
    for (_, content) in call.get_mut("requestBody").into_iter().flat_map(contents) {
        add_example(content, schema_example);
    }
    let is_limited = call["responses"].get("429").is_some();
    let has_pages = call.get("parameters").and_then(Value::as_array).is_some_and(|all| all.iter().any(|one| one["name"] == "limit"));
    for (status, answer) in call["responses"].as_object_mut().into_iter().flatten().filter(|(_, answer)| answer.get("$ref").is_none()) {
        add_headers(answer, status, is_limited);
        if has_pages && status == "200" {
            answer["headers"]["Link"] = json!({ "$ref": "#/components/headers/Link" });
        }
        let description = answer["description"].as_str().unwrap_or_default().trim_end_matches('.').to_owned();
        for (kind, content) in contents(answer) {
            add_example(content, |schema| match status.starts_with('2') {
                true if kind == "application/json" => examples::of_answer(&operation).or_else(|| schema_example(schema)),
                true => examples::of_text(&operation).map(Value::from),
                false if schema["$ref"] == "#/components/schemas/Error" => Some(error_example(&operation, path, status, &description)),
                false => schema_example(schema),
            });
        }
    }
}

/// The contents of a body, by media type.
fn contents(body: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    body.get_mut("content").and_then(Value::as_object_mut).into_iter().flatten()
}

fn add_example(content: &mut Value, example: impl FnOnce(&Value) -> Option<Value>) {
    if let Some(example) = example(&content["schema"]) {
        content["example"] = example;
    }
}

fn schema_example(schema: &Value) -> Option<Value> {
    if let Some(items) = schema.get("items") {
        return schema_example(items).map(|item| json!([item]));
    }
    examples::of_schema(schema["$ref"].as_str()?.strip_prefix("#/components/schemas/")?)
}

fn error_example(operation: &str, path: &str, status: &str, description: &str) -> Value {
    let text = examples::of_error(operation, path, status).unwrap_or(description);
    let code = match status.parse() {
        _ if text.starts_with("No available worker") => Code::NoCapacity,
        Ok(status) => Code::of(status),
        Err(_) => Code::NotFound,
    };
    if description.starts_with("The request is not valid JSON") {
        return json!({ "error": { "formErrors": [], "fieldErrors": { "prompt": ["Required"] } }, "code": code });
    }
    json!({ "error": text, "code": code })
}

fn describe_id(path: &str, parameter: &mut Value) {
    let (description, example) = match path.split_once('{').map_or(path, |(before, _)| before) {
        "/api/runtime/llm-tasks/" => {
            ("The id of the task, or the uid of the Kubernetes object that it was created for.", "019c936e-3800-7000-8000-000000000001")
        }
        "/api/runtime/workers/" => ("The name of the worker.", "worker-01"),
        "/api/runtime/artifacts/" => ("The id of the artifact.", "019c936e-3800-7000-8000-000000000004"),
        "/api/runtime/keys/" => ("The name of the key.", "ci"),
        "/api/runtime/accounts/" => ("The name of the account.", "team"),
        "/api/runtime/contexts/" => ("The id of the context.", "docs-review"),
        "/api/runtime/queues/" => ("The agent (slug) that the queue's tasks are for.", "writer"),
        "/api/runtime/projects/" => ("The id of the project.", "019c936e-3800-7000-8000-000000000009"),
        "/api/membridge/projects/" => ("The id of the project at the control plane.", "9f86d081884c7d65"),
        _ => return,
    };
    parameter["description"] = description.into();
    parameter["example"] = example.into();
}

fn add_headers(answer: &mut Value, status: &str, is_limited: bool) {
    let mut names = vec!["X-Request-Id"];
    if is_limited {
        names.extend(RATE_HEADERS);
    }
    if matches!(status, "429" | "503") {
        names.push("Retry-After");
    }
    let headers = names.into_iter().map(|name| (name.to_owned(), json!({ "$ref": format!("#/components/headers/{name}") })));
    answer["headers"] = headers.collect::<Map<_, _>>().into();
}
