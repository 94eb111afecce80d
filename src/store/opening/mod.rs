//! Finds, opens and checks a database before it is used: the URL and the options, the settings of a session, the locks and permissions of
//! SQLite's files, and whether PostgreSQL is durable. What is monitored afterwards is in `health`.

pub(crate) mod file_access;
pub(crate) mod lock_file;
pub(crate) mod open;
pub(crate) mod postgres_check;
pub(crate) mod sessions;
