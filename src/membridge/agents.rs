//! The control plane's list of agents.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use bloom_core::audit::{Actor, is_name_of_another_actor};
use bloom_core::command::WorkerChange;
use bloom_core::limits;
use bloom_core::project::{MAX_WORKER_PROJECTS, is_project_name};
use bloom_core::worker::{KNOWN_CAPABILITIES, MAX_CONCURRENCY, WorkerStatus, other_capabilities};

const MAX_AGENTS: usize = limits::WORKERS;

/// `[…]` or `{"agents": […]}`. Entries are parsed one by one, so that a bad one does not affect the others.
#[derive(Deserialize)]
struct Enveloped<'a> {
    #[serde(borrow)]
    agents: Vec<&'a RawValue>,
}

/// One entry. `last_seen` has several forms and is ignored: being listed counts as seen.
#[derive(Deserialize)]
struct Listed {
    name: Option<String>,
    node_id: Option<String>,
    id: Option<String>,
    url: Option<String>,
    status: Option<String>,
    capabilities: Option<ListedCapabilities>,
    ip_addrs: Option<Vec<String>>,
    agent_version: Option<String>,
    os_info: Option<String>,
    install_method: Option<String>,
    obs_count: Option<i64>,
    db_sha: Option<String>,
    /// Any text: it is one of this program's agents only if it is an id.
    instance: Option<Value>,
}

#[derive(Default, Deserialize)]
struct ListedCapabilities {
    claude_cli: Option<bool>,
    max_concurrency: Option<i64>,
    labels: Option<Vec<String>>,
    agents: Option<Vec<String>>,
    profiles: Option<Vec<String>>,
    git: Option<bool>,
    projects: Option<Vec<String>>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

pub(crate) fn parse(body: &[u8]) -> Result<Vec<WorkerChange>, String> {
    let entries: Vec<&RawValue> = serde_json::from_slice(body)
        .or_else(|_| serde_json::from_slice::<Enveloped<'_>>(body).map(|listing| listing.agents))
        .map_err(|_| "the list of agents is neither an array nor {\"agents\": […]}".to_owned())?;
    if entries.len() > MAX_AGENTS {
        tracing::warn!(listed = entries.len(), taken = MAX_AGENTS, "the control plane lists too many agents; the rest are ignored");
    }
    let mut changes = Vec::new();
    let mut names = BTreeSet::new();
    let mut bad = Vec::new();
    for (n, raw) in entries.into_iter().take(MAX_AGENTS).enumerate() {
        match entry(raw.get()) {
            Ok(change) if names.insert(change.id.clone()) => changes.push(change),
            Ok(change) => bad.push((n, format!("{:?} is listed twice", change.id))),
            Err(problem) => bad.push((n, problem)),
        }
    }
    // One warning per list, because the list is read every few seconds.
    if let Some((n, problem)) = bad.first() {
        tracing::warn!(skipped = bad.len(), first = n, %problem, "agents listed by the control plane were skipped");
    }
    Ok(changes)
}

fn entry(raw: &str) -> Result<WorkerChange, String> {
    // Databases can't store NUL in text. The check also rejects an escaped backslash followed by `u0000`, which does not occur in practice.
    if raw.contains("\\u0000") {
        return Err("it contains a NUL character".to_owned());
    }
    let listed: Listed = serde_json::from_str(raw).map_err(|error| error.to_string())?;
    let names = [listed.name, listed.node_id, listed.id];
    let id = names.into_iter().flatten().find(|name| !name.is_empty()).ok_or("it has no name")?;
    if matches!(&*id, "." | "..") {
        return Err(format!("its name is {id:?}, which no URL can contain"));
    }
    if is_name_of_another_actor(&id) {
        return Err(format!("its name is {id:?}, and the audit trail names others so"));
    }
    if id.chars().count() > limits::NAME_CHARS {
        return Err(format!("its name is longer than {} characters", limits::NAME_CHARS));
    }
    let capabilities = listed.capabilities.unwrap_or_default();
    for (name, texts, most, chars) in [
        ("url", listed.url.as_slice(), 1, limits::URL_CHARS),
        ("agent_version", listed.agent_version.as_slice(), 1, limits::AGENT_VERSION_CHARS),
        ("os_info", listed.os_info.as_slice(), 1, limits::OS_INFO_CHARS),
        ("install_method", listed.install_method.as_slice(), 1, limits::INSTALL_METHOD_CHARS),
        ("db_sha", listed.db_sha.as_slice(), 1, limits::DB_SHA_CHARS),
        ("ip_addrs", listed.ip_addrs.as_deref().unwrap_or_default(), limits::IP_ADDRS, limits::IP_ADDR_CHARS),
        ("labels", capabilities.labels.as_deref().unwrap_or_default(), limits::WORKER_LABELS, limits::WORKER_LABEL_CHARS),
        ("agents", capabilities.agents.as_deref().unwrap_or_default(), limits::WORKER_AGENTS, limits::NAME_CHARS),
        ("profiles", capabilities.profiles.as_deref().unwrap_or_default(), limits::WORKER_AGENTS, limits::NAME_CHARS),
    ] {
        if texts.len() > most {
            return Err(format!("{name} of {id:?} has more than {most} elements"));
        }
        if texts.iter().any(|text| text.chars().count() > chars) {
            return Err(format!("{name} of {id:?} is longer than {chars} characters"));
        }
    }
    if capabilities
        .projects
        .as_ref()
        .is_some_and(|projects| projects.len() > MAX_WORKER_PROJECTS || !projects.iter().all(|name| is_project_name(name)))
    {
        return Err(format!("capabilities.projects of {id:?} are not up to {MAX_WORKER_PROJECTS} names of projects"));
    }
    if capabilities.max_concurrency.is_some_and(|slots| !(1..=MAX_CONCURRENCY).contains(&slots)) {
        return Err(format!("capabilities.max_concurrency of {id:?} is not 1 to {MAX_CONCURRENCY}"));
    }
    let other = capabilities.other.iter().filter(|(name, value)| !KNOWN_CAPABILITIES.contains(&name.as_str()) && !value.is_null());
    let other = other_capabilities(other.map(|(name, value)| (name.clone(), value.to_string())).collect())
        .map_err(|wrong| format!("capabilities of {id:?}: {wrong}"))?;
    Ok(WorkerChange {
        id,
        url: listed.url,
        status: listed.status.map(|word| WorkerStatus::parse(&word).unwrap_or(WorkerStatus::Unknown)),
        claude_cli: capabilities.claude_cli,
        max_concurrency: capabilities.max_concurrency,
        labels: capabilities.labels,
        agents: capabilities.agents.map(Some),
        profiles: capabilities.profiles.map(Some),
        namespaces: None,
        git: capabilities.git,
        projects: capabilities.projects.map(Some),
        // Capabilities that the worker itself has registered stay, unless the control plane knows some.
        other_capabilities: (!other.is_empty()).then_some(other),
        ip_addrs: listed.ip_addrs,
        agent_version: listed.agent_version,
        os_info: listed.os_info,
        install_method: listed.install_method,
        dispatch: None,
        obs_count: listed.obs_count,
        db_sha: listed.db_sha,
        pauses: None,
        instance: listed.instance.as_ref().and_then(Value::as_str).and_then(|text| text.parse().ok()),
        actor: Actor::Reconciler,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(body: &str) -> Vec<String> {
        parse(body.as_bytes()).unwrap().into_iter().map(|change| change.id).collect()
    }

    #[test]
    fn both_forms_and_all_names_are_read() {
        assert!(names("[]").is_empty());
        assert!(names(r#"{"agents": []}"#).is_empty());
        assert_eq!(names(r#"[{"name": "a"}, {"node_id": "b"}, {"id": "c"}, {"name": null, "id": "d"}]"#), ["a", "b", "c", "d"]);
        assert!(parse(b"<html>").is_err());
        assert!(parse(br#"{"error": "no"}"#).is_err());
        assert!(parse(br#"{"agents": 5}"#).is_err());
    }

    #[test]
    fn every_form_of_last_seen_passes() {
        let body =
            r#"[{"name": "a", "last_seen": 1772042245.043}, {"name": "b", "last_seen": 1772042245043}, {"name": "c", "last_seen": null}]"#;
        assert_eq!(names(body), ["a", "b", "c"]);
    }

    #[test]
    fn a_bad_entry_costs_only_itself() {
        let body = r#"[{"name": "a"}, 7, {"name": 5}, {"url": "x"}, {"name": "b", "capabilities": {"max_concurrency": 99}},
            {"name": "p", "capabilities": {"projects": ["a/b"]}}, {"name": "a\u0000b"}, {"name": "a"}, {"name": ".."}, {"name": "Admin"}, {"name": "d", "os_info": "LONG"}, {"name": "e", "ip_addrs": ["LONG"]},
            {"name": "f", "capabilities": {"labels": [MANY]}}, {"name": "c", "capabilities": null, "status": "resting"}]"#;
        let body = body
            .replace("LONG", &"x".repeat(limits::OS_INFO_CHARS + 1))
            .replace("MANY", &vec!["\"l\""; limits::WORKER_LABELS + 1].join(","));
        let changes = parse(body.as_bytes()).unwrap();
        assert_eq!(changes.iter().map(|change| change.id.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(changes[0].status, None);
        assert_eq!(changes[1].status, Some(WorkerStatus::Unknown));
    }
}
