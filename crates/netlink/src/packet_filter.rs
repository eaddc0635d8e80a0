//! nftables: whether there are filters for frames that bridges forward
//! (`include/uapi/linux/netfilter/nf_tables.h`).

use crate::attribute::Attributes;
use crate::error::Error;
use crate::nftables::dump_chains;
use crate::request::Requests;

/// What the nftables chains of a network namespace filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketFilters {
    /// Frames that bridges forward, or frames of certain interfaces (families `bridge` and
    /// `netdev`, and `ingress` of `inet`).
    pub frames: bool,
    /// IPv4 or IPv6 packets that are forwarded (families `ip`, `ip6` and `inet`).
    pub packets: bool,
    /// Packets that this host sends or receives over IPv6 (families `ip6` and `inet`), or frames of
    /// certain interfaces.
    pub ipv6: bool,
}

/// What nftables filters in the calling thread's network namespace. Chains without rules that
/// accept everything do not count.
///
/// # Errors
/// When the kernel refuses, or has no nftables.
pub fn packet_filters() -> Result<PacketFilters, Error> {
    dump_chains(&mut Requests::open_netfilter()?, PacketFilters::add)
}

impl PacketFilters {
    /// Adds one chain: `struct nfgenmsg` and attributes.
    fn add(&mut self, payload: &[u8]) {
        let Some((&[family, ..], attributes)) = payload.split_first_chunk::<4>() else { return };
        let (mut hook, mut drops, mut rules) = (None, false, 0);
        for attribute in Attributes::new(attributes, 0).map_while(Result::ok) {
            match attribute.kind {
                // NFTA_CHAIN_HOOK, which contains NFTA_HOOK_HOOKNUM. A chain without it sees only
                // packets that other chains send to it.
                4 => {
                    let number =
                        attribute.nested().map_while(Result::ok).find(|inner| inner.kind == 1);
                    hook = number.and_then(|number| number.u32_network_order().ok());
                }
                // NFTA_CHAIN_POLICY, NF_DROP
                5 => drops = attribute.u32_network_order() == Ok(0),
                // NFTA_CHAIN_USE
                6 => rules = attribute.u32_network_order().unwrap_or(u32::MAX),
                _ => {}
            }
        }
        let Some(hook) = hook.filter(|_| drops || rules > 0) else { return };
        // Of the NF_INET_* and NF_BR_* hooks, PRE_ROUTING, FORWARD and POST_ROUTING see frames that
        // bridges forward.
        match (family, hook) {
            // NFPROTO_NETDEV; NFPROTO_BRIDGE; NFPROTO_INET at NF_INET_INGRESS
            (5, _) | (7, 0 | 2 | 4) | (1, 5) => self.frames = true,
            // NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6
            (1 | 2 | 10, 0 | 2 | 4) => self.packets = true,
            _ => {}
        }
        // NFPROTO_INET, NFPROTO_IPV6 at all hooks but FORWARD; NFPROTO_NETDEV
        self.ipv6 |= matches!((family, hook), (1 | 10, 0 | 1 | 3..) | (5, _));
    }
}
