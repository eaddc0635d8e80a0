//! UDP.

use crate::error::WireError;
use crate::header::header;

header! {
    /// A UDP header (RFC 768).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |          Source port          |       Destination port        |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |            Length             |           Checksum            |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Udp[8] {
        /// Source port.
        source_port, set_source_port: u16 = 0;
        /// Destination port.
        destination_port, set_destination_port: u16 = 2;
        /// Length of header and payload in bytes.
        length, set_length: u16 = 4;
        /// Checksum; 0 if there is none.
        checksum, set_checksum: u16 = 6;
    }
}

impl Udp<[u8; 8]> {
    /// A header without checksum, for a payload of `payload_length` bytes.
    ///
    /// # Errors
    /// If header and payload are longer than 65535 bytes.
    pub fn new(
        source_port: u16,
        destination_port: u16,
        payload_length: usize,
    ) -> Result<Self, WireError> {
        let length = payload_length.saturating_add(Self::LENGTH);
        let length = u16::try_from(length).map_err(|_| {
            WireError::invalid("Udp", "length", u32::try_from(length).unwrap_or(u32::MAX))
        })?;
        let mut header = Self::zeroed();
        header
            .set_source_port(source_port)
            .set_destination_port(destination_port)
            .set_length(length);
        Ok(header)
    }
}

/// A UDP datagram whose length fits the bytes that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// The header.
    pub header: Udp<&'a [u8; 8]>,
    /// The payload as given by the UDP length.
    pub payload: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Views the datagram at the start of `bytes`. Does not verify the checksum.
    ///
    /// # Errors
    /// If the length is below 8 or `bytes` is too short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = Udp::parse(bytes)?;
        let length = usize::from(header.length());
        let Some(payload_length) = length.checked_sub(Udp::LENGTH) else {
            return Err(WireError::invalid("Udp", "length", header.length().into()));
        };
        let payload =
            rest.get(..payload_length).ok_or(WireError::truncated("Udp", length, bytes.len()))?;
        Ok(Self { header, payload })
    }
}
