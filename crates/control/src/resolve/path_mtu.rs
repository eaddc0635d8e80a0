//! Path MTUs of remote VTEPs, from the kernel's route cache.
//!
//! Routers report packets with DF that are too large, and the kernel remembers the MTU. Such packets
//! need not be VXLAN. For example, BGP sessions with a VTEP's address have DF. The kernel then
//! fragments VXLAN packets without DF.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tables::{Tunnel, VniSource};

use crate::stores::Stores;
use crate::stores::overlay::Overlay;

/// A path to a remote VTEP whose MTU is read from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The remote VTEP.
    pub vtep: IpAddr,
    /// The source address of the packets.
    pub local: IpAddr,
    /// The output interface.
    pub ifindex: u32,
}

/// The paths of these tunnels to read from the kernel, because their MTU may be smaller than that
/// of their interface. Each tunnel comes with the source of its VNI.
pub(crate) fn paths<'a>(
    stores: &Stores,
    tunnels: impl Iterator<Item = (VniSource, &'a Tunnel)>,
) -> BTreeSet<Path> {
    let mut paths = BTreeSet::new();
    for (source, tunnel) in tunnels {
        let remotes = stores.overlays.get(&source).into_iter().flat_map(Overlay::remotes);
        for known in remotes.filter_map(|index| stores.vteps.get(index)) {
            let hops = known.route.iter().flat_map(|route| &route.hops);
            let (vtep, local) = (known.address, tunnel.local);
            paths.extend(hops.map(|hop| Path { vtep, local, ifindex: hop.ifindex }));
        }
    }
    paths
}

/// Sets the path MTUs of the kernel's route cache. VTEPs that are absent have none.
pub(crate) fn set(stores: &mut Stores, mtus: &BTreeMap<IpAddr, u32>) {
    for index in stores.vteps.indices() {
        let Some(known) = stores.vteps.get_mut(index) else { continue };
        let mtu = mtus.get(&known.address).copied();
        if known.path_mtu != mtu {
            tracing::info!(vtep = %known.address, mtu, "the path MTU has changed");
            known.path_mtu = mtu;
            stores.changes.decisions = true;
        }
    }
}
