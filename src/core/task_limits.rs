//! What the limits of a task leave to its runs: time and money.

use super::task::TaskState;
use super::usage::Usage;

impl TaskState {
    /// How long a run may take at most, whatever the profile of its agent says.
    pub fn longest_run_sec(&self) -> i64 {
        self.profile_timeout_max.map_or(self.timeout_sec, |most| most.max(self.timeout_sec))
    }

    /// Sets the time limit that a client names, which profiles then don't change. The text is for the audit trail; `None`: it was so before.
    pub fn limit_to(&mut self, seconds: i64) -> Option<String> {
        let before = std::mem::replace(&mut self.timeout_sec, seconds);
        let was_default = self.profile_timeout_max.take().is_some();
        let default = if was_default { " by default" } else { "" };
        (was_default || before != seconds).then(|| format!("timeout_sec {before}{default} to {seconds}"))
    }

    /// What is left of its budget, in US dollars; `None`: it has none.
    pub fn budget_left(&self) -> Option<f64> {
        self.budget_after(self.usage.unwrap_or_default()).map(|(left, _)| left)
    }

    /// What is left of its budget if its attempts have used this, and what they have spent of it, in US dollars; `None`: it has no budget.
    pub fn budget_after(&self, usage: Usage) -> Option<(f64, f64)> {
        let spent = (usage.cost_usd - self.cost_before_requeue).max(0.0);
        // In whole millionths, because sums of fractions are not exact. The smallest budget is one of them.
        let left = ((self.budget.max(1e-6) - spent) * 1e6).round().max(0.0) / 1e6;
        (self.budget > 0.0).then_some((left, spent))
    }
}
