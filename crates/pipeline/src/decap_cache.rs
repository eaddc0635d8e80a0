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
pub(crate) struct Sender {
    /// [`Snapshot::reception_version`].
    version: Version<Reception>,
    /// The vxlan netdev's own MAC address; `u64::MAX` if it has none.
    own: u64,
    source: IpAddr,
    destination: IpAddr,
    vni: u32,
    pub(crate) vtep: VtepId,
    port: u16,
    pub(crate) slot: u16,
    /// Its number in [`Sprayed`](crate::sprayed), if it sprays.
    pub(crate) sprays: Option<u16>,
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
        sprays: None,
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

/// The inner frame of a VXLAN packet from a known sender. It needs no change.
pub(crate) struct Known<'a> {
    pub(crate) sender: &'a Sender,
    pub(crate) inner: &'a [u8],
    /// The number of the received frame, and the end of the packet in it.
    at: (u32, usize),
    addresses: &'a [u8; MACS],
    ethertype: [u8; 2],
}

impl DecapCache {
    /// Forgets all senders.
    pub(crate) fn forget(&mut self) {
        self.0.fill(Sender::NONE);
    }

    /// The inner frame of a VXLAN packet, if its sender is known, if the frame needs no change, and if
    /// it may be sent on. `end` is the end of the packet in the received frame, and `UDP` the offset of
    /// its UDP header.
    #[inline(always)]
    pub(crate) fn find<'a, const UDP: usize>(
        &'a self,
        (index, end, packet): (u32, usize, &'a [u8]),
        outer: &Outer,
        snapshot: &Snapshot,
    ) -> Option<Known<'a>> {
        let headers = packet.first_chunk::<HEADERS>()?;
        let (&[0x08, 0, 0, 0, v0, v1, v2, 0], inner) = headers.split_first_chunk()? else {
            return None;
        };
        let vni = u32::from_be_bytes([0, v0, v1, v2]);
        let known = self.0.get(place(outer.source, vni))?;
        if known.version != snapshot.reception_version()
            || known.source != outer.source
            || known.destination != outer.destination
            || (known.vni, known.port) != (vni, outer.port)
            || UDP != UDP_AT && outer.lacks_checksum && !known.accepts_no_checksum
        {
            return None;
        }
        let (addresses, behind) = inner.split_first_chunk::<MACS>()?;
        let [_, _, _, _, _, _, s0, s1, s2, s3, s4, s5] = *addresses;
        let &[e0, e1, first, second] = behind.first_chunk()?;
        let header = match [e0, e1] {
            [0x08, 0x00] => 20,
            [0x86, 0xdd] => 40,
            _ => 0,
        };
        // The full path drops these, as the kernel does.
        if packet.len() < 8 + ETHERNET + header {
            return None;
        }
        let station = number([s0, s1, s2, s3, s4, s5]);
        if s0 & 1 == 1 || station == 0 || station == known.own {
            return None;
        }
        if outer.tos & 3 != 0 {
            let inner = match ([e0, e1], first) {
                ([0x08, 0x00], 0x45..=0x4f) => second,
                ([0x86, 0xdd], 0x60..=0x6f) => first << 4 | second >> 4,
                _ => return None,
            };
            if !matches!(
                wire::ecn::decapsulate(outer.tos, inner),
                Egress::Keep | Egress::KeepSuspicious
            ) {
                return None;
            }
        }
        let (inner, at) = (packet.get(8..)?, (index, end));
        Some(Known { sender: known, inner, at, addresses, ethertype: [e0, e1] })
    }

    /// Remembers the sender of a frame, with its number if it sprays.
    pub(crate) fn remember(
        &mut self,
        outer: &Outer,
        (table, vtep, sprays): (&VniTable, VtepId, Option<u16>),
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
                sprays,
                accepts_no_checksum: table.tunnel.accepts_no_checksum,
            };
        }
    }
}

impl Known<'_> {
    /// Sends the frame to the bridge punt pair or a host port. Returns whether it was sent.
    #[inline(always)]
    pub(crate) fn deliver(
        &self,
        snapshot: &Snapshot,
        (hosts, out): (&mut HostDelivery, &mut TxBatch),
    ) -> bool {
        let Self { sender, inner, at: (index, end), addresses, ethertype: [e0, e1] } = *self;
        let start = end - inner.len();
        if let Some(to) = hosts.way(inner, sender.slot, snapshot, Offload::default()) {
            let body = Payload::Received { frame: index, range: start as u32..end as u32 };
            let Some(transmit) = out.append(to, sender.slot, body, Offload::default()) else {
                return false;
            };
            transmit.vtep = Some(sender.vtep);
            return true;
        }
        let behind = start + ETHERNET;
        let body = Payload::Received { frame: index, range: behind as u32..end as u32 };
        let Some(transmit) = out.append(Destination::Bridge, sender.slot, body, Offload::default())
        else {
            return false;
        };
        transmit.vtep = Some(sender.vtep);
        let head = transmit.start_head::<{ ETHERNET + PUNT_TAG }>();
        let ([a, b], [c, d]) = (PUNT_TPID.to_be_bytes(), sender.slot.to_be_bytes());
        let (place, rest) = head.split_at_mut(MACS);
        place.copy_from_slice(addresses);
        rest.copy_from_slice(&[a, b, c, d, e0, e1]);
        true
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "the tests use a part")]
#[path = "../tests/frames/common.rs"]
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
        cache.remember(&outer, (table, VtepId { index: 0, assignment: 1 }, None), &first);
        let mut knows = |snapshot: &Snapshot| {
            let received = (0, packet.data.len(), &packet.data[42..]);
            let known = cache.find::<UDP_AT>(received, &outer, snapshot);
            known.is_some_and(|known| known.deliver(snapshot, (&mut hosts, &mut out)))
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
