//! Logs and metrics.

mod families;
mod logging;
mod metrics;
mod scrape;

pub use logging::{LogFormat, init_logging};
pub use metrics::{MAX_AGENTS, Metrics};
pub use scrape::QueueDepth;
