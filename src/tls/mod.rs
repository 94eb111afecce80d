//! The TLS of the server: the certificate, the key and the CA of clients, and how they follow their files.

mod certificate;
mod files;
mod follow;

pub use certificate::Certificate;
pub use files::{Fault, Files, Part};
pub use follow::Tls;
