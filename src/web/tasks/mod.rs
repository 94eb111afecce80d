//! The pages of tasks.

pub(crate) mod answer_form;
pub(crate) mod attempts;
pub(crate) mod bulk;
pub(crate) mod buttons;
pub(crate) mod cells;
mod events;
pub(crate) mod filter;
pub(crate) mod list;
pub(crate) mod new;
pub(crate) mod question;
pub(crate) mod reply_form;
pub(crate) mod requeue;
mod result;
pub(crate) mod show;
mod suggestions;
mod tabs;

use uuid::Uuid;

use crate::refused::Refused;
use crate::visit::Visit;
use bloom_api::tasks::Task;

/// The word in the address of a new task's page if no worker knows the task's agent by its name.
const UNKNOWN_AGENT: &str = "created-unknown-agent";

/// The id in the path. It is parsed, so that it can't change the rest of an API path.
fn id_of(text: &str) -> Result<Uuid, Refused> {
    Uuid::parse_str(text).map_err(|_| Refused::new(404, "Task not found", "Завдання не знайдено"))
}

/// The only task whose id begins or ends with this part; lists show the ends of ids.
pub(crate) async fn by_part(visit: &Visit, part: &str) -> Result<Option<Uuid>, Refused> {
    let digits = part.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_part = (4..=32).contains(&digits) && digits + part.matches('-').count() == part.len();
    if !is_part {
        return Ok(None);
    }
    let found = visit.list(&format!("llm-tasks?id={part}&limit=2"), |task: Task| task.id).await?.rows;
    Ok(if let [only] = found.as_slice() { Some(*only) } else { None })
}
