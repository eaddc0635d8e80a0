//! ARP for IPv4.

use core::net::Ipv4Addr;

use crate::error::WireError;
use crate::header::header;
use crate::number::ETHERTYPE_IPV4;
use crate::types::MacAddr;

header! {
    /// An ARP packet for IPv4 over Ethernet (RFC 826).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |         Hardware type         |         Protocol type         |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |  Hw. length   | Prot. length  |           Operation           |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                      Sender MAC address                       |
    /// +                               +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                               |    Sender IPv4 address (0-1)  |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |    Sender IPv4 address (2-3)  |                               |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
    /// |                      Target MAC address                       |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |                      Target IPv4 address                      |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Arp[28] {
        /// Hardware type: 1 for Ethernet.
        hardware_type, set_hardware_type: u16 = 0;
        /// Protocol type: the EtherType of IPv4.
        protocol_type, set_protocol_type: u16 = 2;
        /// Length of a hardware address: 6.
        hardware_length, set_hardware_length: u8 = 4;
        /// Length of a protocol address: 4.
        protocol_length, set_protocol_length: u8 = 5;
        /// [`Arp::REQUEST`] or [`Arp::REPLY`].
        operation, set_operation: u16 = 6;
        /// Sender's MAC address.
        sender_mac, set_sender_mac: MacAddr = 8;
        /// Sender's IPv4 address.
        sender, set_sender: Ipv4Addr = 14;
        /// Target's MAC address; without meaning in a request.
        target_mac, set_target_mac: MacAddr = 18;
        /// Target's IPv4 address.
        target, set_target: Ipv4Addr = 24;
    }
}

impl Arp<[u8; 28]> {
    /// Operation: request for the MAC address of the target.
    pub const REQUEST: u16 = 1;
    /// Operation: reply with the sender's MAC address.
    pub const REPLY: u16 = 2;

    /// A packet for IPv4 over Ethernet with all addresses zero.
    #[must_use]
    pub fn new(operation: u16) -> Self {
        *Self::zeroed()
            .set_hardware_type(1)
            .set_protocol_type(ETHERTYPE_IPV4)
            .set_hardware_length(6)
            .set_protocol_length(4)
            .set_operation(operation)
    }
}

impl<'a> Arp<&'a [u8; 28]> {
    /// Views the packet at the start of `bytes` if it is for IPv4 over Ethernet. Padding may
    /// follow.
    ///
    /// # Errors
    /// If `bytes` is too short, or a type or length is not that of IPv4 over Ethernet.
    pub fn parse_ipv4(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (arp, _) = Self::parse(bytes)?;
        let invalid = |field, value: u16| Err(WireError::invalid("Arp", field, value.into()));
        if arp.hardware_type() != 1 {
            return invalid("hardware type", arp.hardware_type());
        }
        if arp.protocol_type() != ETHERTYPE_IPV4 {
            return invalid("protocol type", arp.protocol_type());
        }
        if arp.hardware_length() != 6 {
            return invalid("hardware length", arp.hardware_length().into());
        }
        if arp.protocol_length() != 4 {
            return invalid("protocol length", arp.protocol_length().into());
        }
        Ok(arp)
    }
}
