//! The invariant CRC of RoCEv2 (InfiniBand architecture 7.8.1 and annex A17.3.3).
//!
//! It is Ethernet's CRC-32 over eight bytes of ones, in place of an InfiniBand header, and the
//! packet from its IP header to the end of the payload. Fields that routers may change count as all
//! ones. The ICRC follows the payload, low byte first, like Ethernet's FCS.

use core::ops::Range;

use crc32fast::Hasher;

use crate::error::WireError;
use crate::ipv4::{Ipv4, Ipv4Packet};
use crate::ipv6::{Ipv6, Ipv6Packet};
use crate::number::PROTOCOL_UDP;
use crate::roce::Bth;
use crate::udp::{Udp, UdpDatagram};

/// Length of the ICRC in bytes.
pub const LENGTH: usize = 4;

/// Computes the ICRC of a RoCEv2 packet that starts with an IPv4 or IPv6 header. The last four
/// bytes of its UDP datagram are reserved for the ICRC and are not read. Padding may follow them.
///
/// # Errors
/// If the IP or UDP header is invalid, the protocol is not UDP, or the datagram is too short for a
/// base transport header and an ICRC.
pub fn compute(packet: &[u8]) -> Result<u32, WireError> {
    locate(packet).map(|(icrc, _)| icrc)
}

/// Whether the packet carries the right ICRC.
///
/// # Errors
/// As [`compute`].
pub fn is_right(packet: &[u8]) -> Result<bool, WireError> {
    let (icrc, place) = locate(packet)?;
    Ok(packet.get(place).is_some_and(|found| found == icrc.to_le_bytes()))
}

/// Computes the ICRC and writes it into the packet.
///
/// # Errors
/// As [`compute`].
pub fn fill(packet: &mut [u8]) -> Result<(), WireError> {
    let (icrc, place) = locate(packet)?;
    if let Some(field) = packet.get_mut(place) {
        field.copy_from_slice(&icrc.to_le_bytes());
    }
    Ok(())
}

/// Computes the ICRC of a whole packet, from an IPv4 header without options to the end of its ICRC.
/// The fields are where they are in all such packets, so this is the fastest way. `None` if it is
/// too short.
#[must_use]
pub fn of_plain(packet: &[u8]) -> Option<u32> {
    const HEADERS: usize = Ipv4::LENGTH + Udp::LENGTH + Bth::LENGTH;
    let (headers, rest) = packet.split_first_chunk::<HEADERS>()?;
    let (body, _) = rest.split_last_chunk::<LENGTH>()?;
    let mut covered = [0xff_u8; 8 + HEADERS];
    let (_, masked) = covered.split_at_mut(8);
    masked.copy_from_slice(headers);
    // Routers may change these: ToS, TTL, header checksum, UDP checksum, FECN and BECN.
    for field in [1, 8, 10, 11, 26, 27, 32] {
        *masked.get_mut(field)? = 0xff;
    }
    let mut crc = Hasher::new();
    crc.update(&covered);
    crc.update(body);
    Some(crc.finalize())
}

/// Computes the ICRC of a packet and the range where it belongs.
fn locate(packet: &[u8]) -> Result<(u32, Range<usize>), WireError> {
    let mut crc = Hasher::new();
    crc.update(&[0xff; 8]);
    let (headers_length, protocol, payload) = if packet.first().is_some_and(|first| first >> 4 == 6)
    {
        let ip = Ipv6Packet::parse(packet)?;
        let upper = ip.upper_layer()?;
        let mut masked = *ip.header.as_bytes();
        masked[0] |= 0x0f;
        [masked[1], masked[2], masked[3], masked[7]] = [0xff; 4];
        let extensions = ip.payload.len() - upper.payload.len();
        crc.update(&masked);
        crc.update(ip.payload.get(..extensions).unwrap_or_default());
        (Ipv6::LENGTH + extensions, upper.protocol, upper.payload)
    } else {
        let ip = Ipv4Packet::parse(packet)?;
        let mut masked = *ip.header.as_bytes();
        [masked[1], masked[8], masked[10], masked[11]] = [0xff; 4];
        crc.update(&masked);
        crc.update(ip.options);
        (Ipv4::LENGTH + ip.options.len(), ip.header.protocol(), ip.payload)
    };
    if protocol != PROTOCOL_UDP {
        return Err(WireError::invalid("ICRC", "protocol", protocol.into()));
    }
    let udp = UdpDatagram::parse(payload)?;
    let truncated = WireError::truncated("ICRC", Bth::LENGTH + LENGTH, udp.payload.len());
    let (bth, rest) = udp.payload.split_first_chunk::<{ Bth::LENGTH }>().ok_or(truncated)?;
    let (body, _) = rest.split_last_chunk::<LENGTH>().ok_or(truncated)?;
    let (mut masked_udp, mut masked_bth) = (*udp.header.as_bytes(), *bth);
    [masked_udp[6], masked_udp[7]] = [0xff; 2];
    masked_bth[4] = 0xff; // FECN, BECN and the reserved bits behind them.
    [&masked_udp[..], &masked_bth, body].into_iter().for_each(|part| crc.update(part));
    let end = headers_length + usize::from(udp.header.length());
    Ok((crc.finalize(), end - LENGTH..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UC send from Scapy's tests (test/contrib/roce.uts). The ICRC was computed with zlib.
    const UC_SEND: [u8; 64] = [
        0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8, 0x00,
        0x07, 0xc0, 0xa8, 0x00, 0x07, 0xc0, 0x00, 0x12, 0xb7, 0x00, 0x2c, 0x00, 0x00, 0x24, 0x60,
        0xff, 0xff, 0x00, 0x00, 0x00, 0xd3, 0x00, 0xcf, 0x17, 0x10, 0x46, 0x30, 0x81, 0x8b, 0xe2,
        0x89, 0x35, 0xd9, 0x0e, 0x9a, 0x95, 0x50, 0x54, 0x01, 0xbe, 0x88, 0x5e, 0x50, 0x00, 0x00,
        0x78, 0xf3, 0x53, 0xf3,
    ];

    /// The reflected polynomial of CRC-32 (IEEE 802.3-2022 section 3.2.9).
    const POLYNOMIAL: u32 = 0xedb8_8320;

    #[test]
    fn crc32_of_the_check_string() {
        let crc32 = |parts: [&[u8]; 2]| {
            let mut crc = Hasher::new();
            parts.into_iter().for_each(|part| crc.update(part));
            crc.finalize()
        };
        // The check value of CRC-32/ISO-HDLC.
        for length in 0..9 {
            let split = b"123456789".split_at(length);
            assert_eq!(crc32([split.0, split.1]), 0xcbf4_3926);
        }
        // Linux's rxe_icrc.c starts from the register after the masked InfiniBand header.
        assert_eq!(!crc32([&[0xff; 8], &[]]), 0xdebb_20e3);
    }

    #[test]
    fn known_packet() {
        let mut packet = UC_SEND;
        assert_eq!(compute(&packet), Ok(0xf353_f378));
        assert_eq!(of_plain(&packet), Some(0xf353_f378));
        assert_eq!(is_right(&packet), Ok(true));
        packet[60..].fill(0);
        assert_eq!(is_right(&packet), Ok(false));
        fill(&mut packet).unwrap();
        assert_eq!(packet, UC_SEND);
    }

    #[test]
    fn q11_every_bit_counts_but_those_that_routers_change() {
        let variant = |at: usize| match at {
            1 => true,           // Type of service.
            8 | 10 | 11 => true, // TTL, header checksum.
            26 | 27 => true,     // UDP checksum.
            32 => true,          // FECN, BECN, reserved.
            _ => false,
        };
        for bit in 0..UC_SEND.len() * 8 {
            let mut packet = UC_SEND;
            packet[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(is_right(&packet) == Ok(true), variant(bit / 8), "bit {bit}");
        }
    }

    #[test]
    fn padding_behind_the_datagram_is_left_alone() {
        let mut padded = UC_SEND.to_vec();
        padded.extend([0x77; 9]);
        assert_eq!(is_right(&padded), Ok(true));
        padded[60..64].fill(0);
        fill(&mut padded).unwrap();
        assert_eq!(padded, [&UC_SEND[..], &[0x77; 9]].concat());
    }

    /// Computes the CRC bit by bit over a copy whose variant fields are ones, as an independent
    /// check.
    fn by_definition(masked: &[u8]) -> u32 {
        let mut register = u32::MAX;
        for byte in [0xff; 8].iter().chain(masked) {
            for bit in 0..8 {
                let feedback = (register ^ u32::from(byte >> bit)) & 1;
                register = (register >> 1) ^ (feedback * POLYNOMIAL);
            }
        }
        !register
    }

    #[test]
    fn ipv6_with_and_without_extension_headers() {
        for extension in [&[][..], &[17, 0, 1, 4, 0, 0, 0, 0]] {
            let datagram = &UC_SEND[20..];
            let mut packet =
                vec![0x61, 0x23, 0x45, 0x67, 0, (extension.len() + datagram.len()) as u8];
            packet.extend([if extension.is_empty() { 17 } else { 60 }, 64]);
            packet.extend(0..32);
            packet.extend(extension);
            packet.extend(datagram);
            let udp = 40 + extension.len();
            let mut masked = packet[..packet.len() - 4].to_vec();
            masked[0] = 0x6f;
            masked[1..4].fill(0xff);
            masked[7] = 0xff;
            masked[udp + 6..udp + 8].fill(0xff);
            masked[udp + 12] = 0xff;
            assert_eq!(compute(&packet), Ok(by_definition(&masked)));
            assert_eq!(is_right(&packet), Ok(false));
            fill(&mut packet).unwrap();
            assert_eq!(is_right(&packet), Ok(true));
            for length in 0..packet.len() {
                assert!(compute(&packet[..length]).is_err(), "{length} bytes");
            }
        }
    }

    #[test]
    fn truncated_or_other_packets_are_errors() {
        for length in 0..UC_SEND.len() {
            assert!(compute(&UC_SEND[..length]).is_err(), "{length} bytes");
            assert_eq!(of_plain(&UC_SEND[..length]).is_some(), length >= 44, "{length} bytes");
        }
        let mut tcp = UC_SEND;
        tcp[9] = 6;
        assert_eq!(compute(&tcp), Err(WireError::invalid("ICRC", "protocol", 6)));
        let mut short = UC_SEND;
        short[24..26].copy_from_slice(&(8u16 + 12 + 3).to_be_bytes());
        assert_eq!(compute(&short), Err(WireError::truncated("ICRC", 16, 15)));
    }
}
