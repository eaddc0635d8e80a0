//! Packet I/O: ports that receive and send batches of frames.
//!
//! - [`access`], [`tap`]: access ports of VNIs without a kernel bridge
//! - [`packet`]: AF_PACKET sockets with batched receive and transmit
//! - [`port`]: what all ports have in common
//! - [`memory`]: ports in memory
//! - `ring`, `tx`: the receive ring and the transmit queue of such a socket
//! - [`probe_socket`]: sends and receives probes between VTEPs
//! - [`capture`]: captures what interfaces receive and send; [`queue_pair_counter`] counts packets of
//!   a queue pair; `filter` holds what the filters of both are made of
//! - [`poller`]: sleeps until a descriptor is readable
//! - [`ethtool`]: offload features of an interface
//! - [`thread_policy`]: scheduling policy of the calling thread

pub mod access;
pub mod capture;
#[allow(unsafe_code, reason = "system calls; every block says why it is sound")]
pub mod ethtool;
mod filter;
pub mod memory;
#[allow(unsafe_code, reason = "system calls; every block says why it is sound")]
pub mod packet;
#[allow(unsafe_code, reason = "system calls; every block says why it is sound")]
pub mod poller;
pub mod port;
#[allow(unsafe_code, reason = "system calls; every block says why it is sound")]
pub mod probe_socket;
pub mod queue_pair_counter;
#[allow(unsafe_code, reason = "memory shared with the kernel; every block says why it is sound")]
mod ring;
#[allow(unsafe_code, reason = "system calls; every block says why it is sound")]
pub mod tap;
#[allow(unsafe_code, reason = "system calls; every block says why it is sound")]
pub mod thread_policy;
#[allow(unsafe_code, reason = "memory shared with the kernel; every block says why it is sound")]
mod tx;

pub use access::AccessPort;
pub use capture::{CaptureFilter, CaptureSocket};
pub use memory::{MemoryPort, SentFrame};
pub use packet::PacketSocket;
pub use poller::Poller;
pub use port::Port;
pub use probe_socket::ProbeSocket;
pub use queue_pair_counter::{QueuePairCounter, QueuePairFilter, Way};
pub use ring::RingSize;
pub use tap::TapSettings;
