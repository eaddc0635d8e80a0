//! What fabrics are made of: network namespaces, their links and counters, and processes in them.
//!
//! - [`netns`]: namespaces, and commands in them
//! - [`rtnl`]: links, addresses, routes and neighbours over rtnetlink
//! - [`process`]: processes with a defined end
//! - [`counters`]: interface counters
//! - [`metrics`]: the metrics of a vtepd in a namespace

mod settings;

pub mod counters;
pub mod metrics;
pub mod netns;
pub mod process;
pub mod rtnl;

pub use netns::Namespace;
pub use process::Process;
