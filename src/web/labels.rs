//! The API's words for states and actions, as labels. In English, a label is the word itself.

use std::borrow::Cow;

use super::lang::Lang;

/// The words and their labels in Ukrainian. The labels agree with no particular noun, because tasks, leases and clones share words.
const LABELS: [(&str, &str); 109] = [
    // Tasks, leases, workers, clones.
    ("queued", "у черзі"),
    ("leased", "видано"),
    ("running", "виконується"),
    ("completed", "завершено"),
    ("failed", "помилка"),
    ("dead", "вичерпано"),
    ("cancelled", "скасовано"),
    ("active", "діє"),
    ("expired", "прострочено"),
    ("released", "звільнено"),
    ("online", "на зв’язку"),
    ("offline", "не на зв’язку"),
    ("syncing", "синхронізується"),
    ("error", "помилка"),
    ("unknown", "невідомо"),
    ("removed", "вилучено"),
    ("pending", "очікує"),
    ("cloned", "клоновано"),
    ("synced", "синхронізовано"),
    ("partial", "частково"),
    // Reconcilers.
    ("ok", "справно"),
    ("failing", "з помилками"),
    ("late", "запізнюється"),
    // Scopes of keys.
    ("admin", "адмін"),
    ("submit", "надсилання"),
    ("member", "учасник команди"),
    ("worker", "воркер"),
    ("read", "читання"),
    ("join", "приєднання"),
    // Events of runs.
    ("lifecycle", "перебіг"),
    ("text", "текст"),
    ("tool_use", "інструмент"),
    ("tool_result", "вивід"),
    ("usage", "витрати"),
    ("rate_limit", "ліміт"),
    ("log", "журнал"),
    ("stderr", "stderr"),
    ("permission_denied", "відмова"),
    ("question", "запитання"),
    ("answer", "відповідь"),
    // Why runs and tasks did not succeed.
    ("agent_error", "помилка агента"),
    ("timeout", "вичерпано час"),
    ("stalled", "нічого не відбувалося"),
    ("rate_limited", "обмеження облікового запису"),
    ("overloaded", "API перевантажено"),
    ("auth", "обліковий запис відхилено"),
    ("billing", "немає оплати"),
    ("model_unavailable", "модель недоступна"),
    ("budget_exceeded", "бюджет вичерпано"),
    ("bad_output", "непридатна відповідь"),
    ("worker_lost", "воркер утрачено"),
    ("spawn_failed", "програму не запущено"),
    ("dependency_failed", "не виконано залежність"),
    ("out_of_memory", "забракло пам’яті"),
    ("worker_disk", "диск воркера повний"),
    ("context_full", "контекст переповнено"),
    ("invalid_request", "непридатний запит"),
    ("refused", "модель відмовилася"),
    ("disk_limit", "обмеження диска"),
    ("project", "проєкт непридатний"),
    ("bad_input", "непридатний вхідний файл"),
    // The audit trail.
    ("config_updated", "налаштування змінено"),
    ("connection_test", "з’єднання перевірено"),
    ("worker_registered", "воркер зареєстровано"),
    ("worker_updated", "воркер змінено"),
    ("worker_removed", "воркер вилучено"),
    ("worker_offline", "воркер зник"),
    ("worker_online", "воркер з’явився"),
    ("worker_cordoned", "воркер закрито"),
    ("worker_uncordoned", "воркер відкрито"),
    ("worker_draining", "воркер виводять з роботи"),
    ("worker_enrolled", "воркер приєднано"),
    ("task_created", "завдання створено"),
    ("task_leased", "завдання видано"),
    ("task_completed", "запуск закінчено"),
    ("task_dispatched", "завдання передано"),
    ("dispatch_failed", "завдання не передано"),
    ("task_released", "завдання звільнено"),
    ("task_retried", "завдання повторюється"),
    ("task_requeued", "завдання повернено в чергу"),
    ("task_cancelled", "завдання скасовано"),
    ("task_edited", "завдання змінено"),
    ("task_deleted", "завдання видалено"),
    ("task_suspended", "завдання призупинено"),
    ("task_resumed", "завдання відновлено"),
    ("task_asked", "завдання запитує"),
    ("task_answered", "завдання отримало відповідь"),
    ("task_dead", "спроби завдання вичерпано"),
    ("lease_expired", "оренду прострочено"),
    ("leadership_promote", "лідера призначено"),
    ("agent_updated", "агента оновлено"),
    ("agent_restarted", "агента перезапущено"),
    ("agent_uninstalled", "агента вилучено"),
    ("key_created", "ключ створено"),
    ("key_rotated", "ключ замінено"),
    ("key_revoked", "ключ відкликано"),
    ("quota_changed", "квоту змінено"),
    ("project_created", "проєкт створено"),
    ("project_edited", "проєкт змінено"),
    ("project_deleted", "проєкт видалено"),
    ("project_cloned", "проєкт клоновано"),
    ("project_propagated", "проєкт поширено"),
    ("memory_sync_push", "пам’ять надіслано"),
    ("memory_sync_pull", "пам’ять отримано"),
    ("context_reset", "контекст скинуто"),
    ("account_resumed", "паузу облікового запису завершено"),
    ("queue_paused", "чергу зупинено"),
    ("queue_resumed", "чергу відновлено"),
    ("queue_limited", "чергу обмежено"),
];

impl Lang {
    /// The label of a word of the API. A word that this program does not have in its list is shown unchanged.
    pub(crate) fn word(self, word: &str) -> Cow<'static, str> {
        let translated = LABELS.iter().find(|(known, _)| *known == word).map(|(_, label)| *label);
        match (self, translated) {
            (Self::Ukrainian, Some(label)) => label.into(),
            // The run may have failed; the detail next to the label says how it ended.
            (Self::English, Some(_)) if word == "task_completed" => "run ended".into(),
            _ => word.replace('_', " ").into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bloom_core::api_key::Scope;
    use bloom_core::audit::Action;
    use bloom_core::event::EventKind;
    use bloom_core::project::CloneStatus;
    use bloom_core::reconciler::ReconcilerState;
    use bloom_core::task::{LeaseStatus, Reason, Status};
    use bloom_core::worker::WorkerStatus;

    #[test]
    fn each_word_that_the_pages_show_has_a_label() {
        let mut shown = vec!["removed"];
        shown.extend(Status::ALL.iter().map(|word| word.as_str()));
        shown.extend(LeaseStatus::ALL.iter().map(|word| word.as_str()));
        shown.extend(WorkerStatus::ALL.iter().map(|word| word.as_str()));
        shown.extend(CloneStatus::ALL.iter().map(|word| word.as_str()));
        shown.extend(ReconcilerState::ALL.iter().map(|word| word.as_str()));
        shown.extend(Scope::ALL.iter().map(|word| word.as_str()));
        shown.extend(EventKind::ALL.iter().map(|word| word.as_str()));
        shown.extend(Action::ALL.iter().map(|word| word.as_str()));
        // "cancelled" is a status, too.
        shown.extend(Reason::ALL.iter().map(|word| word.as_str()));
        for word in &shown {
            assert_eq!(LABELS.iter().filter(|(known, _)| known == word).count(), 1, "{word} needs one label in LABELS");
        }
        for (word, _) in LABELS {
            assert!(shown.contains(&word), "no page shows {word}");
        }
        assert_eq!((Lang::English.word("task_dead"), Lang::Ukrainian.word("news")), ("task dead".into(), "news".into()));
    }
}
