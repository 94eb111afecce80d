//! `task list --watch`: prints matching tasks, and then their changes.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::filters::Filters;
use super::list;
use crate::CommandError;
use crate::records::Limit;
use crate::retry::Retry;
use crate::server_calls::{Server, read};
use crate::show::{Feed, Form};
use crate::{columns, ids, term};
use bloom_api::answers::Gone;
use bloom_api::lists::MAX_IDS;
use bloom_api::tasks::Task;
use bloom_client::{Error, Event};

/// How many tasks are remembered. If there are more, some may be printed twice.
const MAX_SEEN: usize = 100_000;
/// How many of these are read again after an interruption.
const MAX_READ_AGAIN: usize = 1_000;

/// Runs until it is interrupted, or until the server has been unreachable for too long.
///
/// # Errors
/// The server can't be reached, or the output can't be written.
pub(crate) async fn run(filters: &Filters, limit: &Limit, server: &Server, form: Form) -> Result<(), CommandError> {
    let mut watching = Watching { filters, limit, server, feed: Feed::new(form, &columns::TASKS), seen: HashMap::new() };
    let mut retry = Retry::new(true, false);
    loop {
        let error = match watching.go_on(&mut retry).await {
            Ok(()) => Error::Broken("the server has ended the stream".into()),
            Err(Stop::Call(error)) => error,
            Err(Stop::Output(failure)) => return Err(failure),
        };
        retry.pause(error).await?;
    }
}

/// Why reading a stream has ended.
enum Stop {
    Call(Error),
    Output(CommandError),
}

struct Watching<'a> {
    filters: &'a Filters,
    limit: &'a Limit,
    server: &'a Server,
    feed: Feed<Task<'static>>,
    /// The hash of each task as it was last printed.
    seen: HashMap<String, u64>,
}

impl Watching<'_> {
    /// Reads one stream to its end.
    async fn go_on(&mut self, retry: &mut Retry) -> Result<(), Stop> {
        // The stream is opened before the list is read, so that no change between the two is missed.
        let mut events = self.server.client.events("api/runtime/watch", None).await.map_err(Stop::Call)?;
        retry.is_over();
        self.list().await?;
        while let Some(Event { name, data, .. }) = events.next().await.map_err(Stop::Call)? {
            retry.is_over();
            let garbled = |error| Stop::Call(Error::Garbled(format!("a change is not valid JSON: {error}")));
            match name.as_str() {
                "task" => {
                    let task: Value = serde_json::from_str(&data).map_err(garbled)?;
                    let seen: Task = read(&task).map_err(Stop::Output)?;
                    if self.filters.fits(&seen) {
                        self.show(&[task])?;
                    } else {
                        self.seen.remove(&seen.id.to_string());
                    }
                }
                "removed" => {
                    let gone: Gone = serde_json::from_str(&data).map_err(garbled)?;
                    self.seen.remove(&*gone.id);
                }
                "reset" => self.list().await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Stop> {
        // Printed tasks may have changed meanwhile, even if they are no longer among the newest.
        let mut known: Vec<String> = self.seen.keys().cloned().collect();
        let (tasks, _) = list::newest(self.server, self.filters, None, self.limit.rows()).await.map_err(Stop::Call)?;
        self.show(&tasks)?;
        let listed: HashSet<&str> = tasks.iter().filter_map(|task| task["id"].as_str()).collect();
        known.retain(|id| !listed.contains(id.as_str()));
        known.sort_unstable_by(|a, b| b.cmp(a));
        if known.len() > MAX_READ_AGAIN {
            term::info(&format!("Changes of {} older tasks during the interruption are not shown.", known.len() - MAX_READ_AGAIN));
            known.truncate(MAX_READ_AGAIN);
        }
        for known in known.chunks(MAX_IDS) {
            let mut fitting = Vec::new();
            for task in ids::list(self.server, known).await.map_err(Stop::Call)? {
                let seen: Task = read(&task).map_err(Stop::Output)?;
                if known.contains(&seen.id.to_string()) && self.filters.fits(&seen) {
                    fitting.push(task);
                }
            }
            self.show(&fitting)?;
        }
        Ok(())
    }

    /// Prints the tasks that have changed since they were last printed.
    fn show(&mut self, tasks: &[Value]) -> Result<(), Stop> {
        if self.seen.len() > MAX_SEEN {
            self.seen.clear();
        }
        let mut news = Vec::new();
        for task in tasks {
            let mut hasher = DefaultHasher::new();
            task.to_string().hash(&mut hasher);
            let now = hasher.finish();
            let id = read::<Task>(task).map_err(Stop::Output)?.id.to_string();
            if self.seen.insert(id, now) != Some(now) {
                news.push(task.clone());
            }
        }
        if news.is_empty() { Ok(()) } else { self.feed.print(&news).map_err(Stop::Output) }
    }
}
