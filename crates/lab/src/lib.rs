//! Runs topologies from ContainerLab files in network namespaces, with FRR, hosts and RoCE traffic.

mod bring_up;
mod converge;
mod expand;
mod frr;
mod frr_root;
mod parse;
mod stages;

pub mod balance;
pub mod counters;
pub mod daemon;
pub mod demo;
pub mod deployed;
pub mod fabric;
pub mod netns;
pub mod node;
pub mod packet;
pub mod process;
pub mod random;
pub mod roce;
pub mod spread;
pub mod state;
pub mod topology;
pub mod verify;
pub mod wan;

pub use fabric::Fabric;
pub use netns::Namespace;
pub use process::Process;
pub use topology::Topology;
