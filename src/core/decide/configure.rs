//! Stores the settings that people change while the server runs.

use crate::audit::{Action, Actor, EntityType};
use crate::masked_urls::masked_url;
use crate::operation::Operation;
use crate::working_set::{Halt, WorkingSet};

/// The name of the stored URL of the control plane.
pub const MEMBRIDGE_SERVER_URL: &str = "membridge_server_url";
/// The name of the stored key of the control plane.
pub const MEMBRIDGE_ADMIN_KEY: &str = "membridge_admin_key";

/// Stores the settings that take precedence over flags and environment.
#[derive(Clone, Debug)]
pub struct Configure {
    /// The URL of the control plane.
    pub membridge_server_url: String,
    /// The key that the server sends to the control plane.
    pub membridge_admin_key: String,
}

impl Operation for Configure {
    type Reply = ();

    fn decide(&self, set: &mut WorkingSet) -> Result<(), Halt> {
        let (url, key) = (&self.membridge_server_url[..], &self.membridge_admin_key[..]);
        set.dirty.settings.push((MEMBRIDGE_SERVER_URL, url.to_owned()));
        set.dirty.settings.push((MEMBRIDGE_ADMIN_KEY, key.to_owned()));
        set.audit(Action::ConfigUpdated, EntityType::Config, "membridge", &Actor::Admin, masked_url(url));
        Ok(())
    }
}
