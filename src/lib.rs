pub mod core;

#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod membridge;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
