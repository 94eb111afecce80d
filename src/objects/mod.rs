//! Outputs of runs and the audit trail in an object store (S3, MinIO).
//!
//! An object is written before the row that refers to it, and removed after that row. So a crash between the two leaves an object without a
//! row, which [`reconcile`] removes after a grace. While the object store can't be written to, the database keeps the outputs, and the
//! reconciler moves them later.

mod audit;
mod client;
mod orphans;
mod reconcile;

pub use client::{Failure, Objects, Stream};
pub use reconcile::run;
