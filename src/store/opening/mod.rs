//! How a database is found, opened and checked before it is used: the URL and the options, the settings of a session, the locks and rights
//! of SQLite's files, and whether PostgreSQL keeps what it is given. What is watched afterwards is in `health`.

pub(crate) mod file_access;
pub(crate) mod lock_file;
pub(crate) mod open;
pub(crate) mod postgres_check;
pub(crate) mod sessions;
