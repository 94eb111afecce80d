//! The texts of errors about values. They are part of the API, and of the schemas of Kubernetes objects.

use std::fmt::Display;

/// About a text that contains NUL, which PostgreSQL can't store.
pub const NUL: &str = "String must not contain NUL characters";

/// About a call that concerns one worker, of a project that names none.
pub const NO_NODE: &str = "No target node specified";

/// About a field that only tasks with a project have.
pub const NEEDS_PROJECT: &str = "Needs a project: name one in the field project";

/// About a text that is shorter than `min` characters.
pub fn too_short(min: usize) -> String {
    format!("String must contain at least {min} character(s)")
}

/// About a text that is longer than `max` characters.
pub fn too_long(max: usize) -> String {
    format!("String must contain at most {max} character(s)")
}

/// About a number below `min`.
pub fn too_small(min: impl Display) -> String {
    format!("Number must be greater than or equal to {min}")
}

/// About a number above `max`.
pub fn too_large(max: impl Display) -> String {
    format!("Number must be less than or equal to {max}")
}

/// About an array with fewer than `min` elements.
pub fn too_few(min: usize) -> String {
    format!("Array must contain at least {min} element(s)")
}

/// About an array with more than `max` elements.
pub fn too_many(max: usize) -> String {
    format!("Array must contain at most {max} element(s)")
}

/// About an object with more than `max` labels.
pub fn too_many_labels(max: usize) -> String {
    format!("Object must contain at most {max} label(s)")
}

/// The words of an enumeration, as [`unknown_word`] lists them.
pub fn expected_words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" | ")
}

/// About a word that is none of an enumeration. `expected` is the text of [`expected_words`].
pub fn unknown_word(expected: &str, given: &str) -> String {
    format!("Invalid enum value. Expected {expected}, received '{given}'")
}
