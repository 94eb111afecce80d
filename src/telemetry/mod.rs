//! Logs, metrics and traces.

#![warn(missing_docs, unreachable_pub)]

mod families;
mod kubernetes;
mod line_queue;
mod logging;
mod metrics;
mod objects;
mod scrape;
pub mod traces;

pub use families::MAX_AGENTS;
pub use kubernetes::KubernetesMetrics;
pub use line_queue::{Flush, flush_log};
pub use logging::{Log, LogFormat, LogSettings};
pub use metrics::Metrics;
pub use objects::ObjectMetrics;
pub use scrape::{QueueDepth, Scraped};
pub use traces::{TraceSettings, Traces};
