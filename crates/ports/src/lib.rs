//! AF_PACKET sockets, TAPs, punt pairs and steering programs. This is the only library crate with
//! `unsafe` code.
//!
//! - [`access`], [`tap`]: access ports of VNIs without a kernel bridge
//! - [`packet`]: AF_PACKET sockets with batched receive and transmit
//! - `ring`, `tx`: the receive ring and the transmit queue of such a socket
//! - [`netns`], [`punt`]: punt pairs and the private network namespace of their far ends
//! - [`features`]: detection of kernel features
//! - [`foreign_programs`]: programs of other tools on the hooks that steering uses
//! - [`iptables`]: tables of legacy iptables
//! - [`stale_filters`]: removes clsact filters that a killed vtepd left behind
//! - [`watchdog`]: detects a worker that hangs
//! - `ethtool`: switches offload features of an interface off
//! - `rcu_expedite`: shortens RCU grace periods while many hooks change
//! - [`poller`]: sleeps until a descriptor is readable
//! - [`scheduling`], [`affinity`]: scheduling policy and CPU affinity of a worker
//! - `bypass`, `port_counts`: the bridge bypass and its counters for each port
//! - `kill_switch`: the map that all attached programs call through
//! - [`confine`]: gives up privileges after the start
//! - [`steering`]: loads and attaches the steering programs and writes their maps

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
