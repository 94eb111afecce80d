//! What the middleware does for a route. Each handler declares its policy, and no route can be added without one.

use std::collections::HashMap;

use axum::http::Method;

use bloom_core::api_key::Scope;

/// What a route requires, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoutePolicy {
    pub access: Access,
    /// Whether submit and member keys open the route too. The handler must then show and change only the tasks of the key or of its team.
    pub submit: bool,
    /// Whether member keys open the route although submit keys do not. The handler must then show only the tasks of the key's team.
    pub member: bool,
    /// Whether workers' keys open the route although its access is not [`Access::Worker`]. The handler must then show and change only what
    /// a worker holds.
    pub worker: bool,
    pub rate: Rate,
    pub time: Time,
    pub body: BodyLimit,
    /// Whether a request that belongs to no trace begins a new trace.
    pub begins_trace: bool,
}

/// The key that opens the route. Routes that need more than a read key may change the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No key is needed.
    Open,
    Read,
    Worker,
    Admin,
    /// A join token. The admin key passes too, but the handler refuses its call with an explanation.
    Join,
}

/// The rate limits in which the route's requests count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rate {
    Unlimited,
    General,
    /// The limit of the worker protocol, which is higher because many workers may share one address. Pages that only show something count
    /// here too.
    Worker,
    /// A separate limit, as high as that of the worker protocol, so that events of runs never keep a lease from being renewed.
    Events,
    /// The general limit and, in addition, a limit of its own.
    TestConnection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// The middleware aborts the request after `REQUEST_TIMEOUT_SECONDS`.
    Limited,
    /// The handler limits its time itself, because it waits for something.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLimit {
    Usual,
    /// The limit also has room for the outputs of runs.
    Outputs,
    /// The handler reads the body itself, and limits it.
    Streamed,
    /// The page reads the form once it knows who sent it ([`Api::gather`](crate::Api::gather)).
    Form,
}

impl RoutePolicy {
    pub(crate) const OPEN: Self = Self {
        access: Access::Open,
        submit: false,
        member: false,
        worker: false,
        rate: Rate::Unlimited,
        time: Time::Limited,
        body: BodyLimit::Usual,
        begins_trace: false,
    };
    pub(crate) const READ: Self = Self { access: Access::Read, rate: Rate::General, ..Self::OPEN };
    pub(crate) const ADMIN: Self = Self { access: Access::Admin, rate: Rate::General, ..Self::OPEN };
    pub(crate) const WORKER: Self = Self { access: Access::Worker, rate: Rate::Worker, ..Self::OPEN };

    pub(crate) const JOIN: Self = Self { access: Access::Join, rate: Rate::General, ..Self::OPEN };

    /// Lets submit and member keys open the route too.
    pub(crate) const fn or_submit(self) -> Self {
        Self { submit: true, ..self }
    }

    /// Lets member keys open the route too.
    pub(crate) const fn or_member(self) -> Self {
        Self { member: true, ..self }
    }

    /// Lets workers' keys open the route too.
    pub(crate) const fn or_worker(self) -> Self {
        Self { worker: true, ..self }
    }

    pub(crate) const fn rate(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// Lets a request that belongs to no trace begin a new one.
    pub(crate) const fn begins_trace(self) -> Self {
        Self { begins_trace: true, ..self }
    }

    /// The handler waits for something, and limits its time itself.
    pub(crate) const fn waits(self) -> Self {
        Self { time: Time::Own, ..self }
    }

    pub(crate) const fn takes_outputs(self) -> Self {
        Self { body: BodyLimit::Outputs, ..self }
    }

    pub(crate) const fn takes_form(self) -> Self {
        Self { body: BodyLimit::Form, ..self }
    }

    /// The handler reads the body itself, and limits it.
    pub(crate) const fn streams_body(self) -> Self {
        Self { body: BodyLimit::Streamed, ..self }
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.access != Access::Open
    }

    /// Whether the route may change the database.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.access, Access::Worker | Access::Admin | Access::Join)
    }

    /// Whether a call with a key of this scope counts as a worker's call.
    pub(crate) fn is_of_worker(&self, scope: Scope) -> bool {
        self.access == Access::Worker || (self.worker && scope == Scope::Worker)
    }

    /// The scopes that open the route, the smallest first.
    pub(crate) fn needed(&self) -> String {
        let scopes = Scope::ALL.iter().rev().filter(|scope| match self.access {
            // The admin key passes only so that the handler can explain that it needs a join token.
            Access::Join => **scope == Scope::Join,
            _ => self.allows(**scope),
        });
        scopes.map(|scope| scope.as_str()).collect::<Vec<_>>().join(" or ")
    }

    pub(crate) fn allows(&self, scope: Scope) -> bool {
        match scope {
            Scope::Admin => true,
            Scope::Submit => self.submit || self.access == Access::Open,
            Scope::Member => self.submit || self.member || self.access == Access::Open,
            Scope::Worker => self.worker || matches!(self.access, Access::Open | Access::Worker),
            Scope::Read => matches!(self.access, Access::Open | Access::Read),
            Scope::Join => matches!(self.access, Access::Open | Access::Join),
        }
    }
}

/// The policies of all routes, by method and path.
#[derive(Debug, Default)]
pub(crate) struct RoutePolicies(HashMap<String, Vec<(Method, RoutePolicy)>>);

impl RoutePolicies {
    pub(crate) fn add(&mut self, method: Method, path: &str, policy: RoutePolicy) {
        self.0.entry(path.to_owned()).or_default().push((method, policy));
    }

    /// `template` is the route's path with its parameters; `None` if there is no such route. Unknown routes of the API need a key as
    /// existing ones do, so that a client without a key can't find out which routes exist.
    pub(crate) fn of(&self, method: &Method, template: Option<&str>, path: &str) -> RoutePolicy {
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let routes = template.and_then(|template| self.0.get(template));
        match routes.and_then(|routes| routes.iter().find(|(known, _)| known == method)) {
            Some((_, policy)) => *policy,
            None if path != "/api" && !path.starts_with("/api/") => RoutePolicy::OPEN,
            None if *method == Method::GET => RoutePolicy::READ,
            None => RoutePolicy::ADMIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The methods and paths of the routes whose policy matches.
    fn routes(holds: impl Fn(&RoutePolicy) -> bool) -> Vec<String> {
        let (.., RoutePolicies(policies)) = crate::openapi::description::routes().into_parts();
        let all = policies.iter().flat_map(|(path, methods)| methods.iter().map(move |(method, policy)| (method, path, policy)));
        let mut found: Vec<_> = all.filter(|(.., policy)| holds(policy)).map(|(method, path, _)| format!("{method} {path}")).collect();
        found.sort();
        found
    }

    #[test]
    fn a_worker_key_opens_what_a_worker_needs() {
        let opened = routes(|policy| policy.is_guarded() && policy.allows(Scope::Worker));
        let expected = [
            "GET artifacts/{id}/content",
            "GET whoami",
            "POST artifacts",
            "POST llm-tasks/{id}/complete",
            "POST llm-tasks/{id}/events",
            "POST llm-tasks/{id}/heartbeat",
            "POST llm-tasks/{id}/question",
            "POST llm-tasks/{id}/release",
            "POST workers",
            "POST workers/{id}/claim",
            "POST workers/{id}/complete",
            "POST workers/{id}/contexts",
            "POST workers/{id}/events",
            "POST workers/{id}/heartbeat",
        ];
        assert_eq!(opened, expected.map(|route| route.replacen(' ', " /api/runtime/", 1)));
    }

    #[test]
    fn a_submit_key_opens_what_concerns_tasks() {
        let opened = routes(|policy| policy.is_guarded() && policy.allows(Scope::Submit));
        let expected = [
            "DELETE artifacts/{id}",
            "DELETE llm-tasks/{id}",
            "GET artifacts",
            "GET artifacts/{id}/content",
            "GET contexts",
            "GET contexts/{context_id}",
            "GET leases",
            "GET llm-tasks",
            "GET llm-tasks/{id}",
            "GET llm-tasks/{id}/events",
            "GET llm-tasks/{id}/question",
            "GET llm-tasks/{id}/result",
            "GET llm-tasks/{id}/wait",
            "GET usage",
            "GET watch",
            "GET whoami",
            "PATCH llm-tasks/{id}",
            "POST artifacts",
            "POST contexts/{context_id}/reset",
            "POST llm-tasks",
            "POST llm-tasks/{id}/answer",
            "POST llm-tasks/{id}/cancel",
            "POST llm-tasks/{id}/requeue",
            "POST llm-tasks/{id}/resume",
            "POST llm-tasks/{id}/suspend",
            "POST llm-tasks:batch",
            "POST llm-tasks:cancel",
            "POST llm-tasks:requeue",
        ];
        assert_eq!(opened, expected.map(|route| route.replacen(' ', " /api/runtime/", 1)));
    }

    #[test]
    fn a_member_key_opens_what_a_submit_key_opens_and_reads_what_its_team_needs() {
        let opened = routes(|policy| policy.allows(Scope::Member) && !policy.allows(Scope::Submit));
        let expected = ["GET projects", "GET projects/{id}", "GET queues", "GET workers", "GET workers/{id}"];
        assert_eq!(opened, expected.map(|route| route.replacen(' ', " /api/runtime/", 1)));
        assert!(routes(|policy| policy.allows(Scope::Submit) && !policy.allows(Scope::Member)).is_empty());
    }

    #[test]
    fn a_join_token_opens_the_enrollment_only() {
        assert_eq!(routes(|policy| policy.is_guarded() && policy.allows(Scope::Join)), ["POST /api/runtime/enroll"]);
    }

    #[test]
    fn a_read_key_opens_all_that_only_reads() {
        let opened = routes(|policy| policy.allows(Scope::Read));
        assert!(routes(RoutePolicy::writes).iter().all(|route| !opened.contains(route)));
        let open = routes(|policy| !policy.is_guarded());
        assert_eq!(open, ["GET /api/runtime/health", "GET /health", "GET /healthz", "GET /readyz", "POST /api/runtime/test-connection"]);
        assert!(opened.iter().all(|route| route.starts_with("GET ") || open.contains(route)), "{opened:?}");
    }

    #[test]
    fn what_does_not_exist_is_guarded_as_what_does() {
        let policies = RoutePolicies::default();
        assert_eq!(policies.of(&Method::GET, None, "/api/runtime/nothing"), RoutePolicy::READ);
        assert_eq!(policies.of(&Method::PATCH, Some("/api/runtime/config"), "/api/runtime/config"), RoutePolicy::ADMIN);
        assert_eq!(policies.of(&Method::GET, None, "/nothing"), RoutePolicy::OPEN);
    }
}
