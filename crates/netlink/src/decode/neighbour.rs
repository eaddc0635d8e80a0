//! `struct ndmsg`: FDB entries and neighbours.
//!
//! Attribute numbers: `include/uapi/linux/neighbour.h`.

use crate::envelope::{AF_BRIDGE, AF_INET, AF_INET6, Envelope};
use crate::malformed::DecodeError;
use crate::message::{FdbEntry, Message, Neighbour, Operation};

/// `NDA_DST`.
const DESTINATION: u16 = 1;
/// `NDA_LLADDR`.
const LINK_LAYER_ADDRESS: u16 = 2;

/// An FDB entry or a neighbour. `None` for families other than `AF_BRIDGE`, IPv4 and IPv6.
pub(super) fn neighbour(
    envelope: &Envelope<'_>,
    operation: Operation,
) -> Result<Option<Message>, DecodeError> {
    let (&[family, _, _, _, i0, i1, i2, i3, s0, s1, flags, _], attributes) =
        envelope.body::<12>()?;
    let mut entry = FdbEntry {
        ifindex: u32::from_ne_bytes([i0, i1, i2, i3]),
        state: u16::from_ne_bytes([s0, s1]),
        flags: flags.into(),
        ..FdbEntry::default()
    };
    let mut mac = None;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            DESTINATION => entry.destination = Some(attribute.ip()?),
            LINK_LAYER_ADDRESS => mac = attribute.mac(),
            5 => entry.vlan = Some(attribute.u16()?),
            6 => entry.port = Some(attribute.u16_network_order()?),
            7 => entry.vni = Some(attribute.u32()?),
            8 => entry.via = Some(attribute.u32()?),
            9 => entry.master = Some(attribute.u32()?),
            11 => entry.source_vni = Some(attribute.u32()?),
            13 => entry.next_hop_id = Some(attribute.u32()?),
            15 => entry.flags |= attribute.u32()? << 8,
            _ => {}
        }
    }
    match family {
        AF_BRIDGE => {
            entry.mac = mac.ok_or_else(|| envelope.missing(LINK_LAYER_ADDRESS))?;
            Ok(Some(Message::Fdb(operation, entry)))
        }
        AF_INET | AF_INET6 => {
            let FdbEntry { ifindex, destination, state, flags, .. } = entry;
            let address = destination.ok_or_else(|| envelope.missing(DESTINATION))?;
            Ok(Some(Message::Neighbour(
                operation,
                Neighbour { ifindex, address, mac, state, flags },
            )))
        }
        _ => Ok(None),
    }
}
