//! What every request passes: request id, rate limit, host and site, key, limits of body and time, and afterwards metrics and log.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tokio::time::timeout_at;

use super::ControlPlane;
use super::failure::Failure;
use crate::identity::clients::{Peer, client_address};
use crate::identity::environment_keys::digest;
use crate::identity::host;
use crate::messages::error::Cause;
use crate::messages::refusal::Refusal;
use crate::messages::request_body::{self, Limit};
use crate::middleware::{REQUEST_ID, log, request_id};
use bloom_core::command::{Command, Requester};

const KEY_HEADER: &str = "x-membridge-admin";
/// Bodies contain names and a few numbers. Memories are fetched from agents and never sent in a request.
const MAX_BODY: Limit = Limit { bytes: 256 << 10, settings: "fixed for the control plane" };

/// Who sent the request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub request_id: Arc<str>,
}

impl Caller {
    pub(crate) fn command<O>(&self, op: O) -> Command<O> {
        Command { op, by: Requester { request_id: Some(self.request_id.to_string()), ..Requester::default() }, epoch: None }
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let caller = parts.extensions.get().cloned();
        caller.ok_or_else(|| crate::messages::error::Error::Internal("a route is outside the guard".into()).into())
    }
}

pub(crate) async fn guard(State(plane): State<ControlPlane>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let template = request.extensions().get::<MatchedPath>().cloned();
    // The prefix keeps these routes apart from those of the server, which may run in the same process.
    let template = format!("membridge:{}", template.as_ref().map_or("unmatched", MatchedPath::as_str));
    let peer = request.extensions().get::<Peer>().copied();
    let id = request_id(request.headers());
    let address = peer.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.address.ip());
    let client = client_address(address, request.headers(), &plane.settings.trusted_proxies);

    let is_probe = matches!(uri.path(), "/healthz" | "/readyz");
    let is_open = is_probe || uri.path() == "/health";
    let has_key = plane.has_key(request.headers());
    let limiter = if has_key && !is_open { &plane.fleet } else { &plane.general };
    let standing = limiter.as_ref().filter(|_| !is_probe).map(|limiter| (limiter, limiter.count(client, start)));
    let admitted = match &standing {
        Some((_, standing)) if !standing.allowed => Err(Failure::fixed(429, "Too many requests, please try again later")),
        _ => plane.admit(&request, peer, is_open || has_key),
    };
    let mut response = match admitted {
        Ok(()) => plane.answer(request, client, Caller { request_id: id.clone() }, next).await,
        Err(failure) => request_body::refuse_unread(request, failure.into_response()).await,
    };
    let headers = response.headers_mut();
    if let Some((limiter, standing)) = standing {
        limiter.write_headers(&standing, headers);
        if !standing.allowed {
            headers.insert(RETRY_AFTER, standing.reset_sec.max(1).into());
        }
    }
    if let Ok(id) = HeaderValue::try_from(&*id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let (seconds, status) = (start.elapsed().as_secs_f64(), response.status().as_u16());
    plane.metrics.http(&template, method.as_str(), status, seconds);
    let cause = response.extensions_mut().remove::<Cause>();
    log(&method, uri.path(), status, seconds, client, &id, cause);
    response
}

fn refused(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::UnknownHost => Failure::fixed(
            403,
            "This control plane has no key, so it accepts only its own hosts, and the Host of this request is not one of them: set \
             MEMBRIDGE_ADMIN_KEY, or add the host to ALLOWED_HOSTS, and restart it",
        ),
        refusal => refusal.error().into(),
    }
}

impl ControlPlane {
    /// Compares the digests of the keys in constant time.
    fn has_key(&self, headers: &HeaderMap) -> bool {
        let Some(wanted) = self.key else { return true };
        let given = headers.get(KEY_HEADER).map(|value| digest(value.as_bytes()));
        given.is_some_and(|given| bool::from(given.ct_eq(&wanted)))
    }

    /// # Errors
    /// The key is missing or wrong, the host is not this server, or a page of another site sent the request.
    fn admit(&self, request: &Request, peer: Option<Peer>, has_key: bool) -> Result<(), Failure> {
        // No object has a NUL in its name, and PostgreSQL would refuse the query.
        if request.uri().path().contains("%00") {
            return Err(Failure::fixed(404, "Not Found"));
        }
        let (target, headers, settings) = (request.uri(), request.headers(), &self.settings);
        let called = host::called(target, headers, peer, &settings.trusted_proxies).map_err(refused)?;
        host::check_host(called.as_ref(), target, headers, request.version(), peer, settings).map_err(refused)?;
        if !request.method().is_safe() || host::is_loaded_by_other_site(headers) {
            host::check_site(headers, called.as_ref(), settings).map_err(refused)?;
        }
        if has_key { Ok(()) } else { Err(Failure::fixed(401, "Invalid or missing X-MEMBRIDGE-ADMIN")) }
    }

    async fn answer(&self, request: Request, client: IpAddr, caller: Caller, next: Next) -> Response {
        let deadline = tokio::time::Instant::now() + self.settings.request_timeout;
        let (mut request, held) = match request_body::gather(request, MAX_BODY, deadline, &self.bodies, client, &self.shutdown).await {
            Ok(gathered) => gathered,
            Err(failure) => return Failure::from(failure).into_response(),
        };
        // Handlers that call agents limit their time themselves.
        let is_limited = !request.uri().path().starts_with("/sync/");
        request.extensions_mut().insert(caller);
        let running = next.run(request);
        let answer = if is_limited {
            let late = || Failure::fixed(503, "The request took too long and was aborted; it may still take effect").into_response();
            timeout_at(deadline, running).await.unwrap_or_else(|_| late())
        } else {
            running.await
        };
        drop(held);
        answer
    }
}
