//! The audit trail, newest first, in pages.

use uuid::Uuid;

use crate::error::Error;
use crate::reads::lists::id_range;
use crate::reads::page::Page;
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::conditions::Conditions;
use crate::sql::dialect::Sql;
use crate::sql::record_rows;
use crate::sql::table::ReadRow;
use crate::{Store, all};
use bloom_core::Ms;
use bloom_core::audit::{Action, AuditEntry, EntityType};
use bloom_core::ids::TaskId;

/// All conditions that are set must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditFilter {
    /// Entries of the task and of its leases.
    pub task_id: Option<TaskId>,
    /// Entries about the worker and its leases, and about what it did.
    pub worker_id: Option<String>,
    /// Entries of this actor, as the audit trail names it.
    pub actor: Option<String>,
    /// Entries that this request caused.
    pub request_id: Option<String>,
    /// Only entries of these actions; none means all.
    pub actions: Vec<Action>,
    /// Only entries that people caused, or programs on their behalf: not those of reconcilers, of the placement of tasks, and of workers about
    /// the tasks that they run.
    pub is_of_people: bool,
    /// Only entries that were made after this time.
    pub created_after: Option<Ms>,
    /// Only entries that were made before this time.
    pub created_before: Option<Ms>,
}

/// The index `audit_action` leaves these out.
const FREQUENT_ACTIONS: [&str; 3] = ["task_created", "task_leased", "task_completed"];
/// The index `audit_actor` leaves these out.
const FREQUENT_ACTORS: [&str; 3] = ["api", "router", "reconciler"];
/// The actors for what the server does by itself.
const OF_THE_SERVER: [&str; 2] = ["router", "reconciler"];

/// A condition that excludes these words. It must have the same text as the condition of the index.
fn is_none_of(column: &str, words: &[&str]) -> String {
    format!("{column} NOT IN ('{}')", words.join("', '"))
}

impl Store {
    /// The audit trail, newest first.
    pub async fn audit(&self, filter: &AuditFilter, page: &Page) -> Result<Vec<AuditEntry>, Error> {
        let (sql, args) = filter.statement(page);
        all(&self.pool().fetch(&sql, args).await?, ReadRow::read)
    }
}

impl AuditFilter {
    /// The query uses the index of the most selective filter, and checks the other filters row by row. Its text consists of fixed parts;
    /// the values are parameters.
    fn statement(&self, page: &Page) -> (Sql, Args<'_>) {
        let actor = self.actor.as_deref();
        let actions: Vec<&str> = self.actions.iter().copied().map(Action::as_str).collect();
        let is_rare_action = !actions.is_empty() && !actions.iter().any(|action| FREQUENT_ACTIONS.contains(action));
        let is_rare_actor = actor.is_some_and(|actor| !FREQUENT_ACTORS.contains(&actor));
        let index = match (self.task_id, &self.worker_id) {
            _ if self.request_id.is_some() => Some("audit_request"),
            (Some(_), _) => Some("audit_task"),
            (None, Some(_)) => Some("audit_worker"),
            _ if is_rare_action => Some("audit_action"),
            _ if is_rare_actor => Some("audit_actor"),
            _ => None,
        };
        let mut build = Conditions::default();
        if let Some(task) = self.task_id {
            build.add("task_id = ", |args| args.uuid(task));
        }
        build.equal("worker_id = ", self.worker_id.as_deref());
        build.equal("actor = ", actor);
        build.equal("request_id = ", self.request_id.as_deref());
        if self.is_of_people {
            build.fixed(&is_none_of("actor", &OF_THE_SERVER));
            // A worker ends tasks and clones projects with its key, so the actor alone does not show that it was not a person.
            let of_workers = [EntityType::Task, EntityType::Project].map(EntityType::as_str);
            build.fixed(&format!("(worker_id IS NULL OR {})", is_none_of("entity_type", &of_workers)));
        }
        match index {
            Some("audit_action") => build.fixed(&is_none_of("action", &FREQUENT_ACTIONS)),
            Some("audit_actor") => build.fixed(&is_none_of("actor", &FREQUENT_ACTORS)),
            _ => {}
        }
        let (first, end): (Option<Uuid>, Uuid) = id_range(self.created_after, self.created_before, page.before);
        build.add("id < ", |args| args.uuid(end));
        if let Some(first) = first {
            build.add("id >= ", |args| args.uuid(first));
        }
        let (text, args) = build.into_parts();
        let args = args.int(page.limit);
        let limit = args.len();
        let columns = record_rows::AUDIT.names("");
        let sql = Sql::new(|d| {
            let hint = index.map_or_else(String::new, |index| d.by_index(index));
            let select =
                |action: &str| format!("SELECT {columns} FROM audit {hint} WHERE true{text}{action} ORDER BY id DESC LIMIT ${limit}");
            match (index, actions.as_slice()) {
                (_, []) => select(""),
                // The index has the entries of each action in the order of their ids. So a page is read for each action, and the pages are
                // merged.
                (Some("audit_action"), actions) => {
                    let page =
                        |at: usize| format!("SELECT {columns} FROM ({}) AS p{at}", select(&format!(" AND action = ${}", limit + 1 + at)));
                    let pages = (0..actions.len()).map(page).collect::<Vec<_>>().join(" UNION ALL ");
                    format!("SELECT {columns} FROM ({pages}) AS a ORDER BY id DESC LIMIT ${limit}")
                }
                (_, _) => select(&format!(" AND action {}", d.any(Type::Text, limit + 1))),
            }
        });
        let args = match index {
            Some("audit_action") => actions.into_iter().fold(args, |args, action| args.text(action)),
            _ if actions.is_empty() => args,
            _ => args.texts(actions),
        };
        (sql, args)
    }
}
