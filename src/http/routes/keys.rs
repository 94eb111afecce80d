//! Named keys: create, list, rotate, revoke, and `whoami`; and the enrollment of workers.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::AppState;
use crate::identity::environment_keys::digest;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, json, ok};
use crate::messages::error::Error;
use crate::messages::path_ids::KeyPath;
use crate::messages::request_body::Content;
use crate::middleware::Caller;
use bloom_api::answers::Removed;
use bloom_api::error::ErrorText;
use bloom_api::keys::{CreatedKey, Key, KeyQuota, KeyRotation, NewEnrollment, NewKey, NewQuota, WhoAmI};
use bloom_core::Ms;
use bloom_core::api_key::{ApiKey, PREFIX, Quota, Scope};
use bloom_core::op;

const KEY_BYTES: usize = 32;
const NO_ADMIN_KEY: Error = Error::fixed(
    409,
    "Named keys need an admin key, which this server does not have, so it is open to everybody: set RUNTIME_API_KEY and start the server \
     again",
);

/// A new key, and its digest.
struct Secret {
    key: String,
    digest: String,
}

impl Secret {
    fn new() -> Result<Self, Error> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| Error::Internal(format!("no random bytes for a key: {error}")))?;
        let key = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let digest = hex::encode(digest(key.as_bytes()));
        Ok(Self { key, digest })
    }
}

/// Reads the named keys again, so that a change applies at this server before the client has its answer.
async fn read_ring(app: &AppState) {
    if let Err(error) = app.ring.read(&app.store).await {
        // The change is already committed, and the client could not get this answer again. The keys are read again later.
        tracing::warn!(%error, "the named keys could not be read");
    }
}

/// The answer that shows the key.
async fn handed_over(app: &AppState, status: StatusCode, about: &ApiKey, key: &str) -> HandlerResult {
    read_ring(app).await;
    json(status, &CreatedKey { about: about.into(), key: key.into() })
}

pub(crate) const CREATE: RoutePolicy = RoutePolicy::ADMIN;

/// Creates a named key.
///
/// Only this answer shows the key, because the server keeps only a digest of it.
#[utoipa::path(
    post, path = "/api/runtime/keys", operation_id = "createKey", tag = "keys", request_body = NewKey,
    responses(
        (status = 201, description = "The key.", body = CreatedKey),
        (status = 409, description = "A key with this name exists, there are 1000 keys besides those of WorkerPools, or the server has no RUNTIME_API_KEY.", body = ErrorText),
    )
)]
pub(crate) async fn create(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    let wanted = body.read::<NewKey>()?;
    if !app.ring.takes_named_keys() {
        return Err(NO_ADMIN_KEY);
    }
    let Secret { key, digest } = Secret::new()?;
    let op = wanted.into_op(digest)?;
    let about = app.engine.writers.submit(caller.command(op)).await?;
    handed_over(&app, StatusCode::CREATED, &about, &key).await
}

pub(crate) const LIST: RoutePolicy = RoutePolicy::ADMIN;

/// Lists the named keys by name.
///
/// The keys themselves are not shown. Expired keys stay in the list until they are revoked.
#[utoipa::path(
    get, path = "/api/runtime/keys", operation_id = "listKeys", tag = "keys",
    responses((status = 200, description = "All keys: at most 1000, and at most 10000 of WorkerPools.", body = Vec<Key>))
)]
pub(crate) async fn list(State(app): State<AppState>) -> HandlerResult {
    let keys = app.store.api_keys().await?;
    let uses = app.store.key_uses().await?;
    let mut shown = Vec::with_capacity(keys.len());
    for key in &keys {
        shown.push(with_use(&app, key, &uses).await?);
    }
    ok(&shown)
}

/// The key with how much of its quota is used and when it was last used, according to the database or to this replica, whichever is later.
async fn with_use<'a>(app: &AppState, key: &'a ApiKey, uses: &BTreeMap<String, Ms>) -> Result<Key<'a>, Error> {
    let (open_tasks, stored_bytes) = app.store.quota_use(key).await?;
    // An earlier use may be that of another key that had the same name before.
    let last_used_at = uses.get(&key.name).copied().max(app.ring.last_use(&key.name)).filter(|at| *at >= key.created_at);
    Ok(Key { quota: KeyQuota::of(key, open_tasks, stored_bytes), last_used_at, ..key.into() })
}

pub(crate) const WHO_AM_I: RoutePolicy = RoutePolicy::READ.or_submit().or_worker();

/// Shows what the key of the caller allows.
///
/// The answer has the scope of the key and, for a named key, its team, its worker, its expiry, and how much of its quota is used. Every key
/// except a join token allows this call.
#[utoipa::path(
    get, path = "/api/runtime/whoami", operation_id = "whoAmI", tag = "keys",
    responses((status = 200, description = "The caller.", body = WhoAmI))
)]
pub(crate) async fn who_am_i(State(app): State<AppState>, caller: Caller) -> HandlerResult {
    let key = match caller.key.as_deref() {
        Some(key) => Some(with_use(&app, key, &app.store.key_uses().await?).await?),
        None => None,
    };
    ok(&WhoAmI { scope: caller.scope.into(), key, open: app.ring.is_open() })
}

pub(crate) const ROTATE: RoutePolicy = RoutePolicy::ADMIN;

/// Rotates a named key.
///
/// Creates a new key under the same name; scope, team, quota and tasks stay. Only this answer shows the new key. The previous key stays
/// valid for `overlap_sec` seconds, so that its users can change to the new one without being refused.
#[utoipa::path(
    post, path = "/api/runtime/keys/{id}/rotate", operation_id = "rotateKey", tag = "keys", request_body = KeyRotation,
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The new key.", body = CreatedKey),
        (status = 404, description = "Key not found.", body = ErrorText),
        (status = 409, description = "The key is a join token or has expired, or the server has no RUNTIME_API_KEY.", body = ErrorText),
    )
)]
pub(crate) async fn rotate(State(app): State<AppState>, caller: Caller, path: KeyPath, body: Content) -> HandlerResult {
    let name = path.name()?;
    let KeyRotation { overlap_sec, expires_in_sec } = body.read()?;
    if !app.ring.takes_named_keys() {
        return Err(NO_ADMIN_KEY);
    }
    let Secret { key, digest } = Secret::new()?;
    let lasts_ms = expires_in_sec.map(|seconds| seconds.0 * 1000);
    let op = op::RotateKey { name, digest, overlap_ms: overlap_sec.0 * 1000, lasts_ms };
    let about = app.engine.writers.submit(caller.command(op)).await?;
    handed_over(&app, StatusCode::OK, &about, &key).await
}

pub(crate) const SET_QUOTA: RoutePolicy = RoutePolicy::ADMIN;

/// Sets the quota of a submit or member key.
///
/// The new quota replaces the previous one: a limit that the request does not name is removed. This server applies it from the key's next
/// call on, other replicas within seconds. Existing tasks and uploads of the key stay, and its runs go on, even above a new limit.
#[utoipa::path(
    post, path = "/api/runtime/keys/{id}/quota", operation_id = "setKeyQuota", tag = "keys", request_body = NewQuota,
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The key, with its quota and how much of it is used.", body = Key),
        (status = 404, description = "Key not found.", body = ErrorText),
        (status = 409, description = "The key does not have the scope submit or member.", body = ErrorText),
    )
)]
pub(crate) async fn set_quota(State(app): State<AppState>, caller: Caller, path: KeyPath, body: Content) -> HandlerResult {
    let quota = body.read::<NewQuota>()?.into();
    change_quota(&app, &caller, path, quota).await
}

pub(crate) const REMOVE_QUOTA: RoutePolicy = RoutePolicy::ADMIN;

/// Removes the quota of a submit or member key.
///
/// From the key's next call on, its owner has no limits.
#[utoipa::path(
    delete, path = "/api/runtime/keys/{id}/quota", operation_id = "removeKeyQuota", tag = "keys", params(("id" = String, Path)),
    responses(
        (status = 200, description = "The key, without a quota.", body = Key),
        (status = 404, description = "Key not found.", body = ErrorText),
        (status = 409, description = "The key does not have the scope submit or member.", body = ErrorText),
    )
)]
pub(crate) async fn remove_quota(State(app): State<AppState>, caller: Caller, path: KeyPath) -> HandlerResult {
    change_quota(&app, &caller, path, Quota::default()).await
}

async fn change_quota(app: &AppState, caller: &Caller, path: KeyPath, quota: Quota) -> HandlerResult {
    let name = path.name()?;
    let key = app.engine.writers.submit(caller.command(op::SetQuota { name, quota })).await?;
    read_ring(app).await;
    ok(&with_use(app, &key, &app.store.key_uses().await?).await?)
}

pub(crate) const REVOKE: RoutePolicy = RoutePolicy::ADMIN;

/// Revokes a named key.
///
/// This server refuses the key at once, other replicas within seconds. The tasks that were created with it stay.
#[utoipa::path(
    delete, path = "/api/runtime/keys/{id}", operation_id = "revokeKey", tag = "keys", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Revoked.", body = Removed),
        (status = 404, description = "Key not found.", body = ErrorText),
    )
)]
pub(crate) async fn revoke(State(app): State<AppState>, caller: Caller, path: KeyPath) -> HandlerResult {
    let name = path.name()?;
    app.engine.writers.submit(caller.command(op::RevokeKey { name: name.clone() })).await?;
    app.ring.revoked(&name, &app.store).await;
    ok(&Removed { removed: true, id: name.into() })
}

pub(crate) const ENROLL: RoutePolicy = RoutePolicy::JOIN;

/// Enrolls a worker.
///
/// Exchanges a join token for a worker key. Send the token as the key of this request; it can be used only once. Only this answer shows the
/// worker key.
#[utoipa::path(
    post, path = "/api/runtime/enroll", operation_id = "enroll", tag = "keys", request_body = NewEnrollment,
    responses(
        (status = 201, description = "The worker's key, named `worker-` and the worker's name.", body = CreatedKey),
        (status = 409, description = "The worker or a key of it exists, and the token does not name this worker; or an agent with another `instance` has the name and is not offline.", body = ErrorText),
    )
)]
pub(crate) async fn enroll(State(app): State<AppState>, caller: Caller, body: Content) -> HandlerResult {
    if !app.ring.takes_named_keys() {
        return Err(NO_ADMIN_KEY);
    }
    let Some(token) = caller.key.as_deref().filter(|key| key.scope == Scope::Join) else {
        return Err(Error::fixed(
            403,
            "This call needs a join token as its key: create one with `bloom-runtime key create NAME --scope join`",
        ));
    };
    let NewEnrollment { worker, instance } = body.read::<NewEnrollment>()?;
    let Secret { key, digest } = Secret::new()?;
    let op = op::Enroll {
        token: token.name.clone(),
        token_digest: token.digest.clone(),
        worker: worker.0,
        digest,
        instance: instance.map(|id| id.0),
    };
    let about = app.engine.writers.submit(caller.command(op)).await?;
    handed_over(&app, StatusCode::CREATED, &about, &key).await
}
