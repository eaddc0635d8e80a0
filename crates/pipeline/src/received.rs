//! The outer headers of a received packet.

use std::net::Ipv4Addr;

use frame::{Checksum, DropReason, ETHERNET, Frame, Gso, GsoKind, Offload};
use wire::Vni;
use wire::checksum::Sum;
use wire::number::PROTOCOL_UDP;

use crate::outer::{OVERHEAD, UDP_AT, UDP_CHECKSUM};

/// Offset of the VXLAN header in bytes.
pub(crate) const VXLAN_AT: usize = UDP_AT + 8;

/// The outer headers of a received packet.
pub(crate) struct Outer {
    pub(crate) source: Ipv4Addr,
    pub(crate) destination: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) tos: u8,
    /// End of the UDP payload in the frame. Bytes after it are Ethernet padding.
    pub(crate) end: usize,
}

/// How the UDP payload is split, and the offloads of each inner frame.
pub(crate) struct Pieces {
    /// Bytes of one VXLAN header and its inner frame, at least 8. The last piece may be shorter.
    pub(crate) size: usize,
    pub(crate) offload: Offload,
}

impl Outer {
    /// Parses Ethernet, IPv4 and UDP, and repeats the checks of the steering program. The frame may
    /// have been modified since then.
    pub(crate) fn parse(frame: &Frame<'_>) -> Result<Self, DropReason> {
        let data = frame.data;
        if data.is_empty() {
            return Err(DropReason::ReceiveUnreadable);
        }
        let headers = data.first_chunk::<OVERHEAD>().ok_or(DropReason::Truncated)?;
        let (ethernet, rest) =
            headers.split_first_chunk::<ETHERNET>().ok_or(DropReason::Truncated)?;
        let (ip, rest) = rest.split_first_chunk::<20>().ok_or(DropReason::Truncated)?;
        let (udp, _) = rest.split_first_chunk::<8>().ok_or(DropReason::Truncated)?;
        let [.., e0, e1] = *ethernet;
        let [version, tos, l0, l1, _, _, f0, f1, _, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] =
            *ip;
        let [_, _, p0, p1, u0, u1, _, _] = *udp;
        let fragment = u16::from_be_bytes([f0, f1]) & 0x3fff;
        // The steering program redirects only untagged IPv4 packets without options.
        let plain =
            [e0, e1] == [0x08, 0x00] && frame.vlan.is_none() && version == 0x45 && fragment == 0;
        if !plain || protocol != PROTOCOL_UDP {
            return Err(DropReason::NotVxlan);
        }
        let total = usize::from(u16::from_be_bytes([l0, l1]));
        let length = u16::from_be_bytes([u0, u1]);
        let end = UDP_AT + usize::from(length);
        if length < 16 || end > ETHERNET + total || ETHERNET + total > data.len() {
            return Err(DropReason::Truncated);
        }
        let (source, destination) = ([s0, s1, s2, s3].into(), [d0, d1, d2, d3].into());
        Ok(Self { source, destination, port: u16::from_be_bytes([p0, p1]), tos, end })
    }

    /// Verifies the IPv4 header checksum, and the UDP checksum if it is present and not yet
    /// verified.
    pub(crate) fn verify(&self, frame: &Frame<'_>) -> Result<(), DropReason> {
        let header = frame.data.get(ETHERNET..UDP_AT).ok_or(DropReason::Truncated)?;
        if !Sum::new().bytes(header).is_intact() {
            return Err(DropReason::OuterHeaderChecksum);
        }
        let udp = frame.data.get(UDP_AT..self.end).ok_or(DropReason::Truncated)?;
        let [.., k0, k1] = *udp.first_chunk::<8>().ok_or(DropReason::Truncated)?;
        if [k0, k1] != [0, 0] && frame.offload.checksum == Checksum::AsIs {
            let length = (self.end - UDP_AT) as u16;
            let pseudo =
                Sum::new().pseudo_ipv4(self.source, self.destination, PROTOCOL_UDP, length);
            if !pseudo.bytes(udp).is_intact() {
                return Err(DropReason::OuterUdpChecksum);
            }
        }
        Ok(())
    }

    /// Whether the UDP checksum is the sum of the pseudo header only. A capture shows this if the
    /// sender left the checksum to its device, as senders over veth do. When a frame is received,
    /// the kernel reports this in its metadata; the bytes do not show it.
    pub(crate) fn is_unfinished(&self, frame: &Frame<'_>) -> bool {
        let field =
            frame.data.get(UDP_AT + usize::from(UDP_CHECKSUM)..).and_then(<[u8]>::first_chunk::<2>);
        let length = (self.end - UDP_AT) as u16;
        let pseudo = Sum::new().pseudo_ipv4(self.source, self.destination, PROTOCOL_UDP, length);
        field.is_some_and(|field| u16::from_be_bytes(*field) == !pseudo.checksum())
    }

    /// The UDP payload.
    pub(crate) fn payload<'a>(&self, frame: &Frame<'a>) -> Result<&'a [u8], DropReason> {
        frame.data.get(VXLAN_AT..self.end).ok_or(DropReason::Truncated)
    }
}

impl Pieces {
    /// A super-frame is one of two kinds:
    ///
    /// - One VXLAN packet from a kernel peer whose *inner* frame is to be segmented. The checksum
    ///   offset lies behind the outer headers. It is forwarded whole.
    /// - Many VXLAN packets of one flow from another vtepd, coalesced by their outer UDP header.
    ///   They are split here.
    pub(crate) fn of(offload: &Offload, outer: &Outer) -> Result<Self, DropReason> {
        let whole = outer.end - VXLAN_AT;
        let Checksum::Partial { start, offset } = offload.checksum else {
            return match offload.gso {
                None => Ok(Self { size: whole, offload: Offload::default() }),
                Some(_) => Err(DropReason::BadOffload),
            };
        };
        if usize::from(start) == UDP_AT && offset == UDP_CHECKSUM {
            let size = match offload.gso {
                None => whole,
                Some(Gso { kind: GsoKind::Udp, size, .. }) if size > 8 => usize::from(size),
                Some(_) => return Err(DropReason::BadOffload),
            };
            return Ok(Self { size, offload: Offload::default() });
        }
        match start.checked_sub(OVERHEAD as u16) {
            Some(start) if usize::from(start) >= ETHERNET => {
                let checksum = Checksum::Partial { start, offset };
                Ok(Self { size: whole, offload: Offload { checksum, gso: offload.gso } })
            }
            _ => Err(DropReason::BadOffload),
        }
    }
}

/// Checks the VXLAN header. Returns the VNI and the inner frame.
pub(crate) fn vxlan(payload: &[u8]) -> Result<(Vni, &[u8]), DropReason> {
    let (header, inner) = payload.split_first_chunk::<8>().ok_or(DropReason::Truncated)?;
    let [flags, r0, r1, r2, v0, v1, v2, r3] = *header;
    if flags != 0x08 || (r0 | r1 | r2 | r3) != 0 {
        return Err(DropReason::NotVxlan);
    }
    let vni =
        Vni::try_from(u32::from_be_bytes([0, v0, v1, v2])).map_err(|_| DropReason::UnknownVni)?;
    Ok((vni, inner))
}
