//! The handlers for artifacts and files, and how their content gets to the database or the object store and back. `output_objects` handles
//! outputs of runs; `upload_content` and `file_content` handle files.

pub(crate) mod artifacts;
pub(crate) mod download;
pub(crate) mod file_content;
pub(crate) mod output_objects;
pub(crate) mod upload;
pub(crate) mod upload_content;
