//! Files that tasks get and leave.

use std::borrow::Cow;

use globset::{Glob, GlobBuilder};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use super::values::{Id, Text};
use super::wire::{Problems, Wire, body, problem};
use bloom_core::file::{self, MAX_OUTPUT_CHARS, MAX_PATH_BYTES, path_problem};

/// A path below the directory of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InputPath(pub String);

impl Wire for InputPath {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<0>::read(raw)?;
        match path_problem(&text) {
            None => Ok(Self(text)),
            Some(wrong) => problem(format!("The path {wrong}")),
        }
    }

    fn describe() -> Schema {
        path("^[^/].*$", MAX_PATH_BYTES)
    }
}

/// A glob of files below the directory of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputGlob(pub String);

impl Wire for OutputGlob {
    fn read(raw: &RawValue) -> Result<Self, Problems> {
        let Text(text) = Text::<1, MAX_OUTPUT_CHARS>::read(raw)?;
        if let Some(wrong) = path_problem(&text) {
            return problem(format!("The glob '{text}' {wrong}"));
        }
        match glob(&text) {
            Ok(_) => Ok(Self(text)),
            Err(wrong) => problem(format!("Invalid glob '{text}': {wrong}")),
        }
    }

    fn describe() -> Schema {
        // No pattern can say what a glob is; this one refuses nothing that is read.
        path("^[^/].*$", MAX_OUTPUT_CHARS)
    }
}

fn path(pattern: &str, longest: usize) -> Schema {
    let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    Schema::Object(text.min_length(Some(1)).max_length(Some(longest)).build())
}

/// The glob of an output, as servers and agents understand it: `*` does not cross `/`, `**` does.
///
/// # Errors
/// It is none; the text says why.
pub fn glob(text: &str) -> Result<Glob, String> {
    GlobBuilder::new(text).literal_separator(true).build().map_err(|error| error.kind().to_string())
}

/// The content of a file, in descriptions.
pub struct FileContent;

impl PartialSchema for FileContent {
    fn schema() -> RefOr<Schema> {
        let bytes = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        Schema::Object(bytes.description(Some("The content of a file.")).build()).into()
    }
}

impl ToSchema for FileContent {}

body! {
    /// A file that the run of a task gets.
    pub struct NewInput {
        /// The id of an upload.
        artifact_id: Id,
        /// The path of the file, below the directory of the run. Default: the name of the upload.
        path: Option<InputPath>,
    }
}

impl NewInput {
    /// The task keeps the rest of what is known of the upload.
    pub fn into_input(self) -> file::Input {
        file::Input {
            artifact_id: self.artifact_id.0,
            path: self.path.map(|path| path.0).unwrap_or_default(),
            content_type: String::new(),
            bytes: 0,
            sha256: String::new(),
        }
    }
}

/// A file that the run of a task gets.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = TaskInput)]
pub struct Input<'a> {
    /// The id of the upload.
    pub artifact_id: Uuid,
    /// The path of the file, below the directory of the run.
    pub path: Cow<'a, str>,
    /// The content type of the upload.
    pub content_type: Cow<'a, str>,
    /// The size of the file.
    pub bytes: i64,
    /// The SHA-256 digest of the file, in hexadecimal.
    pub sha256: Cow<'a, str>,
}

impl<'a> From<&'a file::Input> for Input<'a> {
    fn from(input: &'a file::Input) -> Self {
        Self {
            artifact_id: input.artifact_id,
            path: (&input.path).into(),
            content_type: (&input.content_type).into(),
            bytes: input.bytes,
            sha256: (&input.sha256).into(),
        }
    }
}
