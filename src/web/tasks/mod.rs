//! The pages of tasks.

pub mod act;
mod answer;
pub mod answering;
pub mod asked;
mod attempts;
pub mod bulk;
pub mod cells;
mod events;
pub mod filter;
mod known;
pub mod list;
pub mod new;
pub mod reply;
pub mod show;

use uuid::Uuid;

use crate::refused::Refused;
use crate::visit::Visit;
use bloom_api::tasks::Task;

/// The id in the path, checked so that it names nothing else in a path of the API.
fn id_of(text: &str) -> Result<Uuid, Refused> {
    Uuid::parse_str(text).map_err(|_| Refused::new(404, "Task not found", "Завдання не знайдено"))
}

/// The only task whose id has this part: its beginning, or its end, as lists show it.
async fn by_part(visit: &Visit, part: &str) -> Result<Option<Uuid>, Refused> {
    let digits = part.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_part = (4..=32).contains(&digits) && digits + part.matches('-').count() == part.len();
    if !is_part {
        return Ok(None);
    }
    let found = visit.list(&format!("llm-tasks?id={part}&limit=2"), |task: Task| task.id).await?.rows;
    Ok(if let [only] = found.as_slice() { Some(*only) } else { None })
}
