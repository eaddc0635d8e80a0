//! Topologies in network namespaces from ContainerLab files, FRR, hosts, RoCE workloads, reports.

pub mod netns;
pub mod process;
