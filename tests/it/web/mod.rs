//! The pages for browsers: over HTTP, as a browser without scripts uses them.

mod add_worker;
mod again;
mod below_a_path;
pub mod browser;
mod contexts;
mod escaping;
mod forms;
mod keys;
mod languages;
mod lists;
mod membridge;
mod menu;
mod new_task;
mod overview;
mod projects;
mod queues;
mod records;
mod sign_in;
mod spent;
mod task;
mod usage;
