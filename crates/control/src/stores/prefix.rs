//! IP prefixes and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The network of a prefix: the address without the bits behind `length`.
pub(crate) fn network(address: IpAddr, length: u8) -> IpAddr {
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
pub(crate) fn contains((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    network(prefix, length) == network(address, length)
}

/// Whether an address can be a VTEP's. A link-local one is valid on one interface only, and the
/// kernel drops received packets from an IPv4-mapped one (`ip6_rcv_core()`).
pub(crate) const fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => {
            // The upper half of IPv4-mapped addresses is zero, as that of ::1.
            address.to_bits() >> 64 != 0 && !address.is_unicast_link_local()
        }
    }
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
