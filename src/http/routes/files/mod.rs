//! The handlers for artifacts and files, and where their content goes and comes from. Content is in the database or in the object store.
//! Outputs of runs go through `output_objects`, files through `upload_content` and `file_content`.

pub(crate) mod artifacts;
pub(crate) mod download;
pub(crate) mod file_content;
pub(crate) mod output_objects;
pub(crate) mod upload;
pub(crate) mod upload_content;
