//! The OpenAPI description. `description` makes it from the list of routes, of which the router is made too; `common` and `examples` complete it,
//! and `docs` serves it.

pub(crate) mod common;
pub(crate) mod description;
pub(crate) mod docs;
pub(crate) mod examples;
