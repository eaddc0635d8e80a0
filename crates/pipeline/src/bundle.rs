//! Bundles: inner frames of one size between two stations, sent as one UDP super-frame to the
//! bridge punt pair. The kernel splits the bundle on the punt pair. The steering program at the
//! near end (`steer_punt`) removes the wrapper from each piece. See
//! docs/adr/0010-bundles-to-the-bridge.md.
//!
//! A wrapper consists of the inner frames' own Ethernet header, and an IPv4 and a UDP header that
//! never leave the punt pair. The source address selects the egress ([`WAY_BRIDGE`], [`WAY_PORT`]).
//! The destination address holds the interface index of the port or the slot of the VNI. The
//! program can only remove bytes between an Ethernet and an IPv4 header, so inner frames are IPv4.

use crate::aggregate::speak_for;
use crate::decapsulate::TAG_LENGTH;
use crate::outer::UDP_AT;
use frame::{Batch, Destination, ETHERNET, MACS, Offload, Payload, TxFrame};
use wire::number::PROTOCOL_UDP;

/// Length of a wrapper in bytes: Ethernet, IPv4 and UDP header.
pub const WRAPPER: usize = UDP_AT + 8;
/// Source address in the wrapper of frames for the vxlan netdev of a slot. The steering program has
/// the same constant.
pub const WAY_BRIDGE: u32 = 1;
/// Source address in the wrapper of frames for a host port.
pub const WAY_PORT: u32 = 2;
/// IPv4 header (no options, don't fragment) and UDP header. Addresses, lengths and checksums are
/// zero.
const HEADERS: [u8; WRAPPER - ETHERNET] = {
    let mut headers = [0; WRAPPER - ETHERNET];
    (headers[0], headers[6], headers[8], headers[9]) = (0x45, 0x40, 64, PROTOCOL_UDP);
    headers
};
/// Length of the head of an unmodified frame for the bridge: its Ethernet header and the tag.
const TAGGED: usize = ETHERNET + TAG_LENGTH;
/// Shortest frame that may be in a bundle: Ethernet and IPv4 header.
const SHORTEST: usize = UDP_AT;

/// The Ethernet header of the inner frame, which is the same for all frames of a bundle. `None` if
/// the frame is too short.
#[inline]
pub(crate) fn ethernet(frame: &TxFrame, batch: &Batch<'_>) -> Option<[u8; ETHERNET]> {
    let head = frame.head();
    if frame.to == Destination::Bridge {
        let mut header = [0; ETHERNET];
        let (addresses, kind) = header.split_first_chunk_mut::<MACS>()?;
        *addresses = *head.first_chunk()?;
        kind.copy_from_slice(head.get(MACS + TAG_LENGTH..TAGGED)?);
        return Some(header);
    }
    if head.is_empty() {
        frame.body(batch).first_chunk().copied()
    } else {
        head.first_chunk().copied()
    }
}

/// Whether a frame with this Ethernet header may be in a bundle: IPv4, with no offload left to be
/// done.
pub(crate) fn may_join(frame: &TxFrame, header: &[u8; ETHERNET]) -> bool {
    frame.offload == Offload::default()
        && header.ends_with(&[0x08, 0x00])
        && length(frame) >= SHORTEST
}

/// Length of the inner frame in bytes.
pub(crate) fn length(frame: &TxFrame) -> usize {
    frame.len() - if frame.to == Destination::Bridge { TAG_LENGTH } else { 0 }
}

/// The inner frame, in up to three pieces without the tag.
#[must_use]
pub fn pieces<'a>(frame: &'a TxFrame, batch: &Batch<'a>) -> [&'a [u8]; 3] {
    let (head, body) = (frame.head(), frame.body(batch));
    if frame.to != Destination::Bridge {
        return [head, body, &[]];
    }
    // The Ethernet header of an unmodified frame still precedes the body in the received frame.
    if let Payload::Received { frame: index, range } = &frame.body
        && head.len() == TAGGED
        && let Some(received) = batch.frame(*index as usize)
        && let Some(start) = (range.start as usize).checked_sub(ETHERNET)
        && let Some(whole) = received.data.get(start..range.end as usize)
    {
        return [whole, &[], &[]];
    }
    let addresses = head.get(..MACS).unwrap_or_default();
    [addresses, head.get(MACS + TAG_LENGTH..).unwrap_or_default(), body]
}

/// Writes the wrapper of a bundle that begins with `first`. `payload` is the length of all its
/// inner frames in bytes.
pub fn wrap(wrapper: &mut [u8; WRAPPER], first: &TxFrame, batch: &Batch<'_>, payload: u32) {
    let (way, to) = match first.to {
        Destination::BundledHost(ifindex) => (WAY_PORT, ifindex),
        _ => (WAY_BRIDGE, first.slot.into()),
    };
    let Some((header, rest)) = wrapper.split_first_chunk_mut::<ETHERNET>() else { return };
    *header = ethernet(first, batch).unwrap_or_default();
    let Some(rest) = rest.first_chunk_mut() else { return };
    *rest = HEADERS;
    rest[12..16].copy_from_slice(&way.to_be_bytes());
    rest[16..20].copy_from_slice(&to.to_be_bytes());
    speak_for(rest, payload as u16);
}
