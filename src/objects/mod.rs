//! Outputs of runs, files and the audit trail in an object store (S3, MinIO).
//!
//! An object is written before the row that refers to it, and removed after that row. So a crash in between leaves an object without a row,
//! which `reconcile` removes after a grace period. While the object store accepts no writes, the database keeps the outputs, and the
//! reconciler moves them later.

#![warn(missing_docs, unreachable_pub)]

mod audit;
mod bucket_owner;
mod client;
mod files;
mod orphans;
mod reconcile;
mod stuck_files;

use bloom_engine::Error;

pub use client::{CALL_LIMIT, Failure, MAX_WHOLE, Objects, Stream};
pub use reconcile::run;

fn unreadable(error: bloom_store::Error) -> Error {
    tracing::warn!(%error, "the database could not be read for the object store");
    Error::Unavailable
}
