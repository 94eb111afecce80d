//! `conversation describe`.

use serde_json::Value;

use super::{document, facts, list, section};
use crate::CommandError;
use crate::server_calls::{Server, read};
use crate::show::{Form, Shown, read_all};
use crate::when::time_text;
use crate::{columns, term, when};
use bloom_api::contexts::Context;
use bloom_api::tasks::Task;
use bloom_client::part;

const TASKS: usize = 20;

/// # Errors
/// No task belongs to the context, or a call failed.
pub(crate) async fn conversation(id: &str, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let answer = server.get(&format!("api/runtime/contexts/{}", part(id))).await.map_err(|failure| failure.about(id))?;
    let context: Context = read(&answer)?;
    let tasks = list(server, "api/runtime/llm-tasks", &[("context_id", context.context_id.to_string())], TASKS).await?;
    match shown.form_or(Form::Table) {
        Form::Name => term::print(&format!("{}\n", term::line(&context.context_id))),
        form if form.is_data() => document(form, vec![("context", answer), ("tasks", Value::Array(tasks))]),
        form => {
            facts(&of(&context))?;
            section("Newest tasks", form, &columns::TASKS, &read_all::<Task>(&tasks)?)
        }
    }
}

fn of(context: &Context) -> Vec<(&'static str, String)> {
    let now = when::now();
    vec![
        ("Context", context.context_id.to_string()),
        ("Namespace", columns::given(&context.namespace)),
        ("Project", columns::given(&context.project)),
        ("Tasks", columns::tasks_of(&context.tasks)),
        ("Session", columns::given(&context.session_id)),
        ("Worker", columns::given(&context.worker_id)),
        ("Usage", columns::used(&context.usage)),
        ("Reset", context.reset_at.map(|at| format!("{} ({} ago)", time_text(at), columns::age(at, now))).unwrap_or_default()),
        ("To begin anew", format!("bloom-runtime conversation reset {}", term::line(&context.context_id))),
    ]
}
