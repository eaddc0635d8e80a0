//! Ethernet II frames and VLAN tags.

use crate::header::header;
use crate::types::MacAddr;

header! {
    /// An Ethernet II header (IEEE 802.3-2022 section 3.2), without preamble and FCS.
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                    Destination MAC address                    |
    /// +                               +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                               |                               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
    /// |                      Source MAC address                       |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |           EtherType           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Ethernet[14] {
        /// Destination MAC address.
        destination, set_destination: MacAddr = 0;
        /// Source MAC address.
        source, set_source: MacAddr = 6;
        /// EtherType of the payload; below 0x600 a length.
        ethertype, set_ethertype: u16 = 12;
    }
}

impl Ethernet<[u8; 14]> {
    /// A header with these fields.
    #[must_use]
    pub fn new(destination: MacAddr, source: MacAddr, ethertype: u16) -> Self {
        *Self::zeroed().set_destination(destination).set_source(source).set_ethertype(ethertype)
    }
}

header! {
    /// A VLAN tag (IEEE 802.1Q-2022 section 9.6), without the EtherType before it that identifies
    /// it as a tag.
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// | PCP |D|    VLAN identifier    |           EtherType           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Vlan[4] {
        /// Priority code point, 0 to 7.
        priority, set_priority: u8 = 0 & 0xe0;
        /// Drop eligible indicator.
        drop_eligible, set_drop_eligible: bool = 0 & 0x10;
        /// VLAN identifier, 0 (priority tag) to 4094.
        id, set_id: u16 = 0 & 0x0fff;
        /// EtherType of the payload.
        ethertype, set_ethertype: u16 = 2;
    }
}

impl Vlan<[u8; 4]> {
    /// A tag with priority 0.
    #[must_use]
    pub fn new(id: u16, ethertype: u16) -> Self {
        *Self::zeroed().set_id(id).set_ethertype(ethertype)
    }
}
