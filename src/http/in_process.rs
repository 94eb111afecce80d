//! Calls of the API from inside this process. The pages for browsers read and act only through these calls, so that scopes, limits of keys,
//! checks and error texts are the same as over the network.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;
use tower::ServiceExt as _;
use url::Url;

use crate::AppState;
use crate::identity::clients::Peer;
use crate::identity::host;
use crate::identity::key_ring::Identity;
use crate::identity::policy::RoutePolicies;
use crate::identity::session;
use crate::limits::body_memory::Share;
use crate::messages::error::Error;
use crate::messages::refusal::Refusal;
use crate::messages::request_body::{self, Limit};
use crate::middleware::{Caller, end_with_key};
use crate::routes::live::queue_history::Moment;
use bloom_core::Ms;

/// The size limit of a form from somebody who is not signed in. Without it, strangers could fill the memory that is meant for the bodies of
/// callers with a key. The sign-in form contains only a key and an address of this server.
const OF_STRANGERS: Limit = Limit { bytes: 16 << 10, settings: "fixed for who is not signed in" };

/// The API, for callers in this process.
#[derive(Clone)]
pub struct Api {
    app: AppState,
    routes: Router,
}

impl Api {
    pub(crate) fn new(app: AppState, routes: Router<AppState>, policies: Arc<RoutePolicies>) -> Self {
        let routes = routes.layer(from_fn_with_state((app.clone(), policies), admit)).with_state(app.clone());
        Self { app, routes }
    }

    /// Sends a request as this caller. The rate limits do not count it, because they have counted the request that causes it.
    pub async fn call(&self, caller: &Caller, method: Method, target: &str, body: String) -> Response {
        self.send(caller, method, target, HeaderValue::from_static("application/json"), body.into()).await
    }

    /// Uploads a file to the API.
    pub async fn upload(&self, caller: &Caller, target: &str, content_type: HeaderValue, content: Bytes) -> Response {
        self.send(caller, Method::POST, target, content_type, content.into()).await
    }

    async fn send(&self, caller: &Caller, method: Method, target: &str, content_type: HeaderValue, body: Body) -> Response {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        match target.parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return Error::fixed(404, "Not found").into_response(),
        }
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        request.extensions_mut().insert(caller.clone());
        self.routes.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
    }

    /// Reads the form of a request within the limits of the server. A stranger's form must be short. The memory for the form is counted
    /// until the share is dropped.
    ///
    /// # Errors
    /// The answer to a form that is too long or too late, or for which there is no memory.
    pub async fn gather(&self, request: Request, caller: &Caller, is_stranger: bool) -> Result<(Request, Share), Response> {
        let limit = if is_stranger && !self.is_open() { OF_STRANGERS } else { self.app.settings.usual_body() };
        let deadline = Instant::now() + self.app.settings.request_timeout + request_body::time_of(&request, limit);
        let budget = &self.app.limits.held_of_requests;
        let gathered = request_body::gather(request, limit, deadline, budget, caller.client, &self.app.shutdown).await;
        gathered.map_err(IntoResponse::into_response)
    }

    /// The most bytes that a form of a signed-in caller may have.
    pub fn most_of_form(&self) -> usize {
        self.app.settings.usual_body().bytes
    }

    /// Whether the server has no keys, so that everybody may do everything.
    pub fn is_open(&self) -> bool {
        self.app.settings.keys.is_empty()
    }

    /// Whether the address of a control plane is configured.
    pub fn uses_membridge(&self) -> bool {
        self.app.membridge.is_configured()
    }

    /// The identity of the caller with this key.
    pub async fn identify(&self, key: &str) -> Option<Identity> {
        let mut headers = HeaderMap::new();
        headers.insert("x-runtime-api-key", HeaderValue::from_bytes(key.as_bytes()).ok()?);
        self.app.ring.identify_again(&headers, &self.app.store, &self.app.engine.clock).await
    }

    /// Begins a session for the caller who has just signed in with this key. `None` on a server without keys.
    pub fn begin_session(&self, identity: &Identity) -> Option<String> {
        session::begin(&self.app.ring, identity, self.now())
    }

    /// The identity behind a session. `None` if the session has ended, or if its key was changed, was revoked or has expired.
    pub async fn session(&self, cookie: &str) -> Option<Identity> {
        // If the copy of the keys is old and can't be read again, the session is not accepted.
        self.app.ring.refresh(&self.app.store).await.ok()?;
        session::read(&self.app.ring, cookie, self.now())
    }

    /// Returns when the key of this caller is no longer valid, or the server stops.
    pub async fn ended(&self, caller: &Caller) {
        tokio::select! {
            _ = self.app.ring.lapse(caller.key.as_deref(), &self.app.engine.clock) => {}
            () = self.app.shutdown.cancelled() => {}
        }
    }

    /// The address at which other machines reach this server, as far as it is known from the settings or this request.
    pub fn address(&self, parts: &Parts) -> Option<String> {
        let public = self.app.settings.public_url.as_ref().map(|public| public.as_str().trim_end_matches('/').to_owned());
        public.or_else(|| self.called(parts).map(|url| url.origin().ascii_serialization()))
    }

    /// The path of the public address, such as `/bloom`. A proxy removes it from requests, but browsers need it in every URL that they
    /// load. Usually empty.
    pub fn root(&self) -> &str {
        self.app.settings.root()
    }

    /// Whether the browser called the server over TLS.
    pub fn is_secure(&self, parts: &Parts) -> bool {
        self.called(parts).is_some_and(|url| url.scheme() == "https")
    }

    fn called(&self, parts: &Parts) -> Option<Url> {
        let peer = parts.extensions.get::<Peer>().copied();
        host::called(&parts.uri, &parts.headers, peer, &self.app.settings.trusted_proxies).ok().flatten()
    }

    /// The states of the queue in the last hour; the last one is the current state.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn last_hour(&self) -> Result<Vec<Moment>, bloom_store::Error> {
        self.app.history.until_now(&self.app.engine, &self.app.store).await
    }

    /// The number of tasks whose runs wait for a person, including tasks that a caller may not see.
    pub fn asking(&self) -> usize {
        self.app.engine.replica.asking().len()
    }

    /// A number that grows with each commit that this replica has heard of.
    pub fn commits(&self) -> i64 {
        self.app.engine.replica.commits()
    }

    /// Counts a page that an open browser has loaded again.
    pub fn page_loaded_again(&self, is_shared: bool) {
        self.app.metrics.page_loaded_again(is_shared);
    }

    /// The database's time, as far as this process knows it.
    pub fn now(&self) -> Ms {
        self.app.engine.clock.now()
    }
}

/// Checks what the middleware checks, except for the identity of the caller, which is known.
async fn admit(State((app, policies)): State<(AppState, Arc<RoutePolicies>)>, request: Request, next: Next) -> Response {
    let template = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let policy = policies.of(request.method(), template.as_deref(), request.uri().path());
    let Some(caller) = request.extensions().get::<Caller>() else {
        return Error::Internal("a call inside the process names no caller".into()).into_response();
    };
    if !policy.allows(caller.scope) {
        let refusal = Refusal::Forbidden(caller.scope, policy);
        app.metrics.http_refused(refusal.reason());
        return refusal.error().into_response();
    }
    // The body of the request that causes this call may have taken long to arrive, and the key may have ended meanwhile.
    let key = caller.key.clone();
    if !app.ring.holds(key.as_deref(), app.engine.clock.now()) {
        return Refusal::Unauthorized.error().into_response();
    }
    if policy.writes()
        && let Some(fault) = app.store.lasting_fault()
    {
        return Error::Later(fault.text()).into_response();
    }
    end_with_key(app, key, next.run(request).await)
}
