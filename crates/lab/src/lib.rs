//! Topologies in network namespaces from ContainerLab files, FRR, hosts, RoCE workloads, reports.
