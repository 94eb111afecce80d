//! What runs used: tokens and US dollars.

use axum::extract::State;

use crate::AppState;
use crate::identity::ownership;
use crate::identity::policy::RoutePolicy;
use crate::messages::answer::{HandlerResult, page};
use crate::messages::error::Error;
use crate::messages::representations::Query;
use crate::middleware::Caller;
use bloom_api::lists::MAX_LIMIT;
use bloom_api::reports::UsageRow;
use bloom_api::usage::{MAX_USAGE_KEYS, UsageParams, usage_keys};
use bloom_api::values::{MAX_LABEL_KEY, text_problem};
use bloom_core::api_key::Owner;
use bloom_store::{UsageBy, UsageFilter};

pub(crate) const GET: RoutePolicy = RoutePolicy::READ.or_submit();

/// Shows how many tokens and US dollars runs used.
///
/// The answer has one row per group: days newest first, all other groups by name. The header `Link` leads to the next page; the
/// server computes the sums again for each page. Usage is kept when its task is removed; for removed tasks, `from` and `to` are rounded to
/// whole days. `created_by` is empty if the audit trail no longer has the creation of the task. A `week` is named by the date of its
/// Monday. A member key gets the runs of its team's tasks, a submit key the runs of the tasks that it created.
#[utoipa::path(
    get, path = "/api/runtime/usage", operation_id = "getUsage", tag = "records", params(UsageParams),
    responses((status = 200, description = "A page of rows.", body = Vec<UsageRow>))
)]
pub(crate) async fn get(State(app): State<AppState>, caller: Caller, Query(params): Query) -> HandlerResult {
    UsageParams::check_names(&params)?;
    let mut by = params.several("by", MAX_USAGE_KEYS, |word| usage_key(word).map(|by| (word.to_owned(), by)))?;
    if by.is_empty() {
        by.push(("day".to_owned(), UsageBy::Day));
    }
    if by.iter().skip(1).any(|key| *key == by[0]) {
        return Err(Error::field("by", format!("'{}' is there twice", by[0].0)));
    }
    let created_by = params.text("created_by")?;
    let own = match caller.sees() {
        Some(Owner::Key(name)) => Some(format!("key:{name}")),
        Some(Owner::Team(_)) | None => None,
    };
    let (team, own_team) = (params.text("team")?, caller.team());
    let is_of_others = |given: &Option<String>, own: &Option<String>| own.is_some() && given.is_some() && given != own;
    if is_of_others(&created_by, &own) || is_of_others(&team, &own_team) {
        return page(&Vec::<UsageRow<'_>>::new(), None);
    }
    let filter = UsageFilter {
        from: params.moment("from")?,
        to: params.moment("to")?,
        agent_slug: params.text("agent_slug")?,
        context_id: ownership::context_wanted(&app, &caller, params.text("context_id")?).await?,
        project: params.text("project")?,
        worker_id: params.text("worker_id")?,
        created_by: created_by.or(own),
        team: team.or(own_team),
        labels: params.labels()?.into_iter().map(|label| (label.name, label.value)).collect(),
    };
    if filter.from.zip(filter.to).is_some_and(|(from, to)| from >= to) {
        // For removed tasks, an empty period would be rounded to a whole day, so it is answered here.
        return page(&Vec::<UsageRow<'_>>::new(), None);
    }
    let (limit, skip) = (params.lenient("limit", MAX_LIMIT, 1..=MAX_LIMIT), params.row_cursor()?);
    let (words, by): (Vec<String>, Vec<UsageBy>) = by.into_iter().unzip();
    let mut rows = app.store.usage(&filter, &by, limit + 1, skip).await?;
    let next = (rows.len() as i64 > limit).then(|| params.next_link("/api/runtime/usage", &(skip + limit).to_string()));
    rows.truncate(limit as usize);
    let shown = rows.iter().map(|row| UsageRow {
        key: row.keys.first().map(String::as_str).unwrap_or_default().into(),
        keys: words.iter().cloned().zip(row.keys.iter().map(|key| key.as_str().into())).collect(),
        runs: row.sums.runs,
        input_tokens: row.sums.input_tokens,
        output_tokens: row.sums.output_tokens,
        // Rounded, because sums of binary fractions look like 2.3000000000000003.
        cost_usd: (row.sums.cost_usd * 1e9).round() / 1e9,
        cost_estimated: row.sums.cost_estimated,
    });
    page(&shown.collect::<Vec<_>>(), next)
}

fn usage_key(word: &str) -> Result<UsageBy, String> {
    Ok(match word {
        "day" => UsageBy::Day,
        "week" => UsageBy::Week,
        "agent_slug" => UsageBy::AgentSlug,
        "model" => UsageBy::Model,
        "context_id" => UsageBy::ContextId,
        "project" => UsageBy::Project,
        "worker_id" => UsageBy::WorkerId,
        "created_by" => UsageBy::CreatedBy,
        "team" => UsageBy::Team,
        _ => match word.strip_prefix("label:").filter(|name| text_problem(name, 1, MAX_LABEL_KEY).is_none()) {
            Some(name) => UsageBy::Label(name.to_owned()),
            None => return Err(format!("Expected '{}' | 'label:NAME'", usage_keys().join("' | '"))),
        },
    })
}
