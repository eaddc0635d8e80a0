//! Headers as checked views and builders: Ethernet, VLAN, ARP, IP, TCP, UDP, VXLAN, RoCEv2,
//! ICMP and checksums.
//!
//! [`dissect()`] reads a whole frame in one pass; the datapath uses it for every frame. Other code
//! reads one header at a time. Each header is a type over its bytes (`Udp<&[u8; 8]>`, `Udp<&mut
//! [u8; 8]>`, `Udp<[u8; 8]>`). Where a length field must be checked against the surrounding bytes,
//! a second type holds header and payload (`UdpDatagram`).

pub mod checksum;
pub mod ecn;
pub mod icmp;
pub mod icrc;
pub mod number;
pub mod outer;
pub mod roce;

mod arp;
mod dissect;
mod error;
mod ethernet;
mod header;
mod ipv4;
mod ipv6;
mod ipv6_chain;
mod psn;
mod tcp;
mod types;
mod udp;
mod vxlan;

pub use arp::Arp;
pub use dissect::{
    Dissection, Fragment, Ipv4Summary, Ipv6Summary, Network, Roce, Transport, dissect,
};
pub use error::WireError;
pub use ethernet::{Ethernet, Vlan};
pub use ipv4::{Ipv4, Ipv4Packet};
pub use ipv6::{Ipv6, Ipv6Extension, Ipv6Fragment, Ipv6Packet, MAX_EXTENSION_HEADERS, UpperLayer};
pub use psn::Psn;
pub use tcp::{Tcp, TcpSegment};
pub use types::{MacAddr, QueuePair, TypeError, Vni, as_ipv6};
pub use udp::{Udp, UdpDatagram};
pub use vxlan::Vxlan;
