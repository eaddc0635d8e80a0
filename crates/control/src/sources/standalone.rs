//! Standalone mode: VNIs that the configuration describes, without a vxlan netdev.
//!
//! Their flood lists and MAC addresses are stored as the kernel's would be. The worker's own bridge
//! replaces the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink::{FdbEntry, Vxlan};
use tables::VniSource;
use wire::{MacAddr, Vni};

use crate::stores::overlay::Overlay;
use crate::stores::{ConfiguredVni, Stores};

/// `NUD_PERMANENT` (`include/uapi/linux/neighbour.h`).
const PERMANENT: u16 = 0x80;

/// A VNI that the configuration describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandaloneVni {
    /// The VNI.
    pub vni: Vni,
    /// This leaf's VTEP address.
    pub local: IpAddr,
    /// The UDP port, for sent and received packets.
    pub destination_port: u16,
    /// The remote VTEPs. They receive BUM frames. Packets from VTEPs that no VNI has are dropped.
    pub remotes: BTreeSet<IpAddr>,
    /// MAC addresses that are always behind a remote VTEP.
    pub macs: BTreeMap<MacAddr, IpAddr>,
}

/// Adds these VNIs to the stores, without their entries.
pub(crate) fn add(stores: &mut Stores, vnis: &[StandaloneVni]) {
    let configured = |vni: &StandaloneVni| ConfiguredVni {
        name: format!("vni{}", vni.vni),
        vxlan: Vxlan {
            id: vni.vni.get(),
            local: Some(vni.local),
            destination_port: vni.destination_port,
            udp_checksum: true,
            ..Vxlan::default()
        },
    };
    stores.configured = vnis.iter().map(configured).collect();
    for (number, _) in (0..).zip(vnis) {
        let source = VniSource::Configured(number);
        stores.overlays.insert(source, Overlay::default());
        stores.changes.overlays.insert(source);
    }
}

/// Adds or confirms the flood lists and MAC addresses of these VNIs.
pub(crate) fn apply_entries(stores: &mut Stores, vnis: &[StandaloneVni]) {
    for (number, vni) in (0..).zip(vnis) {
        let source = VniSource::Configured(number);
        let overlay = stores.overlays.entry(source).or_default();
        let flood = vni.remotes.iter().map(|remote| (MacAddr::ZERO, *remote));
        let macs = vni.macs.iter().map(|(mac, remote)| (*mac, *remote));
        for (mac, remote) in flood.chain(macs) {
            let destination = Some(remote);
            let entry = FdbEntry { mac, destination, state: PERMANENT, ..FdbEntry::default() };
            overlay.kernel_new(&entry, stores.epochs.fdb);
        }
        stores.changes.overlays.insert(source);
    }
}
