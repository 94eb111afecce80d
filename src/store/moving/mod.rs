//! Moves everything that is stored from one database to another, of either kind, by a file.
//!
//! An export is one read transaction. What it contains follows from the schema itself (`tables`): each table with all its columns, except those
//! that belong to one database alone. So a migration that adds a table or a column changes nothing here. `earlier` writes the same file
//! from the database of the earlier runtime, so that both come in by one way, `import`.

mod begin;
mod earlier;
mod export;
mod file;
mod import;
mod tables;

pub use begin::Target;
pub use earlier::FromEarlier;
pub use import::Imported;

/// How far a move is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Rows that were moved so far.
    pub rows: u64,
    /// Rows in all.
    pub of: u64,
}
