//! The description of the API. `description` makes it from the list of all routes, which the router is made of too; `common` and `examples` complete
//! it, and `docs` serves it.

pub(crate) mod common;
pub(crate) mod description;
pub(crate) mod docs;
pub(crate) mod examples;
