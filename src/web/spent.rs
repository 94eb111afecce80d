//! The recent cost of runs, for the page of the object that the runs belong to.

use crate::call::path_part;
use crate::refused::Refused;
use crate::times::cost;
use crate::visit::Visit;
use bloom_api::reports::UsageRow;
use bloom_core::{DAY_MS, Ms};

const DAYS_MS: Ms = 30 * DAY_MS;

/// The number and the cost of the runs of the last 30 days that have this value of a usage key; empty if there were none.
pub(crate) async fn lately(visit: &Visit, key: &str, value: &str) -> Result<String, Refused> {
    let lang = visit.layout.at.lang;
    let told = |row: UsageRow<'_>| {
        let runs = lang.count(row.runs, ["run", "runs"], ["запуск", "запуски", "запусків"]);
        format!("{runs}, {}", cost(lang, row.cost_usd, row.cost_estimated))
    };
    let from = (visit.layout.now - DAYS_MS).max(0);
    // All these runs have the same value, so the result is one row.
    let listed = visit.list(&format!("usage?by={key}&{key}={}&from={from}", path_part(value)), told).await?;
    Ok(listed.rows.into_iter().next().unwrap_or_default())
}
