//! The event about the start of a run: its worker and its profile.

use serde_json::Value;

use super::ids::path;
use super::server_calls::{Server, with_query};
use bloom_client::Error;

/// The start is among the first events of a run. These are read if the newest events do not include it.
const FIRST_EVENTS: usize = 10;

pub(crate) struct Started {
    pub worker: String,
    /// The name of the profile, perhaps with the reason why it was chosen.
    pub profile: String,
}

impl Started {
    /// The profile with its reason, if its name differs from the task's agent.
    pub(crate) fn other_profile(&self, agent_slug: &str) -> Option<&str> {
        let name = self.profile.split(',').next()?;
        (self.profile != agent_slug && name != agent_slug).then_some(&*self.profile)
    }
}

/// The start of the newest run of a task. `newest`: the newest events of the task. `None` if no event reports it.
///
/// # Errors
/// The first events can't be read.
pub(crate) async fn newest(server: &Server, id: &str, newest: &[Value]) -> Result<Option<Started>, Error> {
    let Some(lease) = newest.last().map(|event| &event["lease_id"]) else { return Ok(None) };
    if let Some(started) = find(newest, lease) {
        return Ok(Some(started));
    }
    let (first, _) = server.page(&with_query(&path(id, "/events"), &[("limit", FIRST_EVENTS.to_string())])).await?;
    Ok(find(&first, lease))
}

fn find(events: &[Value], lease: &Value) -> Option<Started> {
    let is_start = |event: &&Value| event["lease_id"] == *lease && event["kind"] == "lifecycle" && event["data"]["phase"] == "started";
    let data = &events.iter().rfind(is_start)?["data"];
    let text = |field: &str| Some(data[field].as_str()?.to_owned());
    Some(Started { worker: text("worker")?, profile: text("profile")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_start_of_the_same_run_is_found() {
        let start = |lease: &str, profile: &str| json!({ "lease_id": lease, "kind": "lifecycle", "data": { "phase": "started", "worker": "w", "profile": profile } });
        let events = [start("a", "old"), start("b", "default, because no profile is named x"), json!({ "lease_id": "b", "kind": "text" })];
        let started = find(&events, &json!("b")).unwrap();
        assert_eq!((started.worker.as_str(), started.other_profile("x")), ("w", Some("default, because no profile is named x")));
        assert_eq!(find(&events, &json!("a")).unwrap().other_profile("old"), None);
        assert!(find(&events, &json!("c")).is_none());
    }
}
