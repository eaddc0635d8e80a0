//! From the underlay to the bridge: checks, ECN, and the tag that tells the splice which vxlan netdev it is for.

use tables::{Snapshot, VniTable};
use wire::checksum::Sum;
use wire::ecn::Egress;
use wire::{Network, Vni};

use crate::Pipeline;
use crate::batch::{Batch, Body, Destination, Transmit};
use crate::drop_reason::DropReason;
use crate::encapsulate::OVERHEAD;
use crate::frame::{Checksum, Frame, GsoKind, Offload};

/// Length of the 802.1ad tag that numbers the VNI on the bridge splice.
pub const TAG_LENGTH: usize = 4;
const TPID_8021AD: [u8; 2] = [0x88, 0xa8];
const ETHERNET: usize = 14;
/// Where the outer UDP header and its payload start: steering passes only IPv4 headers without options.
const UDP_AT: usize = ETHERNET + 20;
const VXLAN_AT: usize = UDP_AT + 8;

/// The outer headers of one packet.
struct Outer {
    source: std::net::Ipv4Addr,
    destination: std::net::Ipv4Addr,
    port: u16,
    tos: u8,
    /// Where the UDP payload ends in the frame; bytes behind it are Ethernet padding.
    end: usize,
}

impl Pipeline {
    /// Decapsulates a batch that came from the underlay splice; what is to be sent is appended to `out`.
    pub fn decapsulate(&mut self, batch: &Batch, snapshot: &Snapshot, out: &mut Vec<Transmit>) {
        self.counters.underlay_received.add(batch.len() as u64);
        for (index, frame) in batch.frames().enumerate() {
            if frame.data.is_empty() {
                self.counters.drop_frames(DropReason::ReceiveUnreadable, 0, 1);
                continue;
            }
            let outer = match outer(&frame) {
                Ok(outer) => outer,
                Err(reason) => {
                    self.counters.drop_frames(reason, 0, 1);
                    continue;
                }
            };
            let (pieces, offload) = match pieces(&frame, &outer) {
                Ok(pieces) => pieces,
                Err(reason) => {
                    self.counters.drop_frames(reason, 0, 1);
                    continue;
                }
            };
            let whole = VXLAN_AT..outer.end;
            self.counters.copies.add((whole.len().div_ceil(pieces) as u64).saturating_sub(1));
            for start in whole.clone().step_by(pieces) {
                let piece = start..(start + pieces).min(whole.end);
                if let Err((reason, slot)) =
                    self.decapsulate_piece(index, &frame, piece, &outer, offload, snapshot, out)
                {
                    self.counters.drop_frames(reason, slot, 1);
                }
            }
        }
    }

    /// One VXLAN header and the frame behind it.
    #[allow(clippy::too_many_arguments, reason = "one call, of the loop above")]
    fn decapsulate_piece(
        &self,
        index: usize,
        frame: &Frame<'_>,
        piece: core::ops::Range<usize>,
        outer: &Outer,
        offload: Offload,
        snapshot: &Snapshot,
        out: &mut Vec<Transmit>,
    ) -> Result<(), (DropReason, u16)> {
        let data = frame.data.get(piece.clone()).ok_or((DropReason::Truncated, 0))?;
        let (header, inner) = data.split_first_chunk::<8>().ok_or((DropReason::Truncated, 0))?;
        let [flags, r0, r1, r2, v0, v1, v2, r3] = *header;
        if flags != 0x08 || (r0 | r1 | r2 | r3) != 0 {
            return Err((DropReason::NotVxlan, 0));
        }
        let vni =
            Vni::try_from(u32::from_be_bytes([0, v0, v1, v2])).map_err(|_| (DropReason::UnknownVni, 0))?;
        let table =
            snapshot.terminate(outer.destination, outer.port, vni).ok_or((DropReason::UnknownVni, 0))?;
        let slot = table.slot.get();
        if !snapshot.knows_vtep(outer.source) {
            self.counters.vni(slot).inspect(|counters| counters.unknown_vtep.add(1));
            if table.strict_vtep {
                return Err((DropReason::UnknownVtep, slot));
            }
        }
        let transmit =
            to_bridge(index, piece.end, inner, table, outer.tos, offload).map_err(|reason| (reason, slot))?;
        out.push(transmit);
        Ok(())
    }
}

/// Builds the frame for the bridge splice. `end`: where the inner frame ends in the received one.
fn to_bridge(
    index: usize,
    end: usize,
    inner: &[u8],
    table: &VniTable,
    outer_tos: u8,
    mut offload: Offload,
) -> Result<Transmit, DropReason> {
    let (addresses, behind) = inner.split_first_chunk::<12>().ok_or(DropReason::InnerTruncated)?;
    let (ethertype, _) = behind.split_first_chunk::<2>().ok_or(DropReason::InnerTruncated)?;
    if let Checksum::Partial { start, .. } = &mut offload.checksum {
        *start += TAG_LENGTH as u16;
    }
    let dissection = wire::dissect(inner).ok_or(DropReason::InnerTruncated)?;
    let inner_tos = dissection.network.traffic_class();
    let tag = table.slot.get().to_be_bytes();
    let l3 = usize::from(dissection.l3_offset);
    let mut patched = [0u8; 14 + 4 * 4 + 40];
    let (patch, start): (&[u8], usize) = match inner_tos.map(|tos| wire::ecn::decapsulate(outer_tos, tos)) {
        None | Some(Egress::Keep | Egress::KeepSuspicious) => (ethertype, ETHERNET),
        Some(Egress::Drop) => return Err(DropReason::EcnNotCapable),
        Some(Egress::Set(codepoint)) => {
            // Everything from the EtherType to the end of the fixed IP header, behind at most four tags.
            let stop = l3 + if matches!(dissection.network, Network::Ipv6(_)) { 40 } else { 20 };
            let room = patched.get_mut(..stop - 12).ok_or(DropReason::InnerTruncated)?;
            room.copy_from_slice(inner.get(12..stop).ok_or(DropReason::InnerTruncated)?);
            let ip = room.get_mut(l3 - 12..).ok_or(DropReason::InnerTruncated)?;
            if !wire::ecn::set(ip, codepoint) {
                return Err(DropReason::InnerTruncated);
            }
            (room, stop)
        }
    };
    let body = Body::Received { frame: index as u32, range: (end - inner.len() + start) as u32..end as u32 };
    let mut transmit = Transmit::new(Destination::Bridge, table.slot.get(), body, offload);
    if let Some(gso) = offload.gso {
        let headers = dissection.gso_header_length(inner).ok_or(DropReason::BadOffload)?;
        transmit.segments = (inner.len() - headers).div_ceil(usize::from(gso.size).max(1)) as u16;
    }
    let fits = transmit.extend_head(addresses)
        && transmit.extend_head(&TPID_8021AD)
        && transmit.extend_head(&tag)
        && transmit.extend_head(patch);
    if fits { Ok(transmit) } else { Err(DropReason::TooBig) }
}

/// Checks Ethernet, IPv4 and UDP. What steering let through is checked again: the frame may have changed hands since.
fn outer(frame: &Frame<'_>) -> Result<Outer, DropReason> {
    let data = frame.data;
    let headers = data.first_chunk::<OVERHEAD>().ok_or(DropReason::Truncated)?;
    let (ethernet, rest) = headers.split_first_chunk::<ETHERNET>().ok_or(DropReason::Truncated)?;
    let (ip, rest) = rest.split_first_chunk::<20>().ok_or(DropReason::Truncated)?;
    let (udp, _) = rest.split_first_chunk::<8>().ok_or(DropReason::Truncated)?;
    let [.., e0, e1] = *ethernet;
    let [version, tos, l0, l1, _, _, f0, f1, _, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *ip;
    let [_, _, p0, p1, u0, u1, k0, k1] = *udp;
    let fragment = u16::from_be_bytes([f0, f1]) & 0x3fff;
    if [e0, e1] != [0x08, 0x00] || version != 0x45 || protocol != 17 || fragment != 0 {
        return Err(DropReason::NotVxlan);
    }
    if !Sum::new().bytes(ip).is_intact() {
        return Err(DropReason::OuterHeaderChecksum);
    }
    let total = usize::from(u16::from_be_bytes([l0, l1]));
    let udp_length = usize::from(u16::from_be_bytes([u0, u1]));
    let end = UDP_AT + udp_length;
    if udp_length < 16 || 20 + udp_length > total || ETHERNET + total > data.len() {
        return Err(DropReason::Truncated);
    }
    let summed_already = matches!(frame.offload.checksum, Checksum::Partial { .. } | Checksum::Valid);
    if [k0, k1] != [0, 0] && !summed_already && frame.offload.gso.is_none() {
        let (source, destination) = ([s0, s1, s2, s3].into(), [d0, d1, d2, d3].into());
        let pseudo = Sum::new().pseudo_ipv4(source, destination, 17, u16::from_be_bytes([u0, u1]));
        if !pseudo.bytes(data.get(UDP_AT..end).ok_or(DropReason::Truncated)?).is_intact() {
            return Err(DropReason::OuterUdpChecksum);
        }
    }
    Ok(Outer {
        source: [s0, s1, s2, s3].into(),
        destination: [d0, d1, d2, d3].into(),
        port: u16::from_be_bytes([p0, p1]),
        tos,
        end,
    })
}

/// How the UDP payload is cut (into pieces of this many bytes) and what is left to be done for each inner frame.
///
/// A super-frame is either one VXLAN packet whose *inner* frame is to be segmented (a kernel peer encapsulated it, the
/// checksum offset lies behind the outer headers) and goes on whole, or many VXLAN packets of one flow coalesced by their
/// outer UDP header (another vtepd sent it), which are taken apart here.
fn pieces(frame: &Frame<'_>, outer: &Outer) -> Result<(usize, Offload), DropReason> {
    let whole = outer.end - VXLAN_AT;
    let start = match frame.offload.checksum {
        Checksum::Partial { start, offset } => Some((usize::from(start), offset)),
        Checksum::AsIs | Checksum::Valid => None,
    };
    match (start, frame.offload.gso) {
        (None, None) => Ok((whole, Offload::default())),
        (Some((UDP_AT, 6)), None) => Ok((whole, Offload::default())),
        (Some((UDP_AT, 6)), Some(gso)) if gso.kind == GsoKind::Udp && gso.size > 8 => {
            Ok((usize::from(gso.size), Offload::default()))
        }
        (Some((start, offset)), gso) if start >= OVERHEAD + ETHERNET => {
            let checksum = Checksum::Partial { start: (start - OVERHEAD) as u16, offset };
            Ok((whole, Offload { checksum, gso }))
        }
        _ => Err(DropReason::BadOffload),
    }
}
