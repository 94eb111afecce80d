//! The attempts of a task: how each ended, and why. A lease says only that it was given back; the audit trail has the reason.

use uuid::Uuid;

use crate::advice::is_of_provider;
use crate::call::Listed;
use crate::lang::Lang;
use crate::times::{dollars, duration, shortened};
use bloom_api::answers::{Audit, Lease};
use bloom_api::words::Word;
use bloom_core::Ms;
use bloom_core::audit::Action;
use bloom_core::task::{LeaseStatus, Outcome, Reason};

/// The maximum number of attempts on the page. These are the newest.
pub(crate) const MOST: usize = 20;
/// How many entries of the audit trail are searched for the ends of attempts.
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
    pub said: String,
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

/// `leases` and `trail`: the newest first.
pub(crate) fn of(lang: Lang, leases: &Listed<Lease<'_>>, trail: &[Entry], now: Ms) -> Vec<Attempt> {
    let count = leases.rows.len();
    let mut later = Ms::MAX;
    let mut found = Vec::with_capacity(count);
    for (at, lease) in leases.rows.iter().enumerate() {
        let number = leases.next.is_none().then_some(count - at);
        found.push(attempt(lang, lease, number, end(lease, trail, later), now));
        later = lease.started_at;
    }
    found
}

/// The entry about the end of the attempt: one that was written at or after that end, and not after the next attempt began.
fn end<'a>(lease: &Lease<'_>, trail: &'a [Entry], later: Ms) -> Option<&'a Entry> {
    let ended_at = lease.ended_at?;
    let tells = |entry: &&Entry| {
        let Word::Known(action) = &entry.action else { return false };
        let is_end = matches!(
            action,
            Action::TaskCompleted
                | Action::TaskRetried
                | Action::TaskReleased
                | Action::TaskDead
                | Action::TaskCancelled
                | Action::DispatchFailed
        );
        is_end && entry.at >= ended_at && entry.at <= later
    };
    // The first of these entries. The entry about the run comes before the one about the resulting state of the task.
    trail.iter().rev().find(tells)
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

/// The class of a lease's badge and the outcome in words, as far as the lease itself shows it.
pub(crate) fn outcome(lang: Lang, lease: &Lease<'_>) -> (&'static str, &'static str) {
    let is_cancelled = lease.reason.as_ref().is_some_and(|reason| *reason == Reason::Cancelled);
    match (&lease.outcome, &lease.status) {
        (Some(Word::Known(Outcome::Success)), _) => ("completed", lang.t("completed", "завершено")),
        (Some(_), _) if is_cancelled => ("cancelled", lang.t("stopped", "спинено")),
        (Some(_), _) => ("failed", lang.t("failed", "з помилкою")),
        (None, Word::Known(LeaseStatus::Released)) => ("released", lang.t("handed back", "повернено")),
        (None, Word::Known(status)) => (status.as_str(), status_words(lang, *status)),
        (None, _) => ("", lang.t("ended", "закінчено")),
    }
}

fn attempt(lang: Lang, lease: &Lease<'_>, number: Option<usize>, end: Option<&Entry>, now: Ms) -> Attempt {
    let is_active = lease.status == LeaseStatus::Active;
    let action = end.and_then(|end| if let Word::Known(action) = &end.action { Some(*action) } else { None });
    let said = end.map(|end| end.detail.as_str()).unwrap_or_default();
    let failed = lang.t("failed", "з помилкою");
    let (class, words) = outcome(lang, lease);
    let (class, outcome, said) = match (&lease.status, action) {
        (Word::Known(LeaseStatus::Active | LeaseStatus::Expired), _) => (class, words, ""),
        (Word::Known(LeaseStatus::Failed), Some(Action::DispatchFailed)) => (class, lang.t("not delivered", "не передано"), said),
        (Word::Known(LeaseStatus::Failed), _) => (class, words, said),
        (_, Some(Action::TaskReleased)) => ("", lang.t("handed back", "повернено"), said),
        (_, Some(Action::TaskCancelled)) => ("cancelled", lang.t("stopped", "спинено"), said),
        (_, Some(Action::TaskCompleted)) => match said.strip_prefix("the run failed: ") {
            Some(reason) => ("failed", failed, reason),
            None => ("completed", lang.t("completed", "завершено"), ""),
        },
        (_, Some(Action::TaskRetried | Action::TaskDead)) => ("failed", failed, said),
        // A visitor who sees only some tasks may not read the audit trail, so the lease is the only source.
        _ => (class, words, ""),
    };
    let (reason, said) = match lease.status == LeaseStatus::Expired {
        true => (lang.t("its worker was not heard from", "від воркера не було звісток").to_owned(), String::new()),
        false => told(lang, said),
    };
    let reason = match (&lease.reason, reason.is_empty()) {
        (Some(known), true) if said.is_empty() => lang.word(&known.to_string()).into_owned(),
        _ => reason,
    };
    Attempt {
        lease_id: lease.id,
        number,
        class,
        outcome,
        reason,
        said,
        worker_id: lease.worker_id.to_string(),
        started_at: lease.started_at,
        took: duration(lang, lease.ended_at.unwrap_or(now) - lease.started_at),
        model: lease.model.as_deref().unwrap_or_default().to_owned(),
        cost: lease.usage.map(|usage| dollars(lang, usage.cost_usd)).unwrap_or_default(),
        is_active,
        is_of_provider: lease.reason.as_ref().is_some_and(is_of_provider),
    }
}

/// Splits an entry into the reason at its beginning, in words, and the text after it.
fn told(lang: Lang, said: &str) -> (String, String) {
    let (word, rest) = said.split_once([':', ',']).unwrap_or((said, ""));
    match Reason::ALL.iter().find(|reason| reason.as_str() == word) {
        Some(reason) => (lang.word(reason.as_str()).into_owned(), rest.trim().to_owned()),
        None => (String::new(), said.to_owned()),
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

    #[test]
    fn a_reason_is_told_in_words() {
        let both = |word: &str, rest: &str| (word.to_owned(), rest.to_owned());
        assert_eq!(told(Lang::English, "out_of_memory: killed"), both("out of memory", "killed"));
        assert_eq!(told(Lang::English, "auth, attempt 1 of 3"), both("auth", "attempt 1 of 3"));
        assert_eq!(told(Lang::English, "stops: now"), both("", "stops: now"));
    }
}
