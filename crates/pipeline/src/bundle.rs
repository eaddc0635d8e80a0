//! Bundles: inner frames of one size between two stations, as one UDP super-frame for the near end
//! of the bridge punt pair. The kernel cuts it on the punt pair, which costs it a tenth of what a
//! message does, and the steering program there (`steer_punt`) takes the wrapper off each piece.
//!
//! A wrapper is an Ethernet header, which is the inner frames' own, and an IPv4 and a UDP header
//! that never leave the punt pair: the source address is the way from there ([`WAY_BRIDGE`],
//! [`WAY_PORT`]), the destination address the port's interface index or the VNI's slot. As the
//! program can only take away what is between an Ethernet header and an IPv4 one, inner frames are
//! IPv4.

use crate::aggregate::speak_for;
use crate::batch::{Batch, Destination, Payload, TxFrame};
use crate::decapsulate::TAG_LENGTH;
use crate::frame::{ETHERNET, MACS, Offload};
use crate::outer::UDP_AT;
use wire::number::PROTOCOL_UDP;

/// Ethernet, IPv4 and UDP header.
pub const WRAPPER: usize = UDP_AT + 8;
/// The source address of frames that go from the punt pair's near end into the vxlan netdev of a
/// slot; as in the program.
pub const WAY_BRIDGE: u32 = 1;
/// Of those that go out of a host's port.
pub const WAY_PORT: u32 = 2;
/// IPv4 (without options, not to be fragmented) and UDP header, but for addresses, lengths and
/// checksums.
const HEADERS: [u8; WRAPPER - ETHERNET] = {
    let mut headers = [0; WRAPPER - ETHERNET];
    (headers[0], headers[6], headers[8], headers[9]) = (0x45, 0x40, 64, PROTOCOL_UDP);
    headers
};
/// The head of a frame for the bridge of which nothing was changed: its Ethernet header, with the
/// tag.
const TAGGED: usize = ETHERNET + TAG_LENGTH;
/// Shortest frame that has a place in a bundle: Ethernet and IPv4 header.
const SHORTEST: usize = UDP_AT;

/// The Ethernet header of the inner frame, which all of a bundle have; `None` if it has none.
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

/// Whether nothing is left to the kernel of a frame that is IPv4 by its Ethernet header.
pub(crate) fn may_join(frame: &TxFrame, header: &[u8; ETHERNET]) -> bool {
    frame.offload == Offload::default()
        && header.ends_with(&[0x08, 0x00])
        && length(frame) >= SHORTEST
}

/// Bytes of the inner frame.
pub(crate) fn length(frame: &TxFrame) -> usize {
    frame.len() - if frame.to == Destination::Bridge { TAG_LENGTH } else { 0 }
}

/// The inner frame, in up to three pieces.
#[must_use]
pub fn pieces<'a>(frame: &'a TxFrame, batch: &Batch<'a>) -> [&'a [u8]; 3] {
    let (head, body) = (frame.head(), frame.body(batch));
    if frame.to != Destination::Bridge {
        return [head, body, &[]];
    }
    // Where nothing was changed, the header still is before the body.
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

/// Writes the wrapper of a bundle that begins with this frame and has so many bytes of inner
/// frames.
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
