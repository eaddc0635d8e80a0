//! Topologies in network namespaces from ContainerLab files, FRR, hosts, RoCE workloads, reports.

mod environment;
mod parse;

pub mod netns;
pub mod process;
pub mod topology;
