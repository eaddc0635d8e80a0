//! AF_PACKET and in-memory ports, punt pairs and steering programs: the only room with unsafe code.
//!
//! - [`access`], [`tap`]: ports of VNIs without a kernel bridge
//! - [`packet`]: AF_PACKET sockets, batched both ways
//! - `outbox`: frames on their way into a socket
//! - [`netns`], [`punt`]: veth pairs whose far end only this process sees
//! - [`features`]: what the running kernel can do
//! - [`foreign_programs`]: programs of others on the same hooks
//! - [`iptables`]: tables of legacy iptables
//! - [`stale_filters`]: what a killed vtepd leaves on clsact hooks
//! - [`watchdog`]: what has them give up a worker that hangs
//! - `segmentation`: which super-frames an interface takes whole
//! - `haste`: short grace periods while there are many hooks to change
//! - [`poller`]: sleeping until there is something to read
//! - [`scheduling`], [`affinity`]: a worker that is run at once, and does not overtake itself
//! - `bypass`, `port_counts`: hosts' frames that go straight to the worker, and what is counted of
//!   each port's
//! - `kill_switch`: the map without which nothing is redirected
//! - [`confine`]: what is given up after the start
//! - [`steering`]: the programs that redirect frames into the punt pairs

#![allow(
    unsafe_code,
    reason = "raw system calls and their memory; every block says why it is sound"
)]

pub mod access;
pub mod affinity;
mod bypass;
pub mod confine;
mod ethtool;
pub mod features;
pub mod foreign_programs;
pub mod iptables;
mod kill_switch;
pub mod netns;
pub mod packet;
pub mod poller;
mod port_counts;
pub mod punt;
mod rcu_expedite;
mod ring;
pub mod scheduling;
pub mod stale_filters;
pub mod steering;
mod system_calls;
pub mod tap;
mod tx;
pub mod watchdog;

pub use access::AccessPort;
pub use affinity::Affinity;
pub use bypass::{BypassState, bypass_obstacle};
pub use features::Features;
pub use kill_switch::KillSwitch;
pub use netns::PrivateNamespace;
pub use packet::PacketSocket;
pub use poller::Poller;
pub use port_counts::PortCounts;
pub use punt::{PuntError, PuntPair, PuntPairs, longest_frame, of_worker};
pub use ring::RingSize;
pub use scheduling::Scheduling;
pub use steering::{Hook, Steering, SteeringCounts, SteeringError};
pub use tap::TapTerms;
pub use tx::SuperFrames;
pub use watchdog::{MOST_WORKERS, PuntSide, Wakeups, Watchdog};
