//! The TLS of the server: the certificate, the key and the CA of clients, and how a running server follows their files. `pem` is also used
//! for files of clients.

#![warn(missing_docs, unreachable_pub)]

mod certificate;
mod files;
mod follow;
pub mod pem;

pub use certificate::Certificate;
pub use files::{Fault, Files, Part};
pub use follow::Tls;
