//! The wire format: the types of requests and answers, and their conversion to commands and from types of the core.
//!
//! A request body is declared with [`body!`](wire): the type of a field defines both what is accepted and its OpenAPI schema, so the two
//! can't differ. Answers borrow from the rows that they show; clients deserialize the same types.

#![warn(missing_docs, unreachable_pub)]

pub mod accounts;
pub mod agents;
pub mod answers;
pub mod bulk;
pub mod capabilities;
pub mod complete;
pub mod contexts;
pub mod csv;
pub mod directives;
pub mod edit;
pub mod error;
pub mod files;
pub mod git_names;
pub mod ids;
pub mod inherited;
pub mod install;
pub mod invalid;
pub mod json;
pub mod keys;
pub mod kubernetes;
pub mod lists;
pub mod namespaces;
pub mod new_tasks;
pub mod phases;
pub mod problem_texts;
pub mod problems;
pub mod projects;
pub mod questions;
pub mod queues;
pub mod reconcilers;
pub mod reports;
pub mod repository;
pub mod requests;
pub mod results;
pub mod task_fields;
pub mod tasks;
pub mod time_limit;
pub mod time_text;
pub mod tool_calls;
pub mod tool_input;
pub mod uploads;
pub mod usage;
pub mod values;
pub mod visible_text;
pub mod wire;
pub mod words;
pub mod workers;

#[cfg(test)]
mod tests;
