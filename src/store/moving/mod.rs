//! Moves everything that is stored from one database to another by a file. Each of them may be of either kind.
//!
//! An export is one read transaction. Its content follows from the schema itself (`tables`): every table with all its columns, except for
//! tables that concern only one database. So a migration that adds a table or a column needs no change here. `earlier` writes the same kind
//! of file from the database of the earlier runtime, so that `import` reads both.

mod begin;
mod earlier;
mod export;
mod file;
mod import;
mod tables;

pub use begin::Target;
pub use earlier::FromEarlier;
pub use import::Imported;

/// The progress of a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The number of rows that were moved so far.
    pub rows: u64,
    /// The number of all rows.
    pub of: u64,
}
