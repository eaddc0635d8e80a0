//! Bundles: inner frames of one size between two stations, sent as one UDP super-frame to the
//! bridge punt pair. The kernel splits the bundle on the punt pair. The steering program at the
//! near end (`steer_punt`) removes the wrapper from each piece. See
//! docs/adr/0010-bundles-to-the-bridge.md.
//!
//! A wrapper consists of the inner frames' own Ethernet header, and an IPv4 and a UDP header that
//! never leave the punt pair. The source address selects the egress ([`WAY_BRIDGE`], [`WAY_PORT`]).
//! The destination address holds the interface index of the port or the slot of the VNI. The
//! program can only remove bytes between an Ethernet and an IPv4 header, so inner frames are IPv4.

use frame::{
    Batch, Destination, ETHERNET, GroupKind, GsoGroup, MACS, Offload, PUNT_TAG, TxFrame, WRAPPER,
};
use wire::number::PROTOCOL_UDP;

use crate::grouping::patch_lengths;
use crate::outer::UDP_AT;

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
const TAGGED: usize = ETHERNET + PUNT_TAG;
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
        kind.copy_from_slice(head.get(MACS + PUNT_TAG..TAGGED)?);
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
    frame.len() - if frame.to == Destination::Bridge { PUNT_TAG } else { 0 }
}

/// Adds the wrapper of a group that needs one to `wrappers`. `first` is its first frame. Returns the
/// wrapper's index.
pub(crate) fn wrap(
    group: &GsoGroup,
    first: &TxFrame,
    batch: &Batch<'_>,
    wrappers: &mut Vec<[u8; WRAPPER]>,
) -> Option<u32> {
    let is_bundle = matches!(group.kind, GroupKind::Bundle)
        && (group.frames > 1 || matches!(first.to, Destination::BundledHost(_)));
    if !is_bundle {
        return None;
    }
    let index = wrappers.len() as u32;
    wrappers.push([0; WRAPPER]);
    write(wrappers.last_mut()?, first, batch, group.payload);
    Some(index)
}

/// Writes the wrapper of a bundle that begins with `first`. `payload` is the length of all its
/// inner frames in bytes.
fn write(wrapper: &mut [u8; WRAPPER], first: &TxFrame, batch: &Batch<'_>, payload: u32) {
    let (egress, to) = match first.to {
        Destination::BundledHost(ifindex) => (WAY_PORT, ifindex),
        _ => (WAY_BRIDGE, first.vni.into()),
    };
    let Some((header, rest)) = wrapper.split_first_chunk_mut::<ETHERNET>() else { return };
    *header = ethernet(first, batch).unwrap_or_default();
    let Some(rest) = rest.first_chunk_mut() else { return };
    *rest = HEADERS;
    rest[12..16].copy_from_slice(&egress.to_be_bytes());
    rest[16..20].copy_from_slice(&to.to_be_bytes());
    patch_lengths(rest, payload as u16);
}
