//! The schema: its migrations, what a database has besides it, and what an administrator wants to know about a database. The tests here
//! compare the declared rows with a migrated database, and upgrade a database.

pub(crate) mod additions;
pub(crate) mod checkup;
#[cfg(test)]
mod declarations;
pub(crate) mod migrate;
#[cfg(test)]
mod upgrades;
