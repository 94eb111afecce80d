//! How much time and money the limits of a task leave for its runs.

use super::task::TaskState;
use super::usage::Usage;

/// New limits for the runs of a task. Those that are `None` stay unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LimitChange {
    /// The time limit of each run, in seconds.
    pub timeout_sec: Option<i64>,
    /// US dollars that all attempts together may cost; 0 = no limit.
    pub budget: Option<f64>,
}

impl TaskState {
    /// The longest time that a run may take, whatever the profile of its agent sets.
    pub fn longest_run_sec(&self) -> i64 {
        self.profile_timeout_max.map_or(self.timeout_sec, |most| most.max(self.timeout_sec))
    }

    /// Sets the limits that a client names. Profiles no longer change a time limit that a client has named. Returns texts for the audit
    /// trail about the limits that have changed.
    pub fn limit_to(&mut self, change: LimitChange) -> Vec<String> {
        let mut changes = Vec::new();
        if let Some(seconds) = change.timeout_sec {
            let before = std::mem::replace(&mut self.timeout_sec, seconds);
            let was_default = self.profile_timeout_max.take().is_some();
            let default = if was_default { " by default" } else { "" };
            changes.extend((was_default || before != seconds).then(|| format!("timeout_sec {before}{default} to {seconds}")));
        }
        if let Some(budget) = change.budget {
            let before = std::mem::replace(&mut self.budget, budget);
            let told = |usd: f64| if usd > 0.0 { usd.to_string() } else { "none".to_owned() };
            changes.extend((before != budget).then(|| format!("budget {} to {}", told(before), told(budget))));
        }
        changes
    }

    /// What is left of its budget, in US dollars; `None` if it has no budget.
    pub fn budget_left(&self) -> Option<f64> {
        self.budget_after(self.usage.unwrap_or_default()).map(|(left, _)| left)
    }

    /// What is left of its budget if its attempts have used this, and how much of the budget they have spent, in US dollars; `None` if it
    /// has no budget.
    pub fn budget_after(&self, usage: Usage) -> Option<(f64, f64)> {
        let spent = (usage.cost_usd - self.cost_before_requeue).max(0.0);
        // Rounded to millionths, because sums of fractions are not exact. The smallest budget is one millionth.
        let left = ((self.budget.max(1e-6) - spent) * 1e6).round().max(0.0) / 1e6;
        (self.budget > 0.0).then_some((left, spent))
    }
}
