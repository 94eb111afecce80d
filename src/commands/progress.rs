//! The progress of a command on many objects, or on much data.

use std::cell::Cell;

use super::term;

const BAR: usize = 30;

/// Counts finished items. On a terminal, a bar in the last line shows the progress; elsewhere, nothing is printed.
pub struct Progress {
    total: u64,
    /// Printed after the numbers.
    unit: &'static str,
    done: Cell<u64>,
    is_shown: bool,
}

impl Progress {
    /// Starts a count of `total` items.
    pub fn new(total: u64) -> Self {
        Self::unless(false, total)
    }

    /// `prints`: whether the command prints rows at the same time. If the rows go to the terminal, they already show the progress.
    pub fn unless(prints: bool, total: u64) -> Self {
        let is_shown = term::is_err_terminal() && !(prints && term::is_out_terminal());
        let progress = Self { total, unit: "", done: Cell::new(0), is_shown };
        progress.draw();
        progress
    }

    /// Starts a count in this unit, with an unknown total.
    pub fn of(unit: &'static str) -> Self {
        Self { total: 0, unit, done: Cell::new(0), is_shown: term::is_err_terminal() }
    }

    /// Replaces both numbers, and redraws the bar.
    pub fn set(&mut self, done: u64, total: u64) {
        self.total = total;
        self.done.set(done);
        self.draw();
    }

    /// The number of finished items.
    pub fn done(&self) -> u64 {
        self.done.get()
    }

    /// Adds `count` finished items.
    pub fn add(&self, count: u64) {
        self.done.set(self.done.get() + count);
        self.draw();
    }

    fn draw(&self) {
        if self.is_shown {
            term::last_line(&format!("{}{}", bar(self.done.get(), self.total), self.unit));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            term::last_line("");
        }
    }
}

fn bar(done: u64, total: u64) -> String {
    // More tasks may match while the command runs.
    let total = total.max(done).max(1);
    let full = usize::try_from(done.saturating_mul(BAR as u64) / total).unwrap_or(BAR);
    format!("[{}{}] {} of {}", "#".repeat(full), "·".repeat(BAR - full.min(BAR)), number(done), number(total))
}

/// A number with commas between the thousands.
pub fn number(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or_default().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of tasks, as text.
pub(crate) fn tasks(count: i64) -> String {
    if count == 1 { "1 task".into() } else { format!("{} tasks", number(count)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        let told: Vec<String> = [0, 999, 1000, 20_000, 1_234_567].into_iter().map(|n: i64| number(n)).collect();
        assert_eq!(told, ["0", "999", "1,000", "20,000", "1,234,567"]);
    }

    #[test]
    fn the_bar_grows_to_its_end() {
        assert_eq!(bar(0, 0), format!("[{}] 0 of 1", "·".repeat(30)));
        assert_eq!(bar(500, 1000), format!("[{}{}] 500 of 1,000", "#".repeat(15), "·".repeat(15)));
        assert_eq!(bar(3, 2), format!("[{}] 3 of 3", "#".repeat(30)));
    }
}
