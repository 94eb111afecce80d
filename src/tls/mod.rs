//! The TLS of the server: the certificate, the key and the CA of clients, and how they follow their files. `pem` reads files of clients, too.

#![warn(missing_docs, unreachable_pub)]

mod certificate;
mod files;
mod follow;
pub mod pem;

pub use certificate::Certificate;
pub use files::{Fault, Files, Part};
pub use follow::Tls;
