//! Finds tasks by a text in them. There is no index of the texts, so tasks are read one after the other, newest first, up to a limit.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::error::Error;
use crate::reads::lists::TaskFilter;
use crate::reads::page::{PAGE_BYTES, Page};
use crate::sql::args::Args;
use crate::sql::cells::Type;
use crate::sql::dialect::statement;
use crate::{Store, all};
use bloom_core::ids::TaskId;

/// How many characters of the prompt and of the answer are searched.
const SEARCHED_CHARS: i64 = 65_536;
/// The most tasks that one search reads.
const SEARCHED_TASKS: usize = 2_000;
/// How many tasks have their texts in memory at the same time.
const STEP: i64 = 50;

// The searched texts of these tasks, and their sizes.
statement!(
    TEXTS,
    |d| "SELECT t.id, octet_length(t.prompt) + octet_length(t.context_hints), t.context_id, coalesce(s.labels, t.labels), \
        substr(t.prompt, 1, {SEARCHED_CHARS}), s.failure_message, \
        (SELECT substr(coalesce(r.output, r.preview), 1, {SEARCHED_CHARS}) FROM results r WHERE r.task_id = t.id ORDER BY r.artifact_id DESC LIMIT 1) \
    FROM tasks t JOIN task_state s ON s.id = t.id WHERE t.id {} ORDER BY t.id DESC",
    d.any(Type::Uuid, 1)
);

/// Tasks that contain the text, newest first, each with the size of its texts in bytes.
#[derive(Debug, Default)]
pub struct Searched {
    /// The tasks.
    pub rows: Vec<(TaskId, i64)>,
    /// The search ended after this task, and there are older tasks to search. The page may be empty even so.
    pub next: Option<TaskId>,
}

impl Store {
    /// The tasks that match the filter and contain this text in the id, the context, a label, the prompt, the failure or the newest answer.
    /// Upper and lower case are not distinguished, in any alphabet, unlike in the databases.
    pub async fn search(&self, filter: &TaskFilter, text: &str, page: &Page) -> Result<Searched, Error> {
        let wanted = text.to_lowercase();
        let mut found = Searched { rows: Vec::new(), next: page.before };
        let (mut bytes, mut read) = (0, 0);
        while read < SEARCHED_TASKS {
            let ids = self.task_ids(filter, &Page { limit: STEP, before: found.next }).await?;
            read += ids.len();
            let texts = self.pool().fetch(&TEXTS, Args::new().uuids(&ids)).await?;
            let texts: Vec<Texts> = all(&texts, |row| {
                let (id, size): (Uuid, i32) = (row.take()?, row.take()?);
                let (context, labels): (String, String) = (row.take()?, row.take()?);
                let (prompt, failure, answer): (String, Option<String>, Option<String>) = (row.take()?, row.take()?, row.take()?);
                let labels: BTreeMap<String, String> =
                    serde_json::from_str(&labels).map_err(|error| Error::Corrupt(format!("labels of task {id}: {error}")))?;
                let labels = labels.into_iter().map(|(name, value)| format!("{name}={value}"));
                let texts = [id.to_string(), context, prompt].into_iter().chain(labels).chain(failure).chain(answer).collect();
                Ok(Texts { id, size: i64::from(size), texts })
            })?;
            for task in texts.into_iter().filter(|task| task.texts.iter().any(|text| text.to_lowercase().contains(&wanted))) {
                bytes += task.size;
                if found.rows.len() as i64 == page.limit || (bytes > PAGE_BYTES && !found.rows.is_empty()) {
                    // This task is the first one of the next page.
                    found.next = found.rows.last().map(|(id, _)| *id);
                    return Ok(found);
                }
                found.rows.push((task.id, task.size));
            }
            found.next = ids.last().copied();
            if (ids.len() as i64) < STEP {
                found.next = None;
                break;
            }
        }
        Ok(found)
    }
}

struct Texts {
    id: TaskId,
    size: i64,
    texts: Vec<String>,
}
