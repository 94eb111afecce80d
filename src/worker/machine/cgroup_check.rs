//! Checks that this agent may make the cgroups that its profiles need.

use crate::machine::cgroup::{Parent, missing};
use crate::profiles::Profiles;

/// Where runs get cgroups, if the agent may make any.
///
/// # Errors
/// A profile has limits that can't be enforced here.
pub(crate) fn check(profiles: &Profiles) -> Result<Option<Parent>, String> {
    let parent = Parent::find();
    match &parent {
        Ok(parent) => tracing::info!(below = %parent.path().display(), "each run gets a cgroup"),
        Err(why) => tracing::info!(why, "runs get no cgroups; their supervisors find and end their processes"),
    }
    let parent = parent.ok();
    for (slug, profile) in profiles.all() {
        let lacking = missing(parent.as_ref(), &profile.limits);
        if !lacking.is_empty() {
            return Err(format!(
                "profile {slug}: its limits need the cgroup controllers {}, which this agent may not use here; start it as a service with \
                 Delegate=yes and DelegateSubgroup=agent (systemd 254 or later), or remove the limits",
                lacking.join(", ")
            ));
        }
    }
    Ok(parent)
}
