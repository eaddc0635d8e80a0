//! Headers as checked views and builders: Ethernet, VLAN, ARP, ND, IP, UDP, VXLAN, RoCEv2, ICMP, checksums.

mod types;

pub use types::{MacAddr, QueuePair, TypeError, Vni};
