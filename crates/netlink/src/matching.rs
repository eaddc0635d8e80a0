//! Whether the kernel would apply rules and policies to the VXLAN packets of a VNI.
//!
//! - `rule_set`: rules of packet filters
//! - `policies`: routing rules and IPsec policies

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

mod policies;
mod rule_set;

pub use policies::Policies;
pub use rule_set::RuleSet;

/// The VXLAN packets of a VNI, by their outer headers.
#[derive(Debug, Clone, Copy)]
pub struct Packets<'a> {
    /// The address of the local VTEP.
    pub local: IpAddr,
    /// The UDP destination port, in both directions.
    pub port: u16,
    /// The addresses of the remote VTEPs.
    pub remotes: &'a [IpAddr],
    /// Whether packets from other senders are dropped.
    pub only_remotes: bool,
    /// The uplinks, where packets are redirected and sent: interface indices and names.
    pub uplinks: &'a BTreeMap<u32, String>,
    /// Whether an uplink is in a VRF.
    pub vrf: bool,
}

/// The network of a prefix: the address without the bits behind `length`.
#[must_use]
pub fn network(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

/// Whether a prefix contains an address.
#[must_use]
pub fn contains((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    network(prefix, length) == network(address, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_contains_the_addresses_that_share_its_bits() {
        let cases = [
            ("10.1.0.0", 16, "10.1.255.255", true),
            ("10.1.0.0", 16, "10.2.0.0", false),
            ("10.1.2.3", 32, "10.1.2.3", true),
            ("10.1.2.3", 32, "10.1.2.2", false),
            ("0.0.0.0", 0, "255.255.255.255", true),
            ("2001:db8::", 33, "2001:db8:7fff::1", true),
            ("2001:db8::", 33, "2001:db8:8000::1", false),
            ("2001:db8::1", 128, "2001:db8::1", true),
            ("2001:db8::1", 128, "2001:db8::", false),
            ("::", 0, "ffff::", true),
            ("::", 0, "10.0.0.1", false),
        ];
        for (prefix, length, address, expected) in cases {
            let [prefix, address] = [prefix, address].map(|text| text.parse().unwrap());
            assert_eq!(contains((prefix, length), address), expected, "{prefix}/{length}");
        }
    }
}
