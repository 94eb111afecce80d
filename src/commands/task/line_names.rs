//! Names of the lines of a file, by which later lines can depend on them.

use std::collections::{BTreeSet, HashMap};

use bloom_core::similar::similar;
use serde_json::{Map, Value};
use uuid::Uuid;

/// The field with the name of a line. The API has no such field.
pub(crate) const NAME: &str = "name";
const MAX_NAME: usize = 100;

/// A line with a name.
struct Named {
    number: usize,
    depends_on: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Names(HashMap<String, Named>);

/// The names and ids in `depends_on`.
pub(crate) fn dependencies(task: &Map<String, Value>) -> impl Iterator<Item = &str> {
    task.get("depends_on").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

impl Names {
    /// The names of all lines, and the errors in names with their line numbers. Other errors are reported later.
    pub(crate) fn of(text: &str) -> (Self, Vec<(usize, String)>) {
        let (mut names, mut wrong) = (Self::default(), Vec::new());
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.contains(NAME)) {
            let Ok(task) = serde_json::from_str::<Map<String, Value>>(line) else { continue };
            let Some(name) = task.get(NAME).filter(|name| !name.is_null()) else { continue };
            let problem = match name.as_str() {
                None => Some("name: it is not a text".to_owned()),
                Some(name) if name.trim().is_empty() => Some("name: it is blank".to_owned()),
                Some(name) if name.chars().count() > MAX_NAME => Some(format!("name: it has more than {MAX_NAME} characters")),
                Some(name) if name.parse::<Uuid>().is_ok() => Some("name: it looks like the id of a task".to_owned()),
                Some(name) => {
                    let depends_on = dependencies(&task).map(str::to_owned).collect();
                    let first = names.0.get(name).map(|named| named.number);
                    if first.is_none() {
                        names.0.insert(name.to_owned(), Named { number, depends_on });
                    }
                    first.map(|first| format!("name: {name} is the name of line {first}, too"))
                }
            };
            wrong.extend(problem.map(|problem| (number, problem)));
        }
        (names, wrong)
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Why the line with this number can't depend on the line with this name.
    pub(crate) fn problem(&self, number: usize, name: &str) -> Option<String> {
        let named = self.0.get(name)?.number;
        if named == number {
            return Some(format!("depends_on: {name} is this line itself"));
        }
        if named < number {
            return None;
        }
        Some(if self.reaches(name, number) {
            format!("depends_on: {name} is line {named}, which depends on this line in turn")
        } else {
            format!("depends_on: {name} is line {named}, which comes later: put it before this line")
        })
    }

    /// Whether the line with this name depends on the line with this number, directly or indirectly.
    fn reaches(&self, name: &str, number: usize) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), vec![name]);
        while let Some(named) = open.pop().and_then(|name| self.0.get(name)) {
            if named.number == number {
                return true;
            }
            if seen.insert(named.number) {
                open.extend(named.depends_on.iter().map(String::as_str).filter(|name| self.contains(name)));
            }
        }
        false
    }

    /// The error that no line has this name, with a similar name if there is one.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let near = similar(name, self.0.keys().map(String::as_str));
        let near = near.map(|near| format!("; the nearest is {near}")).unwrap_or_default();
        format!("no line has the name {name}{near}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_names_and_circles_are_told() {
        let text = r#"{"name": "a", "depends_on": ["c"]}
{"name": "b", "depends_on": ["a", "d"]}
{"name": "c", "depends_on": ["b", "c"]}
{"name": "d"}
{"name": "a"}
{"name": 5}
{"name": " "}"#;
        let (names, wrong) = Names::of(text);
        let told: Vec<_> = wrong.iter().map(|(number, told)| format!("{number} {told}")).collect();
        assert_eq!(told, ["5 name: a is the name of line 1, too", "6 name: it is not a text", "7 name: it is blank"]);
        assert!(names.problem(1, "c").unwrap().contains("line 3, which depends on this line in turn"));
        assert!(names.problem(2, "d").unwrap().contains("line 4, which comes later"));
        assert!(names.problem(3, "c").unwrap().contains("itself"));
        assert_eq!(names.problem(3, "b"), None);
        assert_eq!(names.unknown("dd"), "no line has the name dd; the nearest is d");
    }
}
