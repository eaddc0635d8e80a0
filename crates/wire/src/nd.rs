//! Neighbor discovery for IPv6: solicitations, advertisements and their link-layer address options.

use core::net::Ipv6Addr;

use crate::checksum::Sum;
use crate::error::WireError;
use crate::header::header;
use crate::number::PROTOCOL_ICMPV6;
use crate::types::MacAddr;

header! {
    /// A neighbor solicitation or advertisement without its options (RFC 4861 sections 4.3 and
    /// 4.4). A solicitation has no flags.
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |     Type      |     Code      |           Checksum            |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |R|S|O|                     Reserved                            |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                                                               |
    /// +                        Target address                         +
    /// |                          (16 bytes)                           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Neighbor[24] {
        /// [`Neighbor::SOLICITATION`] or [`Neighbor::ADVERTISEMENT`].
        kind, set_kind: u8 = 0;
        /// Code: 0.
        code, set_code: u8 = 1;
        /// Checksum over pseudo header and message.
        checksum, set_checksum: u16 = 2;
        /// R: the sender is a router.
        router, set_router: bool = 4 & 0x80;
        /// S: the advertisement is a reply to a solicitation.
        solicited, set_solicited: bool = 4 & 0x40;
        /// O: the advertisement overrides existing entries.
        override_known, set_override_known: bool = 4 & 0x20;
        /// Reserved bits.
        reserved, set_reserved: u32 = 4 & 0x1fff_ffff;
        /// The address that is solicited or advertised.
        target, set_target: Ipv6Addr = 8;
    }
}

header! {
    /// A link-layer address option for Ethernet (RFC 4861 section 4.6.1).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |     Type      |    Length     |                               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
    /// |                          MAC address                          |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    LinkLayerOption[8] {
        /// [`LinkLayerOption::SOURCE`] or [`LinkLayerOption::TARGET`].
        kind, set_kind: u8 = 0;
        /// Length of the option in units of eight bytes: 1.
        length, set_length: u8 = 1;
        /// The MAC address.
        mac, set_mac: MacAddr = 2;
    }
}

impl Neighbor<[u8; 24]> {
    /// Type: neighbor solicitation.
    pub const SOLICITATION: u8 = 135;
    /// Type: neighbor advertisement.
    pub const ADVERTISEMENT: u8 = 136;
}

impl LinkLayerOption<[u8; 8]> {
    /// Type: MAC address of the sender, in solicitations.
    pub const SOURCE: u8 = 1;
    /// Type: MAC address of the target, in advertisements.
    pub const TARGET: u8 = 2;

    /// An option of type `kind`.
    #[must_use]
    pub fn new(kind: u8, mac: MacAddr) -> Self {
        *Self::zeroed().set_kind(kind).set_length(1).set_mac(mac)
    }
}

/// A neighbor solicitation or advertisement. It is checked as RFC 4861 sections 7.1.1 and 7.1.2
/// require, except for the hop limit of 255 and the checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighborMessage<'a> {
    /// The part before the options.
    pub header: Neighbor<&'a [u8; 24]>,
    options: &'a [u8],
}

impl<'a> NeighborMessage<'a> {
    /// Views the ICMPv6 message that fills `bytes`.
    ///
    /// # Errors
    /// If `bytes` is too short, the type or code is different, the target is a multicast address,
    /// or an option has length 0 or is truncated.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (header, options) = Neighbor::parse(bytes)?;
        if !matches!(header.kind(), Neighbor::SOLICITATION | Neighbor::ADVERTISEMENT) {
            return Err(WireError::invalid("Neighbor", "type", header.kind().into()));
        }
        if header.code() != 0 {
            return Err(WireError::invalid("Neighbor", "code", header.code().into()));
        }
        if header.target().is_multicast() {
            return Err(WireError::invalid(
                "Neighbor",
                "target",
                header.target().segments()[0].into(),
            ));
        }
        let message = Self { header, options };
        let mut rest = options;
        while !rest.is_empty() {
            (_, rest) = split_option(rest)?;
        }
        Ok(message)
    }

    /// The MAC address in the first link-layer address option of type `kind`. Options whose length
    /// is not that of Ethernet are skipped.
    #[must_use]
    pub fn link_layer_address(&self, kind: u8) -> Option<MacAddr> {
        let mut rest = self.options;
        while let Ok((option, behind)) = split_option(rest) {
            if let Ok((address, &[])) = LinkLayerOption::parse(option)
                && address.kind() == kind
            {
                return Some(address.mac());
            }
            rest = behind;
        }
        None
    }
}

/// Splits off the option at the start of `bytes`.
fn split_option(bytes: &[u8]) -> Result<(&[u8], &[u8]), WireError> {
    let available = bytes.len();
    let &[_, units] =
        bytes.first_chunk().ok_or(WireError::truncated("Neighbor option", 2, available))?;
    if units == 0 {
        return Err(WireError::invalid("Neighbor option", "length", 0));
    }
    let length = usize::from(units) * 8;
    bytes.split_at_checked(length).ok_or(WireError::truncated("Neighbor option", length, available))
}

/// Length of a message with one link-layer address option, in bytes.
pub const MESSAGE_LENGTH: usize = Neighbor::LENGTH + LinkLayerOption::LENGTH;

/// A message with one link-layer address option. The checksum is computed for these IPv6 addresses.
#[must_use]
pub fn message(
    mut neighbor: Neighbor<[u8; 24]>,
    option: LinkLayerOption<[u8; 8]>,
    source: Ipv6Addr,
    destination: Ipv6Addr,
) -> [u8; MESSAGE_LENGTH] {
    neighbor.set_checksum(0);
    let sum = Sum::new()
        .pseudo_ipv6(source, destination, PROTOCOL_ICMPV6, MESSAGE_LENGTH as u32)
        .bytes(neighbor.as_bytes())
        .bytes(option.as_bytes());
    neighbor.set_checksum(sum.checksum());
    let mut bytes = [0; MESSAGE_LENGTH];
    let (fixed, rest) = bytes.split_at_mut(Neighbor::LENGTH);
    fixed.copy_from_slice(neighbor.as_bytes());
    rest.copy_from_slice(option.as_bytes());
    bytes
}
