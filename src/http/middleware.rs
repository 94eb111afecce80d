//! What every request passes: request id, rate limit, host and site, key, limits of body and time, and afterwards metrics and log.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use hyper::body::Body as _;
use parking_lot::Mutex;
use tokio::time::timeout_at;
use tracing::Instrument as _;

use crate::identity::clients::{Peer, Security, client_address};
use crate::identity::host;
use crate::identity::key_ring::Identity;
use crate::identity::policy::{BodyLimit, Rate, RoutePolicies, RoutePolicy, Time};
use crate::limits::body_memory::Share;
use crate::limits::rate::{Limiter, Standing};
use crate::messages::error::{Cause, Error, OfDatabase};
use crate::messages::refusal::Refusal;
use crate::messages::request_body;
use crate::traced_call::TracedCall;
use crate::{AppState, Settings};
use bloom_core::api_key::{ApiKey, Owner, Scope};
use bloom_core::command::{Command, Requester};
use bloom_core::trace_context::TraceContext;
use bloom_telemetry::Metrics;
use bloom_tls::Tls;

/// Distinguishes the request ids of this process from those of others.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
static REQUESTS: AtomicU64 = AtomicU64::new(1);
pub(crate) const REQUEST_ID: &str = "x-request-id";
const MAX_REQUEST_ID: usize = 128;
/// The most bytes of a path in the log.
const MAX_LOGGED_PATH: usize = 256;
const TOO_MANY: Error = Error::fixed(429, "Too many requests, please try again later");
const READ_TIMED_OUT: Error = Error::Later("The request took too long and was aborted: try again");
const TIMED_OUT: Error = Error::Later("The request took too long and was aborted; it may still take effect");

/// Who sent the request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What the caller may do.
    pub scope: Scope,
    /// The named key of the request, if it has one.
    pub key: Option<Arc<ApiKey>>,
    /// The address of the client; behind a trusted proxy, the one that it names.
    pub client: IpAddr,
    /// The id of the request, which answers, logs and audit entries name.
    pub request_id: Arc<str>,
    /// The trace that the request belongs to. This span is the parent of everything that the request causes.
    pub trace: Option<TraceContext>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LimitedKey {
    Named(String),
    OfEnvironment(Scope),
}

impl Caller {
    /// Whose tasks the caller sees and changes. `None` for callers without that limit.
    pub fn sees(&self) -> Option<Owner> {
        self.key.as_deref().and_then(ApiKey::sees)
    }

    /// The key that will own the caller's new tasks and uploads. `None` if no key will.
    pub fn owner(&self) -> Option<&ApiKey> {
        self.key.as_deref().filter(|key| key.scope.owns_tasks())
    }

    /// The team of a member key. In everything that is not about single tasks, such a key sees only its team's part.
    pub fn team(&self) -> Option<String> {
        let Some(Owner::Team(team)) = self.sees() else { return None };
        Some(team)
    }

    /// The only worker that the key may act for. `None` for callers without that limit.
    pub fn worker(&self) -> Option<&str> {
        self.key.as_deref().filter(|key| key.scope == Scope::Worker).and_then(|key| key.worker.as_deref())
    }

    /// The key whose waiting calls together have one share. `None` for the admin and worker keys of the environment, and on a server
    /// without keys, because whole fleets use these.
    pub fn limited_key(&self) -> Option<LimitedKey> {
        match (&self.key, self.scope) {
            (Some(key), _) => Some(LimitedKey::Named(key.name.clone())),
            (None, Scope::Admin | Scope::Worker) => None,
            (None, scope) => Some(LimitedKey::OfEnvironment(scope)),
        }
    }

    /// The request and its named key, for the audit trail.
    pub fn requester(&self) -> Requester {
        Requester {
            request_id: Some(self.request_id.to_string()),
            key: self.key.as_ref().map(|key| key.name.as_str().into()),
            has_quota: self.key.as_ref().is_some_and(|key| !key.quota.is_unlimited()),
            owns_tasks: self.owner().is_some(),
        }
    }

    /// A command of this caller.
    pub fn command<O>(&self, op: O) -> Command<O> {
        Command { op, by: self.requester(), epoch: None }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        parts.extensions.get().cloned().ok_or_else(|| Error::Internal("a route is outside the middleware".into()))
    }
}

/// The state of the middleware.
#[derive(Clone)]
pub(crate) struct MiddlewareState {
    pub app: AppState,
    pub policies: Arc<RoutePolicies>,
}

pub(crate) async fn middleware(State(MiddlewareState { app, policies }): State<MiddlewareState>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let template = request.extensions().get::<MatchedPath>().cloned();
    let template = template.as_ref().map(MatchedPath::as_str);
    let uri = request.uri().clone();
    let request_id = request_id(request.headers());

    let key = app.ring.identify_again(request.headers(), &app.store, &app.engine.clock).await;
    let policy = policies.of(&method, template, uri.path());
    let pass = Pass::new(&app, &request, policy, template.is_some(), key);
    let standing = pass.count(start);
    let mut traced = None;
    let mut response = match pass.admit(standing.as_ref(), &app.metrics) {
        Ok(Identity { scope, key }) => {
            // A refused request gets no span, because anybody can send one.
            let call = traced.insert(TracedCall::begin(&app.engine.traces, request.headers(), policy));
            let caller = Caller { scope, key, client: pass.client, request_id: request_id.clone(), trace: call.for_tasks() };
            serve(&app, &pass, request, next, caller).instrument(call.log.clone()).await
        }
        Err(failure) => request_body::refuse_unread(request, failure.into_response()).await,
    };

    if let Some(standing) = standing {
        standing.write(response.headers_mut());
    }
    if let Ok(id) = HeaderValue::try_from(&*request_id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    // Browsers must not guess a type other than Content-Type, such as HTML, from the content.
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Caches know that an answer to a request with `Authorization` is private, but not that this server also accepts the key in a header of
    // its own.
    response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let seconds = start.elapsed().as_secs_f64();
    let status = response.status().as_u16();
    app.metrics.http(template.unwrap_or("unmatched"), method.as_str(), status, seconds);
    let mut cause = response.extensions_mut().remove::<Cause>();
    if status == 503
        && let Some(outage) = app.store.outage()
    {
        let error = Error::of_outage(&outage);
        if response.extensions_mut().remove::<OfDatabase>().is_some() {
            *response.body_mut() = error.body().into();
        }
        if let Error::Away { cause: known, .. } = error {
            cause = known.map(Cause);
        }
    }
    let write = || log(&method, uri.path(), status, seconds, pass.client, &request_id, cause);
    match traced {
        Some(call) => {
            call.log.in_scope(write);
            call.end(&app.engine.traces, &method, template.unwrap_or_default(), status, start.elapsed());
        }
        None => write(),
    }
    response
}

async fn serve(app: &AppState, pass: &Pass<'_>, request: Request, next: Next, caller: Caller) -> Response {
    let mut deadline = tokio::time::Instant::now() + app.settings.request_timeout;
    let mut request = request;
    let mut held = Share::default();
    if pass.policy.body == BodyLimit::Form {
        deadline += request_body::time_of(&request, app.settings.usual_body());
    }
    if let Some(limit) = pass.body_limit {
        deadline += request_body::time_of(&request, limit);
        (request, held) =
            match request_body::gather(request, limit, deadline, &app.limits.held_of_requests, pass.client, &app.shutdown).await {
                Ok(gathered) => gathered,
                Err(failure) => return failure.into_response(),
            };
    }
    if caller.key.is_some()
        && let Err(failure) = app.ring.refresh(&app.store).await
    {
        return failure.into_response();
    }
    // A body may take long to arrive. Nobody may keep a request open in order to use a key after its end.
    if !app.ring.holds(caller.key.as_deref(), app.engine.clock.now()) {
        return Refusal::Unauthorized.error().into_response();
    }
    if pass.policy.writes()
        && let Some(fault) = app.store.lasting_fault()
    {
        return Error::Later(fault.text()).into_response();
    }
    let key = caller.key.clone();
    request.extensions_mut().insert(caller);
    let late = if request.method().is_safe() { READ_TIMED_OUT } else { TIMED_OUT };
    let answer = match pass.policy.time {
        Time::Own => tokio::select! {
            answer = next.run(request) => answer,
            refused = app.ring.lapse(key.as_deref(), &app.engine.clock) => refused.into_response(),
        },
        Time::Limited => timeout_at(deadline, next.run(request)).await.unwrap_or_else(|_| late.into_response()),
    };
    drop(held);
    let answer = end_with_key(app.clone(), key, answer);
    // The changes of the call are committed by now, so its answer is not refused. Calls with large answers have already reserved their
    // room.
    let is_change = pass.policy.writes();
    let budget = if is_change { &app.limits.held_of_changes } else { &app.limits.held_of_answers };
    budget.send(answer, pass.client, !is_change).await
}

/// Ends an answer that is read while it is sent, such as a stream or a long list, when its key is revoked or expires. Such an answer has no
/// known length.
pub(crate) fn end_with_key(app: AppState, key: Option<Arc<ApiKey>>, answer: Response) -> Response {
    let Some(key) = key.filter(|_| answer.body().size_hint().exact().is_none()) else { return answer };
    let lapse = async move { app.ring.lapse(Some(&key), &app.engine.clock).await };
    answer.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(lapse))))
}

/// What the middleware knows about a request before it admits the request.
struct Pass<'a> {
    policy: RoutePolicy,
    client: IpAddr,
    identity: Result<Identity, Refusal>,
    limiter: Option<&'a Limiter>,
    /// A second rate limit. If there is one, the headers of the answer describe it instead of the first one.
    test_limiter: Option<&'a Limiter>,
    body_limit: Option<request_body::Limit>,
}

/// The state of the rate limits after a request, for the headers of the answer.
struct LimitStatus<'a> {
    limiter: &'a Limiter,
    standing: Standing,
    /// Seconds until all exceeded limits end; `None` if the request exceeded none.
    retry_sec: Option<u64>,
}

impl<'a> Pass<'a> {
    fn new(app: &'a AppState, request: &Request, policy: RoutePolicy, exists: bool, key: Option<Identity>) -> Self {
        let settings = &app.settings;
        let peer = request.extensions().get::<Peer>().copied();
        let key_scope = key.as_ref().map(|key| key.scope);
        let identity = identity(settings, request, peer, policy, key);
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.address.ip());
        // Requests with a wrong key count in the general limit on every route, so that no route allows more guesses than another.
        let as_worker = key_scope == Some(Scope::Worker) || (identity.is_ok() && matches!(policy.rate, Rate::Worker | Rate::Events));
        let limiter = match policy.rate {
            _ if !as_worker => &app.limits.general,
            Rate::Events => &app.limits.events,
            _ => &app.limits.worker,
        };
        let is_limited = match &identity {
            Ok(_) => policy.rate != Rate::Unlimited,
            // A page of another site must not use up the limit of the user whose browser sends the request.
            Err(refusal) => refusal.is_about_client(),
        };
        Self {
            policy,
            client: client_address(address, request.headers(), &settings.trusted_proxies),
            identity,
            limiter: limiter.as_ref().filter(|_| is_limited),
            test_limiter: app.limits.test_connection.as_ref().filter(|_| is_limited && policy.rate == Rate::TestConnection),
            // On routes that need no key, only forms have a body.
            body_limit: settings.body_limit(policy.body).filter(|_| exists && policy.is_guarded() && !request.method().is_safe()),
        }
    }

    fn count(&self, now: Instant) -> Option<LimitStatus<'a>> {
        let general = self.limiter.map(|limiter| (limiter, limiter.count(self.client, now)));
        let test = self.test_limiter.map(|limiter| (limiter, limiter.count(self.client, now)));
        let overrun = [&general, &test].into_iter().flatten().filter(|(_, standing)| !standing.allowed);
        let retry_sec = overrun.map(|(_, standing)| standing.reset_sec).max();
        test.or(general).map(|(limiter, standing)| LimitStatus { limiter, standing, retry_sec })
    }

    /// The rate limit is checked before the key.
    fn admit(&self, limit: Option<&LimitStatus<'_>>, metrics: &Metrics) -> Result<Identity, Error> {
        if limit.is_some_and(|limit| limit.retry_sec.is_some()) {
            return Err(TOO_MANY);
        }
        self.identity.clone().map_err(|refusal| {
            metrics.http_refused(refusal.reason());
            refusal.error()
        })
    }
}

/// Finds the identity of the caller, and refuses hosts, sites and keys that are not allowed.
fn identity(
    settings: &Settings,
    request: &Request,
    peer: Option<Peer>,
    policy: RoutePolicy,
    key: Option<Identity>,
) -> Result<Identity, Refusal> {
    let called = host::called(request.uri(), request.headers(), peer, &settings.trusted_proxies)?;
    host::check_host(called.as_ref(), request.uri(), request.headers(), request.version(), peer, settings)?;
    // Even though a foreign page can't read the answers, it could use up the rate limit of its visitor by loading many of them.
    let is_foreign = host::is_loaded_by_other_site(request.headers());
    if !request.method().is_safe() || policy.writes() || is_foreign {
        host::check_site(request.headers(), called.as_ref(), settings)?;
    }
    match key {
        // The route is open to everybody. The key, if there is one, is kept only for the audit trail.
        _ if !policy.is_guarded() => Ok(Identity { key: key.and_then(|key| key.key), ..Identity::ADMIN }),
        None => Err(Refusal::Unauthorized),
        Some(key) if policy.allows(key.scope) && policy.is_of_worker(key.scope) && !may_be_worker(settings, peer) => {
            Err(Refusal::NoClientCertificate)
        }
        Some(key) if policy.allows(key.scope) => Ok(key),
        Some(key) => Err(Refusal::Forbidden(key.scope, policy)),
    }
}

/// Whether workers' calls are accepted on this connection.
fn may_be_worker(settings: &Settings, peer: Option<Peer>) -> bool {
    let needs_certificate = settings.tls.as_ref().is_some_and(Tls::verifies_clients);
    !needs_certificate || peer.is_some_and(|peer| peer.security == Security::VerifiedClient)
}

impl LimitStatus<'_> {
    fn write(&self, headers: &mut HeaderMap) {
        self.limiter.write_headers(&self.standing, headers);
        if let Some(seconds) = self.retry_sec {
            headers.insert(RETRY_AFTER, seconds.max(1).into());
        }
    }
}

/// The id that the client sent, if it is valid, else a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> Arc<str> {
    let plain = |id: &&str| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    match headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(plain) {
        Some(id) => id.into(),
        None => {
            let (process, count) = (*PROCESS, REQUESTS.fetch_add(1, Ordering::Relaxed));
            format!("{process:016x}-{count:x}").into()
        }
    }
}

/// The most refused requests per second that are logged at level info. Others are logged at level debug, because anybody can cause them.
const REFUSALS_LOGGED: u64 = 50;

/// Whether one more refusal may be logged.
fn may_log_refusal() -> bool {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    /// The last second of this process in which refusals were logged, and how many were logged in it.
    static LOGGED: Mutex<(u64, u64)> = Mutex::new((0, 0));
    let second = START.elapsed().as_secs();
    let mut logged = LOGGED.lock();
    if logged.0 != second {
        *logged = (second, 0);
    }
    let may = logged.1 < REFUSALS_LOGGED;
    logged.1 += u64::from(may);
    may
}

/// Successful requests are logged only at level debug: there may be thousands a second, and the audit trail has their changes.
pub(crate) fn log(method: &Method, path: &str, status: u16, seconds: f64, client: IpAddr, request_id: &str, cause: Option<Cause>) {
    let ms = (seconds * 1e6).round() / 1e3;
    // A client must not fill the disk with long paths, or with requests beyond its rate limit.
    let path = path.get(..path.floor_char_boundary(MAX_LOGGED_PATH)).unwrap_or(path);
    match (status, cause) {
        (429, _) => tracing::debug!(%method, path, status, ms, %client, request_id, "request refused"),
        (503, Some(Cause(cause))) => tracing::warn!(%method, path, status, ms, %client, request_id, cause, "request failed"),
        (_, Some(Cause(cause))) => tracing::error!(%method, path, status, ms, %client, request_id, cause, "request failed"),
        (500.., None) => tracing::warn!(%method, path, status, ms, %client, request_id, "request failed"),
        (400.., None) if may_log_refusal() => tracing::info!(%method, path, status, ms, %client, request_id, "request refused"),
        (400.., None) => tracing::debug!(%method, path, status, ms, %client, request_id, "request refused"),
        _ => tracing::debug!(%method, path, status, ms, %client, request_id, "request"),
    }
}
