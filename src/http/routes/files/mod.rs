//! The handlers for artifacts and files, and the way of their content to the database or the object store and back. Outputs of runs pass through
//! `output_objects`, files through `upload_content` and `file_content`.

pub(crate) mod artifacts;
pub(crate) mod download;
pub(crate) mod file_content;
pub(crate) mod output_objects;
pub(crate) mod upload;
pub(crate) mod upload_content;
