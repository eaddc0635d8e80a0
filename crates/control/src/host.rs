//! Conditions of the host itself for a VNI to be taken over: addresses, routing rules, IPsec
//! policies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink::{Dump, Message};

use crate::settings::Defaults;
use crate::state::State;
use crate::stores::links::is_up;
use crate::stores::overlay::Overlay;
use crate::stores::route_table;

/// A path to a remote VTEP whose MTU is read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The remote VTEP.
    pub vtep: Ipv4Addr,
    /// The source address of the packets.
    pub local: Ipv4Addr,
    /// The output interface.
    pub ifindex: u32,
}

/// `RTN_LOCAL` (`include/uapi/linux/rtnetlink.h`).
const RTN_LOCAL: u8 = 2;

impl State {
    /// Applies a dump of all routing rules or all IPsec policies.
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

    /// The paths to read from the kernel, because their MTU may be smaller than that of their
    /// interface. Routers report packets with DF that are too large, and the kernel remembers the
    /// MTU. Such packets need not be VXLAN. For example, BGP sessions with a VTEP's address have
    /// DF. The kernel then fragments VXLAN packets without DF.
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

    /// Sets the path MTUs of the kernel's route cache. VTEPs that are absent have none.
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

    /// Sets the current default values of the namespace. The kernel sends no notification when they
    /// change.
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

    /// Checks again which `local` addresses this host has. Returns whether any appeared or
    /// disappeared.
    pub(crate) fn check_locals(&mut self) -> bool {
        let known = std::mem::take(&mut self.locals);
        let now = known.keys().map(|local| (*local, self.has_local(*local))).collect();
        self.locals = now;
        self.locals != known
    }

    /// Whether packets may be sent from this address, and packets to it are delivered here. When
    /// its interface goes down, the kernel removes the address from table local, and both end. A
    /// route of type 'local' is as good as an address (`__ip_dev_find()`, `net/ipv4/devinet.c`).
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
