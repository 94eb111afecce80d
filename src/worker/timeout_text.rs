//! What people read of a run that took too long.

use super::task::Task;

/// With what to do, unless the task is tried again. Twice the time is proposed, and two hours at least.
pub fn timed_out(task: &Task, is_retried: bool) -> String {
    let seconds = task.policy.timeout_sec.0;
    let told = format!("did not end within {seconds} s (policy.timeout_sec)");
    if is_retried {
        return told;
    }
    let hours = seconds.saturating_mul(2).unsigned_abs().div_ceil(3600).max(2);
    format!("{told}; give it more time: bloom-runtime task retry {} --timeout {hours}h", task.id)
}
