//! Accounts and profiles that are paused, over all workers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, ToSchema};

use super::lists::page_params;
use super::words::{AnyPauseCause, AnyPauseKind};
use bloom_core::Ms;

/// An account or a profile that is paused on at least one worker.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Account<'a> {
    /// What is paused: an `account` or a `profile`.
    pub kind: AnyPauseKind,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Why it is paused. If the workers report different causes, this is one of these.
    pub cause: AnyPauseCause,
    /// When the pause began, in milliseconds since the epoch.
    pub since: Ms,
    /// When the first of the workers tries again, in milliseconds since the epoch.
    pub until: Ms,
    /// The workers that detected the cause.
    pub found_by: Vec<Cow<'a, str>>,
    /// The workers on which it is paused.
    pub workers: Vec<Cow<'a, str>>,
    /// Whether an administrator has ended the pause, but not all of these workers have learned it yet.
    pub resumed: bool,
}

/// `limit` and `cursor` of the list of accounts.
pub struct AccountPageParams;

impl IntoParams for AccountPageParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        page_params(r"^((account|profile|worker)=[^\x00]*)?$", "account=team")
    }
}
