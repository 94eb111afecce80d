//! What was acknowledged before a backup began is in it, while clients and workers go on, on both databases.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::on_both;

/// The tasks that the server has acknowledged as created, and as completed.
#[derive(Clone, Default)]
struct Acknowledged {
    created: BTreeSet<String>,
    completed: BTreeSet<String>,
}

/// Clients that create tasks and complete them, without a pause.
struct Clients {
    acknowledged: Arc<Mutex<Acknowledged>>,
    stop: Arc<AtomicBool>,
    running: Vec<tokio::task::JoinHandle<()>>,
}

impl Clients {
    fn start(api: &Api) -> Self {
        let clients = Self { acknowledged: Arc::default(), stop: Arc::default(), running: Vec::new() };
        let running = (0..4).map(|_| beside(work(api.clone(), clients.acknowledged.clone(), clients.stop.clone())));
        Self { running: running.collect(), ..clients }
    }

    fn so_far(&self) -> Acknowledged {
        self.acknowledged.lock().unwrap().clone()
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.running {
            client.await.unwrap();
        }
    }
}

async fn work(api: Api, acknowledged: Arc<Mutex<Acknowledged>>, stop: Arc<AtomicBool>) {
    let crew = api.crew();
    let worker = crew.worker().register().await;
    while !stop.load(Ordering::Relaxed) {
        let (done, queued) = (crew.task().create().await.id, crew.task().create().await.id);
        acknowledged.lock().unwrap().created.extend([done.clone(), queued]);
        let task = api.task(&done);
        task.lease_to(&worker).await.complete("success", json!({ "output": "kept" })).await.ok();
        acknowledged.lock().unwrap().completed.insert(done);
    }
}

/// Makes a backup; on PostgreSQL by the command that `bloom-runtime backup` tells.
fn back_up(plan: &Plan, file: &Path, is_postgres: bool) {
    let answer = does(plan, &["backup", "--force", text(file)]);
    if is_postgres { runs_what_it_told(answer, "pg_dump ") } else { drop(answer.ok()) }
}

fn restore(plan: &Plan, file: &Path, is_postgres: bool) {
    let answer = does(plan, &["restore", text(file)]);
    if is_postgres { runs_what_it_told(answer, "pg_restore ") } else { drop(answer.ok()) }
}

#[track_caller]
fn runs_what_it_told(answer: Said, program: &str) {
    let line = answer.text.lines().find(|line| line.trim().starts_with(program)).unwrap_or_else(|| panic!("{}", answer.text)).to_owned();
    answer.refuses(&["this command is for SQLite"]);
    let path = format!("{}:{}", postgres::bin_dir().display(), std::env::var("PATH").unwrap());
    said(Command::new("sh").arg("-c").arg(line).env("PATH", path).output().unwrap()).ok();
}

on_both! { alone:
    async fn nothing_acknowledged_before_the_backup_is_missing(database) {
        let server = Server::on(database).start();
        let (is_postgres, file) = (server.is_postgres(), place().join("it's a backup"));
        // Long enough for a copy that clients overtake.
        let long = "p".repeat(200_000);
        let tasks = (0..4).map(|_| server.crew().task().prompt(&long).json()).collect::<Vec<_>>();
        for _ in 0..25 {
            server.post("llm-tasks:batch", json!({ "tasks": tasks })).await.created();
        }
        let clients = Clients::start(&server);
        let acknowledged = eventually("clients go on during a backup", || async {
            let before = clients.so_far();
            let (plan, file) = (server.plan().clone(), file.clone());
            tokio::task::spawn_blocking(move || back_up(&plan, &file, is_postgres)).await.unwrap();
            let after = clients.so_far();
            (!before.completed.is_empty() && after.completed.len() > before.completed.len() + 5).then_some(before)
        })
        .await;
        clients.end().await;
        server.kill9();

        let restored = Server::on(database);
        restore(&restored, &file, is_postgres);
        let server = restored.start();
        for id in &acknowledged.created {
            let task = server.get(&format!("llm-tasks/{id}")).await.ok();
            if acknowledged.completed.contains(id) {
                assert_eq!(task["status"], "completed", "{task}");
            }
        }
        let (task, lease) = server.crew().leased_task().await;
        lease.complete("success", json!({ "output": "goes on" })).await.ok();
        assert_eq!(task.status().await, "completed");
    }
}
