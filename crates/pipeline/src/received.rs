//! The outer headers of received packets.

use std::net::{IpAddr, Ipv4Addr};

use frame::{Checksum, DropReason, ETHERNET, Frame};
use wire::checksum::Sum;
use wire::number::PROTOCOL_UDP;

use crate::outer::{OVERHEAD, UDP_AT, UDP_CHECKSUM};

/// Offset of the VXLAN header in the frame.
pub(crate) const VXLAN_AT: usize = UDP_AT + 8;

/// The outer headers of a received packet.
pub(crate) struct Outer {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) port: u16,
    pub(crate) tos: u8,
    /// End of the UDP payload in the frame. Bytes after it are Ethernet padding.
    pub(crate) end: usize,
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
        let source = IpAddr::V4(Ipv4Addr::new(s0, s1, s2, s3));
        let destination = IpAddr::V4(Ipv4Addr::new(d0, d1, d2, d3));
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
        let field =
            frame.data.get(UDP_AT + usize::from(UDP_CHECKSUM)..).and_then(<[u8]>::first_chunk::<2>);
        let pseudo = self.pseudo(frame);
        field.is_some_and(|field| u16::from_be_bytes(*field) == !pseudo.checksum())
    }

    /// The sum of the pseudo header.
    fn pseudo(&self, frame: &Frame<'_>) -> Sum {
        // The addresses precede the UDP header.
        let addresses = frame.data.get(UDP_AT - 8..UDP_AT).unwrap_or_default();
        let length = (self.end - UDP_AT) as u16;
        Sum::new().bytes(addresses).word(PROTOCOL_UDP.into()).word(length)
    }

    /// The UDP payload.
    pub(crate) fn payload<'a>(&self, frame: &Frame<'a>) -> Result<&'a [u8], DropReason> {
        frame.data.get(VXLAN_AT..self.end).ok_or(DropReason::Truncated)
    }
}
