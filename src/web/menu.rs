//! The menu of the pages.

use super::visit::Layout;

/// The pages that this visitor may see, with their names.
pub fn of(layout: &Layout) -> Vec<(&'static str, &'static str)> {
    let all = [
        ("/", layout.t("Overview", "Огляд"), true),
        ("/tasks", layout.t("Tasks", "Завдання"), true),
        ("/tasks/new", layout.t("New task", "Нове завдання"), layout.may_act()),
        ("/queues", layout.t("Queues", "Черги"), layout.sees_team()),
        ("/contexts", layout.t("Contexts", "Контексти"), true),
        ("/workers", layout.t("Workers", "Воркери"), layout.sees_all()),
        ("/projects", layout.t("Projects", "Проєкти"), layout.sees_all()),
        ("/usage", layout.t("Usage", "Витрати"), layout.sees_team()),
        ("/leases", layout.t("Leases", "Оренди"), layout.sees_all()),
        ("/artifacts", layout.t("Artifacts", "Артефакти"), layout.sees_all()),
        ("/audit", layout.t("Audit", "Аудит"), layout.sees_all()),
        ("/keys", layout.t("API keys", "Ключі API"), layout.is_admin()),
        ("/membridge", "Membridge", layout.sees_all()),
    ];
    all.into_iter().filter(|(.., is_seen)| *is_seen).map(|(path, name, _)| (path, name)).collect()
}
