//! Headers as checked views and builders: Ethernet, VLAN, ARP, ND, IP, UDP, VXLAN, RoCEv2, ICMP, checksums.

mod dissect;
pub mod number;
mod types;

pub use dissect::{Dissection, Fragment, Ipv4Summary, Ipv6Summary, Network, Roce, Transport, dissect};
pub use types::{MacAddr, QueuePair, TypeError, Vni};
