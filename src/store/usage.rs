//! The usage of runs: of leases that are still stored, and of those that were removed with their tasks.

use jiff::Span;
use jiff::civil::{self, Date};

use super::args::Args;
use super::dialect::{Kind, Sql, Statement, statement};
use super::error::Error;
use super::table::{ReadRow, row};
use super::{Store, all};
use bloom_core::Ms;

const EPOCH: Date = civil::date(1970, 1, 1);
const DAY_MS: i64 = 86_400_000;
const ROWS: i64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageBy {
    Day,
    AgentSlug,
    Model,
    ContextId,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UsageRow {
    /// The day (`2026-01-31`, UTC), agent, model or context; '' if no model was reported.
    pub key: String,
    pub sums: UsageSums,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UsageSums {
    pub runs: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_usd: f64,
    /// Whether the cost of any of the runs was estimated.
    pub cost_estimated: bool,
}

row! { SUMS of UsageSums { runs, input_tokens, output_tokens, cost_usd, cost_estimated } }

/// A lease counts as a run if a completion was stored for it.
pub(super) const IS_RUN: &str = "(completed OR input_tokens IS NOT NULL)";

fn text(kind: Kind, daily: &str, live: &str, order: &str) -> String {
    let [runs, input_tokens, output_tokens] = ["runs", "input_tokens", "output_tokens"].map(|column| kind.sum(column));
    let cost_estimated = kind.any_true("cost_estimated");
    format!(
        "SELECT key, {SUMS} FROM (SELECT key, {runs} AS runs, {input_tokens} AS input_tokens, {output_tokens} AS output_tokens, \
            CAST(sum(cost_usd) AS DOUBLE PRECISION) AS cost_usd, {cost_estimated} AS cost_estimated FROM (\
            SELECT {daily} AS key, runs, input_tokens, output_tokens, cost_usd, cost_estimated FROM usage_daily \
                WHERE day >= $1 AND day <= $2 \
            UNION ALL SELECT {live}, 1, coalesce(input_tokens, 0), coalesce(output_tokens, 0), coalesce(cost_usd, 0.0), cost_estimated \
                FROM leases WHERE ended_at >= $3 AND ended_at < $4 AND {IS_RUN}) AS u \
        GROUP BY key) AS s ORDER BY {order} LIMIT {ROWS}"
    )
}

statement!(BY_DAY, |d| "{}", text(d, "day", "ended_at / 86400000", "key DESC"));
statement!(BY_AGENT, |d| "{}", text(d, "agent_slug", "agent_slug", "key"));
statement!(BY_MODEL, |d| "{}", text(d, "model", "coalesce(model, '')", "key"));
statement!(BY_CONTEXT, |d| "{}", text(d, "context_id", "context_id", "key"));

impl Store {
    /// At most 1000 rows: days newest first, all others by key. `from` is inclusive and `to` exclusive. For removed tasks, both are rounded
    /// to whole days.
    pub async fn usage(&self, from: Option<Ms>, to: Option<Ms>, by: UsageBy) -> Result<Vec<UsageRow>, Error> {
        let (from, to) = (from.unwrap_or(0).max(0), to.unwrap_or(Ms::MAX).max(0));
        let args = Args::new().int(from / DAY_MS).int((to - 1).max(0) / DAY_MS).int(from).int(to);
        let statement: &Statement = match by {
            UsageBy::Day => &BY_DAY,
            UsageBy::AgentSlug => &BY_AGENT,
            UsageBy::Model => &BY_MODEL,
            UsageBy::ContextId => &BY_CONTEXT,
        };
        let sql: &Sql = statement;
        all(&self.pool().fetch(sql, args).await?, |row| {
            let key = if by == UsageBy::Day { date(row.take()?)? } else { row.take()? };
            Ok(UsageRow { key, sums: ReadRow::read(row)? })
        })
    }
}

/// A day, counted from the epoch.
fn date(day: i64) -> Result<String, Error> {
    let date = Span::new().try_days(day).and_then(|days| EPOCH.checked_add(days));
    date.map(|date| date.to_string()).map_err(|error| Error::Corrupt(format!("day {day}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_have_dates() {
        for (day, expected) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_454, "2026-01-01"), (20_819, "2027-01-01")]
        {
            assert_eq!(date(day).unwrap(), expected);
        }
        assert!(date(i64::MAX).is_err());
    }
}
