//! From the bridge to the underlay: lookup, entropy, outer headers (RFC 7348 section 5).

use std::net::IpAddr;
use std::time::Instant;

use entropy::Decision;
use tables::{DontFragment, NextHop, Snapshot, Tos, Ttl, Tunnel, VniTable, VtepIndex};
use wire::checksum::{Sum, checksum};
use wire::{Dissection, Network};

use crate::Pipeline;
use crate::batch::{Batch, Body, Destination, HEAD_CAPACITY, Transmit};
use crate::drop_reason::DropReason;
use crate::frame::{Checksum, Frame, Offload};
use crate::segment::Segmenter;

/// Ethernet, IPv4, UDP and VXLAN header in bytes.
pub const OVERHEAD: usize = 14 + 20 + 8 + 8;
/// Those that count against the underlay's MTU, with the inner Ethernet header not yet added.
const L3_OVERHEAD: usize = OVERHEAD - 14;

impl Pipeline {
    /// Encapsulates a batch that came from the bridge splice; what is to be sent is appended to `out`.
    pub fn encapsulate(&mut self, batch: &Batch, snapshot: &Snapshot, now: Instant, out: &mut Vec<Transmit>) {
        self.counters.bridge_received.add(batch.len() as u64);
        for (index, frame) in batch.frames().enumerate() {
            if let Err((reason, slot)) = self.encapsulate_one(batch, index, &frame, snapshot, now, out) {
                self.counters.drop_frames(reason, slot, 1);
            }
        }
    }

    /// The frame's fate; an error is the fate of the whole frame, copies are accounted for on the way.
    fn encapsulate_one(
        &mut self,
        batch: &Batch,
        index: usize,
        frame: &Frame<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Vec<Transmit>,
    ) -> Result<(), (DropReason, u16)> {
        if frame.data.is_empty() {
            return Err((DropReason::ReceiveUnreadable, 0));
        }
        let slot = frame.vlan.map_or(0, |tag| tag.tci & 0x0fff);
        let vni = snapshot.vni(slot).ok_or((DropReason::UnknownSlot, 0))?;
        let whole = |reason| (reason, slot);
        let dissection = wire::dissect(frame.data).ok_or(DropReason::Truncated).map_err(whole)?;
        let decision = vni.entropy.decide(&dissection);
        let unicast = vni.fdb.get(&dissection.destination);
        let remotes = unicast.map_or(vni.flood.as_slice(), core::slice::from_ref);
        if remotes.is_empty() {
            return Err(whole(DropReason::NoRemote));
        }
        if unicast.is_none() {
            self.counters.vni(slot).inspect(|counters| counters.flooded.add(1));
        }
        let segmenter = match frame.offload.gso {
            Some(gso) => Some(Segmenter::new(frame.data, &dissection, gso).map_err(whole)?),
            None => None,
        };
        let segments = segmenter.as_ref().map_or(1, Segmenter::count);
        let mut inner = InnerHead { bytes: [0; HEAD_CAPACITY], length: 0 };
        self.counters.copies.add((segments * remotes.len()) as u64 - 1);
        for segment in 0..segments {
            let body = match &segmenter {
                Some(segmenter) => segmenter
                    .segment(segment, &mut inner.bytes)
                    .map(|(length, body)| {
                        inner.length = length;
                        body
                    })
                    .ok(),
                None => inner.complete_checksum(frame).map(|length| length..frame.data.len()),
            };
            let Some(body) = body else {
                self.counters.drop_frames(DropReason::BadOffload, slot, remotes.len() as u64);
                continue;
            };
            let body = Body::Received { frame: index as u32, range: body.start as u32..body.end as u32 };
            for &remote in remotes {
                let copy =
                    Copy { vni, dissection: &dissection, decision, remote, inner: &inner, body: &body };
                if let Err(reason) = self.send_copy(batch, &copy, snapshot, now, out) {
                    self.counters.drop_frames(reason, slot, 1);
                }
            }
        }
        Ok(())
    }

    fn send_copy(
        &mut self,
        batch: &Batch,
        copy: &Copy<'_>,
        snapshot: &Snapshot,
        now: Instant,
        out: &mut Vec<Transmit>,
    ) -> Result<(), DropReason> {
        let tunnel = &copy.vni.tunnel;
        let vtep = snapshot.vtep(copy.remote).ok_or(DropReason::NoRoute)?;
        let hash = path_hash(copy.vni, tunnel, vtep.address, copy.decision.source_port);
        let hop = vtep.paths.choose(hash).ok_or(DropReason::NoRoute)?;
        let mut offload = Offload::default();
        if tunnel.udp_checksum {
            offload.checksum = Checksum::Partial { start: 14 + 20, offset: 6 };
        }
        let to = Destination::Uplink { ifindex: hop.ifindex, path: hop.path };
        let mut transmit = Transmit::new(to, copy.vni.slot.get(), copy.body.clone(), offload);
        let inner_length = copy.inner.length + transmit.len();
        let l3_length = inner_length + L3_OVERHEAD;
        if l3_length > hop.mtu as usize || l3_length > usize::from(u16::MAX) {
            return Err(DropReason::TooBig);
        }
        self.identification = self.identification.wrapping_add(1);
        let outer = outer_header(copy, hop, vtep.address, l3_length as u16, self.identification);
        if !transmit.extend_head(&outer) || !transmit.extend_head(copy.inner.as_slice()) {
            return Err(DropReason::TooBig);
        }
        if hop.destination_mac.is_some() {
            out.push(transmit);
            return Ok(());
        }
        self.hold.push(&transmit, batch, (hop, copy.remote, hash), now)?;
        self.counters.held.add(1);
        Ok(())
    }
}

/// The hash that chooses the next hop: a function of the outer addresses and ports alone, so that a source port is a path.
#[must_use]
pub fn path_hash(vni: &VniTable, tunnel: &Tunnel, remote: std::net::Ipv4Addr, source_port: u16) -> u64 {
    entropy::path_hash(
        vni.entropy.seed(),
        IpAddr::V4(tunnel.local),
        IpAddr::V4(remote),
        source_port,
        tunnel.destination_port,
    )
}

/// One copy of one segment on its way to one VTEP.
struct Copy<'a> {
    vni: &'a VniTable,
    dissection: &'a Dissection,
    decision: Decision,
    remote: VtepIndex,
    inner: &'a InnerHead,
    body: &'a Body,
}

/// Inner headers that had to be changed; the rest of the frame is sent from where it was received.
struct InnerHead {
    bytes: [u8; HEAD_CAPACITY],
    length: usize,
}

impl InnerHead {
    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Finishes a partial checksum, copying the headers up to it. Returns where the body starts, `None` if the
    /// offsets lie outside the frame or too far behind for a head.
    fn complete_checksum(&mut self, frame: &Frame<'_>) -> Option<usize> {
        let Checksum::Partial { start, offset } = frame.offload.checksum else {
            self.length = 0;
            return Some(0);
        };
        let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
        // Zero would say "no checksum" in UDP; in TCP both forms of zero are right (net/core/dev.c, CSUM_MANGLED_0).
        let sum = Sum::new().bytes(frame.data.get(start..)?).checksum_not_zero();
        let head = self.bytes.get_mut(..at + 2)?;
        head.copy_from_slice(frame.data.get(..at + 2)?);
        *head.last_chunk_mut::<2>()? = sum.to_be_bytes();
        self.length = at + 2;
        Some(self.length)
    }
}

/// Ethernet, IPv4, UDP and VXLAN headers. `l3_length`: the outer IPv4 packet's length in bytes.
fn outer_header(
    copy: &Copy<'_>,
    hop: &NextHop,
    remote: std::net::Ipv4Addr,
    l3_length: u16,
    identification: u16,
) -> [u8; OVERHEAD] {
    let tunnel = &copy.vni.tunnel;
    let [d0, d1, d2, d3, d4, d5] = hop.destination_mac.unwrap_or_default().0;
    let [s0, s1, s2, s3, s4, s5] = hop.source_mac.0;
    let (tos, ttl, dont_fragment) = inherited(tunnel, &copy.dissection.network);
    let [l0, l1] = l3_length.to_be_bytes();
    let [i0, i1] = identification.to_be_bytes();
    let flags = if dont_fragment { 0x40 } else { 0 };
    let [a0, a1, a2, a3] = tunnel.local.octets();
    let [r0, r1, r2, r3] = remote.octets();
    let ip = [0x45, tos, l0, l1, i0, i1, flags, 0, ttl, 17, 0, 0, a0, a1, a2, a3, r0, r1, r2, r3];
    let [c0, c1] = checksum(&ip).to_be_bytes();
    let udp_length = l3_length - 20;
    let [u0, u1] = udp_length.to_be_bytes();
    let [p0, p1] = copy.decision.source_port.to_be_bytes();
    let [q0, q1] = tunnel.destination_port.to_be_bytes();
    let [_, v0, v1, v2] = tunnel.vni.get().to_be_bytes();
    let [k0, k1] = if tunnel.udp_checksum {
        // What CHECKSUM_PARTIAL expects in the field: the pseudo header's sum, not complemented.
        Sum::new().pseudo_ipv4(tunnel.local, remote, 17, udp_length).fold().to_be_bytes()
    } else {
        [0, 0]
    };
    [
        d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, 0x08, 0x00, // Ethernet
        0x45, tos, l0, l1, i0, i1, flags, 0, ttl, 17, c0, c1, a0, a1, a2, a3, r0, r1, r2, r3, // IPv4
        p0, p1, q0, q1, u0, u1, k0, k1, // UDP
        0x08, 0, 0, 0, v0, v1, v2, 0, // VXLAN
    ]
}

/// Outer ToS, TTL and DF, as far as they follow the inner packet (`drivers/net/vxlan/vxlan_core.c`, `vxlan_xmit_one`).
fn inherited(tunnel: &Tunnel, inner: &Network) -> (u8, u8, bool) {
    let (inner_tos, inner_ttl, inner_df) = match inner {
        Network::Ipv4(ip) => (Some(ip.tos), Some(ip.ttl), ip.dont_fragment),
        Network::Ipv6(ip) => (Some(ip.traffic_class), Some(ip.hop_limit), true),
        Network::Other => (None, None, false),
    };
    let tos = match tunnel.tos {
        Tos::Fixed(tos) => tos,
        Tos::Inherit => inner_tos.unwrap_or(0),
    };
    let tos = wire::ecn::encapsulate(wire::ecn::Ingress::Linux, tos, inner_tos.unwrap_or(0));
    let ttl = match tunnel.ttl {
        Ttl::Fixed(ttl) => ttl,
        Ttl::Inherit { default } => inner_ttl.filter(|&ttl| ttl != 0).unwrap_or(default),
    };
    let df = match tunnel.df {
        DontFragment::Unset => false,
        DontFragment::Set => true,
        DontFragment::Inherit => inner_df,
    };
    (tos, ttl, df)
}
