//! Packet I/O: AF_PACKET sockets and TAPs.
//!
//! - [`access`], [`tap`]: access ports of VNIs without a kernel bridge
//! - [`packet`]: AF_PACKET sockets with batched receive and transmit
//! - `ring`, `tx`: the receive ring and the transmit queue of such a socket
//! - [`poller`]: sleeps until a descriptor is readable
//! - [`ethtool`]: switches offload features of an interface off
//! - [`thread_policy`]: scheduling policy of the calling thread

#![allow(
    unsafe_code,
    reason = "raw system calls and their memory; every block says why it is sound"
)]

pub mod access;
pub mod ethtool;
pub mod packet;
pub mod poller;
mod ring;
pub mod tap;
pub mod thread_policy;
mod tx;

pub use access::AccessPort;
pub use packet::PacketSocket;
pub use poller::Poller;
pub use ring::RingSize;
pub use tap::TapTerms;
