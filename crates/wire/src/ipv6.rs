//! IPv6 and its extension headers.

use core::net::Ipv6Addr;

use crate::error::WireError;
use crate::header::header;
use crate::number::{
    PROTOCOL_AUTHENTICATION, PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP,
    PROTOCOL_ROUTING,
};

/// Largest number of extension headers that are parsed.
pub const MAX_EXTENSION_HEADERS: usize = 8;

header! {
    /// An IPv6 header (RFC 8200 section 3).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |Version| Traffic class |              Flow label               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |        Payload length         |  Next header  |   Hop limit   |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                                                               |
    /// +                        Source address                         +
    /// |                          (16 bytes)                           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                                                               |
    /// +                      Destination address                      +
    /// |                          (16 bytes)                           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Ipv6[40] {
        /// Version: 6.
        version, set_version: u8 = 0 & 0xf0;
        /// Traffic class: DSCP and ECN.
        traffic_class, set_traffic_class: u8 = 0 & 0x0ff0;
        /// Flow label, 20 bits.
        flow_label, set_flow_label: u32 = 0 & 0x000f_ffff;
        /// Length of extension headers and payload in bytes.
        payload_length, set_payload_length: u16 = 4;
        /// Type of the next header: an extension header or the upper layer.
        next_header, set_next_header: u8 = 6;
        /// Hop limit.
        hop_limit, set_hop_limit: u8 = 7;
        /// Source address.
        source, set_source: Ipv6Addr = 8;
        /// Destination address.
        destination, set_destination: Ipv6Addr = 24;
    }
}

impl Ipv6<[u8; 40]> {
    /// A header for `payload_length` bytes, with hop limit 64 and all other fields 0.
    ///
    /// # Errors
    /// If the payload is longer than 65535 bytes.
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_header: u8,
        payload_length: usize,
    ) -> Result<Self, WireError> {
        let length = u16::try_from(payload_length).map_err(|_| {
            WireError::invalid(
                "Ipv6",
                "payload length",
                u32::try_from(payload_length).unwrap_or(u32::MAX),
            )
        })?;
        let mut header = Self::zeroed();
        header
            .set_version(6)
            .set_payload_length(length)
            .set_next_header(next_header)
            .set_hop_limit(64);
        Ok(*header.set_source(source).set_destination(destination))
    }
}

header! {
    /// A fragment header (RFC 8200 section 4.5).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |  Next header  |   Reserved    |     Fragment offset     |Res|M|
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                        Identification                         |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Ipv6Fragment[8] {
        /// Type of the first header of the fragmentable part.
        next_header, set_next_header: u8 = 0;
        /// Reserved byte.
        reserved, set_reserved: u8 = 1;
        /// Fragment offset in units of eight bytes.
        offset, set_offset: u16 = 2 & 0xfff8;
        /// Reserved bits.
        reserved_bits, set_reserved_bits: u8 = 3 & 0x06;
        /// More fragments follow.
        more_fragments, set_more_fragments: bool = 3 & 0x01;
        /// Identification: the same in all fragments of a datagram.
        identification, set_identification: u32 = 4;
    }
}

header! {
    /// The common start of hop-by-hop options, routing and destination options headers (RFC 8200
    /// sections 4.3, 4.4 and 4.6), and of the authentication header (RFC 4302 section 2).
    ///
    /// ```text
    ///  0                   1
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-
    /// |  Next header  |  Ext. length  | ...
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-
    /// ```
    Ipv6Extension[2] {
        /// Type of the next header.
        next_header, set_next_header: u8 = 0;
        /// Length in units of eight bytes, not counting the first eight. In an authentication
        /// header, in units of four bytes minus two.
        length, set_length: u8 = 1;
    }
}

/// An IPv6 packet whose version is 6 and whose length fits the bytes that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Packet<'a> {
    /// The fixed header.
    pub header: Ipv6<&'a [u8; 40]>,
    /// Extension headers and payload as given by the payload length, without padding of the frame.
    pub payload: &'a [u8],
}

/// The end of a chain of extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    /// The upper-layer protocol. In a later fragment, the next header in its fragment header.
    pub protocol: u8,
    /// The last fragment header of the chain.
    pub fragment: Option<Ipv6Fragment<&'a [u8; 8]>>,
    /// The bytes behind the extension headers.
    pub payload: &'a [u8],
}

impl<'a> Ipv6Packet<'a> {
    /// Views the packet at the start of `bytes`. Padding may follow.
    ///
    /// # Errors
    /// If the version is not 6 or `bytes` is too short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = Ipv6::parse(bytes)?;
        if header.version() != 6 {
            return Err(WireError::invalid("Ipv6", "version", header.version().into()));
        }
        let length = usize::from(header.payload_length());
        let payload = rest.get(..length).ok_or(WireError::truncated(
            "Ipv6",
            Ipv6::LENGTH + length,
            bytes.len(),
        ))?;
        Ok(Self { header, payload })
    }

    /// Skips the extension headers.
    ///
    /// # Errors
    /// If one of them is truncated, or there are more than [`MAX_EXTENSION_HEADERS`].
    pub fn upper_layer(&self) -> Result<UpperLayer<'a>, WireError> {
        let mut at = UpperLayer {
            protocol: self.header.next_header(),
            fragment: None,
            payload: self.payload,
        };
        for _ in 0..=MAX_EXTENSION_HEADERS {
            let units =
                || Ipv6Extension::parse(at.payload).map(|(header, _)| usize::from(header.length()));
            let length = match at.protocol {
                PROTOCOL_HOP_BY_HOP | PROTOCOL_ROUTING | PROTOCOL_DESTINATION_OPTIONS => {
                    (units()? + 1) * 8
                }
                PROTOCOL_AUTHENTICATION => (units()? + 2) * 4,
                PROTOCOL_FRAGMENT => Ipv6Fragment::LENGTH,
                _ => return Ok(at),
            };
            let truncated = WireError::truncated("Ipv6Extension", length, at.payload.len());
            let (extension, rest) = at.payload.split_at_checked(length).ok_or(truncated)?;
            let is_fragment = at.protocol == PROTOCOL_FRAGMENT;
            at.protocol = Ipv6Extension::parse(extension)?.0.next_header();
            at.payload = rest;
            if is_fragment {
                let (fragment, _) = Ipv6Fragment::parse(extension)?;
                at.fragment = Some(fragment);
                if fragment.offset() != 0 {
                    return Ok(at);
                }
            }
        }
        Err(WireError::invalid("Ipv6", "extension header", at.protocol.into()))
    }
}
