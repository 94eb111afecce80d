//! How requests are read and answers are written: bodies, ids in paths, pages of lists, errors. Nothing here belongs to one resource. The types of
//! bodies and answers are in the crate `bloom-api`.

pub(crate) mod answer;
pub(crate) mod error;
pub(crate) mod error_precedence;
pub(crate) mod list_streaming;
pub(crate) mod paging;
pub(crate) mod path_ids;
pub(crate) mod refusal;
pub(crate) mod representations;
pub(crate) mod request_body;
