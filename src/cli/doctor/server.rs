//! The running server on this machine, and what only the server knows: its keys, the control plane and the workers.

use std::path::Path;

use bloom_api::queues::Queue;
use bloom_api::reconcilers::Reconciler;
use bloom_api::time_text::span_text;
use bloom_api::words::Word;
use bloom_client::{Client, Error, Tls};
use bloom_commands::{default_key_for, dev_key};
use bloom_config::Serve;
use bloom_core::reconciler::ReconcilerState;
use serde_json::Value;

use super::super::serve::own_url;
use super::{Finding, State};

/// A key that ends within this time needs a successor.
const SOON_MS: i64 = 7 * 24 * 3_600_000;
/// The maximum number of findings of one kind that are listed. The rest is counted.
const MOST: usize = 10;

pub async fn look(settings: &Serve, authority: Option<&Path>) -> Vec<Finding> {
    // With TLS, the public address is used, because certificates are rarely valid for a loopback address.
    let mut url = settings.public_address().filter(|_| settings.tls.is_some()).unwrap_or_else(|| own_url(settings));
    if settings.network.port == 0 {
        return vec![Finding::new(
            "server",
            State::Warning,
            "PORT is 0, so its address is not known: give the port that it told at its start",
        )];
    }
    // A running `dev`, which has a key that is not in the settings. If its key can't be read, the server refuses the calls below, and that
    // is reported.
    let dev = dev_key::in_use(&settings.data.dir).ok().flatten();
    let authority = authority.filter(|path| !path.as_os_str().is_empty());
    // A person who looks at the server of this machine may have a named key instead of the settings of the server.
    let (named, mut findings) = match &settings.keys.api {
        Some(_) => (None, Vec::new()),
        None => match default_key_for(&url) {
            Ok(key) => (key, Vec::new()),
            Err(error) => (None, vec![Finding::new("keys", State::Warning, format!("the key of commands can't be used: {error}"))]),
        },
    };
    let connect = |url: &str| {
        let own = dev.as_ref().filter(|dev| dev.is_at(url)).map(|dev| &dev.key);
        let key = own.or(settings.keys.api.as_ref()).or(named.as_ref()).or(settings.keys.read.as_ref());
        Tls::trusting(authority).and_then(|tls| Client::new(url, key, &tls))
    };
    let mut client = match connect(&url) {
        Ok(client) => client,
        Err(error) => return vec![Finding::new("server", State::Wrong, error.to_string())],
    };
    let mut health = client.get::<Value>("api/runtime/health").await;
    // `dev` may have got another port by a flag, which was not given to doctor.
    if matches!(health, Err(Error::Unreachable(_) | Error::Garbled(_)))
        && let Some(dev) = dev.as_ref().filter(|dev| !dev.is_at(&url))
        && let Ok(of_dev) = connect(&dev.url)
    {
        health = of_dev.get::<Value>("api/runtime/health").await;
        (url, client) = (dev.url.clone(), of_dev);
    }
    let health = match health {
        Ok(health) => health,
        Err(Error::Garbled(why)) => {
            let text = format!("another program answers at {url}, so the server can't start there: end it, or set another PORT ({why})");
            return vec![Finding::new("server", State::Wrong, text)];
        }
        Err(error) if error.was_there() || settings.tls.is_some() => {
            return vec![Finding::new("server", State::Wrong, format!("{url}: {error}"))];
        }
        Err(_) => {
            let elsewhere = std::env::var_os("BLOOM_SERVER")
                .map_or("", |_| "; doctor looks at the settings of this machine, and BLOOM_SERVER is none of them");
            let text = format!(
                "no server answers at {url}: start it, by its service or with bloom-runtime serve. What only it knows was not looked at{elsewhere}"
            );
            return vec![Finding::new("server", State::Wrong, text)];
        }
    };
    findings.extend([ready(&client, &url).await, control_plane(&health)]);
    match client.get::<Vec<Reconciler<'_>>>("api/runtime/reconcilers").await {
        Ok(mut reconcilers) => {
            // Records from before the start, perhaps from a backup, say nothing about this server.
            let now_ms = bloom_client::now_ms();
            let uptime_ms = (health["uptime"].as_f64().unwrap_or_default() * 1e3) as i64;
            reconcilers.retain(|one| one.recorded_at >= now_ms - uptime_ms);
            findings.extend(of_reconcilers(&reconcilers, now_ms));
        }
        Err(error) => findings.push(not_seen("reconcilers", &error)),
    }
    match client.get::<Value>("api/runtime/workers").await {
        Ok(workers) => {
            findings.extend(of_workers(&workers));
            findings.extend(agent_key(settings, &workers));
        }
        Err(error) => findings.push(not_seen("workers", &error)),
    }
    match client.get::<Vec<Queue<'_>>>("api/runtime/queues").await {
        Ok(queues) => findings.extend(of_queues(&queues, bloom_client::now_ms())),
        Err(error) => findings.push(not_seen("queues", &error)),
    }
    if settings.keys.api.is_some() || named.is_some() {
        match client.get::<Value>("api/runtime/keys").await {
            Ok(keys) => findings.extend(of_keys(&keys, bloom_client::now_ms())),
            Err(error) => findings.push(not_seen("keys", &error)),
        }
    }
    findings
}

fn not_seen(subject: &'static str, error: &Error) -> Finding {
    let why = match error.status() {
        Some(401 | 403) => "doctor needs RUNTIME_API_KEY, as the server has it: run it with the environment of the server, or with a key of the scope admin in \
             BLOOM_KEY or BLOOM_KEY_FILE"
            .to_owned(),
        _ => error.to_string(),
    };
    Finding::new(subject, State::Warning, format!("they can't be looked at: {why}"))
}

async fn ready(client: &Client, url: &str) -> Finding {
    match client.get::<Value>("readyz").await {
        Ok(probe) => {
            let kubernetes = probe["kubernetes"].as_str().map(|state| format!("; Kubernetes: {state}")).unwrap_or_default();
            Finding::new("server", State::Fine, format!("it is ready at {url}{kubernetes}"))
        }
        Err(error) => Finding::new("server", State::Wrong, format!("{url} is not ready: {error}")),
    }
}

fn control_plane(health: &Value) -> Finding {
    let state = &health["membridge"];
    match (state["connected"].as_bool(), state["lastError"].as_str()) {
        (Some(true), _) => Finding::new("control plane", State::Fine, "it answers"),
        (_, Some(error)) => {
            let text = format!("it does not answer: {error}; check that it runs, MEMBRIDGE_SERVER_URL and MEMBRIDGE_ADMIN_KEY");
            Finding::new("control plane", State::Warning, text)
        }
        _ => Finding::new("control plane", State::Fine, "none is used"),
    }
}

fn of_reconcilers(all: &[Reconciler<'_>], now_ms: i64) -> Vec<Finding> {
    let seconds = |since: i64| format!("{} s", (now_ms - since).max(0) / 1000);
    let warning = |text: String| Finding::new("reconcilers", State::Warning, text);
    let Some(recorded_at) = all.iter().map(|one| one.recorded_at).max() else { return Vec::new() };
    if all.iter().all(|one| one.state == ReconcilerState::Late) {
        let text = format!("none has run for {}: no replica leads, see the log of the server", seconds(recorded_at));
        return vec![warning(text)];
    }
    let troubled = all.iter().filter_map(|one| match (&one.state, &one.error) {
        (Word::Known(ReconcilerState::Late), _) => Some(format!(
            "{} has not run again since {} ago, which is too long: see the log of the server",
            one.name,
            seconds(one.started_at)
        )),
        (Word::Known(ReconcilerState::Failing), Some(error)) => Some(format!("{} fails: {error}; it tries again by itself", one.name)),
        _ => None,
    });
    let troubled: Vec<Finding> = troubled.map(warning).collect();
    limited_or(troubled, "reconcilers", format!("all {} do their work", all.len()))
}

/// Agents that listen for calls require a key. Without it, they refuse each call of the server and of the control plane that runs in it.
fn agent_key(settings: &Serve, workers: &Value) -> Option<Finding> {
    let listen =
        workers.as_array().into_iter().flatten().filter(|worker| worker["url"].as_str().is_some_and(|url| !url.is_empty())).count();
    let text = format!(
        "MEMBRIDGE_AGENT_KEY is not set, and workers listen at a URL ({listen}): they refuse tasks and memories with 401; set it to the key of \
         their --agent-key-file, and start the server again"
    );
    (listen > 0 && settings.membridge.agent_key.is_none()).then(|| Finding::new("agent key", State::Warning, text))
}

fn of_workers(workers: &Value) -> Vec<Finding> {
    let all = workers.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |worker: &Value, field: &str| worker[field].as_str().unwrap_or_default().to_owned();
    let warning = |text: String| Finding::new("workers", State::Warning, text);
    if all.is_empty() {
        return vec![warning("there is none, so no task runs: start one with bloom-runtime agent --server URL".into())];
    }
    let online = all.iter().filter(|worker| matches!(worker["status"].as_str(), Some("online" | "syncing"))).count();
    let state = if online == 0 { State::Warning } else { State::Fine };
    // A worker with one paused profile may still be online with its other profiles.
    let and_paused = match all.iter().filter(|worker| paused(worker).is_some()).count() {
        0 => String::new(),
        1 => ", 1 is paused".to_owned(),
        several => format!(", {several} are paused"),
    };
    let mut findings = vec![Finding::new("workers", state, format!("{online} of {} are online{and_paused}", all.len()))];
    let troubled = all.iter().filter_map(|worker| {
        let id = text(worker, "id");
        if let Some(why) = paused(worker) {
            return Some(format!("{id} is paused: {why}"));
        }
        match worker["status"].as_str() {
            Some("error") => Some(format!("{id} reports an error: see its log")),
            Some("offline") => Some(format!("{id} is offline: start its agent, or remove it with bloom-runtime worker remove {id}")),
            _ if worker["cordoned"] == true || worker["draining"] == true => {
                Some(format!("{id} gets no new tasks, because it was cordoned or drained: bloom-runtime worker uncordon {id}"))
            }
            _ if text(worker, "agent_version") != env!("CARGO_PKG_VERSION") && !text(worker, "agent_version").is_empty() => {
                Some(format!("{id} has version {}, this program {}: update it", text(worker, "agent_version"), env!("CARGO_PKG_VERSION")))
            }
            _ => None,
        }
    });
    findings.extend(limited(troubled.map(warning).collect(), "workers"));
    findings
}

/// A forgotten pause makes the server look as if it did nothing.
fn of_queues(queues: &[Queue<'_>], now_ms: i64) -> Vec<Finding> {
    let paused = queues.iter().filter_map(|queue| {
        let lasts = span_text((now_ms - queue.paused_at?).max(0));
        let (what, flag) = match &queue.agent_slug {
            Some(agent) => (format!("the queue of {agent} is"), format!("--agent {agent}")),
            None => ("all queues are".to_owned(), "--all".to_owned()),
        };
        let text = format!("{what} paused for {lasts}, and {} tasks wait: bloom-runtime queue resume {flag}", queue.queued);
        Some(Finding::new("queues", State::Warning, text))
    });
    limited_or(paused.collect(), "queues", "none is paused".to_owned())
}

/// The message of the worker's first pause.
fn paused(worker: &Value) -> Option<String> {
    Some(worker["pauses"][0]["message"].as_str()?.to_owned())
}

fn of_keys(keys: &Value, now_ms: i64) -> Vec<Finding> {
    let all = keys.as_array().map(Vec::as_slice).unwrap_or_default();
    // A join token is used for one enrollment shortly after its creation, so nothing stops working when it expires.
    let ending = all.iter().filter(|key| key["scope"] != "join").filter_map(|key| {
        let (name, ends) = (key["name"].as_str()?, key["expires_at"].as_i64()?);
        let left = span_text((ends - now_ms).max(0));
        (ends - now_ms < SOON_MS).then(|| format!("the key {name} ends in {left}: bloom-runtime key rotate {name} --expires 90d"))
    });
    let ending = ending.map(|text| Finding::new("keys", State::Warning, text)).collect();
    limited_or(ending, "keys", format!("{} named keys, none of which ends soon", all.len()))
}

/// The problems, or one finding that all is fine.
fn limited_or(troubled: Vec<Finding>, subject: &'static str, fine: String) -> Vec<Finding> {
    if troubled.is_empty() { vec![Finding::new(subject, State::Fine, fine)] } else { limited(troubled, subject) }
}

fn limited(mut findings: Vec<Finding>, subject: &'static str) -> Vec<Finding> {
    let more = findings.len().saturating_sub(MOST);
    findings.truncate(MOST);
    findings.extend((more > 0).then(|| Finding::new(subject, State::Warning, format!("and {more} more like these"))));
    findings
}
