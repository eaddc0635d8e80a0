//! Counters to Prometheus.
//!
//! - [`view`]: what is shown beside the worker's counters
//! - [`exposition`]: both as OpenMetrics text
//! - [`server`]: `GET /metrics`

pub mod exposition;
pub mod server;
pub mod view;

pub use exposition::render;
pub use server::{Metrics, ServeError, bind};
pub use view::{LeftView, PathView, PortFrames, PortView, SourceView, View, VniView};
