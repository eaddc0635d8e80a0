//! Path MTUs of remote VTEPs, from the kernel's route cache.
//!
//! Routers report packets with DF that are too large, and the kernel remembers the MTU. Such packets
//! need not be VXLAN. For example, BGP sessions with a VTEP's address have DF. The kernel then
//! fragments VXLAN packets without DF.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use tables::{Tunnel, VniSource, VtepIndex};

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
/// of their interface: all, or those to some VTEPs. Each tunnel comes with the source of its VNI.
pub(crate) fn paths<'a>(
    stores: &Stores,
    tunnels: impl Iterator<Item = (VniSource, &'a Tunnel)>,
    vteps: Option<&BTreeSet<IpAddr>>,
) -> BTreeSet<Path> {
    let wanted: Option<BTreeSet<VtepIndex>> =
        vteps.map(|vteps| vteps.iter().filter_map(|vtep| stores.vteps.find(*vtep)).collect());
    // Many VNIs have the same VTEPs.
    let mut ends = HashSet::new();
    for (source, tunnel) in tunnels {
        let remotes = stores.overlays.get(&source).into_iter().flat_map(Overlay::remotes);
        let wanted = remotes.filter(|at| wanted.as_ref().is_none_or(|of| of.contains(at)));
        ends.extend(wanted.map(|index| (index, tunnel.local)));
    }
    let path = |(index, local)| {
        let known = stores.vteps.get(index)?;
        let hops = known.route.iter().flat_map(|route| &route.hops);
        Some(hops.map(move |hop| Path { vtep: known.address, local, ifindex: hop.ifindex }))
    };
    ends.into_iter().filter_map(path).flatten().collect()
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
