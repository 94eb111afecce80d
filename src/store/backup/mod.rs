//! Backups of an SQLite database: copying it while it is in use, checking and restoring a copy, and the directory of scheduled backups.
//!
//! A copy is made by `VACUUM INTO`. This is one read transaction, which neither waits for the writer nor makes it wait, and its result is
//! one compact file. SQLite's backup API would start again whenever another process commits, which a server does all the time. While the
//! copy is being made, the write-ahead log can't be restarted, so it grows by what is committed meanwhile.

mod check;
mod copy;
mod directory;
pub(crate) mod partial;
mod restore;
pub(crate) mod target;

pub use copy::{BackedUp, Copied};
pub use directory::BackupDirectory;
pub use restore::Restored;
