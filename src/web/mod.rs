//! The pages of the server for browsers: what runs, what waits and why, and the buttons to act.
//!
//! Pages are rendered on the server, and each action is a form, so everything works without scripts. They read and act through API calls
//! inside the process (`call`), with the rights of the key that the visitor has signed in with (`visit`).

#![warn(missing_docs, unreachable_pub)]

mod advice;
mod answer;
mod assets;
mod audit;
mod call;
mod chart;
mod contexts;
mod cookies;
mod diff;
mod error_page;
mod failures;
mod files;
mod filters;
mod html;
mod json;
mod json_rows;
mod keys;
mod labels;
mod lang;
mod language_links;
mod live;
mod markdown;
mod membridge;
mod membridge_project;
mod menu;
mod multipart;
mod notes;
mod overview;
mod own_overview;
mod projects;
mod queues;
mod reconcilers;
mod records;
mod refused;
mod render_cache;
mod revocation;
mod scopes;
mod sign_in;
mod spent;
mod tasks;
#[cfg(test)]
mod texts;
mod times;
mod usage;
mod visit;
mod workers;

use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::routing::{MethodRouter, get, post};

use bloom_http::{AppState, Pages};

/// All pages. If several browsers keep the same page open, it is rendered once for all of them.
pub fn pages() -> Pages {
    let recent = render_cache::Recent::new();
    let shared = |show: MethodRouter<AppState>| match &recent {
        Some(recent) => show.layer(from_fn_with_state(recent.clone(), render_cache::once)),
        None => show,
    };
    Pages::new(|router, root| {
        let with_errors = router.layer(from_fn_with_state(root.clone(), error_page::errors_as_pages));
        with_errors.layer(map_response_with_state(root, answer::below_root))
    })
    .form("/sign-in", get(sign_in::form).post(sign_in::send))
    .form("/sign-out", post(sign_in::out))
    .file("/assets/{file}", get(assets::file))
    .look("/language/{tag}", get(language_links::choose))
    .look("/", shared(get(overview::show)))
    .stream("/live", get(live::stream))
    .look("/tasks", shared(get(tasks::list::list)))
    .creation("/tasks/new", get(tasks::new::form).post(tasks::new::send))
    .form("/tasks/bulk", post(tasks::bulk::change))
    .look("/tasks/{id}", shared(get(tasks::show::show)))
    .look("/tasks/{id}/events", get(tasks::show::events))
    .look("/tasks/{id}/events/{number}", get(tasks::show::event))
    .look("/tasks/{id}/prompt", get(tasks::show::prompt))
    .look("/tasks/{id}/output", get(tasks::show::output))
    .creation("/tasks/{id}/reply", post(tasks::reply_form::send))
    .form("/tasks/{id}/answer", post(tasks::answer_form::send))
    .form("/tasks/{id}/requeue", post(tasks::requeue::send))
    .look("/tasks/{id}/confirm-delete", get(tasks::buttons::confirm_delete))
    .form("/tasks/{id}/{action}", post(tasks::buttons::act))
    .look("/contexts", shared(get(contexts::list)))
    .look("/contexts/{id}", shared(get(contexts::show)))
    .look("/contexts/{id}/confirm-reset", get(contexts::confirm_reset))
    .form("/contexts/{id}/reset", post(contexts::reset))
    .look("/workers", shared(get(workers::list)))
    .look("/workers/{name}", shared(get(workers::show)))
    .look("/workers/{name}/confirm-remove", get(workers::confirm_remove))
    .form("/workers/{name}/{action}", post(workers::act))
    .form("/projects", shared(get(projects::list)).post(projects::create))
    .look("/projects/{id}", shared(get(projects::show)))
    .look("/projects/{id}/confirm-delete", get(projects::confirm_delete))
    .form("/projects/{id}/{action}", post(projects::act))
    .form("/queues", shared(get(queues::list)).post(queues::change))
    .look("/queues/confirm-pause", get(queues::confirm_pause))
    .form("/queues/pause", post(queues::pause_all))
    .look("/usage", shared(get(usage::show)))
    .look("/usage.csv", get(usage::file))
    .form("/keys", shared(get(keys::list)).post(keys::create))
    .look("/keys/{name}", shared(get(keys::show)))
    .look("/keys/{name}/confirm-revoke", get(revocation::confirm))
    .form("/keys/{name}/{action}", post(keys::act))
    .look("/leases", shared(get(records::leases)))
    .look("/artifacts", shared(get(records::artifacts)))
    .look("/artifacts/{id}/content", get(files::content))
    .look("/audit", shared(get(audit::list)))
    .look("/reconcilers", shared(get(reconcilers::list)))
    .form("/membridge", get(membridge::show).post(membridge::set))
    .test("/membridge/test", post(membridge::test))
    .form("/membridge/projects/{id}", get(membridge_project::show).post(membridge_project::promote))
    .look("/membridge/projects/{id}/confirm-pull", get(membridge_project::confirm_pull))
    .form("/membridge/projects/{id}/{action}", post(membridge_project::act))
}
