//! `struct br_port_msg`: multicast databases of bridges, and of vxlan netdevs themselves.
//!
//! Attribute numbers: `include/uapi/linux/if_bridge.h`.

use crate::envelope::Envelope;
use crate::malformed::DecodeError;
use crate::message::Mdb;

/// The number of multicast entries. `None` for messages without entries: empty databases, and those
/// that only list ports with multicast routers.
pub(super) fn mdb(envelope: &Envelope<'_>) -> Result<Option<Mdb>, DecodeError> {
    let (&[_, _, _, _, i0, i1, i2, i3], attributes) = envelope.body::<8>()?;
    let mut entries: usize = 0;
    for attribute in attributes {
        let attribute = attribute?;
        // MDBA_MDB contains MDBA_MDB_ENTRY.
        if attribute.kind == 1 {
            for inner in attribute.nested() {
                entries = entries.saturating_add(usize::from(inner?.kind == 1));
            }
        }
    }
    Ok((entries > 0).then_some(Mdb { ifindex: u32::from_ne_bytes([i0, i1, i2, i3]), entries }))
}
