//! How long a failed attempt waits before the next one.

use super::Ms;

const BASE_MS: i64 = 5_000;
const CAP_MS: i64 = 10 * 60 * 1000;

/// Exponential backoff with full jitter: after attempt n, a delay between 0 and 5 s · 2ⁿ⁻¹, at most 10 minutes. `chance` is any number.
///
/// Full jitter spreads retries better than the other usual kinds (AWS Architecture Blog, "Exponential Backoff And Jitter").
pub fn delay_ms(attempt: i64, chance: u64) -> Ms {
    let doublings = u32::try_from(attempt.saturating_sub(1).clamp(0, 16)).unwrap_or(0);
    let ceiling = (BASE_MS << doublings).min(CAP_MS);
    i64::try_from(chance % (ceiling.unsigned_abs() + 1)).unwrap_or(ceiling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_under_their_ceiling() {
        for (attempt, ceiling) in [(1, 5_000), (2, 10_000), (3, 20_000), (8, 600_000), (500, 600_000)] {
            assert_eq!(delay_ms(attempt, ceiling), i64::try_from(ceiling).unwrap());
            assert_eq!(delay_ms(attempt, ceiling + 1), 0);
        }
    }
}
