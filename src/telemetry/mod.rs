//! Logs and metrics.

mod families;
mod logging;
mod metrics;
mod scrape;

pub use families::MAX_AGENTS;
pub use logging::{Log, LogFormat, LogSettings};
pub use metrics::Metrics;
pub use scrape::{QueueDepth, Scraped};
