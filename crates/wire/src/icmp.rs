//! ICMP and ICMPv6 headers, and the error messages that a tunnel endpoint sends.

use core::net::Ipv6Addr;

use crate::checksum::Sum;
use crate::error::WireError;
use crate::header::header;
use crate::number::PROTOCOL_ICMPV6;

header! {
    /// An ICMP header (RFC 792), with the next-hop MTU of "fragmentation needed" (RFC 1191 section
    /// 4).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |     Type      |     Code      |           Checksum            |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |    Identifier (echo), or 0    |  Sequence (echo) or next MTU  |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Icmp[8] {
        /// Type.
        kind, set_kind: u8 = 0;
        /// Code.
        code, set_code: u8 = 1;
        /// Checksum over the ICMP message.
        checksum, set_checksum: u16 = 2;
        /// Identifier of an echo; unused in errors.
        identifier, set_identifier: u16 = 4;
        /// Sequence number of an echo; MTU of the next hop in bytes in "fragmentation needed".
        sequence_or_mtu, set_sequence_or_mtu: u16 = 6;
    }
}

impl Icmp<[u8; 8]> {
    /// Type: echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Type: destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Type: echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Code of [`Icmp::UNREACHABLE`]: host.
    pub const HOST: u8 = 1;
    /// Code of [`Icmp::UNREACHABLE`]: port.
    pub const PORT: u8 = 3;
    /// Code of [`Icmp::UNREACHABLE`]: fragmentation needed, but forbidden.
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

header! {
    /// An ICMPv6 header (RFC 4443 section 2.1), with the MTU of "packet too big" (section 3.2).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |     Type      |     Code      |           Checksum            |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |           MTU, or identifier and sequence, or 0               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Icmpv6[8] {
        /// Type.
        kind, set_kind: u8 = 0;
        /// Code.
        code, set_code: u8 = 1;
        /// Checksum over pseudo header and ICMPv6 message.
        checksum, set_checksum: u16 = 2;
        /// MTU of the next hop in bytes in "packet too big"; identifier and sequence number of an
        /// echo.
        parameter, set_parameter: u32 = 4;
    }
}

impl Icmpv6<[u8; 8]> {
    /// Type: destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Type: packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Type: echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Type: echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Code of [`Icmpv6::UNREACHABLE`]: address.
    pub const ADDRESS: u8 = 3;
    /// Code of [`Icmpv6::UNREACHABLE`]: port.
    pub const PORT: u8 = 4;
}

/// The reason for an ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// The host or address is unreachable.
    HostUnreachable,
    /// No socket is bound to the port.
    PortUnreachable,
    /// The packet is longer than the MTU of the next hop.
    TooBig {
        /// MTU of the next hop in bytes. ICMP has 16 bits for it, so larger values are sent as
        /// 65535.
        mtu: u32,
    },
}

/// Largest number of bytes of the offending packet in an ICMP error. The whole IPv4 packet stays
/// within 576 bytes (RFC 1812 section 4.3.2.3).
const QUOTE: usize = 576 - 20 - Icmp::LENGTH;
/// Largest number of bytes of the offending packet in an ICMPv6 error. The whole IPv6 packet stays
/// within the minimum MTU (RFC 4443 section 2.4 c).
const QUOTE_V6: usize = 1280 - 40 - Icmpv6::LENGTH;

/// Writes an ICMP error to the start of `out`. `offending` starts with its IPv4 header. Returns the
/// length of the message in bytes, at most 556.
///
/// # Errors
/// If `out` is too short.
pub fn write_error(out: &mut [u8], problem: Problem, offending: &[u8]) -> Result<usize, WireError> {
    let mut header = Icmp::zeroed();
    header.set_kind(Icmp::UNREACHABLE);
    match problem {
        Problem::HostUnreachable => header.set_code(Icmp::HOST),
        Problem::PortUnreachable => header.set_code(Icmp::PORT),
        Problem::TooBig { mtu } => header
            .set_code(Icmp::FRAGMENTATION_NEEDED)
            .set_sequence_or_mtu(u16::try_from(mtu).unwrap_or(u16::MAX)),
    };
    let quote = offending.get(..QUOTE).unwrap_or(offending);
    header.set_checksum(Sum::new().bytes(header.as_bytes()).bytes(quote).checksum());
    write_quoting(header.write(out)?, quote).map(|quoted| Icmp::LENGTH + quoted)
}

/// Writes an ICMPv6 error from `source` to `destination` to the start of `out`. `offending` starts
/// with its IPv6 header. Returns the length of the message in bytes, at most 1240.
///
/// # Errors
/// If `out` is too short.
pub fn write_error_v6(
    out: &mut [u8],
    problem: Problem,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    offending: &[u8],
) -> Result<usize, WireError> {
    let mut header = Icmpv6::zeroed();
    match problem {
        Problem::HostUnreachable => header.set_kind(Icmpv6::UNREACHABLE).set_code(Icmpv6::ADDRESS),
        Problem::PortUnreachable => header.set_kind(Icmpv6::UNREACHABLE).set_code(Icmpv6::PORT),
        Problem::TooBig { mtu } => header.set_kind(Icmpv6::PACKET_TOO_BIG).set_parameter(mtu),
    };
    let quote = offending.get(..QUOTE_V6).unwrap_or(offending);
    // At most 1240, so the cast does not truncate.
    let length = (Icmpv6::LENGTH + quote.len()) as u32;
    let pseudo = Sum::new().pseudo_ipv6(source, destination, PROTOCOL_ICMPV6, length);
    header.set_checksum(pseudo.bytes(header.as_bytes()).bytes(quote).checksum());
    write_quoting(header.write(out)?, quote).map(|quoted| Icmpv6::LENGTH + quoted)
}

fn write_quoting(out: &mut [u8], quote: &[u8]) -> Result<usize, WireError> {
    let available = out.len();
    let place = out.get_mut(..quote.len()).ok_or(WireError::truncated(
        "quotation in an ICMP error",
        quote.len(),
        available,
    ))?;
    place.copy_from_slice(quote);
    Ok(quote.len())
}
