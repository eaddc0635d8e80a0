//! IPv4.

use core::net::Ipv4Addr;

use crate::checksum::checksum;
use crate::error::WireError;
use crate::header::header;

header! {
    /// An IPv4 header without its options (RFC 791 section 3.1, RFC 2474, RFC 3168).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |Version|  IHL  |     DSCP  |ECN|         Total length          |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |        Identification         |R|D|M|     Fragment offset     |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// | Time to live  |   Protocol    |        Header checksum        |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                        Source address                         |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                      Destination address                      |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Ipv4[20] {
        /// Version: 4.
        version, set_version: u8 = 0 & 0xf0;
        /// Internet header length in units of four bytes, 5 to 15.
        ihl, set_ihl: u8 = 0 & 0x0f;
        /// Type of service: DSCP and ECN.
        tos, set_tos: u8 = 1;
        /// Length of header and payload in bytes.
        total_length, set_total_length: u16 = 2;
        /// Identification: the same in all fragments of a datagram.
        identification, set_identification: u16 = 4;
        /// The reserved flag.
        reserved, set_reserved: bool = 6 & 0x80;
        /// Don't fragment.
        dont_fragment, set_dont_fragment: bool = 6 & 0x40;
        /// More fragments follow.
        more_fragments, set_more_fragments: bool = 6 & 0x20;
        /// Fragment offset in units of eight bytes.
        fragment_offset, set_fragment_offset: u16 = 6 & 0x1fff;
        /// Time to live.
        ttl, set_ttl: u8 = 8;
        /// Protocol of the payload.
        protocol, set_protocol: u8 = 9;
        /// Header checksum.
        checksum, set_checksum: u16 = 10;
        /// Source address.
        source, set_source: Ipv4Addr = 12;
        /// Destination address.
        destination, set_destination: Ipv4Addr = 16;
    }
}

impl Ipv4<[u8; 20]> {
    /// A header without options for `payload_length` bytes, with TTL 64 and all other fields 0. The
    /// checksum is valid until a field is set.
    ///
    /// # Errors
    /// If header and payload are longer than 65535 bytes.
    pub fn new(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        payload_length: usize,
    ) -> Result<Self, WireError> {
        let length = payload_length.saturating_add(Self::LENGTH);
        let total_length = u16::try_from(length).map_err(|_| {
            WireError::invalid("Ipv4", "total length", u32::try_from(length).unwrap_or(u32::MAX))
        })?;
        let mut header = Self::zeroed();
        header
            .set_version(4)
            .set_ihl(5)
            .set_total_length(total_length)
            .set_ttl(64)
            .set_protocol(protocol);
        header.set_source(source).set_destination(destination);
        Ok(*header.fill_checksum())
    }

    /// Recomputes the checksum of a header without options.
    pub fn fill_checksum(&mut self) -> &mut Self {
        self.set_checksum(0);
        self.set_checksum(checksum(self.as_bytes()))
    }
}

/// An IPv4 packet whose version is 4 and whose lengths fit the bytes that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Packet<'a> {
    /// The fixed header.
    pub header: Ipv4<&'a [u8; 20]>,
    /// Options with their padding, up to 40 bytes.
    pub options: &'a [u8],
    /// The payload as given by the total length, without padding of the frame.
    pub payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Views the packet at the start of `bytes`. Padding may follow. Does not verify the checksum.
    ///
    /// # Errors
    /// If the version is not 4, the header is shorter than 20 bytes, the total length is shorter
    /// than the header, or `bytes` is too short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = Ipv4::parse(bytes)?;
        if header.version() != 4 {
            return Err(WireError::invalid("Ipv4", "version", header.version().into()));
        }
        let Some(options_length) = (usize::from(header.ihl()) * 4).checked_sub(20) else {
            return Err(WireError::invalid("Ipv4", "IHL", header.ihl().into()));
        };
        let total = usize::from(header.total_length());
        let Some(payload_length) = total.checked_sub(20 + options_length) else {
            return Err(WireError::invalid("Ipv4", "total length", header.total_length().into()));
        };
        let truncated = WireError::truncated("Ipv4", total, bytes.len());
        let (options, rest) = rest.split_at_checked(options_length).ok_or(truncated)?;
        let payload = rest.get(..payload_length).ok_or(truncated)?;
        Ok(Self { header, options, payload })
    }

    /// Whether the header checksum is right. It also covers the options.
    #[must_use]
    pub fn checksum_is_right(&self) -> bool {
        crate::checksum::Sum::new().bytes(self.header.as_bytes()).bytes(self.options).is_intact()
    }
}
