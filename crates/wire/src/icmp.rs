//! ICMP and ICMPv6 headers.

use crate::header::header;

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
    /// Type: destination unreachable.
    pub const UNREACHABLE: u8 = 3;
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
    /// Type: packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
}
