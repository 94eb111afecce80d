//! Backups of an SQLite database: copies of it while it is in use, their check, the way back, and the directory of scheduled backups.
//!
//! A copy is made by `VACUUM INTO`: one read transaction, which neither waits for the writer nor makes it wait, and whose result is one
//! compact file. SQLite's backup API would begin again whenever another process commits, which a server does all the time. While the copy
//! is made, the write-ahead log can't be restarted, so it grows by what is committed meanwhile.

mod check;
mod copy;
mod directory;
pub(crate) mod partial;
mod restore;
pub(crate) mod target;

pub use copy::{BackedUp, Copied};
pub use directory::BackupDirectory;
pub use restore::Restored;
