//! AF_PACKET and in-memory ports, splices and steering programs: the only room with unsafe code.
//!
//! - [`access`], [`tap`]: ports of VNIs without a kernel bridge
//! - [`packet`]: AF_PACKET sockets, batched both ways
//! - `outbox`: frames on their way into a socket
//! - [`netns`], [`splice`]: veth pairs whose far end only this process sees
//! - [`features`]: what the running kernel can do
//! - [`foreign`]: programs of others on the same hooks
//! - [`iptables`]: tables of legacy iptables
//! - [`leftovers`]: what a killed vtepd leaves on clsact hooks
//! - [`patience`]: what has them give up a worker that hangs
//! - `segmentation`: which super-frames an interface takes whole
//! - `haste`: short grace periods while there are many hooks to change
//! - [`readiness`]: sleeping until there is something to read
//! - [`scheduling`], [`affinity`]: a worker that is run at once, and does not overtake itself
//! - `shortcut`, `port_counts`: hosts' frames that go straight to the worker, and what is counted of each port's
//! - `kill_switch`: the map without which nothing is redirected
//! - [`confine`]: what is given up after the start
//! - [`steering`]: the programs that redirect frames into the splices

#![allow(unsafe_code, reason = "raw system calls and their memory; every block says why it is sound")]

pub mod access;
pub mod affinity;
pub mod confine;
pub mod features;
pub mod foreign;
mod haste;
pub mod iptables;
mod kill_switch;
pub mod leftovers;
pub mod netns;
mod outbox;
pub mod packet;
pub mod patience;
mod port_counts;
pub mod readiness;
mod ring;
pub mod scheduling;
mod segmentation;
mod shortcut;
pub mod splice;
pub mod steering;
mod system_calls;
pub mod tap;

pub use access::AccessPort;
pub use affinity::Affinity;
pub use features::Features;
pub use kill_switch::KillSwitch;
pub use netns::PrivateNamespace;
pub use outbox::SuperFrames;
pub use packet::PacketSocket;
pub use patience::{Calls, MOST_WORKERS, Patience, Waiting};
pub use port_counts::PortCounts;
pub use readiness::Readiness;
pub use ring::Room;
pub use scheduling::Scheduling;
pub use shortcut::{ShortcutState, shortcut_obstacle};
pub use splice::{Splice, SpliceError, Splices, longest_frame, of_worker};
pub use steering::{Hook, Steering, SteeringCounts, SteeringError};
pub use tap::TapTerms;
