//! The usage of runs, both of stored leases and of leases that were removed with their tasks.

use jiff::Span;
use jiff::civil::{self, Date};

use crate::error::Error;
use crate::sql::args::Args;
use crate::sql::conditions::Conditions;
use crate::sql::dialect::{Kind, Sql};
use crate::sql::table::{ReadRow, row};
use crate::{Store, all};
use bloom_core::{DAY_MS, Ms};

const EPOCH: Date = civil::date(1970, 1, 1);
/// The first day of the week, as a day since the epoch, which began on a Thursday.
const WEEK: &str = "day - (day + 3) % 7";

/// What runs are grouped by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageBy {
    /// The day on which they ended (`2026-01-31`, UTC).
    Day,
    /// The Monday of the week in which they ended, UTC.
    Week,
    /// The agent that the task was for.
    AgentSlug,
    /// The model that the run used; '' if none was reported.
    Model,
    /// The context of the task.
    ContextId,
    /// The project of the task; '' for tasks without one.
    Project,
    /// The worker of the run.
    WorkerId,
    /// Who created the task, as the audit trail names it; '' if that is no longer known.
    CreatedBy,
    /// The team of the key that created the task; '' if it had none.
    Team,
    /// The value of the task's label with this name; '' if it has none.
    Label(String),
}

/// All conditions that are set must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageFilter {
    /// Runs that ended at this time or later. For removed tasks, this and `to` are rounded to whole days.
    pub from: Option<Ms>,
    /// Runs that ended before this time.
    pub to: Option<Ms>,
    /// Only runs of tasks for this agent.
    pub agent_slug: Option<String>,
    /// Only runs of tasks of this context.
    pub context_id: Option<String>,
    /// Only runs of tasks of the project with this name.
    pub project: Option<String>,
    /// Only runs of this worker.
    pub worker_id: Option<String>,
    /// Only runs of tasks with this creator, as named by [`UsageBy::CreatedBy`].
    pub created_by: Option<String>,
    /// Only runs of tasks that keys of this team created.
    pub team: Option<String>,
    /// Only runs of tasks that have each of these labels, with this value.
    pub labels: Vec<(String, String)>,
}

/// What a group of runs used.
#[derive(Clone, Debug, PartialEq)]
pub struct UsageRow {
    /// The keys of the group, in the order in which they were requested.
    pub keys: Vec<String>,
    /// The sums of the group.
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

row! { pub(crate) SUMS of UsageSums { runs, input_tokens, output_tokens, cost_usd, cost_estimated } }

/// The columns by which the usage of removed tasks is grouped. Runs that are equal in all of them are added up.
pub(crate) const GROUP: &str = "day, agent_slug, model, context_id, project, worker_id, created_by, labels, team";

/// One row per run whose lease is stored, with the columns of [`GROUP`] and [`SUMS`]. A lease counts as a run if its completion or its
/// usage was stored. Outer joins are used because both databases omit them where none of their columns is needed.
pub(crate) fn runs(condition: &str) -> String {
    format!(
        "SELECT l.ended_at / {DAY_MS} AS day, l.agent_slug AS agent_slug, coalesce(l.model, '') AS model, l.context_id AS context_id, \
            coalesce(t.project, '') AS project, l.worker_id AS worker_id, \
            coalesce((SELECT a.actor FROM audit a WHERE a.task_id = l.task_id AND a.action = 'task_created' ORDER BY a.id LIMIT 1), \
                'key:' || t.owner, '') AS created_by, \
            coalesce(s.labels, t.labels, '{{}}') AS labels, coalesce(t.team, '') AS team, \
            1 AS runs, coalesce(l.input_tokens, 0) AS input_tokens, coalesce(l.output_tokens, 0) AS output_tokens, \
            coalesce(l.cost_usd, 0.0) AS cost_usd, l.cost_estimated AS cost_estimated \
        FROM leases l LEFT JOIN tasks t ON t.id = l.task_id LEFT JOIN task_state s ON s.id = l.task_id \
        WHERE (l.completed OR l.input_tokens IS NOT NULL) AND {condition}"
    )
}

/// The sums of rows, with the names of [`SUMS`].
pub(crate) fn sums(kind: Kind) -> String {
    let [runs, input_tokens, output_tokens] = ["runs", "input_tokens", "output_tokens"].map(|column| kind.sum(column));
    let cost_estimated = kind.any_true("cost_estimated");
    format!(
        "{runs} AS runs, {input_tokens} AS input_tokens, {output_tokens} AS output_tokens, \
        CAST(sum(cost_usd) AS DOUBLE PRECISION) AS cost_usd, {cost_estimated} AS cost_estimated"
    )
}

impl Store {
    /// The groups of runs: days newest first, all else by key. At most `limit` rows after the first `skip`. Each call reads all matching
    /// rows.
    pub async fn usage(&self, filter: &UsageFilter, by: &[UsageBy], limit: i64, skip: i64) -> Result<Vec<UsageRow>, Error> {
        let (sql, args) = filter.statement(by, limit, skip);
        all(&self.pool().fetch(&sql, args).await?, |row| {
            let keys = by.iter().map(|by| if matches!(by, UsageBy::Day | UsageBy::Week) { date(row.take()?) } else { row.take() });
            Ok(UsageRow { keys: keys.collect::<Result<_, _>>()?, sums: ReadRow::read(row)? })
        })
    }
}

impl UsageFilter {
    fn statement<'a>(&'a self, by: &'a [UsageBy], limit: i64, skip: i64) -> (Sql, Args<'a>) {
        let (from, to) = (self.from.unwrap_or(0).max(0), self.to.unwrap_or(Ms::MAX).max(0));
        let args = Args::new().int(from / DAY_MS).int((to - 1).max(0) / DAY_MS).int(from).int(to).int(limit).int(skip);
        let mut build = Conditions::with(args);
        build.equal("agent_slug = ", self.agent_slug.as_deref());
        build.equal("context_id = ", self.context_id.as_deref());
        build.equal("project = ", self.project.as_deref());
        build.equal("worker_id = ", self.worker_id.as_deref());
        build.equal("created_by = ", self.created_by.as_deref());
        build.equal("team = ", self.team.as_deref());
        let (conditions, mut args) = build.into_parts();
        let mut keys = Vec::new();
        for by in by {
            keys.push(match by {
                UsageBy::Day => Key::Day("day"),
                UsageBy::Week => Key::Day(WEEK),
                UsageBy::AgentSlug => Key::Column("agent_slug"),
                UsageBy::Model => Key::Column("model"),
                UsageBy::ContextId => Key::Column("context_id"),
                UsageBy::Project => Key::Column("project"),
                UsageBy::WorkerId => Key::Column("worker_id"),
                UsageBy::CreatedBy => Key::Column("created_by"),
                UsageBy::Team => Key::Column("team"),
                UsageBy::Label(name) => {
                    args = args.text(name);
                    Key::Label(args.len())
                }
            });
        }
        let mut labels = Vec::new();
        for (name, value) in &self.labels {
            args = args.text(name).text(value);
            labels.push(args.len());
        }
        let sql = Sql::new(|d| {
            let labels: String = labels.iter().map(|at| format!(" AND {} = ${at}", d.json_member("labels", at - 1))).collect();
            let named: Vec<_> = keys.iter().enumerate().map(|(i, key)| format!("{} AS key_{i}", key.text(d))).collect();
            let names: Vec<_> = (0..keys.len()).map(|i| format!("key_{i}")).collect();
            let order: Vec<_> = keys.iter().zip(&names).map(|(key, name)| format!("{name}{}", key.direction())).collect();
            let names = names.join(", ");
            format!(
                "SELECT {names}, {SUMS} FROM (SELECT {names}, {sums} FROM (SELECT {named}, {SUMS} FROM (\
                    SELECT {GROUP}, {SUMS} FROM usage_removed WHERE day >= $1 AND day <= $2 \
                    UNION ALL SELECT {GROUP}, {SUMS} FROM ({live}) AS l) AS u WHERE true{conditions}{labels}) AS k \
                GROUP BY {names}) AS s ORDER BY {order} LIMIT $5 OFFSET $6",
                sums = sums(d),
                named = named.join(", "),
                live = runs("l.ended_at >= $3 AND l.ended_at < $4"),
                order = order.join(", "),
            )
        });
        (sql, args)
    }
}

/// One of the keys of a row, in SQL.
enum Key {
    Column(&'static str),
    /// Newest first.
    Day(&'static str),
    /// The label with the name in this parameter.
    Label(usize),
}

impl Key {
    fn text(&self, kind: Kind) -> String {
        match self {
            Self::Column(name) | Self::Day(name) => (*name).to_owned(),
            Self::Label(param) => format!("coalesce({}, '')", kind.json_member("labels", *param)),
        }
    }

    fn direction(&self) -> &'static str {
        if matches!(self, Self::Day(_)) { " DESC" } else { "" }
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
