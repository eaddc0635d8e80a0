//! Packets of RoCEv2 as a host sends them: an RDMA write over a reliable connection.

use sim::vtep::Data;
use wire::checksum::checksum;
use wire::roce::opcode;

/// Bytes of Ethernet, IPv4, UDP, the base transport header and the ICRC.
const AROUND: usize = 14 + 20 + 8 + 12 + 4;
/// The ECN codepoint ECT(0), and "congestion experienced" (RFC 3168 section 5).
const ECT_0: u8 = 2;
const CE: u8 = 3;
/// The first number of a queue pair. Those below are for management.
const FIRST: u32 = 0x11;

/// The MAC address of a host.
#[must_use]
pub const fn mac(host: u32) -> [u8; 6] {
    let [_, _, high, low] = host.to_be_bytes();
    [2, 0, 0, 0, high, low]
}

/// The frame of a packet from its host, with `packet.size` bytes, or as many as its headers need.
/// `marked`: a router has set the ECN mark. The payload tells flow and number.
#[must_use]
pub fn frame(packet: &Data, marked: bool) -> Vec<u8> {
    let size = usize::from(packet.size).max(AROUND);
    let (length, datagram) = ((size - 14) as u16, (size - 34) as u16);
    let address = |host: u32| [10, 1, (host >> 8) as u8, host as u8];
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(mac(packet.target));
    bytes.extend(mac(packet.source));
    bytes.extend([8, 0, 0x45, if marked { CE } else { ECT_0 }]);
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    bytes.extend(address(packet.source));
    bytes.extend(address(packet.target));
    fill_checksum(&mut bytes);
    bytes.extend(0xc000_u16.to_be_bytes());
    bytes.extend(4791_u16.to_be_bytes());
    bytes.extend(datagram.to_be_bytes());
    bytes.extend([0, 0, opcode::RC_WRITE_MIDDLE, 0, 0xff, 0xff, 0]);
    let [_, queue_pair @ ..] = (FIRST + packet.flow).to_be_bytes();
    let [_, sequence @ ..] = packet.number.to_be_bytes();
    bytes.extend(queue_pair);
    bytes.push(0);
    bytes.extend(sequence);
    let pattern = packet.flow.wrapping_mul(0x9e37_79b9) ^ packet.number;
    bytes.extend(pattern.to_be_bytes().into_iter().cycle().take(size - AROUND));
    bytes.extend([0; 4]);
    // The frame is long enough.
    let _ = bytes.get_mut(14..).map(wire::icrc::fill);
    bytes
}

/// Writes the checksum of the IPv4 header of a frame without VLAN tags.
fn fill_checksum(frame: &mut [u8]) {
    if let Some(header) = frame.get_mut(14..34) {
        let (_, rest) = header.split_at_mut(10);
        if let Some(field) = rest.first_chunk_mut() {
            *field = [0; 2];
        }
        let sum = checksum(header).to_be_bytes();
        if let Some(field) = header.get_mut(10..).and_then(<[u8]>::first_chunk_mut) {
            *field = sum;
        }
    }
}

/// Sets the ECN mark in the outer header, as a router does.
pub(crate) fn mark(frame: &mut [u8]) {
    if let Some(field) = frame.get_mut(15) {
        *field |= CE;
    }
    fill_checksum(frame);
}

/// The outer UDP source port of a VXLAN packet.
pub(crate) fn source_port(packet: &[u8]) -> Option<u16> {
    packet.get(34..)?.first_chunk().map(|port| u16::from_be_bytes(*port))
}
