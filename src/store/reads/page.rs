//! Limits how much of a list one answer contains.

use uuid::Uuid;

use crate::sql::args::Args;

/// The approximate limit of bytes of text in one answer. A single larger row is answered alone.
pub const PAGE_BYTES: i64 = 32 << 20;

/// At most `limit` rows with ids less than `before`.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// The most rows.
    pub limit: i64,
    /// The id below which the page begins; `None` for the first page.
    pub before: Option<Uuid>,
}

/// A page of rows that may be large.
#[derive(Clone, Debug)]
pub struct Listing<T> {
    /// The rows, newest first.
    pub rows: Vec<T>,
    /// The page was cut because it would have become too large, so there is a next page.
    pub cut: bool,
}

impl Page {
    pub(crate) fn args(&self) -> Args<'static> {
        Args::new().uuid(self.before.unwrap_or(Uuid::max())).int(self.limit)
    }
}

/// The longest prefix of the keys whose sizes fit into `bytes`, but at least one key; and whether some were left out.
pub(crate) fn fitting<K>(sizes: impl IntoIterator<Item = (K, i64)>, bytes: i64) -> (Vec<K>, bool) {
    let mut keys = Vec::new();
    let mut total = 0;
    for (key, size) in sizes {
        total += size;
        if total > bytes && !keys.is_empty() {
            return (keys, true);
        }
        keys.push(key);
    }
    (keys, false)
}
