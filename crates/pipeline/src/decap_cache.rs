//! Remembers known pairs of remote VTEP and VNI. A frame from a known pair that needs no change is
//! delivered after one comparison. All other frames take the full path of
//! [`Pipeline::decapsulate`](crate::Pipeline). An entry holds until the settings of a VNI, the set of
//! VTEPs or the leaf's own addresses change.

use std::net::{IpAddr, Ipv4Addr};

use frame::{Destination, ETHERNET, MACS, Offload, PUNT_TAG, PUNT_TPID, Payload, TxBatch, VtepId};
use path::Version;
use tables::{Reception, Snapshot, VniTable};
use wire::Vni;
use wire::ecn::Egress;

use crate::host_delivery::HostDelivery;
use crate::outer::UDP_AT;
use crate::received::Outer;

const PLACES: usize = 256;
/// Length of VXLAN, inner Ethernet and inner IPv4 header in bytes.
const HEADERS: usize = 8 + ETHERNET + 20;

/// A remote VTEP, and what the tables hold about the VNI that it sends to.
#[derive(Debug, Clone, Copy)]
struct Sender {
    /// [`Snapshot::reception_version`].
    version: Version<Reception>,
    /// The vxlan netdev's own MAC address; `u64::MAX` if it has none.
    own: u64,
    source: IpAddr,
    destination: IpAddr,
    vni: u32,
    vtep: VtepId,
    port: u16,
    slot: u16,
    accepts_no_checksum: bool,
}

impl Sender {
    /// An unused entry. No snapshot has this version.
    const NONE: Self = Self {
        version: Version::NEVER,
        own: 0,
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        destination: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        vni: 0,
        vtep: VtepId { index: 0, assignment: 0 },
        port: 0,
        slot: 0,
        accepts_no_checksum: false,
    };
}

/// The cache of known pairs of remote VTEP and VNI.
#[derive(Debug)]
pub(crate) struct DecapCache(Box<[Sender; PLACES]>);

impl Default for DecapCache {
    fn default() -> Self {
        Self(Box::new([Sender::NONE; PLACES]))
    }
}

const fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn place(source: IpAddr, vni: u32) -> usize {
    let source = match source {
        IpAddr::V4(source) => source.to_bits(),
        IpAddr::V6(source) => {
            let bits = source.to_bits();
            let halves = (bits >> 64) as u64 ^ bits as u64;
            (halves >> 32) as u32 ^ halves as u32
        }
    };
    let mixed = (source ^ vni.rotate_left(16)).wrapping_mul(0x9e37_79b9);
    (mixed >> (32 - PLACES.ilog2())) as usize
}

impl DecapCache {
    /// Sends the inner frame of a VXLAN packet to the bridge punt pair or a host port. This
    /// requires a known sender, no change to the frame and no offloads. `end` is the end of the
    /// packet in the received frame, and `UDP` the offset of its UDP header. Returns whether the
    /// frame was sent.
    #[inline(always)]
    pub(crate) fn pass<const UDP: usize>(
        &self,
        (index, end, packet): (u32, usize, &[u8]),
        outer: &Outer,
        snapshot: &Snapshot,
        (hosts, out): (&mut HostDelivery, &mut TxBatch),
    ) -> bool {
        let Some(headers) = packet.first_chunk::<HEADERS>() else { return false };
        let Some((&[0x08, 0, 0, 0, v0, v1, v2, 0], inner)) = headers.split_first_chunk() else {
            return false;
        };
        let vni = u32::from_be_bytes([0, v0, v1, v2]);
        let Some(known) = self.0.get(place(outer.source, vni)) else { return false };
        if known.version != snapshot.reception_version()
            || known.source != outer.source
            || known.destination != outer.destination
            || (known.vni, known.port) != (vni, outer.port)
            || UDP != UDP_AT && outer.lacks_checksum && !known.accepts_no_checksum
        {
            return false;
        }
        let Some((addresses, behind)) = inner.split_first_chunk::<MACS>() else { return false };
        let [_, _, _, _, _, _, s0, s1, s2, s3, s4, s5] = *addresses;
        let Some(&[e0, e1, first, second]) = behind.first_chunk() else { return false };
        let header = match [e0, e1] {
            [0x08, 0x00] => 20,
            [0x86, 0xdd] => 40,
            _ => 0,
        };
        // The full path drops these, as the kernel does.
        if packet.len() < 8 + ETHERNET + header {
            return false;
        }
        let station = number([s0, s1, s2, s3, s4, s5]);
        if s0 & 1 == 1 || station == 0 || station == known.own {
            return false;
        }
        if outer.tos & 3 != 0 {
            let inner = match ([e0, e1], first) {
                ([0x08, 0x00], 0x45..=0x4f) => second,
                ([0x86, 0xdd], 0x60..=0x6f) => first << 4 | second >> 4,
                _ => return false,
            };
            if !matches!(
                wire::ecn::decapsulate(outer.tos, inner),
                Egress::Keep | Egress::KeepSuspicious
            ) {
                return false;
            }
        }
        let behind_vxlan = end - packet.len() + 8;
        if let Some(to) = packet
            .get(8..)
            .and_then(|inner| hosts.way(inner, known.slot, snapshot, Offload::default()))
        {
            let body = Payload::Received { frame: index, range: behind_vxlan as u32..end as u32 };
            let Some(transmit) = out.append(to, known.slot, body, Offload::default()) else {
                return false;
            };
            transmit.vtep = Some(known.vtep);
            return true;
        }
        let start = behind_vxlan + ETHERNET;
        let body = Payload::Received { frame: index, range: start as u32..end as u32 };
        let Some(transmit) = out.append(Destination::Bridge, known.slot, body, Offload::default())
        else {
            return false;
        };
        transmit.vtep = Some(known.vtep);
        let head = transmit.start_head::<{ ETHERNET + PUNT_TAG }>();
        let ([a, b], [c, d]) = (PUNT_TPID.to_be_bytes(), known.slot.to_be_bytes());
        let (place, rest) = head.split_at_mut(MACS);
        place.copy_from_slice(addresses);
        rest.copy_from_slice(&[a, b, c, d, e0, e1]);
        true
    }

    /// Remembers the sender of a frame.
    pub(crate) fn remember(
        &mut self,
        outer: &Outer,
        (table, vtep): (&VniTable, VtepId),
        of: &Snapshot,
    ) {
        let Outer { source, destination, port, .. } = *outer;
        let (vni, slot): (Vni, u16) = (table.tunnel.vni, table.index.get());
        let own = table.mac.map_or(u64::MAX, |mac| number(mac.0));
        if let Some(place) = self.0.get_mut(place(source, vni.get())) {
            *place = Sender {
                version: of.reception_version(),
                own,
                source,
                destination,
                vni: vni.get(),
                vtep,
                port,
                slot,
                accepts_no_checksum: table.tunnel.accepts_no_checksum,
            };
        }
    }
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use frame::TxBatch;
    use tables::{Fdb, SnapshotBuilder, Ttl, Vtep, VtepIndex};

    use super::common::{Leaf, SLOT, carried, roce};
    use super::*;

    /// A sender stays known until what its frames' reception depends on changes.
    #[test]
    fn a_sender_stays_known_while_addresses_are_learned() {
        let packet = carried(&[roce(1, 1)], 0).remove(0);
        let outer = Outer::parse(&packet.frame()).unwrap();
        let (mut hosts, mut out) = (HostDelivery::default(), TxBatch::new());
        let mut cache = DecapCache::default();
        let first = Leaf::two().snapshot();
        let table = first.vni(SLOT).unwrap();
        cache.remember(&outer, (table, VtepId { index: 0, assignment: 1 }), &first);
        let mut knows = |snapshot: &Snapshot| {
            let received = (0, packet.data.len(), &packet.data[42..]);
            cache.pass::<UDP_AT>(received, &outer, snapshot, (&mut hosts, &mut out))
        };
        assert!(knows(&first));
        let with = |change: &dyn Fn(&mut VniTable)| {
            let mut builder = SnapshotBuilder::after(&first);
            let mut table = VniTable::clone(table);
            change(&mut table);
            builder.vni(Arc::new(table));
            builder.build()
        };
        assert!(knows(&with(&|table| table.fdb = Fdb::default())));
        assert!(knows(&with(&|table| table.flood.clear())));
        assert!(!knows(&with(&|table| table.tunnel.ttl = Ttl::Fixed(3))));
        assert!(!knows(&with(&|table| table.mac = None)));
        let mut builder = SnapshotBuilder::after(&first);
        let address = IpAddr::from([10, 0, 0, 77]);
        builder.vtep(VtepIndex(9), Vtep { address, paths: Arc::default() });
        assert!(!knows(&builder.build()), "the set of VTEPs");
        assert!(knows(&first));
    }
}
