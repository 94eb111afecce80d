//! What git calls things: branches, tags and commits.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::values::Text;
use super::wire::{Problems, Wire, problem};
use bloom_core::project::{DEFAULT_BRANCH_PREFIX, MAX_BRANCH_PREFIX, MAX_GIT_REF, is_branch_prefix, is_commit_id, is_git_ref};

/// No pattern can say what git allows; this one refuses nothing that is read.
const REF_PATTERN: &str = "^[^- ~^:?*\\[\\\\/.][^ ~^:?*\\[\\\\]*$";

/// A branch, a tag or a commit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GitRef(pub String);

impl Wire for GitRef {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<1, MAX_GIT_REF>::read(raw)?;
        if is_git_ref(&text) {
            return Ok(Self(text));
        }
        problem("Expected the name of a branch or of a tag, or the id of a commit")
    }

    fn describe() -> Schema {
        text_like(REF_PATTERN, MAX_GIT_REF)
    }
}

/// What the branches of a project's contexts begin with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BranchPrefix(pub String);

impl Default for BranchPrefix {
    fn default() -> Self {
        Self(DEFAULT_BRANCH_PREFIX.to_owned())
    }
}

impl Wire for BranchPrefix {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<0>::read(raw)?;
        if is_branch_prefix(&text) {
            return Ok(Self(text));
        }
        problem(format!(
            "Expected 1 to {MAX_BRANCH_PREFIX} characters that git allows at the beginning of a branch's name, such as bots or team/bots, not below refs, HEAD or origin"
        ))
    }

    fn describe() -> Schema {
        text_like(REF_PATTERN, MAX_BRANCH_PREFIX)
    }
}

/// The id of a commit, as git prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommitId(pub String);

impl Wire for CommitId {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<0>::read(raw)?;
        if is_commit_id(&text) { Ok(Self(text)) } else { problem("Expected the id of a commit: 40 or 64 of the characters 0-9 a-f") }
    }

    fn describe() -> Schema {
        text_like("^([0-9a-f]{40}|[0-9a-f]{64})$", 64)
    }
}

/// What servers mean that do not tell the prefix.
pub(super) fn default_prefix<'a>() -> Cow<'a, str> {
    DEFAULT_BRANCH_PREFIX.into()
}

/// The schema of a text of 1 to `max` characters that this pattern describes.
pub(super) fn text_like(pattern: &str, max: usize) -> Schema {
    let object = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    Schema::Object(object.min_length(Some(1)).max_length(Some(max)).build())
}
