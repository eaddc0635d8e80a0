//! The outer headers of received packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use frame::{Checksum, DropReason, ETHERNET, Frame, Gso, GsoKind, Offload};
use wire::Vni;
use wire::checksum::Sum;
use wire::number::PROTOCOL_UDP;

use crate::outer::{OVERHEAD, OVERHEAD_IPV6, UDP_AT, UDP_AT_IPV6, UDP_CHECKSUM};

/// The outer headers of a received packet.
#[derive(Clone, Copy)]
pub(crate) struct Outer {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The UDP destination port.
    pub(crate) port: u16,
    pub(crate) source_port: u16,
    pub(crate) tos: u8,
    /// Whether it is an IPv6 packet without UDP checksum.
    pub(crate) lacks_checksum: bool,
    /// Offset of the UDP header in the frame.
    pub(crate) udp_at: usize,
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
    /// Parses Ethernet, IPv4 or IPv6, and UDP, and repeats the checks of the steering program. The
    /// frame may have been modified since then.
    pub(crate) fn parse(frame: &Frame<'_>) -> Result<Self, DropReason> {
        match Self::parse_ipv4(frame) {
            Err(DropReason::NotVxlan) => Self::parse_ipv6(frame),
            parsed => parsed,
        }
    }

    /// As [`Self::parse`]; [`DropReason::NotVxlan`] if it is not IPv4.
    #[inline(always)]
    pub(crate) fn parse_ipv4(frame: &Frame<'_>) -> Result<Self, DropReason> {
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
        let [q0, q1, p0, p1, u0, u1, _, _] = *udp;
        let fragment = u16::from_be_bytes([f0, f1]) & 0x3fff;
        // The steering program redirects only untagged packets: of IPv4 those without options, of
        // IPv6 those without extension headers.
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
        let source = IpAddr::V4(Ipv4Addr::new(s0, s1, s2, s3));
        let destination = IpAddr::V4(Ipv4Addr::new(d0, d1, d2, d3));
        let (source_port, port) = (u16::from_be_bytes([q0, q1]), u16::from_be_bytes([p0, p1]));
        let (lacks_checksum, udp_at) = (false, UDP_AT);
        Ok(Self { source, destination, port, source_port, tos, lacks_checksum, udp_at, end })
    }

    /// As [`Self::parse`]; [`DropReason::NotVxlan`] if it is not IPv6 without extension headers.
    pub(crate) fn parse_ipv6(frame: &Frame<'_>) -> Result<Self, DropReason> {
        let data = frame.data;
        let is_ipv6 = data.get(12..14) == Some(&[0x86, 0xdd]) && frame.vlan.is_none();
        if !is_ipv6 {
            return Err(DropReason::NotVxlan);
        }
        let headers = data.first_chunk::<OVERHEAD_IPV6>().ok_or(DropReason::Truncated)?;
        let (ip, rest) = headers
            .get(ETHERNET..)
            .and_then(<[u8]>::split_first_chunk::<40>)
            .ok_or(DropReason::Truncated)?;
        let &[q0, q1, p0, p1, u0, u1, k0, k1] = rest.first_chunk().ok_or(DropReason::Truncated)?;
        let &[v0, v1, _, _, l0, l1, next, _, ref addresses @ ..] = ip;
        if v0 >> 4 != 6 || next != PROTOCOL_UDP {
            return Err(DropReason::NotVxlan);
        }
        let total = usize::from(u16::from_be_bytes([l0, l1]));
        let length = u16::from_be_bytes([u0, u1]);
        let end = UDP_AT_IPV6 + usize::from(length);
        if length < 16 || end > UDP_AT_IPV6 + total || UDP_AT_IPV6 + total > data.len() {
            return Err(DropReason::Truncated);
        }
        let (source, destination) = addresses.split_at(16);
        let address = |octets: &[u8]| {
            let octets = octets.first_chunk::<16>().copied().unwrap_or_default();
            IpAddr::V6(Ipv6Addr::from(octets))
        };
        Ok(Self {
            source: address(source),
            destination: address(destination),
            port: u16::from_be_bytes([p0, p1]),
            source_port: u16::from_be_bytes([q0, q1]),
            tos: v0 << 4 | v1 >> 4,
            lacks_checksum: [k0, k1] == [0, 0],
            udp_at: UDP_AT_IPV6,
            end,
        })
    }

    /// Verifies the IPv4 header checksum, and the UDP checksum if it is present and not yet
    /// verified. `UDP` is the offset of the UDP header.
    #[inline(always)]
    pub(crate) fn verify<const UDP: usize>(&self, frame: &Frame<'_>) -> Result<(), DropReason> {
        if UDP == UDP_AT {
            let header = frame.data.get(ETHERNET..UDP_AT).ok_or(DropReason::Truncated)?;
            if !Sum::new().bytes(header).is_intact() {
                return Err(DropReason::OuterHeaderChecksum);
            }
        }
        let udp = frame.data.get(UDP..self.end).ok_or(DropReason::Truncated)?;
        let [.., k0, k1] = *udp.first_chunk::<8>().ok_or(DropReason::Truncated)?;
        if [k0, k1] != [0, 0]
            && frame.offload.checksum == Checksum::AsIs
            && !self.pseudo(frame).bytes(udp).is_intact()
        {
            return Err(DropReason::OuterUdpChecksum);
        }
        Ok(())
    }

    /// Whether the UDP checksum is the sum of the pseudo header only. A capture shows this if the
    /// sender left the checksum to its device, as senders over veth do. When a frame is received,
    /// the kernel reports this in its metadata; the bytes do not show it.
    pub(crate) fn is_unfinished(&self, frame: &Frame<'_>) -> bool {
        let at = self.udp_at + usize::from(UDP_CHECKSUM);
        let field = frame.data.get(at..).and_then(<[u8]>::first_chunk::<2>);
        let pseudo = self.pseudo(frame);
        field.is_some_and(|field| u16::from_be_bytes(*field) == !pseudo.checksum())
    }

    /// The sum of the pseudo header.
    #[inline(never)]
    fn pseudo(&self, frame: &Frame<'_>) -> Sum {
        // The addresses precede the UDP header.
        let start = if self.source.is_ipv4() { self.udp_at - 8 } else { self.udp_at - 32 };
        let addresses = frame.data.get(start..self.udp_at).unwrap_or_default();
        let length = (self.end - self.udp_at) as u16;
        Sum::new().bytes(addresses).word(PROTOCOL_UDP.into()).word(length)
    }

    /// The UDP payload.
    pub(crate) fn payload<'a>(&self, frame: &Frame<'a>) -> Result<&'a [u8], DropReason> {
        frame.data.get(self.udp_at + 8..self.end).ok_or(DropReason::Truncated)
    }
}

impl Pieces {
    /// A super-frame is one of two kinds:
    ///
    /// - One VXLAN packet from a kernel peer whose *inner* frame is to be segmented. The checksum
    ///   offset lies behind the outer headers. It is forwarded whole.
    /// - Many VXLAN packets of one flow from another vtepd, coalesced by their outer UDP header.
    ///   They are split here.
    ///
    /// `UDP` is the offset of the outer UDP header.
    pub(crate) fn of<const UDP: usize>(
        offload: &Offload,
        outer: &Outer,
    ) -> Result<Self, DropReason> {
        let whole = outer.end - (UDP + 8);
        let Checksum::Partial { start, offset } = offload.checksum else {
            return match offload.gso {
                None => Ok(Self { size: whole, offload: Offload::default() }),
                Some(_) => Err(DropReason::BadOffload),
            };
        };
        if usize::from(start) == UDP && offset == UDP_CHECKSUM {
            let size = match offload.gso {
                None => whole,
                Some(gso @ Gso { kind: GsoKind::Udp, size, .. })
                    if size > 8 && gso.has_few_segments(whole) =>
                {
                    usize::from(size)
                }
                Some(_) => return Err(DropReason::BadOffload),
            };
            return Ok(Self { size, offload: Offload::default() });
        }
        match start.checked_sub((UDP + 16) as u16) {
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
