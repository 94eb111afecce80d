//! The pages of tasks.

pub mod act;
pub mod bulk;
mod events;
mod filter;
pub mod list;
pub mod new;
pub mod show;
