//! `struct netconfmsg`: IPv4 settings of interfaces.
//!
//! Attribute numbers: `include/uapi/linux/netconf.h`.

use crate::envelope::{AF_INET, Envelope};
use crate::malformed::DecodeError;
use crate::message::{Operation, ReversePathFilter};

/// The value of `rp_filter`. `None` for other families, and for messages about other settings.
pub(super) fn reverse_path_filter(
    envelope: &Envelope<'_>,
    operation: Operation,
) -> Result<Option<ReversePathFilter>, DecodeError> {
    let (&[family, ..], attributes) = envelope.body::<4>()?;
    let (mut ifindex, mut value) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => ifindex = Some(attribute.i32()?),
            3 => value = Some(attribute.i32()?),
            _ => {}
        }
    }
    // The delete message of an interface has no values.
    let value = value.or_else(|| (operation == Operation::Delete).then_some(0));
    Ok(ifindex
        .zip(value)
        .filter(|_| family == AF_INET)
        .map(|(ifindex, value)| ReversePathFilter { ifindex, value }))
}
