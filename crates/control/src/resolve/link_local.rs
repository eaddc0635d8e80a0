//! Link-local gateways of BGP unnumbered.
//!
//! For BGP unnumbered, the kernel's next hops have the neighbour's link-local IPv6 address, while
//! zebra's FPM messages have 169.254.0.1. Both are the same next hop. If the kernel has exactly one
//! link-local gateway on an interface, [`LinkLocal`] substitutes it for 169.254.0.1.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink::NextHopKind;

use crate::stores::neighbours::{Adjacency, Neighbours};
use crate::stores::routes::Routes;

/// What zebra reports instead of a link-local IPv6 gateway of IPv4 routes (`ipv4_ll` in FRR's
/// `zebra/rt_netlink.c`).
const ZEBRA_LINK_LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 0, 1));

/// The link-local IPv6 gateway of each interface, collected on first use from the kernel's next
/// hops.
///
/// If they have none on an interface, the neighbour with the MAC address that zebra gives to
/// 169.254.0.1 is used: FRR 8.4.4 does not give the kernel an uplink that has returned. Without
/// next-hop objects the kernel has 169.254.0.1 as well, and no address is substituted.
#[derive(Debug)]
pub(crate) struct LinkLocal<'a> {
    kernel: &'a Routes,
    neighbours: &'a Neighbours,
    /// `None` for an interface with several.
    gateways: OnceCell<BTreeMap<u32, Option<IpAddr>>>,
}

impl<'a> LinkLocal<'a> {
    pub(crate) const fn new(kernel: &'a Routes, neighbours: &'a Neighbours) -> Self {
        Self { kernel, neighbours, gateways: OnceCell::new() }
    }

    /// The gateway to use for one that a source reported.
    pub(crate) fn canonical(&self, ifindex: u32, gateway: IpAddr) -> IpAddr {
        if gateway != ZEBRA_LINK_LOCAL {
            return gateway;
        }
        self.gateways
            .get_or_init(|| self.collect())
            .get(&ifindex)
            .copied()
            .flatten()
            .unwrap_or(gateway)
    }

    fn collect(&self) -> BTreeMap<u32, Option<IpAddr>> {
        let objects = self.kernel.next_hops.iter().filter_map(|(_, kind)| match kind {
            NextHopKind::Single(hop) => Some(hop),
            _ => None,
        });
        let mut known = BTreeMap::new();
        // Interfaces on which the kernel's next hops have 169.254.0.1 like zebra's.
        let mut substituted = BTreeSet::new();
        for hop in objects.chain(self.kernel.fib.next_hops()) {
            if hop.gateway == Some(ZEBRA_LINK_LOCAL) {
                substituted.insert(hop.ifindex);
            }
            if let Some(gateway) = hop.gateway.filter(is_link_local) {
                note(&mut known, hop.ifindex, gateway);
            }
        }
        if substituted.is_empty() {
            let mut neighbours = BTreeMap::new();
            for (Adjacency { ifindex, address }, adjacent) in self.neighbours.iter() {
                let substitute = Adjacency { ifindex, address: ZEBRA_LINK_LOCAL };
                let substitute_mac = || self.neighbours.get(substitute)?.mac;
                if is_link_local(&address)
                    && adjacent.mac.is_some()
                    && adjacent.mac == substitute_mac()
                {
                    note(&mut neighbours, ifindex, address);
                }
            }
            neighbours.extend(known);
            known = neighbours;
        }
        // There may also be a next-hop object that zebra made before it read `no zebra nexthop
        // kernel enable`.
        known.retain(|ifindex, _| !substituted.contains(ifindex));
        known
    }
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Records a gateway of an interface; `None` if the interface has another one as well.
fn note(gateways: &mut BTreeMap<u32, Option<IpAddr>>, ifindex: u32, gateway: IpAddr) {
    let known = gateways.entry(ifindex).or_insert(Some(gateway));
    *known = known.filter(|known| *known == gateway);
}
