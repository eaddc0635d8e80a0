//! What the host itself must have or must not do for a VNI to be taken over: addresses, rules,
//! IPsec policies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink::{Dump, Message};

use crate::links::is_up;
use crate::overlay::Overlay;
use crate::route_table;
use crate::settings::Defaults;
use crate::state::State;

/// A VTEP whose path the kernel is to be asked about, by one of the interfaces that lead there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The remote VTEP.
    pub vtep: Ipv4Addr,
    /// The address that packets come from.
    pub local: Ipv4Addr,
    /// The output interface.
    pub ifindex: u32,
}

/// `RTN_LOCAL` (`include/uapi/linux/rtnetlink.h`).
const RTN_LOCAL: u8 = 2;

impl State {
    /// The kernel named all rules of policy routing, or all IPsec policies.
    pub(crate) fn resync_policies(&mut self, what: Dump, dump: Vec<Message>) {
        let (mut rules, mut policies, mut blocks) = (Vec::new(), Vec::new(), false);
        for message in dump {
            match message {
                Message::Rule(_, rule) => rules.push(rule),
                Message::IpsecPolicy(policy) => policies.push(policy),
                Message::IpsecDefault { block } => blocks = block,
                _ => {}
            }
        }
        self.dirty.decisions |= match what {
            Dump::Rules => self.policies.set_rules(rules),
            _ => self.policies.set_ipsec(policies, blocks),
        };
    }

    /// The paths whose MTU may be smaller than that of their interface: routers answer packets with
    /// DF that are too big, and the kernel remembers it. Such packets need not be VXLAN: BGP
    /// sessions with a VTEP's address have DF, and the kernel then fragments VXLAN packets without
    /// it.
    #[must_use]
    pub fn paths(&self) -> BTreeSet<Path> {
        let mut paths = BTreeSet::new();
        for (ifindex, tunnel) in self.publication.tunnels() {
            let remotes = self.overlays.get(&ifindex).into_iter().flat_map(Overlay::remotes);
            for known in remotes.filter_map(|index| self.vteps.get(index)) {
                let hops = known.reach.iter().flat_map(|reach| &reach.hops);
                let (vtep, local) = (known.address, tunnel.local);
                paths.extend(hops.map(|hop| Path { vtep, local, ifindex: hop.ifindex }));
            }
        }
        paths
    }

    /// The MTUs that the kernel's route cache has for paths; those that are not named have none.
    pub fn set_path_mtus(&mut self, mtus: &BTreeMap<Ipv4Addr, u32>) {
        for index in self.vteps.indices() {
            let Some(known) = self.vteps.get_mut(index) else { continue };
            let mtu = mtus.get(&known.address).copied();
            if known.path_mtu != mtu {
                tracing::info!(vtep = %known.address, mtu, "the path MTU has changed");
                known.path_mtu = mtu;
                self.dirty.decisions = true;
            }
        }
    }

    /// Takes what the namespace says of defaults now. The kernel tells nobody when they change.
    pub fn set_defaults(&mut self, defaults: Defaults) {
        if self.namespace.defaults() != defaults {
            self.namespace.set_defaults(defaults);
            self.dirty.decisions = true;
        }
    }

    /// Whether this host has the `local` address of a vxlan netdev.
    pub(crate) fn has_local_of(&mut self, vxlan: u32) -> bool {
        let Some(IpAddr::V4(local)) = self.links.vxlan(vxlan).and_then(|vxlan| vxlan.local) else {
            return false;
        };
        if let Some(present) = self.locals.get(&local) {
            return *present;
        }
        let present = self.has_local(local);
        self.locals.insert(local, present);
        present
    }

    /// Looks again which `local` addresses this host has; says whether any came or went.
    pub(crate) fn check_locals(&mut self) -> bool {
        let known = std::mem::take(&mut self.locals);
        let now = known.keys().map(|local| (*local, self.has_local(*local))).collect();
        self.locals = now;
        self.locals != known
    }

    /// Whether packets may be sent from this address, and those to it are for this host. Both end
    /// when its interface goes down: the kernel then takes the address out of table local. A route
    /// of type 'local' does as well as an address (`__ip_dev_find()`, `net/ipv4/devinet.c`).
    fn has_local(&self, local: Ipv4Addr) -> bool {
        let address = IpAddr::V4(local);
        let on_interface = self.own.contains(&address)
            && self
                .addresses
                .keys()
                .any(|(ifindex, own)| own == address && self.links.get(ifindex).is_none_or(is_up));
        on_interface
            || self.kernel.fib.matching(route_table::LOCAL, local).next().is_some_and(
                |(_, routes)| routes.first().is_some_and(|route| route.route_type == RTN_LOCAL),
            )
    }
}
