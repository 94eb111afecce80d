//! How SQL is made, sent and read on both databases: `dialect` has the differences in text, `cells` and `args` those in values, `conn`
//! those in connections. The columns of each table are declared once, in `record_rows` and `task_rows`. Nothing here knows what a
//! statement is for.

pub(crate) mod args;
pub(crate) mod cells;
pub(crate) mod conditions;
pub(crate) mod conn;
pub(crate) mod dialect;
pub(crate) mod record_rows;
pub(crate) mod table;
pub(crate) mod task_rows;
