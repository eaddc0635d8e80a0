//! The resolved route to a remote VTEP.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::eligibility::ineligible::UnusableRoute;

/// The route to an address, resolved to next hops.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct ResolvedRoute {
    /// The live next hops, sorted by interface name and gateway. If there are none, frames are
    /// dropped, by the kernel as well.
    pub(crate) hops: Vec<Hop>,
    /// If all next hops lack carrier: the smallest of their MTUs. The kernel tells hosts of it, and
    /// loses what fits.
    pub(crate) down_mtu: Option<u32>,
    /// The Ethernet interfaces of all next hops, also of those without carrier.
    pub(crate) uplinks: BTreeSet<u32>,
    /// Why vtepd cannot use this route.
    pub(crate) obstacle: Option<UnusableRoute>,
    /// Whether the routes to gateways matter as well.
    pub(crate) recursive: bool,
    /// The TTL that the route sets.
    pub(crate) hop_limit: Option<u32>,
    /// Whether packets on this route have no DF, regardless of the netdev's setting.
    pub(crate) mtu_locked: bool,
    /// Whether there are also routes to it for certain TOS values only.
    pub(crate) selective: bool,
}

impl ResolvedRoute {
    /// Whether there is more than one next hop.
    pub(crate) fn is_multipath(&self) -> bool {
        self.hops.len() > 1
    }

    /// The smallest MTU of the next hops.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.hops.iter().map(|hop| hop.mtu).min().or(self.down_mtu)
    }

    /// The part on which eligibility and the configuration of VNIs depend.
    pub(crate) fn eligibility_inputs(&self) -> impl PartialEq + '_ {
        (self.obstacle.as_ref(), self.mtu(), self.hop_limit, self.mtu_locked, self.selective)
    }
}

/// One live next hop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Hop {
    pub(crate) ifindex: u32,
    pub(crate) gateway: IpAddr,
    /// 1 to 256.
    pub(crate) weight: u16,
    /// The MTU of the interface, or that of the route if it is smaller.
    pub(crate) mtu: u32,
    /// Whether only a default route (`0.0.0.0/0`) leads here.
    pub(crate) by_default: bool,
    /// The interface's [`impairs`](crate::stores::links::impairs).
    pub(crate) impaired: bool,
}
