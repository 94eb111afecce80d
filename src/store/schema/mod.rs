//! The schema: its migrations, what a database has besides it, and what an administrator is told of a database. The tests here compare the
//! declared rows with a migrated database, and upgrade one.

pub(crate) mod additions;
pub(crate) mod checkup;
#[cfg(test)]
mod declarations;
pub(crate) mod migrate;
#[cfg(test)]
mod upgrades;
