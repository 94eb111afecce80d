//! The last runs of the reconcilers.

use askama::Template;
use axum::response::Response;

use crate::lang::Lang;
use crate::refused::Refused;
use crate::times::{duration, number};
use crate::visit::{Layout, Visit};
use bloom_api::reconcilers::Reconciler;
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::reconciler::ReconcilerState;

struct Row {
    name: String,
    does: &'static str,
    state: String,
    /// The class of its badge.
    class: &'static str,
    started_at: Ms,
    took: String,
    items: String,
    runs: String,
    failures: i64,
    /// The last error and its time.
    error: Option<(Ms, String)>,
}

fn row(lang: Lang, one: Reconciler<'_>) -> Row {
    let class = match one.state {
        Word::Known(ReconcilerState::Ok) => "s-online",
        Word::Known(ReconcilerState::Late) => "s-queued",
        _ => "s-failed",
    };
    Row {
        does: does(lang, &one.name),
        name: one.name.into_owned(),
        state: one.state.to_string(),
        class,
        started_at: one.started_at,
        took: one.duration_ms.map(|ms| duration(lang, ms)).unwrap_or_default(),
        items: number(one.items),
        runs: number(one.runs),
        failures: one.failures,
        error: one.failed_at.zip(one.error.map(|error| error.into_owned())),
    }
}

/// The purpose of the reconciler; empty for one that this version does not have.
fn does(lang: Lang, name: &str) -> &'static str {
    match name {
        "lease_expiry" => lang.t("Ends leases that were not renewed in time.", "Завершує оренди, які вчасно не поновлено."),
        "worker_liveness" => lang.t("Notices workers that are silent.", "Помічає воркери, що мовчать."),
        "task_timers" => lang.t("Readies tasks whose time has come.", "Готує завдання, чий час настав."),
        "wakeups" => lang.t("Readies tasks that nothing keeps waiting any more.", "Готує завдання, яким більше ніщо не заважає."),
        "push" => lang.t("Sends tasks to workers that are pushed to.", "Надсилає завдання воркерам, які їх приймають."),
        "compaction" => lang.t("Sums up counts and removes old batches.", "Підсумовує лічильники та вилучає старі пакети."),
        "retention" => lang
            .t("Removes tasks, files and audit entries whose time is over.", "Вилучає завдання, файли та записи аудиту, чий строк минув."),
        "counts" => lang.t("Compares the counts with the tables.", "Звіряє лічильники з таблицями."),
        "quotas" => lang.t("Measures what keys store.", "Вимірює, скільки зберігають ключі."),
        "objects" => {
            lang.t("Moves outputs and the audit trail to the object store.", "Переносить виводи та журнал аудиту до сховища об’єктів.")
        }
        "membridge_sync" => lang.t("Takes over the workers of membridge.", "Переймає воркери membridge."),
        "llm_tasks" => lang.t("Serves the LLMTask objects of Kubernetes.", "Обслуговує об’єкти LLMTask у Kubernetes."),
        "worker_pools" => lang.t("Runs the pods of WorkerPool objects.", "Тримає поди об’єктів WorkerPool."),
        "worker_objects" => lang.t("Shows workers as objects of Kubernetes.", "Показує воркери як об’єкти Kubernetes."),
        _ => "",
    }
}

#[derive(Template)]
#[template(path = "reconcilers.html")]
struct Reconcilers<'a> {
    v: &'a Layout,
    rows: Vec<Row>,
}

pub(crate) async fn list(visit: Visit) -> Result<Response, Refused> {
    visit.query().only(&[])?;
    let v = &visit.layout;
    let all: Vec<Reconciler<'_>> = visit.get("reconcilers").await?;
    visit.ok(&Reconcilers { v, rows: all.into_iter().map(|one| row(v.at.lang, one)).collect() })
}
