//! TCP, as far as segmentation requires it.

use crate::error::WireError;
use crate::header::header;

header! {
    /// A TCP header without its options (RFC 9293 section 3.1).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |          Source port          |       Destination port        |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                        Sequence number                        |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                    Acknowledgment number                      |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |  Data |       |C|E|U|A|P|R|S|F|                               |
    /// | Offset| Rsrvd |W|C|R|C|S|S|Y|I|            Window             |
    /// |       |       |R|E|G|K|H|T|N|N|                               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |           Checksum            |        Urgent pointer         |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Tcp[20] {
        /// Source port.
        source_port, set_source_port: u16 = 0;
        /// Destination port.
        destination_port, set_destination_port: u16 = 2;
        /// Sequence number of the first payload byte.
        sequence, set_sequence: u32 = 4;
        /// Acknowledgment number.
        acknowledgment, set_acknowledgment: u32 = 8;
        /// Length of the header with options in units of four bytes, 5 to 15.
        data_offset, set_data_offset: u8 = 12 & 0xf0;
        /// Reserved bits; the lowest is AccECN's AE flag.
        reserved, set_reserved: u8 = 12 & 0x0f;
        /// All eight control bits: `Tcp::CWR` to `Tcp::FIN`.
        flags, set_flags: u8 = 13;
        /// Receive window.
        window, set_window: u16 = 14;
        /// Checksum over pseudo header, header and payload.
        checksum, set_checksum: u16 = 16;
        /// Urgent pointer.
        urgent, set_urgent: u16 = 18;
    }
}

impl Tcp<[u8; 20]> {
    /// Control bit: congestion window reduced.
    pub const CWR: u8 = 0x80;
    /// Control bit: ECN echo.
    pub const ECE: u8 = 0x40;
    /// Control bit: the urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// Control bit: the acknowledgment number is valid.
    pub const ACK: u8 = 0x10;
    /// Control bit: push.
    pub const PSH: u8 = 0x08;
    /// Control bit: reset.
    pub const RST: u8 = 0x04;
    /// Control bit: synchronize.
    pub const SYN: u8 = 0x02;
    /// Control bit: the sender has finished sending.
    pub const FIN: u8 = 0x01;
    /// Offset of the checksum from the start of the header, in bytes.
    pub const CHECKSUM_OFFSET: usize = 16;
}

/// A TCP segment whose header length fits the bytes that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    /// The fixed header.
    pub header: Tcp<&'a [u8; 20]>,
    /// Options with their padding, up to 40 bytes.
    pub options: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> TcpSegment<'a> {
    /// Views the segment that fills `bytes`. Does not verify the checksum.
    ///
    /// # Errors
    /// If the data offset is below 5 or `bytes` is too short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = Tcp::parse(bytes)?;
        let length = usize::from(header.data_offset()) * 4;
        let Some(options_length) = length.checked_sub(Tcp::LENGTH) else {
            return Err(WireError::invalid("Tcp", "data offset", header.data_offset().into()));
        };
        let (options, payload) = rest
            .split_at_checked(options_length)
            .ok_or(WireError::truncated("Tcp", length, bytes.len()))?;
        Ok(Self { header, options, payload })
    }
}
