//! What the sources have reported, one store for each kind of fact.
//!
//! A store answers questions about its own facts. Functions in [`crate::sources`] apply messages to
//! the stores and record in [`Changes`] what the next publication has to compute again.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) mod addresses;
pub(crate) mod bridges;
pub(crate) mod changes;
pub(crate) mod epoch_map;
pub(crate) mod intern;
pub(crate) mod ipv6_interface;
pub(crate) mod links;
pub(crate) mod neighbours;
pub(crate) mod overlay;
pub(crate) mod resolved_route;
pub(crate) mod reverse_paths;
pub(crate) mod route_table;
pub(crate) mod routes;
pub(crate) mod vteps;

use netlink::{Policies, RuleSet, Vxlan};
use tables::VniSource;

use addresses::Addresses;
use bridges::Bridges;
use changes::Changes;
use epoch_map::Epoch;
use links::Links;
use neighbours::Neighbours;
use overlay::Overlay;
use reverse_paths::ReversePaths;
use routes::RouteSources;
use vteps::Vteps;

/// All facts, and what of them has changed since the last publication.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    pub(crate) links: Links,
    pub(crate) addresses: Addresses,
    /// The FDBs of bridges.
    pub(crate) bridges: Bridges,
    /// The FDB of each VNI, and of interfaces whose link message has not arrived yet.
    pub(crate) overlays: BTreeMap<VniSource, Overlay>,
    /// The VNIs of the configuration, in standalone mode.
    pub(crate) configured: Vec<ConfiguredVni>,
    /// The vxlan netdevs with multicast entries (`bridge mdb`), and interfaces whose link message
    /// has not arrived yet.
    pub(crate) multicast: BTreeSet<u32>,
    pub(crate) neighbours: Neighbours,
    pub(crate) routes: RouteSources,
    /// The remote VTEPs that overlays refer to.
    pub(crate) vteps: Vteps,
    /// Routing rules and IPsec policies.
    pub(crate) policies: Policies,
    pub(crate) packet_filters: RuleSet,
    pub(crate) reverse_paths: ReversePaths,
    /// The IPv6 settings of interfaces that lead to VTEPs with IPv6 addresses.
    pub(crate) ipv6_interfaces: BTreeMap<u32, ipv6_interface::Ipv6Interface>,
    pub(crate) epochs: Epochs,
    pub(crate) changes: Changes,
}

/// A VNI of the configuration, with the attributes that a vxlan netdev for it would have.
#[derive(Debug)]
pub(crate) struct ConfiguredVni {
    pub(crate) name: String,
    pub(crate) vxlan: Vxlan,
}

impl Stores {
    /// The attributes of a VNI's netdev; `None` if its source is gone.
    pub(crate) fn vxlan(&self, source: VniSource) -> Option<&Vxlan> {
        match source {
            VniSource::Netdev(ifindex) => self.links.vxlan(ifindex),
            VniSource::Configured(number) => {
                self.configured.get(usize::from(number)).map(|vni| &vni.vxlan)
            }
        }
    }

    /// The bridge of a VNI's netdev.
    pub(crate) fn bridge_of(&self, source: VniSource) -> Option<u32> {
        self.links.get(source.netdev()?)?.master
    }

    /// The sources of all VNIs.
    pub(crate) fn sources(&self) -> impl Iterator<Item = VniSource> {
        let configured = (0..).zip(&self.configured).map(|(at, _)| VniSource::Configured(at));
        self.links.vxlans().map(VniSource::Netdev).chain(configured)
    }

    /// The sources of this VNI.
    pub(crate) fn sources_of(&self, vni: u32) -> impl Iterator<Item = VniSource> {
        let configured = (0..).zip(&self.configured).filter(move |(_, of)| of.vxlan.id == vni);
        let configured = configured.map(|(at, _)| VniSource::Configured(at));
        self.links.vxlans_of(vni).map(VniSource::Netdev).chain(configured)
    }
}

/// The current dump of each kind, and zebra's current replay.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    pub(crate) links: Epoch,
    pub(crate) addresses: Epoch,
    pub(crate) fdb: Epoch,
    pub(crate) neighbours: Epoch,
    pub(crate) next_hops: Epoch,
    pub(crate) routes: Epoch,
    pub(crate) fpm: Epoch,
}
