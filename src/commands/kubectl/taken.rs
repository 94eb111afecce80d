//! What an LLMTask says about its task: which server has accepted it, and the id of the task there.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::cluster::Cluster;
use crate::CommandError;
use crate::term;
use bloom_api::kubernetes::OPERATOR;
use bloom_core::namespace::is_namespace;

/// The interval at which an object is read until it has a task.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// If no server has responded after this time, the user is told what may be missing.
const SILENT_FOR: Duration = Duration::from_secs(10);
/// The maximum number of characters of an invalid annotation that are shown.
const SHOWN: usize = 80;

/// An LLMTask that has a task.
#[derive(Debug)]
pub(crate) struct Taken {
    pub name: String,
    /// The id of the task on the server.
    pub id: String,
    object: Value,
}

impl Taken {
    /// # Errors
    /// The LLMTask has no task; the text says why.
    pub(crate) async fn find(cluster: &Cluster, name: &str) -> Result<Self, CommandError> {
        let object = cluster.llmtask(name).await?;
        match id_of(&object) {
            Some(id) => Ok(Self { name: name.to_owned(), id, object }),
            None => Err(no_task(name, &why_none(&object)).into()),
        }
    }

    /// Waits until the LLMTask has a task. Meanwhile, it reports why there is none.
    ///
    /// # Errors
    /// The time limit was reached, or the object can't be read.
    pub(crate) async fn wait(cluster: &Cluster, name: &str, limit: Option<Duration>) -> Result<Self, CommandError> {
        let started = Instant::now();
        let mut told = String::new();
        loop {
            let object = cluster.llmtask(name).await?;
            if let Some(id) = id_of(&object) {
                return Ok(Self { name: name.to_owned(), id, object });
            }
            if limit.is_some_and(|limit| started.elapsed() >= limit) {
                return Err(CommandError::too_late(no_task(name, &why_none(&object))));
            }
            if message(&object).is_some() || started.elapsed() >= SILENT_FOR {
                let why = why_none(&object);
                if why != told {
                    term::info(&format!("LLMTask {name}: {why}"));
                    told = why;
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The namespace of the server that has the task.
    ///
    /// # Errors
    /// The object does not name one.
    pub(crate) fn server_namespace(&self) -> Result<&str, CommandError> {
        server_namespace(&self.object).map_err(|why| format!("the server of the LLMTask {} is not known: {why}", self.name).into())
    }

    /// The error if the server does not have the task.
    pub(crate) fn is_not_there(&self) -> CommandError {
        let phase = self.object["status"]["phase"].as_str().unwrap_or("none");
        let status = [Some(term::line(phase)), message(&self.object)].into_iter().flatten().collect::<Vec<_>>().join(": ");
        let (name, id) = (&self.name, &self.id);
        format!(
            "the server does not have the task {id} of the LLMTask {name}: it was removed there, or this is another server.\n\
             What the object says: {status}"
        )
        .into()
    }
}

fn no_task(name: &str, why: &str) -> String {
    format!("the LLMTask {name} has no task yet: {why}")
}

fn id_of(object: &Value) -> Option<String> {
    object["status"]["taskId"].as_str().map(str::to_owned)
}

/// The server's message about the object, on one line.
fn message(object: &Value) -> Option<String> {
    object["status"]["message"].as_str().map(term::line)
}

fn why_none(object: &Value) -> String {
    if let Some(message) = message(object) {
        return message;
    }
    match server_namespace(object) {
        Ok(namespace) => format!("the server in the namespace {namespace} has taken it, and has not created the task yet"),
        Err(why) => why,
    }
}

/// The namespace of the server that has accepted the object, or why it is unknown. The value is validated, because everyone who may edit
/// the object can write anything there.
fn server_namespace(object: &Value) -> Result<&str, String> {
    match object["metadata"]["annotations"][OPERATOR].as_str() {
        None => Err("no server has taken it yet; does one run with OPERATOR=true, and serve this namespace?".to_owned()),
        Some(namespace) if is_namespace(namespace) => Ok(namespace),
        Some(other) => Err(format!(
            "its annotation {OPERATOR} is '{}', which is no name of a namespace; remove the annotation, so that the server sets it again",
            term::short(other, SHOWN)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn annotated(value: &str) -> Value {
        json!({ "metadata": { "annotations": { "bloom-runtime.dev/operator": value } } })
    }

    #[test]
    fn only_a_name_of_a_namespace_leads_to_the_server() {
        assert_eq!(server_namespace(&annotated("bloom-1")), Ok("bloom-1"));
        for wrong in ["", "-n", "--all-namespaces", "a/b", "a b", "A", "a\n", &"a".repeat(64)] {
            let why = server_namespace(&annotated(wrong)).unwrap_err();
            assert!(why.contains("no name of a namespace") && why.len() < 300 && !why.contains('\n'), "{why}");
        }
        assert!(server_namespace(&json!({ "metadata": {} })).unwrap_err().contains("no server has taken it yet"));
    }

    #[test]
    fn an_object_says_why_it_has_no_task() {
        let mut object = json!({ "metadata": {} });
        assert!(why_none(&object).contains("OPERATOR=true"));
        object = annotated("bloom");
        assert!(why_none(&object).contains("the server in the namespace bloom has taken it"), "{}", why_none(&object));
        object["status"] = json!({ "phase": "Pending", "message": "Secret 's' does not exist\n" });
        assert_eq!(why_none(&object), "Secret 's' does not exist ");
    }
}
