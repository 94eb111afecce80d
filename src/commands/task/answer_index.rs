//! An index for answers that are stored as files. The files are named by ids, which do not show the lines of the input that they belong to.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;
use uuid::Uuid;

use super::directory::Directory;
use crate::CommandError;
use crate::server_calls::Server;
use crate::{ids, term};
use bloom_api::lists::MAX_IDS;

const NAME: &str = "index.jsonl";

/// A line of the input and its task.
pub(crate) struct Submitted {
    pub line: usize,
    pub name: Option<String>,
    pub id: String,
}

/// The ends of tasks, by their ids.
pub(crate) type Ends = HashMap<String, End>;

/// How a task ended, or its current state.
pub(crate) struct End {
    pub status: String,
    /// The file with the answer.
    pub file: Option<String>,
    /// What the run was not able to do.
    pub warnings: Vec<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    id: &'a str,
    status: Option<&'a str>,
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

/// # Errors
/// There is an index already. This is checked before anything is submitted, because the answers may take hours.
pub(crate) fn check(dir: &Path, force: bool) -> Result<(), CommandError> {
    if dir.is_dir() { Directory::open(dir)?.check(NAME, force).map_err(|failure| failure.about(NAME)) } else { Ok(()) }
}

/// Writes one row for each line of the input, in the same order.
///
/// # Errors
/// The index can't be written.
pub(crate) async fn write(dir: &Path, force: bool, all: &[Submitted], ends: &mut Ends, server: &Server) -> Result<(), CommandError> {
    let open: Vec<Uuid> = all.iter().filter(|one| !ends.contains_key(&one.id)).filter_map(|one| one.id.parse().ok()).collect();
    for some in open.chunks(MAX_IDS) {
        // The states of these tasks stay unknown if the server can't be reached.
        for task in ids::existing(server, some).await.unwrap_or_default() {
            if let (Some(id), Some(status)) = (task["id"].as_str(), task["status"].as_str()) {
                ends.insert(id.to_owned(), End { status: status.to_owned(), file: None, warnings: Vec::new() });
            }
        }
    }
    let directory = Directory::open(dir)?;
    let text: String = all.iter().map(|one| format!("{}\n", row(one, ends))).collect();
    directory.store(NAME, &text, force).map_err(|failure| failure.about(NAME))?;
    term::info(&format!("Which line of the input has which answer: {}", term::line(&directory.shown(NAME))));
    Ok(())
}

fn row(one: &Submitted, ends: &Ends) -> String {
    let end = ends.get(&one.id);
    let row = Row {
        line: one.line,
        name: one.name.as_deref(),
        id: &one.id,
        status: end.map(|end| end.status.as_str()),
        file: end.and_then(|end| end.file.as_deref()),
        warnings: end.map_or(&[], |end| &end.warnings),
    };
    serde_json::to_string(&row).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_with_its_name_and_its_file() {
        let end = End { status: "completed".to_owned(), file: Some("x.txt".to_owned()), warnings: Vec::new() };
        let warned = End { status: "completed".to_owned(), file: None, warnings: vec!["no tool".to_owned()] };
        let ends = Ends::from([("x".to_owned(), end), ("z".to_owned(), warned)]);
        let told = |name: Option<&str>, id: &str| row(&Submitted { line: 3, name: name.map(str::to_owned), id: id.to_owned() }, &ends);
        assert_eq!(told(Some("a"), "x"), r#"{"line":3,"name":"a","id":"x","status":"completed","file":"x.txt"}"#);
        assert_eq!(told(None, "z"), r#"{"line":3,"id":"z","status":"completed","file":null,"warnings":["no tool"]}"#);
        assert_eq!(told(None, "y"), r#"{"line":3,"id":"y","status":null,"file":null}"#);
    }
}
