//! The wire: what requests and answers look like, and how one becomes a command of the core and the other is made of its types.
//!
//! A request body is a struct of [`body!`](wire) fields whose types say what they accept, so that reading it and describing it in
//! OpenAPI can't differ. Answers borrow from the rows that they show, and are read by clients as they are declared.

pub mod agents;
pub mod answers;
pub mod bulk;
pub mod complete;
pub mod error;
pub mod json;
pub mod lists;
pub mod reports;
pub mod requests;
pub mod tasks;
pub mod values;
pub mod wire;
pub mod words;

#[cfg(test)]
mod tests;
