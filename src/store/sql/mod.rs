//! How SQL is built, sent and read on both databases. `dialect` contains the differences in text, `cells` and `args` those in values, and
//! `conn` those in connections. The columns of each table are declared once, in `record_rows` and `task_rows`. Nothing here depends on the
//! purpose of a statement.

pub(crate) mod args;
pub(crate) mod cells;
pub(crate) mod conditions;
pub(crate) mod conn;
pub(crate) mod dialect;
pub(crate) mod record_rows;
pub(crate) mod table;
pub(crate) mod task_rows;
