//! Fabrics in network namespaces: from a ContainerLab file to nodes that forward.
//!
//! - [`topology`], a crate of its own: the ContainerLab file; [`new`] writes one
//! - [`Fabric`], [`node`], [`state`]: a fabric that is up; `stage_tracker` and `bring_up` build it,
//!   `frr` starts routers, `management` joins their `eth0`, `converge` waits until it forwards, on
//!   notifications of `changes`, for [`entries`]
//! - [`node_init`]: the first process of each node
//! - [`deployed`]: namespaces, hosts and tunnels of a fabric that is up
//! - [`netns`], [`process`]: namespaces, and processes with a defined end in them
//! - [`rtnl`], [`counters`], [`super_frames`]: links, addresses, routes and neighbours, interface
//!   counters, and offloads
//! - [`watch`]: a namespace whose interfaces are read again and again; [`queue_pair`]: the packets of
//!   a queue pair at one of them
//! - [`packet`], [`arp`]: frames of the lab's own on an interface
//! - [`abstract_socket`]: who is at the other end of a socket
//! - [`mod@at_once`]: work on many nodes at once
//! - [`owner`]: files for the user who called sudo
//! - [`metrics`]: the metrics of a vtepd in a namespace

mod at_once;
mod bring_up;
mod changes;
mod converge;
mod frr;
mod frr_root;
mod half_links;
mod lifecycle;
mod management;
mod node_root;
mod settings;
mod stage_tracker;

pub mod abstract_socket;
pub mod arp;
pub mod counters;
pub mod deployed;
pub mod entries;
pub mod metrics;
pub mod netns;
pub mod new;
pub mod node;
pub mod node_init;
pub mod owner;
pub mod packet;
pub mod process;
pub mod progress;
pub mod queue_pair;
pub mod rtnl;
pub mod state;
pub mod super_frames;
pub mod watch;

pub use at_once::{at_once, few_at_once};
pub use bring_up::own_program;
pub use converge::{STABLE_TIME, Sessions};
pub use half_links::HalfLinkError;
pub use lifecycle::{Fabric, FabricError};
pub use netns::Namespace;
pub use process::Process;
pub use topology::{self, Topology};
