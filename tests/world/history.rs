//! Histories of commands. Each step is meaningful in whatever state it meets.

use bloom_core::agent_queue::ALL_QUEUES;
use bloom_core::api_key::{Quota, Scope};
use bloom_core::command::{Choice, Completion, CordonChange, Grace, Holder, Loss, NewEvent, Op, PushEnd, WorkerChange};
use bloom_core::event::EventKind;
use bloom_core::ids::{InstanceId, LeaseId, QuestionId, TaskId};
use bloom_core::namespace::{KubernetesObject, qualified};
use bloom_core::op;
use bloom_core::origin::Origin;
use bloom_core::question::Answer;
use bloom_core::task::{Outcome, Session, TaskSpec};
use bloom_core::task_limits::LimitChange;
use bloom_core::usage::Usage;

use super::control_plane;
use super::memory::Memory;
use super::samples;
use super::step::{End, Named, NewTask, Step};
use super::world::{TTL_MS, World, completion, in_project, registration, spec};

const WORKERS: [&str; 3] = ["w0", "w1", "w2"];
/// The name of the label that tasks may have.
pub const LABEL: &str = "label";
/// The Kubernetes namespaces of tasks that are created for objects.
pub const NAMESPACES: [&str; 2] = ["team", "other"];
const NOT_SEEN_MS: i64 = 60_000;

/// What clients and workers know: the tasks that were created, all leases ever made, and the completions that were sent.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub tasks: Vec<TaskId>,
    pub leases: Vec<(TaskId, LeaseId, String)>,
    pub sent: Vec<Completion>,
    /// How many files arrived.
    pub files: u128,
}

fn pick<T>(from: &[T], at: usize) -> Option<&T> {
    (!from.is_empty()).then(|| &from[at % from.len()])
}

impl History {
    /// Records tasks and leases that are new in the database.
    pub fn learn(&mut self, db: &Memory) {
        for task in db.tasks.values() {
            if !self.tasks.contains(&task.id) {
                self.tasks.push(task.id);
            }
            let lease = task.lease.as_ref().filter(|lease| !self.leases.iter().any(|(_, known, _)| *known == lease.id));
            self.leases.extend(lease.map(|lease| (task.id, lease.id, lease.worker_id.clone())));
        }
    }

    /// Applies the step's effect on the world itself and returns the commands to run. There are none if the objects that the step needs do
    /// not exist.
    pub fn begin(&mut self, world: &mut World, step: &Step) -> Vec<Op> {
        match step {
            Step::Pass { ms } => {
                world.now += ms;
                world.do_what_is_due();
            }
            Step::Crash => world.crashing = true,
            Step::ProcessWakeups => world.process_wakeups(),
            Step::Stale(stale) => {
                world.stale = *stale;
                world.refresh();
            }
            // The database guards each slot of a worker but not the number of used slots. A replica that does not know of leases made
            // before the worker's capacity was lowered could still fill a low slot, until it reads the feed within a quarter of a second.
            Step::Register { .. } => world.stale = false,
            _ => {}
        }
        self.ops(&world.db, world.now, step)
    }

    fn ops(&mut self, db: &Memory, now: i64, step: &Step) -> Vec<Op> {
        if let Step::Batch(steps) = step {
            return steps.iter().flat_map(|step| self.ops(db, now, step)).collect();
        }
        self.op(db, now, step).into_iter().collect()
    }

    fn op(&mut self, db: &Memory, now: i64, step: &Step) -> Option<Op> {
        let task = |at: usize| pick(&self.tasks, at).copied();
        let worker = |at: usize| WORKERS[at % WORKERS.len()].to_owned();
        Some(match step {
            Step::Create(tasks) => Op::Create(op::Create { tasks: tasks.iter().map(|wanted| self.spec(now, wanted)).collect() }),
            Step::Lease { task: at, worker: named, dispatch } => {
                let known: Vec<String> = db.workers.keys().take(1).cloned().collect();
                let choice = named.map_or(Choice::Among { workers: known, context: None }, |at| Choice::Named(worker(at)));
                let origin = if *dispatch { Origin::Dispatch } else { Origin::Call };
                Op::Lease(op::Lease { task: task(*at)?, choice, ttl_ms: TTL_MS, origin })
            }
            Step::Push { worker: at } => {
                let id = worker(*at);
                let task = *db.ready_for(db.workers.get(&id)?).first()?;
                Op::Push(op::Push { task, worker: id, ttl_ms: TTL_MS })
            }
            Step::EndPush { lease, end } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                let message = "no answer".to_owned();
                let end = match end % 3 {
                    0 => PushEnd::Refused { message },
                    may_run => PushEnd::Undelivered { message, unless_running: may_run == 1 },
                };
                Op::EndPush(op::EndPush { task, lease, end })
            }
            Step::Claim { worker: at, max, held, instance } => {
                let id = worker(*at);
                let known = held.map(|knows| db.held_by(&id).filter(|_| knows).filter_map(|task| Some(task.lease.as_ref()?.id)).collect());
                let mut candidates = db.workers.get(&id).map(|worker| db.ready_for(worker)).unwrap_or_default();
                candidates.truncate(max + 1);
                let instance = instance.map(InstanceId::from_u128);
                Op::Claim(bloom_core::command::Claim { worker: id, candidates, max: *max, held: known, instance, ttl_ms: TTL_MS })
            }
            Step::Heartbeat { lease, named } => {
                let (task, lease, worker) = pick(&self.leases, *lease)?.clone();
                Op::Heartbeat(op::Heartbeat { task, holder: holder(*named, lease, worker) })
            }
            Step::Renew { worker: at } => {
                let id = worker(*at);
                let leases = self.leases.iter().filter(|(_, _, worker)| *worker == id).map(|(_, lease, _)| *lease).collect();
                Op::RenewLeases(op::RenewLeases { worker: id, leases })
            }
            Step::Complete { lease, named, end } => {
                let (task, lease, worker) = pick(&self.leases, *lease)?.clone();
                let sent = Completion { holder: holder(*named, lease, worker), ..ended(task, *end, now) };
                self.sent.push(sent.clone());
                Op::Complete(Box::new(sent))
            }
            Step::Repeat { sent } => Op::Complete(Box::new(pick(&self.sent, *sent)?.clone())),
            Step::Release { lease } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                Op::Release(op::Release { task, lease, reason: "shutdown".into() })
            }
            Step::Events { lease, seq } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                let event = |seq| NewEvent { seq, kind: EventKind::Text, at: now, data: "{}".into() };
                Op::AppendEvents(op::AppendEvents { task, lease, worker: None, events: vec![event(*seq), event(seq + 1)] })
            }
            Step::Ask { lease, id, is_over } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                let new = op::NewQuestion { tool: "Bash".into(), input: "{}".into(), texts: Vec::new(), limit_ms: 90_000 };
                Op::AskPerson(op::AskPerson { task, lease, id: QuestionId::from_u128(*id), question: (!is_over).then_some(new) })
            }
            Step::Answer { task: at, allow } => {
                let answer = Answer { allow: *allow, message: None, texts: Vec::new() };
                Op::AnswerQuestion(op::AnswerQuestion { task: task(*at)?, question: None, answer })
            }
            Step::Cancel { task: at } => Op::Cancel(op::Cancel { task: task(*at)? }),
            Step::Requeue { task: at } => Op::Requeue(op::Requeue { task: task(*at)?, limits: LimitChange::default() }),
            Step::Edit { task: at, priority, later, label } => {
                let labels = label.map(|value| (LABEL.to_owned(), value.map(|value| value.to_string()))).into_iter().collect();
                let id = task(*at)?;
                let first_labels = db.specs.get(&id).map(|spec| spec.labels.clone()).unwrap_or_default();
                let not_before = later.map(|later| later.map(|ms| now + ms));
                Op::Edit(op::Edit {
                    task: id,
                    priority: *priority,
                    not_before,
                    labels,
                    first_labels,
                    limits: LimitChange { timeout_sec: priority.map(|n| 100 + n), budget: priority.map(|n| n as f64) },
                })
            }
            Step::Suspend { task: at, suspend } => Op::Suspend(op::Suspend { task: task(*at)?, suspend: *suspend }),
            Step::Delete { task: at } => Op::Delete(op::Delete { task: task(*at)? }),
            Step::Expire { lease } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                Op::ExpireLease(op::ExpireLease { task, lease, grace: Grace::default() })
            }
            Step::Grace { lease } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                Op::ExpireLease(op::ExpireLease { task, lease, grace: Grace { resumed_at: now, grace_ms: 10_000, ..Grace::default() } })
            }
            Step::Register { worker: at, slots, namespaces, projects, instance } => {
                let namespaces = namespaces.map(|number| NAMESPACES.iter().take(number).map(|&name| name.to_owned()).collect());
                let instance = instance.map(InstanceId::from_u128);
                let other_capabilities = (slots % 2 == 0).then(|| [("gpu".to_owned(), "true".to_owned())].into());
                Op::RegisterWorker(Box::new(WorkerChange {
                    namespaces,
                    git: Some(slots % 3 != 0),
                    projects: Some(projects.map(|number| (0..number).map(project_name).collect())),
                    instance,
                    other_capabilities,
                    ..registration(&worker(*at), *slots)
                }))
            }
            Step::Remove { worker: at } => Op::RemoveWorker(op::RemoveWorker { worker: worker(*at) }),
            Step::ResumeAccount { worker: at } => {
                Op::ResumeAccount(op::ResumeAccount { account: "default".into(), workers: vec![worker(*at)] })
            }
            Step::ResetContext { context } => Op::ResetContext(op::ResetContext { context_id: format!("context{context}") }),
            Step::Cordon { worker: at, change } => {
                let changes = [CordonChange::Cordon, CordonChange::Uncordon, CordonChange::Drain];
                Op::Cordon(op::Cordon { worker: worker(*at), change: changes[change % changes.len()] })
            }
            Step::Queue { all, change } => {
                let agent_slug = if *all { ALL_QUEUES } else { "coder" }.to_owned();
                Op::ChangeQueue(op::ChangeQueue { agent_slug, change: *change })
            }
            Step::Seen { worker: at } => Op::RecordLastSeen(op::RecordLastSeen { last_seen: vec![(worker(*at), now)] }),
            Step::Silent { worker: at } => Op::MarkOffline(op::MarkOffline {
                worker: worker(*at),
                cause: Loss::Silent { for_ms: NOT_SEEN_MS, served_since: 0, has_started: false },
            }),
            Step::CreateKey { name } => {
                let scope = [Scope::Join, Scope::Submit, Scope::Worker][name % 3];
                Op::CreateKey(op::CreateKey {
                    name: format!("key{name}"),
                    digest: format!("digest {name} at {now}"),
                    scope,
                    worker: (scope != Scope::Submit && name % 2 == 0).then(|| worker(*name)),
                    push: scope != Scope::Submit && name % 5 == 0,
                    namespaces: (scope != Scope::Submit && name % 7 == 0).then(|| vec![NAMESPACES[0].to_owned()]),
                    lasts_ms: (name % 4 == 0).then_some(30_000),
                    quota: Quota::default(),
                    team: None,
                })
            }
            Step::RevokeKey { name } => Op::RevokeKey(op::RevokeKey { name: format!("key{name}") }),
            Step::Enroll { token, worker: at } => {
                let token = format!("key{token}");
                let token_digest = db.api_keys.get(&token)?.digest.clone();
                Op::Enroll(op::Enroll {
                    token,
                    token_digest,
                    worker: worker(*at),
                    digest: format!("enrolled {at} at {now}"),
                    instance: None,
                })
            }
            Step::CreateProject { name } => Op::CreateProject(op::CreateProject {
                name: project_name(name % 4),
                repo_url: "https://git.example/p".into(),
                target_path: (name % 3 == 0).then(|| format!("some/path {name}")),
                primary_node_id: (name % 2 == 0).then(|| worker(*name)),
                branch_prefix: "bloom".into(),
            }),
            Step::EditProject { project, prefix } => Op::EditProject(op::EditProject {
                project: *db.projects.keys().nth(project % db.projects.len().max(1))?,
                branch_prefix: format!("prefix{}", prefix % 12),
            }),
            Step::DeleteProject { project } => {
                Op::DeleteProject(op::DeleteProject { project: *db.projects.keys().nth(project % db.projects.len().max(1))? })
            }
            Step::RecordClones { project, workers, propagated } => {
                let cloned_for = if *propagated { op::ClonedFor::Propagation } else { op::ClonedFor::Call };
                let clone = |at: &usize| op::NodeClone {
                    node_id: worker(*at),
                    outcome: if at % 2 == 1 { Err("no room".into()) } else { Ok(Some(format!("/p{at}")).filter(|_| *at > 1)) },
                };
                let project = *db.projects.keys().nth(project % db.projects.len().max(1))?;
                Op::RecordClones(op::RecordClones { project, nodes: workers.iter().map(clone).collect(), cloned_for })
            }
            Step::AddFile { lease, name } => {
                let (task, lease, _) = pick(&self.leases, *lease)?.clone();
                self.files += 1;
                Op::AddFile(samples::file(self.files, *name, now, Some(op::FileOfRun { task, lease, worker: None })))
            }
            Step::Upload { owner } => {
                self.files += 1;
                Op::AddFile(samples::file(self.files, *owner, now, None))
            }
            Step::DeleteFile { file } => {
                Op::DeleteFile(op::DeleteFile { file: *db.files.rows.keys().nth(file % db.files.rows.len().max(1))? })
            }
            Step::ControlPlane { which, at } => control_plane::command(*which, *at),
            Step::Pass { .. } | Step::Crash | Step::ProcessWakeups | Step::Stale(_) | Step::Batch(_) => return None,
        })
    }

    fn spec(&self, now: i64, wanted: &NewTask) -> TaskSpec {
        let namespace = |n: usize| NAMESPACES[n % NAMESPACES.len()];
        let named = |name: String| wanted.object.map_or_else(|| name.clone(), |n| qualified(namespace(n), &name));
        let object = |n: usize| KubernetesObject {
            namespace: namespace(n).into(),
            name: format!("object{n}"),
            uid: TaskId::from_u128(n as u128 + 1),
        };
        TaskSpec {
            object: wanted.object.map(object),
            project: wanted.project.map(|number| in_project(&project_name(number))),
            session: if wanted.session { Session::Context } else { Session::None },
            exclusive_key: wanted.key.map(|key| named(format!("key{key}"))),
            idempotency_key: wanted.idempotency.map(|key| named(format!("idem{key}"))),
            depends_on: wanted.depends_on.and_then(|at| pick(&self.tasks, at).copied()).into_iter().collect(),
            priority: wanted.priority,
            max_attempts: wanted.max_attempts,
            // Of half a dollar for each run that ends.
            budget: f64::from(u8::try_from(wanted.priority % 3).unwrap_or_default()),
            not_before: wanted.later.then_some(now + 45_000),
            suspend: wanted.suspend,
            labels: wanted.key.map(|key| (LABEL.to_owned(), (key == 0).to_string())).into_iter().collect(),
            ..spec(&named(format!("context{}", wanted.context)))
        }
    }
}

fn project_name(number: usize) -> String {
    format!("project {number}")
}

fn holder(named: Named, lease: LeaseId, worker: String) -> Holder {
    match named {
        Named::Nobody => Holder::default(),
        Named::Lease => Holder { lease: Some(lease), worker: None },
        Named::Worker => Holder { lease: None, worker: Some(worker) },
    }
}

fn ended(task: TaskId, end: End, now: i64) -> Completion {
    let status = if matches!(end, End::Success) { Outcome::Success } else { Outcome::Error };
    Completion {
        retryable: matches!(end, End::Again | End::AgainLater | End::NoAttempt),
        keep_attempt: matches!(end, End::NoAttempt),
        retry_at: matches!(end, End::AgainLater).then_some(now + 30_000),
        usage: Some(Usage { input_tokens: 7, output_tokens: 2, cost_usd: 0.5, cost_estimated: false }),
        session_id: Some("session".into()),
        ..completion(task, None, status)
    }
}
