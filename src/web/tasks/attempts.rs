//! The attempts of a task: how each ended, and why; and the entries of its audit trail.

use uuid::Uuid;

use crate::advice::is_of_provider;
use crate::call::Listed;
use crate::lang::Lang;
use crate::times::{dollars, duration, shortened};
use bloom_api::answers::{Audit, Lease};
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::task::{LeaseOutcome, LeaseStatus, Reason};

/// The maximum number of attempts on the page. These are the newest.
pub(crate) const MOST: usize = 20;
/// How many entries of the audit trail are read, to see whether the task was requeued.
pub(crate) const ENTRIES: usize = 100;

pub(crate) struct Attempt {
    pub lease_id: Uuid,
    /// The number of the attempt, from 1; `None` if there are more attempts than are listed.
    pub number: Option<usize>,
    /// The class of its badge.
    pub class: &'static str,
    pub outcome: &'static str,
    /// The reason in words; empty if there is none.
    pub reason: String,
    /// The text of the worker or the server about the end.
    pub message: String,
    pub worker_id: String,
    pub started_at: Ms,
    pub took: String,
    pub model: String,
    pub cost: String,
    pub is_active: bool,
    /// Whether it failed because the provider of the model had no capacity.
    pub is_of_provider: bool,
}

/// An entry of the task's audit trail.
pub(crate) struct Entry {
    pub at: Ms,
    pub action: Word<Action>,
    pub actor: String,
    pub detail: String,
    /// The detail in the language of the page; `None` if it is not translated.
    pub told: Option<String>,
}

impl Entry {
    pub(crate) fn of(lang: Lang, entry: Audit<'_>) -> Self {
        // The entries are shown on the page of their task, so the id of the task is left out.
        let detail = entry.task_id.map_or(entry.detail.to_string(), |task| entry.detail.replace(&format!("task {task} "), ""));
        let (detail, told) = (shortened(&detail, 300), in_words(lang, &entry.action, &detail));
        Self { at: entry.timestamp, action: entry.action, actor: entry.actor.to_string(), detail, told }
    }
}

/// The detail of an entry in the language of the page. Only the details that most tasks have are translated; `None`: the detail stays in
/// English.
pub(crate) fn in_words(lang: Lang, action: &Word<Action>, detail: &str) -> Option<String> {
    match action {
        Word::Known(Action::TaskCreated) => Some(lang.t(format!("agent {detail}"), format!("агент {detail}"))),
        Word::Known(Action::TaskLeased) => {
            let (_, worker) = detail.split_once("to worker ")?;
            Some(lang.t(format!("to worker {worker}"), format!("воркеру {worker}")))
        }
        Word::Known(Action::TaskCompleted) => match detail.strip_prefix("the run failed: ") {
            Some(reason) => {
                let reason = lang.word(reason);
                Some(lang.t(format!("the run failed: {reason}"), format!("запуск завершився помилкою: {reason}")))
            }
            None => (detail == "the run succeeded").then(|| lang.t("the run succeeded", "запуск завершився успішно").to_owned()),
        },
        Word::Known(Action::TaskAsked) => match detail.strip_prefix("whether it may use ") {
            Some(tool) => Some(lang.t(detail.to_owned(), format!("чи можна йому скористатися інструментом {tool}"))),
            None => detail.ends_with("in words").then(|| lang.t(detail, "запитання словами").to_owned()),
        },
        Word::Known(Action::TaskAnswered) => {
            let (verb, tool) = detail.split_once(' ')?;
            let told = match verb {
                "allowed" => "дозволено",
                "denied" => "відмовлено",
                "answered" => "дано відповідь",
                _ => return None,
            };
            Some(lang.t(detail.to_owned(), format!("{told}: {tool}")))
        }
        _ => None,
    }
}

/// `leases`: the newest first.
pub(crate) fn of(lang: Lang, leases: &Listed<Lease<'_>>, now: Ms) -> Vec<Attempt> {
    let number = |at: usize| leases.next.is_none().then_some(leases.rows.len() - at);
    leases.rows.iter().enumerate().map(|(at, lease)| attempt(lang, lease, number(at), now)).collect()
}

/// The state of a lease, or how it ended, in words.
pub(crate) fn status_words(lang: Lang, status: LeaseStatus) -> &'static str {
    match status {
        LeaseStatus::Active => lang.t("under way", "триває"),
        LeaseStatus::Expired => lang.t("lost", "втрачено"),
        LeaseStatus::Failed => lang.t("ended by the server", "закінчено сервером"),
        LeaseStatus::Released => lang.t("ended", "закінчено"),
    }
}

/// The class of a lease's badge and its state or outcome in words.
pub(crate) fn outcome(lang: Lang, lease: &Lease<'_>) -> (&'static str, &'static str) {
    match (&lease.outcome, &lease.status) {
        (Some(Word::Known(LeaseOutcome::Success)), _) => ("completed", lang.t("completed", "завершено")),
        (Some(Word::Known(LeaseOutcome::Error)), _) => ("failed", lang.t("failed", "з помилкою")),
        (Some(_), _) if is_cancelled(lease) => ("cancelled", lang.t("stopped", "спинено")),
        (Some(_), Word::Known(LeaseStatus::Released)) => ("", lang.t("handed back", "повернено")),
        (_, Word::Known(status)) => (status.as_str(), status_words(lang, *status)),
        (_, Word::Other(_)) => ("", lang.t("ended", "закінчено")),
    }
}

fn is_cancelled(lease: &Lease<'_>) -> bool {
    lease.reason == Some(Reason::Cancelled.into())
}

/// Why the run failed or was interrupted: the reason in words, and the text about it, of which the outcome is left out. Both are empty if the
/// outcome says it.
pub(crate) fn why(lang: Lang, lease: &Lease<'_>) -> (String, String) {
    let Some(reason) = &lease.reason else { return Default::default() };
    let message = lease.message.as_deref().unwrap_or_default();
    let message = message.strip_prefix("handed back: ").unwrap_or(message).to_owned();
    match (&lease.outcome, &lease.status) {
        (_, Word::Known(LeaseStatus::Expired)) => {
            (lang.t("its worker was not heard from", "від воркера не було звісток").to_owned(), String::new())
        }
        (Some(Word::Known(LeaseOutcome::Error)), _) => (lang.word(&reason.to_string()).into_owned(), message),
        _ => (String::new(), message),
    }
}

fn attempt(lang: Lang, lease: &Lease<'_>, number: Option<usize>, now: Ms) -> Attempt {
    let (class, outcome) = outcome(lang, lease);
    let (reason, message) = why(lang, lease);
    Attempt {
        lease_id: lease.id,
        number,
        class,
        outcome,
        reason,
        message: shortened(&message, 300),
        worker_id: lease.worker_id.to_string(),
        started_at: lease.started_at,
        took: duration(lang, lease.ended_at.unwrap_or(now) - lease.started_at),
        model: lease.model.as_deref().unwrap_or_default().to_owned(),
        cost: lease.usage.map(|usage| dollars(lang, usage.cost_usd)).unwrap_or_default(),
        is_active: lease.status == LeaseStatus::Active,
        is_of_provider: lease.reason.as_ref().is_some_and(is_of_provider),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_details_that_most_tasks_have_are_translated() {
        let told = |action, detail| in_words(Lang::Ukrainian, &Word::Known(action), detail);
        assert_eq!(told(Action::TaskCreated, "default").unwrap(), "агент default");
        assert_eq!(told(Action::TaskLeased, "task 5 to worker dev").unwrap(), "воркеру dev");
        assert_eq!(told(Action::TaskCompleted, "the run failed: timeout").unwrap(), "запуск завершився помилкою: вичерпано час");
        assert_eq!(told(Action::TaskAsked, "whether it may use Bash").unwrap(), "чи можна йому скористатися інструментом Bash");
        assert_eq!(told(Action::TaskAsked, "2 questions in words").unwrap(), "запитання словами");
        assert_eq!(told(Action::TaskAnswered, "denied Bash: no").unwrap(), "відмовлено: Bash: no");
        assert_eq!((told(Action::TaskCompleted, "something else"), told(Action::TaskRetried, "auth")), (None, None));
    }
}
