//! Runs topologies from ContainerLab files in network namespaces, with FRR, hosts and RoCE traffic.
//!
//! - [`topology`]: the ContainerLab file; [`new`] writes one
//! - [`state`], [`node`], [`fabric`]: a fabric that is up; `stage_tracker` and `bring_up` build it,
//!   `converge` waits until it forwards, on notifications of `changes`, for `entries`
//! - [`deployed`], [`spread`], [`balance`]: hosts and paths of a fabric that is up,
//!   and how traffic spreads over its links
//! - [`hops`]: the path of a flow, router by router
//! - [`link`]: changes of links while the fabric runs
//! - [`graph`]: a picture of the fabric with the load on its links
//! - [`packet`], [`arp`], [`roce`], [`stream`]: traffic between hosts
//! - [`daemon`]: vtepd on a node; [`leaves`]: on all leaves
//! - [`owner`]: files for the user who called sudo; `abstract_socket`: who is at the other end of a
//!   socket
//! - [`endpoint`]: a RoCE endpoint with reliable connections on an interface
//! - [`workload`]: collective operations of distributed training between hosts
//! - [`plan`]: plans of training between data centres
//! - [`simulation`]: `lab sim` and `lab merge`
//! - [`demo`], [`run`], [`verify`], [`wan`]: the commands of the same names; `machine` describes
//!   where they measured

mod abstract_socket;
mod bring_up;
mod changes;
mod converge;
mod entries;
mod frr;
mod frr_root;
mod machine;
mod node_root;
mod stage_tracker;

pub mod arp;
pub mod daemon;
pub mod demo;
pub mod deployed;
pub mod endpoint;
pub mod fabric;
pub mod graph;
pub mod hops;
pub mod leaves;
pub mod link;
pub mod new;
pub mod node;
pub mod owner;
pub mod packet;
pub mod plan;
pub mod progress;
pub mod roce;
pub mod run;
pub mod simulation;
pub mod spread;
pub mod state;
pub mod stream;
pub mod topology;
pub mod verify;
pub mod wan;
pub mod workload;

pub use self::fabric::Fabric;
pub use experiment::{balance, random};
pub use topology::Topology;
