//! The pages of tasks.

pub mod act;
mod answer;
pub mod answering;
mod asked;
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

/// The id in the path, checked so that it names nothing else in a path of the API.
fn id_of(text: &str) -> Result<Uuid, Refused> {
    Uuid::parse_str(text).map_err(|_| Refused::new(404, "Task not found", "Завдання не знайдено"))
}
