//! Finds tasks by the beginning or the end of their ids.

use crate::error::Error;
use crate::reads::lists::fitting_page;
use crate::reads::page::{Listing, Page};
use crate::sql::args::Args;
use crate::sql::dialect::{Kind, statement};
use crate::{Store, all};
use bloom_core::api_key::Owner;
use bloom_core::ids::TaskId;

const SIZE: &str = "octet_length(prompt) + octet_length(context_hints)";
// $5 is the submit key that created the tasks, $6 the team. Their names are never empty, so if both parameters are empty, all tasks match.
const OWNED: &str = "($5 = '' OR owner = $5) AND ($6 = '' OR team = $6)";
statement!(BEGIN_WITH, |_d| "SELECT id, {SIZE} FROM tasks WHERE id >= $1 AND id <= $2 AND id < $3 AND {OWNED} ORDER BY id DESC LIMIT $4");
// The index contains the last four digits, which are random, so it leads to few tasks, however many exist.
statement!(
    END_WITH,
    |d| "SELECT id, {SIZE} FROM tasks {} WHERE {} AND id < $3 AND {OWNED} ORDER BY id DESC LIMIT $4",
    d.by_index("tasks_id_end"),
    match d {
        Kind::Sqlite => "substr(hex(id), -4) = upper($1) AND substr(hex(id), -length($2)) = upper($2)",
        Kind::Postgres => "right(id::text, 4) = $1 AND right(replace(id::text, '-', ''), length($2)) = $2",
    }
);

statement!(
    WITHOUT_TASKS,
    |d| "SELECT value FROM {} WHERE NOT EXISTS (SELECT 1 FROM tasks {} WHERE context_id = value)",
    d.texts(1),
    d.by_index("tasks_context")
);

impl Store {
    /// The contexts without any tasks, in any order.
    pub async fn contexts_without_tasks(&self, contexts: &[String]) -> Result<Vec<String>, Error> {
        all(&self.pool().fetch(&WITHOUT_TASKS, Args::new().texts(contexts)).await?, |row| row.take())
    }

    /// The tasks whose ids are in this range, or end with these digits (at least four, in lower case), newest first, each with the size of
    /// its texts in bytes. With an owner, only the owner's tasks.
    pub async fn task_sizes_by_id(
        &self,
        range: (TaskId, TaskId),
        end: &str,
        owner: Option<&Owner>,
        page: &Page,
    ) -> Result<Listing<(TaskId, i64)>, Error> {
        let (key, team) = match owner {
            None => ("", ""),
            Some(Owner::Key(key)) => (key.as_str(), ""),
            Some(Owner::Team(team)) => ("", team.as_str()),
        };
        let last_four = end.get(end.len().saturating_sub(4)..).unwrap_or_default();
        let before = page.before.unwrap_or(TaskId::max());
        let begin = Args::new().uuid(range.0).uuid(range.1).uuid(before).int(page.limit).text(key).text(team);
        let mut found = self.pool().fetch(&BEGIN_WITH, begin).await?;
        let end = Args::new().text(last_four).text(end).uuid(before).int(page.limit).text(key).text(team);
        found.extend(self.pool().fetch(&END_WITH, end).await?);
        let mut tasks: Vec<(TaskId, i64)> = all(&found, |row| Ok((row.take()?, i64::from(row.take::<i32>()?))))?;
        tasks.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
        tasks.dedup();
        tasks.truncate(usize::try_from(page.limit).unwrap_or_default());
        Ok(fitting_page(tasks))
    }
}
