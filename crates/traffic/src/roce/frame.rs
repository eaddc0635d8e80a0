//! A frame of the traffic: Ethernet, IPv4, UDP to port 4791, base transport header, numbered
//! payload and ICRC.

use std::net::Ipv4Addr;

use wire::roce::{Bth, opcode};
use wire::{Ethernet, Ipv4, Ipv4Packet, MacAddr, QueuePair, Udp, UdpDatagram, icrc, number};

use roce::SourcePort;

use super::connection::Connection;
use super::error::RoceError;

/// The minimum payload in bytes: the stream's mark and the frame's number.
pub const PAYLOAD_MIN: usize = 16;
/// The maximum payload in bytes: InfiniBand's path MTU of 4096.
pub const PAYLOAD_MAX: usize = 4096;

const IP: usize = Ethernet::LENGTH;
const BTH: usize = IP + Ipv4::LENGTH + Udp::LENGTH;
const PAYLOAD: usize = BTH + Bth::LENGTH;

/// A template for the frames of one queue pair. They differ only by number, sequence number and
/// ICRC.
#[derive(Debug, Clone)]
pub struct FrameTemplate {
    bytes: Vec<u8>,
    first_sequence: u32,
}

/// The addresses of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The sender's MAC and IPv4 address.
    pub source: (MacAddr, Ipv4Addr),
    /// The receiver's MAC and IPv4 address.
    pub destination: (MacAddr, Ipv4Addr),
}

impl FrameTemplate {
    /// A template for frames with `payload` bytes: a multiple of 4, [`PAYLOAD_MIN`] to
    /// [`PAYLOAD_MAX`]. They carry `mark`, by which the sink recognises the stream. They are RC
    /// "send only" with "don't fragment" and ToS 0, as mlx5 sends them without a traffic class.
    ///
    /// # Errors
    /// [`RoceError::Setting`] if the payload is out of range.
    pub fn new(
        addresses: Addresses,
        connection: Connection,
        inner_port: SourcePort,
        payload: usize,
        mark: u64,
    ) -> Result<Self, RoceError> {
        if !(PAYLOAD_MIN..=PAYLOAD_MAX).contains(&payload) || !payload.is_multiple_of(4) {
            let range = format!(
                "a payload has {PAYLOAD_MIN} to {PAYLOAD_MAX} bytes, a multiple of 4, not {payload}"
            );
            return Err(RoceError::Setting(range));
        }
        let setting = |error: wire::WireError| RoceError::Setting(error.to_string());
        let datagram = Bth::LENGTH + payload + icrc::LENGTH;
        let ((source_mac, source_ip), (destination_mac, destination_ip)) =
            (addresses.source, addresses.destination);
        let mut ip =
            Ipv4::new(source_ip, destination_ip, number::PROTOCOL_UDP, Udp::LENGTH + datagram)
                .map_err(setting)?;
        ip.set_dont_fragment(true).fill_checksum();
        let udp = Udp::new(
            inner_port.of(connection.local, connection.remote),
            number::PORT_ROCE,
            datagram,
        )
        .map_err(setting)?;
        // The packet sequence number has 24 bits and starts anywhere, as on real connections. The
        // number in the payload has 64 bits and starts at 0.
        let first_sequence = connection.local.get();
        let bth = Bth::new(opcode::RC_SEND_ONLY, connection.remote, first_sequence);

        let mut bytes = Vec::with_capacity(PAYLOAD + payload + icrc::LENGTH);
        bytes.extend(Ethernet::new(destination_mac, source_mac, number::ETHERTYPE_IPV4).as_bytes());
        bytes.extend(ip.as_bytes());
        bytes.extend(udp.as_bytes());
        bytes.extend(bth.as_bytes());
        bytes.extend(mark.to_be_bytes());
        bytes.extend(0_u64.to_be_bytes());
        bytes.extend((0_u8..=255).cycle().take(payload - PAYLOAD_MIN));
        bytes.extend([0; icrc::LENGTH]);
        Ok(Self { bytes, first_sequence })
    }

    /// The length of each frame in bytes, without the Ethernet FCS.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the frame with this number into `frame`.
    pub fn write(&self, number: u64, frame: &mut Vec<u8>) {
        frame.clear();
        frame.extend_from_slice(&self.bytes);
        let sequence = u64::from(self.first_sequence).wrapping_add(number);
        if let Some(place) = frame.get_mut(BTH..PAYLOAD)
            && let Ok((mut bth, _)) = Bth::parse_mut(place)
        {
            // The packet sequence number has 24 bits.
            bth.set_sequence(u32::try_from(sequence & 0xff_ffff).unwrap_or_default());
        }
        if let Some(place) = frame.get_mut(PAYLOAD + 8..PAYLOAD + 16) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        let icrc = frame.get(IP..).and_then(icrc::of_plain).unwrap_or_default();
        if let Some(place) = frame.last_chunk_mut() {
            *place = icrc.to_le_bytes();
        }
    }
}

/// The result of checking a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// An undamaged frame of the stream.
    Numbered {
        /// The destination queue pair.
        queue_pair: QueuePair,
        /// The number of the frame, from 0.
        number: u64,
        /// The packet sequence number minus the frame's number. It is constant for a queue pair.
        offset: u32,
    },
    /// A RoCE frame with a wrong ICRC.
    Corrupted {
        /// The destination queue pair in the header.
        queue_pair: QueuePair,
    },
    /// Any other frame, including those of other streams.
    Foreign,
}

/// Checks a received frame. Frames of streams with another mark are foreign.
#[must_use]
pub fn see(frame: &[u8], mark: u64) -> Seen {
    parse(frame, mark).unwrap_or(Seen::Foreign)
}

fn parse(frame: &[u8], mark: u64) -> Option<Seen> {
    let (ethernet, packet) = Ethernet::parse(frame).ok()?;
    if ethernet.ethertype() != number::ETHERTYPE_IPV4 {
        return None;
    }
    let ip = Ipv4Packet::parse(packet).ok()?;
    let whole = !ip.header.more_fragments() && ip.header.fragment_offset() == 0;
    if ip.header.protocol() != number::PROTOCOL_UDP || !whole {
        return None;
    }
    let udp = UdpDatagram::parse(ip.payload).ok()?;
    if udp.header.destination_port() != number::PORT_ROCE {
        return None;
    }
    let (bth, rest) = Bth::parse(udp.payload).ok()?;
    let queue_pair = bth.destination();
    let (payload, found) = rest.split_last_chunk::<{ icrc::LENGTH }>()?;
    let end = Ethernet::LENGTH + usize::from(ip.header.total_length());
    let right = if ip.options.is_empty() {
        icrc::of_plain(frame.get(IP..end)?)? == u32::from_le_bytes(*found)
    } else {
        icrc::is_right(packet).unwrap_or_default()
    };
    if !right {
        return Some(Seen::Corrupted { queue_pair });
    }
    let (found_mark, rest) = payload.split_first_chunk()?;
    let (number, _) = rest.split_first_chunk()?;
    let number = u64::from_be_bytes(*number);
    let sequence = u64::from(bth.sequence());
    let offset = u32::try_from(sequence.wrapping_sub(number) & 0xff_ffff).unwrap_or_default();
    (u64::from_be_bytes(*found_mark) == mark).then_some(Seen::Numbered {
        queue_pair,
        number,
        offset,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::connections;

    fn template(payload: usize) -> FrameTemplate {
        let addresses = Addresses {
            source: (MacAddr([2, 0, 0, 0, 1, 1]), Ipv4Addr::new(192, 168, 10, 1)),
            destination: (MacAddr([2, 0, 0, 0, 4, 1]), Ipv4Addr::new(192, 168, 10, 4)),
        };
        FrameTemplate::new(
            addresses,
            connections(1, 1)[0],
            SourcePort::Constant(0xc000),
            payload,
            7,
        )
        .unwrap()
    }

    fn frame(payload: usize, number: u64) -> Vec<u8> {
        let mut frame = Vec::new();
        template(payload).write(number, &mut frame);
        frame
    }

    #[test]
    fn every_frame_is_right_in_every_header() {
        for (payload, number) in [(16, 0), (1024, 1), (4096, u64::from(u32::MAX))] {
            let frame = frame(payload, number);
            assert_eq!(frame.len(), 58 + payload);
            assert_eq!(frame.len(), template(payload).len());
            let dissection = wire::dissect(&frame).unwrap();
            let roce = dissection.roce.expect("RoCEv2");
            let connection = connections(1, 1)[0];
            assert_eq!(roce.destination, connection.remote);
            assert_eq!(
                u64::from(roce.sequence),
                (u64::from(connection.local.get()) + number) & 0xff_ffff
            );
            assert!(Ipv4Packet::parse(&frame[14..]).unwrap().checksum_is_right());
            // What looks for each field agrees.
            assert_eq!(icrc::is_right(&frame[14..]), Ok(true));
        }
        for payload in [12, 18, 4100] {
            let addresses = Addresses {
                source: (MacAddr::ZERO, Ipv4Addr::LOCALHOST),
                destination: (MacAddr::ZERO, Ipv4Addr::LOCALHOST),
            };
            let connection = connections(1, 1)[0];
            assert!(
                FrameTemplate::new(addresses, connection, SourcePort::PerQueuePair, payload, 7)
                    .is_err()
            );
        }
    }

    #[test]
    fn a_sink_sees_the_number_and_every_damage() {
        let queue_pair = connections(1, 1)[0].remote;
        let offset = connections(1, 1)[0].local.get();
        let whole = frame(64, 99);
        assert_eq!(see(&whole, 7), Seen::Numbered { queue_pair, number: 99, offset });
        assert_eq!(see(&whole, 8), Seen::Foreign);
        for length in 0..whole.len() {
            assert!(!matches!(see(&whole[..length], 7), Seen::Numbered { .. }), "cut to {length}");
        }
        // The ICRC covers all fields that the path may not change. It does not cover ToS, TTL,
        // checksums and ECN bits.
        let may_change = [15, 22, 24, 25, 40, 41, 46];
        for at in 14..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let intact = matches!(see(&damaged, 7), Seen::Numbered { .. });
            assert_eq!(intact, may_change.contains(&at), "byte {at}");
        }
        let mut padded = whole;
        padded.extend([0; 9]);
        assert!(
            matches!(see(&padded, 7), Seen::Numbered { number: 99, .. }),
            "an Ethernet pad is no damage"
        );
    }
}
