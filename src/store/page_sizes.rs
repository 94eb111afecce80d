//! How many rows one transaction of maintenance deals with.

use super::error::Error;

const TASKS: i64 = 200;
const BATCHES: i64 = 5000;
const AUDIT: i64 = 10_000;

/// How many rows a transaction of each job deals with. A page that was too heavy for the database's time limits would be so again: the
/// next is half as large, down to a single row, and pages that work out make it grow again.
pub(super) struct PageSizes {
    pub tasks: PageSize,
    pub batches: PageSize,
    pub audit: PageSize,
}

impl Default for PageSizes {
    fn default() -> Self {
        Self { tasks: PageSize::new(TASKS), batches: PageSize::new(BATCHES), audit: PageSize::new(AUDIT) }
    }
}

pub(super) struct PageSize {
    pub rows: i64,
    most: i64,
}

impl PageSize {
    fn new(most: i64) -> Self {
        Self { rows: most, most }
    }

    pub fn judge<T>(&mut self, outcome: &Result<T, Error>) {
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
        let too_long = || Err::<(), _>(Error::Unavailable("statement timeout".into()));
        let mut sizes = Vec::new();
        for _ in 0..9 {
            page.judge(&too_long());
            sizes.push(page.rows);
        }
        assert_eq!(sizes, [100, 50, 25, 12, 6, 3, 1, 1, 1]);
        page.judge(&Err::<(), _>(Error::Conflict("deadlock".into())));
        assert_eq!(page.rows, 1);
        for _ in 0..100 {
            page.judge(&Ok(()));
        }
        assert_eq!(page.rows, 200);
    }
}
