//! Metrics in OpenMetrics text format, served over HTTP.
//!
//! - [`view`]: what is shown in addition to the workers' counters
//! - [`exposition`]: both as OpenMetrics text
//! - `classic`: the older text format
//! - [`server`]: `GET /metrics`

mod classic;
pub mod exposition;
pub mod server;
pub mod view;

pub use exposition::render;
pub use server::{Metrics, ServeError, bind};
pub use view::{
    LeftView, PathView, PortFrames, PortView, ProbedView, ProbingView, SourceView, TierView, View,
    VniView,
};
