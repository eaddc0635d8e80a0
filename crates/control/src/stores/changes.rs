//! What has changed since the last publication, and what has to be dumped again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::{Dump, Route};
use tables::VniSource;
use wire::MacAddr;

/// What the next publication has to compute again.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// These overlays.
    pub(crate) overlays: BTreeSet<VniSource>,
    /// All overlays: the settings changed.
    pub(crate) all: bool,
    /// Which VNIs are taken over: something changed that belongs to no single overlay.
    pub(crate) decisions: bool,
    /// The routes to all VTEPs.
    pub(crate) underlay: bool,
    /// The routes to the VTEPs in these prefixes.
    pub(crate) prefixes: BTreeSet<(IpAddr, u8)>,
    /// The MAC addresses of next hops.
    pub(crate) adjacencies: bool,
    /// Bridges and addresses of the bridge bypass.
    pub(crate) bypass: BypassChanges,
    /// The dumps to make, because the kernel may have changed something without a notification.
    dumps: Vec<Dump>,
}

/// What the bridge bypass has to decide again.
#[derive(Debug, Default)]
pub(crate) struct BypassChanges {
    /// Everything about these bridges.
    pub(crate) bridges: BTreeSet<u32>,
    /// These addresses of bridges.
    pub(crate) addresses: Vec<(u32, MacAddr)>,
    /// Whether the settings turn the bypass off, so that changes of addresses are not recorded.
    pub(crate) off: bool,
}

impl Changes {
    /// Whether there is nothing to publish.
    pub(crate) fn is_empty(&self) -> bool {
        let lists = self.overlays.is_empty() && self.prefixes.is_empty();
        let flags = self.decisions || self.all;
        lists && self.bypass.is_empty() && !flags && !self.underlay && !self.adjacencies
    }

    /// The changes so far, which are recorded no longer. Dumps that were asked for remain.
    pub(crate) fn take(&mut self) -> Self {
        let dumps = std::mem::take(&mut self.dumps);
        let bypass = BypassChanges { off: self.bypass.off, ..BypassChanges::default() };
        std::mem::replace(self, Self { dumps, bypass, ..Self::default() })
    }

    /// Marks the overlays of these netdevs.
    pub(crate) fn netdevs(&mut self, netdevs: impl IntoIterator<Item = u32>) {
        self.overlays.extend(netdevs.into_iter().map(VniSource::Netdev));
    }

    /// Marks the prefix of a route if the route changed.
    pub(crate) fn route(&mut self, route: &Route, changed: bool) {
        if changed {
            self.prefixes.insert((route.destination, route.prefix_length));
        }
    }

    /// Asks for dumps, because the kernel may have changed something without a notification.
    pub(crate) fn want_dumps(&mut self, dumps: &[Dump]) {
        for dump in dumps {
            if !self.dumps.contains(dump) {
                self.dumps.push(*dump);
            }
        }
    }

    /// A dump of this kind has just been made, whatever its messages asked for.
    pub(crate) fn has_dump(&mut self, dump: Dump) {
        self.dumps.retain(|wanted| *wanted != dump);
    }

    /// Whether any dump was asked for.
    pub(crate) const fn wants_dumps(&self) -> bool {
        !self.dumps.is_empty()
    }

    /// The dumps that were asked for. Returned once.
    pub(crate) fn take_dumps(&mut self) -> Vec<Dump> {
        std::mem::take(&mut self.dumps)
    }
}

impl BypassChanges {
    /// Whether there is nothing to decide again.
    pub(crate) fn is_empty(&self) -> bool {
        self.bridges.is_empty() && self.addresses.is_empty()
    }

    /// Marks an address of a bridge.
    pub(crate) fn address(&mut self, bridge: u32, mac: MacAddr) {
        if !self.off {
            self.addresses.push((bridge, mac));
        }
    }
}
