//! Memories. A push stores the memory of the leader, and a pull delivers the newest one. Each sync is recorded as a job.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::failure::Failure;
use super::fields::Fields;
use super::guard::Caller;
use super::{ControlPlane, seconds};
use crate::messages::answer::ok;
use crate::messages::error::Error;
use bloom_core::Ms;
use bloom_core::command::Rejection;
use bloom_core::control_plane::{JOBS_KEPT, Job, JobAction, JobStatus, NewJob, Project, Role};
use bloom_core::limits;
use bloom_core::op;
use bloom_dispatch::Snapshot;

type Answer = Result<Response, Failure>;

/// The request for a sync.
struct Wanted {
    action: JobAction,
    project: String,
    agent: String,
    dryrun: bool,
}

/// The two sides of a sync, as they were found.
struct Sides {
    project: Project,
    url: String,
    begun: Ms,
    _turn: OwnedSemaphorePermit,
}

/// The outcome of a successful sync.
struct Done {
    job: Job,
    memory: Value,
}

pub(crate) async fn push(State(plane): State<ControlPlane>, caller: Caller, body: Bytes) -> Answer {
    sync(plane, caller, JobAction::Push, &body).await
}

pub(crate) async fn pull(State(plane): State<ControlPlane>, caller: Caller, body: Bytes) -> Answer {
    sync(plane, caller, JobAction::Pull, &body).await
}

async fn sync(plane: ControlPlane, caller: Caller, action: JobAction, body: &[u8]) -> Answer {
    let mut fields = Fields::of(body)?;
    let project = fields.name("project", limits::PROJECT_NAME_CHARS);
    let agent = fields.name("agent", limits::NAME_CHARS);
    let dryrun = fields.flag("dryrun").unwrap_or_default();
    fields.check()?;
    let wanted = Wanted { action, project, agent, dryrun };
    // In a background task, so that a sync is recorded as a job even if the caller disconnects.
    let running = tokio::spawn(async move { plane.sync(&wanted, &caller).await });
    let Done { job, memory } = running.await.map_err(|error| Error::Internal(error.to_string()))??;
    let mut shown = shown(&job);
    shown["memory"] = memory;
    Ok(ok(&shown)?)
}

impl ControlPlane {
    async fn sync(&self, wanted: &Wanted, caller: &Caller) -> Result<Done, Failure> {
        let sides = self.sides(wanted).await?;
        let done = match wanted.action {
            JobAction::Push => self.store_memory(wanted, &sides, caller).await,
            JobAction::Pull => self.hand_out(wanted, &sides, caller).await,
        };
        let failure = match done {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        tracing::warn!(
            action = %wanted.action, project = sides.project.canonical_id, agent = wanted.agent, why = failure.line(), "a sync failed"
        );
        let job =
            NewJob { status: JobStatus::Failed, detail: failure.line(), stderr: failure.line(), returncode: 1, ..new_job(wanted, &sides) };
        // The caller gets the reason for the failure even if the job can't be stored.
        if let Err(error) = self.engine.writers.submit(caller.command(op::RecordJob { job })).await {
            tracing::warn!(?error, "the job of a failed sync could not be recorded");
        }
        Err(failure)
    }

    async fn sides(&self, wanted: &Wanted) -> Result<Sides, Failure> {
        let project = self.store.memory_project_named(&wanted.project).await?.ok_or(Rejection::ProjectNotFound)?;
        let agent = self.store.agent(&wanted.agent).await?.ok_or(Rejection::AgentNotFound)?;
        let turn = self.syncs.clone().try_acquire_owned();
        let turn = turn.map_err(|_| Error::Later("The control plane syncs as many memories as it may at a time, try again"))?;
        Ok(Sides { project, url: agent.url, begun: self.store.now().await?, _turn: turn })
    }

    /// Fetches the leader's memory and stores it. The commit checks that the agent has been the leader in the same term all the time.
    async fn store_memory(&self, wanted: &Wanted, sides: &Sides, caller: &Caller) -> Result<Done, Failure> {
        let Sides { project, .. } = sides;
        if project.role(&wanted.agent, sides.begun) != Role::Primary {
            let primary = project.primary(sides.begun).map(str::to_owned);
            return Err(Rejection::NotPrimary { node: wanted.agent.clone(), primary }.into());
        }
        let snapshot = self.agents.memory(reachable(wanted, sides)?, &project.canonical_id).await.map_err(unreachable)?;
        let Snapshot { sha256, bytes, content, .. } = snapshot;
        let said = json!({ "sha256": sha256, "size": bytes });
        if wanted.dryrun {
            let detail = format!("would store {bytes} bytes, sha256 {sha256}");
            return self.nothing_changed(wanted, sides, caller, detail, said).await;
        }
        let store = op::StoreMemory {
            canonical_id: project.canonical_id.clone(),
            node_id: wanted.agent.clone(),
            term: project.term,
            sha256,
            bytes,
            content: content.into(),
            job: new_job(wanted, sides),
        };
        let stored = self.engine.writers.submit(caller.command(store)).await?;
        let mut memory = said;
        memory["version"] = json!(stored.version);
        Ok(Done { job: stored.job, memory })
    }

    /// Delivers the newest memory to the agent.
    async fn hand_out(&self, wanted: &Wanted, sides: &Sides, caller: &Caller) -> Result<Done, Failure> {
        let Sides { project, .. } = sides;
        let newest = self.store.newest_memory(&project.canonical_id).await?;
        let (version, content) = newest.ok_or_else(|| Failure::fixed(404, "No memory of this project is stored: push one first"))?;
        let memory = json!({ "version": version.version, "sha256": version.sha256, "size": version.bytes });
        let url = reachable(wanted, sides)?;
        if wanted.dryrun {
            let detail = format!("would deliver version {}: {} bytes, sha256 {}", version.version, version.bytes, version.sha256);
            return self.nothing_changed(wanted, sides, caller, detail, memory).await;
        }
        let detail = format!("delivered version {}: {} bytes, sha256 {}", version.version, version.bytes, version.sha256);
        let snapshot = Snapshot { sha256: version.sha256, bytes: version.bytes, obs_count: 0, content };
        let said = self.agents.deliver_memory(url, &project.canonical_id, &snapshot).await.map_err(unreachable)?;
        let job = NewJob { detail, stdout: said, ..new_job(wanted, sides) };
        Ok(Done { job: self.engine.writers.submit(caller.command(op::RecordJob { job })).await?, memory })
    }

    async fn nothing_changed(
        &self,
        wanted: &Wanted,
        sides: &Sides,
        caller: &Caller,
        detail: String,
        memory: Value,
    ) -> Result<Done, Failure> {
        let job = NewJob { detail, ..new_job(wanted, sides) };
        Ok(Done { job: self.engine.writers.submit(caller.command(op::RecordJob { job })).await?, memory })
    }
}

fn reachable<'a>(wanted: &Wanted, sides: &'a Sides) -> Result<&'a str, Failure> {
    if sides.url.is_empty() {
        return Err(Failure::text(502, format!("Agent \"{}\" has no URL: start it with --listen", wanted.agent)));
    }
    Ok(&sides.url)
}

fn unreachable(why: String) -> Failure {
    Failure::text(502, why)
}

fn new_job(wanted: &Wanted, sides: &Sides) -> NewJob {
    NewJob {
        action: wanted.action,
        project: wanted.project.clone(),
        agent: wanted.agent.clone(),
        canonical_id: sides.project.canonical_id.clone(),
        status: JobStatus::Completed,
        detail: String::new(),
        stdout: String::new(),
        stderr: String::new(),
        returncode: 0,
        dryrun: wanted.dryrun,
        created_at: sides.begun,
    }
}

fn shown(job: &Job) -> Value {
    json!({
        "id": job.id,
        "action": job.action,
        "project": job.project,
        "agent": job.agent,
        "canonical_id": job.canonical_id,
        "status": job.status,
        "detail": job.detail,
        "stdout": job.stdout,
        "stderr": job.stderr,
        "returncode": job.returncode,
        "dryrun": job.dryrun,
        "created_at": seconds(job.created_at),
        "finished_at": seconds(job.finished_at),
        "request_id": job.request_id,
    })
}

pub(crate) async fn jobs(State(plane): State<ControlPlane>) -> Answer {
    let jobs = plane.store.jobs(JOBS_KEPT).await?;
    Ok(ok(&jobs.iter().map(shown).collect::<Vec<_>>())?)
}

pub(crate) async fn job(State(plane): State<ControlPlane>, Path(id): Path<String>) -> Answer {
    let found = match Uuid::parse_str(&id) {
        Ok(id) => plane.store.job(id).await?,
        Err(_) => None,
    };
    let job = found.ok_or_else(|| Failure::fixed(404, "Job not found"))?;
    Ok(ok(&shown(&job))?)
}
