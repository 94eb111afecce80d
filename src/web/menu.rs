//! The menu of the pages.

use super::visit::Layout;

/// An entry: the path of its page and its label.
type Entry = (&'static str, &'static str);

/// The pages that this visitor may see: the pages for daily work, which are always visible, and the others, which are in the menu "More".
pub(crate) fn of(layout: &Layout) -> [Vec<Entry>; 2] {
    let daily = [
        ("/", layout.t("Overview", "Огляд"), true),
        ("/tasks", layout.t("Tasks", "Завдання"), true),
        ("/tasks/new", layout.t("New task", "Нове завдання"), layout.may_act()),
        ("/contexts", layout.t("Contexts", "Контексти"), true),
        ("/workers", layout.t("Workers", "Воркери"), layout.sees_team()),
        ("/projects", layout.t("Projects", "Проєкти"), layout.sees_team()),
        ("/queues", layout.t("Queues", "Черги"), layout.sees_team()),
        ("/usage", layout.t("Usage", "Витрати"), layout.sees_usage()),
    ];
    // Without a control plane, the page can be reached from the overview.
    let uses_membridge = layout.uses_membridge || layout.here == "/membridge";
    let others = [
        ("/leases", layout.t("Leases", "Оренди"), layout.sees_all()),
        ("/artifacts", layout.t("Artifacts", "Артефакти"), true),
        ("/audit", layout.t("Audit", "Аудит"), layout.sees_all()),
        ("/reconcilers", layout.t("Reconcilers", "Контролери"), layout.sees_all()),
        ("/membridge", "Membridge", layout.sees_all() && uses_membridge),
        ("/keys", layout.t("API keys", "Ключі API"), layout.is_admin()),
    ];
    [seen(daily), seen(others)]
}

fn seen<const N: usize>(entries: [(&'static str, &'static str, bool); N]) -> Vec<Entry> {
    entries.into_iter().filter(|(.., is_seen)| *is_seen).map(|(path, name, _)| (path, name)).collect()
}
