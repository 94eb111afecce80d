//! The menu of the pages.

use super::visit::Layout;

/// The pages that this visitor may see, with their names.
pub fn of(layout: &Layout) -> Vec<(&'static str, &'static str)> {
    let all = [
        ("/", "Overview", true),
        ("/tasks", "Tasks", true),
        ("/tasks/new", "New task", layout.may_act()),
        ("/workers", "Workers", layout.sees_all()),
        ("/projects", "Projects", layout.sees_all()),
        ("/leases", "Leases", layout.sees_all()),
        ("/artifacts", "Artifacts", layout.sees_all()),
        ("/audit", "Audit", layout.sees_all()),
        ("/membridge", "Membridge", layout.sees_all()),
    ];
    all.into_iter().filter(|(.., is_seen)| *is_seen).map(|(path, name, _)| (path, name)).collect()
}
