//! Logs, metrics and traces.

#![warn(missing_docs, unreachable_pub)]

mod kubernetes;
mod line_queue;
mod logging;
mod metric_families;
mod metrics;
mod objects;
mod scrape;
pub mod traces;

pub use kubernetes::KubernetesMetrics;
pub use line_queue::{Flush, flush_log};
pub use logging::{Log, LogFormat, LogSettings};
pub use metric_families::MAX_AGENTS;
pub use metrics::Metrics;
pub use objects::ObjectMetrics;
pub use scrape::{QueueDepth, Scraped};
pub use traces::{TraceSettings, Traces};
