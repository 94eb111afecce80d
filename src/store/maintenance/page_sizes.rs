//! How many rows one maintenance transaction processes, and which tasks it leaves out.

use std::collections::BTreeSet;

use crate::error::Error;
use bloom_core::ids::TaskId;

const TASKS: i64 = 200;
const BATCHES: i64 = 5000;
const AUDIT: i64 = 10_000;
/// The most tasks that are remembered as impossible to remove. If there are more, all of them are tried again.
const MAX_LEFT_OUT: usize = 1000;

/// The page size of each job. A page that exceeded the time limits of the database would exceed them again, so the next one is half as
/// large, down to a single row. Each page that succeeds makes the next one larger.
pub(crate) struct PageSizes {
    pub tasks: PageSize,
    pub batches: PageSize,
    pub audit: PageSize,
    /// The tasks of the newest page.
    pub removing: Vec<TaskId>,
    /// Tasks that can't be removed. They are left out until the server restarts, so that all others are removed.
    pub left_out: BTreeSet<TaskId>,
}

impl Default for PageSizes {
    fn default() -> Self {
        let (tasks, batches, audit) = (PageSize::new(TASKS), PageSize::new(BATCHES), PageSize::new(AUDIT));
        Self { tasks, batches, audit, removing: Vec::new(), left_out: BTreeSet::new() }
    }
}

impl PageSizes {
    /// Must be called when the removal of a page of tasks failed because of the content of the database. It makes the next pages smaller,
    /// until a page consists of the one task that can't be removed, which is then left out.
    pub(crate) fn leave_out(&mut self, error: &Error) {
        self.tasks.rows = (self.removing.len() as i64 / 2).max(1);
        if let [task] = self.removing[..] {
            tracing::error!(
                %task,
                %error,
                "a task can't be removed, and is left out until the next start; correct its rows in the database, then restart the server"
            );
            if self.left_out.len() == MAX_LEFT_OUT {
                self.left_out.clear();
            }
            self.left_out.insert(task);
        }
    }
}

pub(crate) struct PageSize {
    pub rows: i64,
    most: i64,
}

impl PageSize {
    fn new(most: i64) -> Self {
        Self { rows: most, most }
    }

    pub(crate) fn adapt<T>(&mut self, outcome: &Result<T, Error>) {
        self.rows = match outcome {
            Ok(_) => (self.rows + (self.rows / 8).max(1)).min(self.most),
            Err(error) if error.is_unavailable() => (self.rows / 2).max(1),
            Err(_) => self.rows,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_heavy_gets_smaller_and_grows_again() {
        let mut page = PageSize::new(200);
        let too_long = || Err::<(), _>(Error::Unavailable(crate::OutageReason::Timeout, "statement timeout".into()));
        let mut sizes = Vec::new();
        for _ in 0..9 {
            page.adapt(&too_long());
            sizes.push(page.rows);
        }
        assert_eq!(sizes, [100, 50, 25, 12, 6, 3, 1, 1, 1]);
        page.adapt(&Err::<(), _>(Error::Conflict("deadlock".into())));
        assert_eq!(page.rows, 1);
        for _ in 0..100 {
            page.adapt(&Ok(()));
        }
        assert_eq!(page.rows, 200);
    }
}
