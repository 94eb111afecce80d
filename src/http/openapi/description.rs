//! The OpenAPI description, made from the routes.

use axum::Router;
use axum::http::Method;
use axum::routing::MethodRouter;
use serde_json::Value;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::path::{Operation, Parameter, PathItem};
use utoipa::openapi::schema::{Components, Ref};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Info, OpenApi, OpenApiBuilder, RefOr, Required, ResponseBuilder, Schema, Server};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use crate::AppState;
use crate::identity::policy::{Rate, RoutePolicies, RoutePolicy};
use crate::openapi::common;
use crate::routes::files::{artifacts, download, upload};
use crate::routes::live::{run_events, wait_for_task, watch};
use crate::routes::tasks::{bulk, create, dispatch, edit, lifecycle, questions, read};
use crate::routes::workers::{accounts, agents, install, protocol, registry};
use crate::routes::{audit, config, contexts, keys, leases, membridge, probes, projects, queues, reconcilers, stats, usage};
use bloom_api::error::ErrorText;

/// Collects routes with their policies and their description.
#[derive(Default)]
pub(crate) struct Routes {
    described: OpenApiRouter<AppState>,
    policies: RoutePolicies,
}

impl Routes {
    /// Adds a route that the description contains.
    pub(crate) fn add(mut self, mut route: UtoipaMethodRouter<AppState>, policy: RoutePolicy) -> Self {
        for (path, item) in &mut route.1.paths {
            for (method, operation) in operations(item) {
                complete(&method, path, operation, policy);
                self.policies.add(method, path, policy);
            }
        }
        Self { described: self.described.routes(route), ..self }
    }

    /// Adds a file for browsers, which the description does not contain.
    pub(crate) fn add_page(self, path: &str, get: MethodRouter<AppState>) -> Self {
        self.add_undescribed(path, get, &[(Method::GET, RoutePolicy::OPEN)])
    }

    /// Adds a route that the description does not contain, with a policy for each of its methods.
    pub(crate) fn add_undescribed(mut self, path: &str, handlers: MethodRouter<AppState>, policies: &[(Method, RoutePolicy)]) -> Self {
        for (method, policy) in policies {
            self.policies.add(method.clone(), path, *policy);
        }
        Self { described: self.described.route(path, handlers), ..self }
    }

    pub(crate) fn into_parts(self) -> (Router<AppState>, OpenApi, RoutePolicies) {
        let (router, description) = self.described.split_for_parts();
        (router, description, self.policies)
    }
}

/// All routes except those of the explorer.
pub(crate) fn routes() -> Routes {
    Routes::default()
        .add(routes!(create::create), create::CREATE)
        .add(routes!(read::list), read::LIST)
        .add(routes!(create::create_batch), create::CREATE_BATCH)
        .add(routes!(bulk::cancel), bulk::CANCEL)
        .add(routes!(bulk::requeue), bulk::REQUEUE)
        .add(routes!(read::get), read::GET)
        .add(routes!(read::result), read::RESULT)
        .add(routes!(wait_for_task::wait), wait_for_task::WAIT)
        .add(routes!(read::runs), read::RUNS)
        .add(routes!(lifecycle::lease), lifecycle::LEASE)
        .add(routes!(dispatch::dispatch), dispatch::DISPATCH)
        .add(routes!(lifecycle::heartbeat), lifecycle::HEARTBEAT)
        .add(routes!(lifecycle::complete), lifecycle::COMPLETE)
        .add(routes!(lifecycle::release), lifecycle::RELEASE)
        .add(routes!(lifecycle::cancel), lifecycle::CANCEL)
        .add(routes!(edit::requeue), edit::REQUEUE)
        .add(routes!(lifecycle::suspend), lifecycle::SUSPEND)
        .add(routes!(lifecycle::resume), lifecycle::RESUME)
        .add(routes!(edit::edit), edit::EDIT)
        .add(routes!(edit::delete), edit::DELETE)
        .add(routes!(run_events::send), run_events::SEND)
        .add(routes!(run_events::list), run_events::LIST)
        .add(routes!(questions::ask), questions::ASK)
        .add(routes!(questions::get), questions::GET)
        .add(routes!(questions::answer), questions::ANSWER)
        .add(routes!(watch::watch), watch::WATCH)
        .add(routes!(registry::register), registry::REGISTER)
        .add(routes!(registry::list), registry::LIST)
        .add(routes!(registry::get), registry::GET)
        .add(routes!(registry::remove), registry::REMOVE)
        .add(routes!(registry::cordon), registry::CORDON)
        .add(routes!(registry::uncordon), registry::UNCORDON)
        .add(routes!(registry::drain), registry::DRAIN)
        .add(routes!(accounts::list), accounts::LIST)
        .add(routes!(accounts::resume), accounts::RESUME)
        .add(routes!(contexts::list), contexts::LIST)
        .add(routes!(contexts::show), contexts::SHOW)
        .add(routes!(contexts::reset), contexts::RESET)
        .add(routes!(queues::list), queues::LIST)
        .add(routes!(queues::pause), queues::PAUSE)
        .add(routes!(queues::resume), queues::RESUME)
        .add(routes!(queues::limit), queues::LIMIT)
        .add(routes!(queues::pause_all), queues::PAUSE_ALL)
        .add(routes!(queues::resume_all), queues::RESUME_ALL)
        .add(routes!(agents::health), agents::HEALTH)
        .add(routes!(agents::update), agents::UPDATE)
        .add(routes!(agents::restart), agents::RESTART)
        .add(routes!(agents::uninstall), agents::UNINSTALL)
        .add(routes!(install::script), install::SCRIPT)
        .add(routes!(protocol::claim), protocol::CLAIM)
        .add(routes!(protocol::heartbeat), protocol::HEARTBEAT)
        .add(routes!(protocol::events), protocol::EVENTS)
        .add(routes!(protocol::complete), protocol::COMPLETE)
        .add(routes!(protocol::contexts), protocol::CONTEXTS)
        .add(routes!(leases::list), leases::LIST)
        .add(routes!(artifacts::list), artifacts::LIST)
        .add(routes!(download::content), download::CONTENT)
        .add(routes!(upload::upload), upload::UPLOAD)
        .add(routes!(upload::delete), upload::DELETE)
        .add(routes!(audit::list), audit::LIST)
        .add(routes!(stats::get), stats::GET)
        .add(routes!(usage::get), usage::GET)
        .add(routes!(reconcilers::list), reconcilers::LIST)
        .add(routes!(config::get), config::GET)
        .add(routes!(config::set), config::SET)
        .add(routes!(config::test_connection), config::TEST_CONNECTION)
        .add(routes!(keys::create), keys::CREATE)
        .add(routes!(keys::list), keys::LIST)
        .add(routes!(keys::who_am_i), keys::WHO_AM_I)
        .add(routes!(keys::rotate), keys::ROTATE)
        .add(routes!(keys::revoke), keys::REVOKE)
        .add(routes!(keys::set_quota), keys::SET_QUOTA)
        .add(routes!(keys::remove_quota), keys::REMOVE_QUOTA)
        .add(routes!(keys::enroll), keys::ENROLL)
        .add(routes!(projects::create), projects::CREATE)
        .add(routes!(projects::list), projects::LIST)
        .add(routes!(projects::get), projects::GET)
        .add(routes!(projects::edit), projects::EDIT)
        .add(routes!(projects::delete), projects::DELETE)
        .add(routes!(projects::clone), projects::CLONE)
        .add(routes!(projects::propagate), projects::PROPAGATE)
        .add(routes!(projects::sync_memory), projects::SYNC_MEMORY)
        .add(routes!(projects::node_status), projects::NODE_STATUS)
        .add(routes!(membridge::health), membridge::HEALTH)
        .add(routes!(membridge::projects), membridge::PROJECTS)
        .add(routes!(membridge::leadership), membridge::LEADERSHIP)
        .add(routes!(membridge::nodes), membridge::NODES)
        .add(routes!(membridge::jobs), membridge::JOBS)
        .add(routes!(membridge::select), membridge::SELECT)
        .add(routes!(probes::healthz), probes::HEALTHZ)
        .add(routes!(probes::readyz), probes::READYZ)
        .add(routes!(probes::health), probes::HEALTH)
        .add(routes!(probes::api_health), probes::API_HEALTH)
        .add(routes!(probes::metrics), probes::METRICS)
}

const ABOUT: &str = "Runs LLM tasks on a fleet of worker machines: create a task, wait for its end, read its result. \
    Times are milliseconds since the epoch; names that end in `_sec` or `_seconds` are seconds; costs are US dollars. \
    An error has the body `{\"error\": …, \"code\": …}`: `error` is for people, `code` for programs.";

/// The whole description.
///
/// # Errors
/// It can't be serialized, which is a bug.
pub fn openapi() -> Result<Value, serde_json::Error> {
    let (_, described, _) = routes().into_parts();
    let mut info = Info::new("bloom-runtime", env!("CARGO_PKG_VERSION"));
    info.description = Some(ABOUT.into());
    // Relative to the address of the description, because a proxy may serve the server below a path.
    let here = Some([Server::new("./")]);
    let mut api = OpenApiBuilder::new().info(info).servers(here).paths(described.paths).components(described.components).build();
    let components = api.components.get_or_insert_with(Components::new);
    let mut errors = vec![(ErrorText::name().into(), ErrorText::schema())];
    ErrorText::schemas(&mut errors);
    components.schemas.extend(errors);
    components.add_security_scheme("apiKey", SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-Runtime-API-Key"))));
    components.add_security_scheme("bearer", SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build()));
    for item in api.paths.paths.values_mut() {
        for (_, operation) in operations(item) {
            link(operation);
        }
    }
    common::complete(&api)
}

/// The operations of a path, with their methods.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, &mut item.get),
        (Method::POST, &mut item.post),
        (Method::PUT, &mut item.put),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Adds the requirements and the error answers of the middleware.
fn complete(method: &Method, path: &str, operation: &mut Operation, policy: RoutePolicy) {
    let has_body = operation.request_body.is_some();
    let unknown_host = "The server has no keys, and the Host of the request is not an allowed host";
    if policy.is_guarded() {
        let schemes = ["apiKey", "bearer"].map(|name| SecurityRequirement::new(name, Vec::<String>::new()));
        operation.security = Some(schemes.into());
        shared_answer(operation, 401);
    }
    let mut refused = vec![unknown_host];
    if policy.is_guarded() {
        refused.insert(0, "The scope of the key does not allow this call");
    }
    if policy.writes() || method != Method::GET {
        refused.push("a web page of another site sent the request");
    }
    answer(operation, "403", &format!("{}.", refused.join("; or ")), error());
    if policy.is_guarded() || policy.rate != Rate::Unlimited {
        for status in [429, 500, 503] {
            shared_answer(operation, status);
        }
    }
    let is_strict =
        |one: &RefOr<Parameter>| matches!(one, RefOr::T(one) if matches!(one.name.as_str(), "cursor" | "by" | "node_id" | "server_url"));
    let is_filtered = operation.parameters.as_ref().is_some_and(|all| all.iter().any(is_strict));
    if has_body || is_filtered {
        answer(operation, "400", "The request is not valid JSON, or its content is not valid.", error());
    }
    answer(operation, "400", "The request does not have exactly one valid Host header.", error());
    if has_body {
        shared_answer(operation, 408);
        shared_answer(operation, 413);
    }
    // These bodies are optional, because all of their fields are. The body of a file may be empty.
    let is_optional = path.ends_with("/lease")
        || path == "/api/runtime/artifacts"
        || path.ends_with("/dispatch")
        || (path.starts_with("/api/runtime/projects/") && method != Method::PATCH)
        || path == "/api/runtime/llm-tasks/{id}/requeue"
        || path == "/api/runtime/llm-tasks/{id}/heartbeat"
        || path == "/api/runtime/keys/{id}/rotate";
    if let (true, Some(RefOr::T(body))) = (is_optional, &mut operation.request_body) {
        body.required = Some(Required::False);
    }
}

/// Adds links from an answer to the calls that take its ids. Calls that wait are left out, because a client that follows all links would
/// hang on them.
fn link(operation: &mut Operation) {
    const OF_TASK: &[&str] =
        &["getTask", "getResult", "listEvents", "leaseTask", "heartbeatTask", "completeTask", "cancelTask", "requeueTask"];
    const OF_LEASE: &[&str] = &["heartbeatTask", "completeTask", "releaseTask", "sendEvents", "cancelTask", "getTask"];
    const OF_WORKER: &[&str] =
        &["getWorker", "heartbeatWorker", "completeTasks", "cordonWorker", "uncordonWorker", "drainWorker", "removeWorker"];
    let (targets, id) = match operation.operation_id.as_deref() {
        Some("createTask" | "requeueTask") => (OF_TASK, "$response.body#/id"),
        Some("leaseTask") => (OF_LEASE, "$response.body#/lease/task_id"),
        Some("registerWorker") => (OF_WORKER, "$response.body#/id"),
        _ => return,
    };
    for (status, response) in &mut operation.responses.responses {
        if let (true, RefOr::T(response)) = (status.starts_with('2'), response) {
            for target in targets {
                let link = LinkBuilder::new().operation_id(*target).parameter("id", id).build();
                response.links.insert((*target).to_owned(), RefOr::T(link));
            }
        }
    }
}

fn error() -> RefOr<Schema> {
    RefOr::Ref(Ref::from_schema_name(ErrorText::name()))
}

fn answer(operation: &mut Operation, status: &str, description: &str, schema: RefOr<Schema>) {
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(description).content("application/json", content).build();
    operation.responses.responses.entry(status.into()).or_insert(RefOr::T(response));
}

/// An error answer that is the same for all operations.
fn shared_answer(operation: &mut Operation, status: u16) {
    if let Some(name) = common::shared(status) {
        let answer = RefOr::Ref(Ref::new(format!("#/components/responses/{name}")));
        operation.responses.responses.entry(status.to_string()).or_insert(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_leads_somewhere() {
        let api = openapi().unwrap();
        let text = api.to_string();
        let schemas = api["components"]["schemas"].as_object().unwrap();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is not described");
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let (_, mut api, _) = routes().into_parts();
        let operations = api.paths.paths.values_mut().flat_map(operations);
        let mut ids: Vec<_> = operations.map(|(_, operation)| operation.operation_id.clone().unwrap()).collect();
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
