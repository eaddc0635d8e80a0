//! The routes to remote VTEPs with IPv6 addresses.

use netlink::Vxlan;

use super::{EligibilityCheck, NO_LIMIT, same_family};
use crate::eligibility::ineligible::{KernelOnlyReason, UnusableRoute};
use crate::stores::overlay::Overlay;

/// Bytes that an IPv6 underlay adds to an inner Ethernet frame: IPv6, UDP and VXLAN headers.
const OVERHEAD: u32 = 40 + 8 + 8;
/// The hop limit without a route: no packet is sent.
const HOP_LIMIT: u8 = 64;

impl EligibilityCheck<'_> {
    /// As [`EligibilityCheck::underlay`], for an IPv6 underlay. The hop limit of packets for which
    /// the netdev has none is that of the route or of the output interface. They must be the same
    /// for all VTEPs.
    pub(super) fn ipv6_underlay(
        &self,
        vxlan: &Vxlan,
        ttl: Option<u8>,
        overlay: &Overlay,
    ) -> Result<(u32, u8), KernelOnlyReason> {
        let default_ttl = ttl.is_none() && (vxlan.ttl_inherit || vxlan.ttl == 0);
        let (mut limit, mut common) = (NO_LIMIT, None);
        let mut known: Vec<_> =
            overlay.remotes().filter_map(|index| self.stores.vteps.get(index)).collect();
        // Of several reasons, always report the same one.
        known.sort_by_key(|known| known.address);
        for known in known {
            same_family(known, std::net::Ipv6Addr::LOCALHOST.into())?;
            let Some(route) = &known.route else { continue };
            let vtep = known.address;
            let left = |obstacle| KernelOnlyReason::Underlay { vtep, obstacle };
            if let Some(obstacle) = &route.obstacle {
                return Err(left(obstacle.clone()));
            }
            // IPv6 has no routes by TOS.
            if route.selective {
                return Err(left(UnusableRoute::SourceRoute));
            }
            for hop in &route.hops {
                let Some(interface) = self.stores.ipv6_interfaces.get(&hop.ifindex) else {
                    let device = self.stores.links.name(hop.ifindex);
                    return Err(left(UnusableRoute::Ipv6Settings { device }));
                };
                let hop_limit = route.hop_limit.unwrap_or(interface.hop_limit.into());
                let first = *common.get_or_insert(hop_limit);
                if default_ttl && first != hop_limit {
                    return Err(left(UnusableRoute::HopLimit(hop_limit)));
                }
                limit = limit.min(hop.mtu.min(interface.mtu).saturating_sub(OVERHEAD));
            }
            if let Some(mtu) = known.path_mtu {
                limit = limit.min(mtu.saturating_sub(OVERHEAD));
            }
        }
        let common = common.and_then(|limit| u8::try_from(limit).ok()).unwrap_or(HOP_LIMIT);
        Ok((limit, common))
    }
}
