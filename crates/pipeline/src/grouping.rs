//! Grouping of encapsulated frames that are sent together: frames of one outer flow and one size
//! become a UDP super-frame. The kernel splits it where necessary (`__udp_gso_segment()`,
//! `net/ipv4/udp_offload.c`).
//!
//! Frames of one flow keep their order. All segments of a super-frame have one size, except that
//! the last may be shorter. The next frame of a flow therefore joins the flow's open group or
//! closes it. Groups leave in the order of their first frames.

use frame::{
    Checksum, Destination, ETHERNET, Groups, Gso, GsoGroup, GsoKind, Offload, Queue,
    SHARED_HEADERS, SHARED_HEADERS_IPV6, TxBatch, TxFrame,
};
use wire::checksum::{Sum, checksum};
use wire::number::PROTOCOL_UDP;

use crate::identification::Identifications;
use crate::outer::{OVERHEAD, OVERHEAD_IPV6, UDP_AT, UDP_AT_IPV6, UDP_CHECKSUM};

/// Largest number of segments in a super-frame (`UDP_MAX_SEGMENTS`, `include/linux/udp.h`, before
/// Linux 6.9).
const SEGMENTS: u32 = 64;
/// Largest UDP payload of a super-frame in bytes. Its IPv4 packet stays below 65,536.
const PAYLOAD: u32 = 65_000;
/// Group number of a flow whose last group is closed.
const CLOSED: u32 = u32::MAX;

/// Groups the frames of transmit batches. Its memory is reused for the next batch.
#[derive(Debug, Default)]
pub struct Grouper {
    /// Hash table of flows, with the last group of each. It has at least twice as many slots as
    /// there are frames, so it never fills up.
    slots: Vec<Slot>,
    /// Groups before this index are closed.
    closed: usize,
}

/// A slot of the hash table. It belongs to the flow that took it first (linear probing).
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    hash: u32,
    /// Index of the flow's last group plus one; 0 if the slot is free.
    group: u32,
}

impl Grouper {
    /// Divides the frames for uplinks into groups, and has the headers of the first frame of each
    /// group describe the whole group. Its identifications are new ones of the sequence.
    pub fn group(&mut self, out: &mut TxBatch, identifications: &Identifications) {
        let (frames, groups) = out.split_mut();
        groups.next.resize(frames.len(), 0);
        self.slots.clear();
        self.slots.resize(2 * frames.len().next_power_of_two(), Slot::default());
        let start = groups.list.len();
        self.closed = start;
        self.group_flows(frames, groups);
        groups.set_queue(Queue::Uplinks, start);
        for group in groups.list.iter_mut().skip(start).filter(|group| group.is_super_frame()) {
            if let Some(first) = frames.get_mut(group.first as usize) {
                group.offload = describe(group, first, identifications);
            }
        }
    }

    /// Groups encapsulated frames.
    fn group_flows(&mut self, frames: &[TxFrame], groups: &mut Groups) {
        for (frame, index) in frames.iter().zip(0u32..) {
            let Destination::Uplink { impaired, .. } = frame.to else { continue };
            if !impaired && may_join(frame) {
                let single = GsoGroup::single(frame, index);
                let first = |group: &GsoGroup| frames.get(group.first as usize);
                self.add(groups, single, flow_hash(frame), |group| {
                    first(group).is_some_and(|first| same_flow(first, frame))
                });
            } else {
                self.add_other((frames, groups), (frame, index), impaired);
            }
        }
    }

    /// Adds an encapsulated frame that cannot be in a group over IPv4.
    #[inline(never)]
    fn add_other(
        &mut self,
        (frames, groups): (&[TxFrame], &mut Groups),
        (frame, index): (&TxFrame, u32),
        impaired: bool,
    ) {
        let single = GsoGroup::single(frame, index);
        if impaired || !may_join_over_ipv6(frame) {
            return self.add_unknown(groups, single);
        }
        let payload = frame.len().saturating_sub(SHARED_HEADERS_IPV6) as u32;
        let single = GsoGroup { segment: payload, payload, shared: SHARED_HEADERS_IPV6, ..single };
        self.add(groups, single, flow_hash_ipv6(frame), |group| {
            let first = frames.get(group.first as usize);
            first.is_some_and(|first| same_flow_ipv6(first, frame))
        });
    }

    /// Adds a frame that may belong to any flow, and closes all groups before it.
    fn add_unknown(&mut self, groups: &mut Groups, single: GsoGroup) {
        self.closed = groups.list.len();
        groups.list.push(single);
    }

    /// Adds a frame to the last group of its flow if that accepts it. Otherwise starts a new group.
    #[inline(always)]
    fn add(
        &mut self,
        groups: &mut Groups,
        single: GsoGroup,
        hash: u32,
        accepts: impl FnOnce(&GsoGroup) -> bool,
    ) {
        let Some(slot) = find(&mut self.slots, hash) else { return };
        let index = (slot.group as usize).checked_sub(1).filter(|index| *index >= self.closed);
        if let Some(group) = index.and_then(|index| groups.list.get_mut(index))
            && single.payload <= group.segment
            && group.frames < SEGMENTS
            && group.payload + single.payload <= PAYLOAD
            && accepts(group)
        {
            if let Some(next) = groups.next.get_mut(group.last as usize) {
                *next = single.first;
            }
            group.last = single.first;
            group.frames += 1;
            group.payload += single.payload;
            if single.payload < group.segment {
                slot.group = CLOSED;
            }
            return;
        }
        groups.list.push(single);
        *slot = Slot { hash, group: groups.list.len() as u32 };
    }
}

/// Patches the first frame's headers so that they describe the whole group. Returns the offloads to
/// request from the kernel.
fn describe(group: &GsoGroup, first: &mut TxFrame, all: &Identifications) -> Offload {
    if group.shared == SHARED_HEADERS_IPV6 {
        return describe_ipv6(group, first);
    }
    let headers = first.head_mut().get_mut(ETHERNET..).and_then(<[u8]>::first_chunk_mut);
    let Some(headers) = headers else { return Offload::default() };
    // The kernel counts on for each segment (`inet_gso_segment()`, `net/ipv4/af_inet.c`).
    [headers[4], headers[5]] = all.take(group.frames as u16).to_be_bytes();
    patch_lengths(headers, group.payload as u16);
    udp_segmentation(group, UDP_AT)
}

#[inline(never)]
fn describe_ipv6(group: &GsoGroup, first: &mut TxFrame) -> Offload {
    let headers = first.head_mut().get_mut(ETHERNET..).and_then(<[u8]>::first_chunk_mut);
    let Some(headers) = headers else { return Offload::default() };
    patch_lengths_ipv6(headers, group.payload as u16);
    udp_segmentation(group, UDP_AT_IPV6)
}

/// Requests UDP segmentation, with the UDP header at this offset.
const fn udp_segmentation(group: &GsoGroup, udp_at: usize) -> Offload {
    Offload {
        checksum: Checksum::Partial { start: udp_at as u16, offset: UDP_CHECKSUM },
        gso: Some(Gso { kind: GsoKind::Udp, size: group.segment as u16, ecn: false }),
    }
}

/// Patches an IPv4 header (without options) and a UDP header for a UDP payload of `payload` bytes,
/// at most 65,507. The UDP checksum becomes the sum of the pseudo header. The kernel completes it
/// for each segment.
pub fn patch_lengths(headers: &mut [u8; SHARED_HEADERS - ETHERNET], payload: u16) {
    let length = payload + 8;
    let [a, b] = (length + 20).to_be_bytes();
    let [c, d] = length.to_be_bytes();
    (headers[2], headers[3], headers[10], headers[11]) = (a, b, 0, 0);
    (headers[24], headers[25]) = (c, d);
    [headers[10], headers[11]] = checksum(&headers[..20]).to_be_bytes();
    let pseudo = Sum::new().bytes(&headers[12..20]).word(PROTOCOL_UDP.into()).word(length);
    [headers[26], headers[27]] = pseudo.fold().to_be_bytes();
}

/// As [`patch_lengths`], for an IPv6 header without extension headers.
fn patch_lengths_ipv6(headers: &mut [u8; SHARED_HEADERS_IPV6 - ETHERNET], payload: u16) {
    let length = payload + 8;
    let [a, b] = length.to_be_bytes();
    (headers[4], headers[5], headers[44], headers[45]) = (a, b, a, b);
    let pseudo = Sum::new().bytes(&headers[8..40]).word(PROTOCOL_UDP.into()).word(length);
    [headers[46], headers[47]] = pseudo.fold().to_be_bytes();
}

/// Whether an encapsulated frame needs nothing from the kernel but its outer checksum. Frames
/// without a checksum (`noudpcsum`) leave one by one, because the kernel would add a checksum to
/// each segment.
fn may_join(frame: &TxFrame) -> bool {
    let plain = matches!(
        frame.offload,
        Offload { checksum: Checksum::Partial { start: 34, .. }, gso: None }
    );
    plain && frame.head().len() >= OVERHEAD
}

/// As [`may_join`], over IPv6.
fn may_join_over_ipv6(frame: &TxFrame) -> bool {
    let plain = matches!(
        frame.offload,
        Offload { checksum: Checksum::Partial { start: 54, .. }, gso: None }
    );
    plain && frame.head().len() >= OVERHEAD_IPV6
}

/// The slot of the flow with this hash, or a free slot for it. Two flows with the same hash share a
/// slot and close each other's groups.
#[inline(always)]
fn find(slots: &mut [Slot], hash: u32) -> Option<&mut Slot> {
    let mask = slots.len().wrapping_sub(1);
    let mut at = ((u64::from(hash) * slots.len() as u64) >> 32) as usize;
    // At least half of the slots are free, so this ends early.
    for _ in 0..slots.len() {
        let slot = slots.get(at)?;
        if slot.group == 0 || slot.hash == hash {
            break;
        }
        at = (at + 1) & mask;
    }
    slots.get_mut(at)
}

/// Hash of an outer flow: its destination address and source port.
fn flow_hash(frame: &TxFrame) -> u32 {
    let key = frame
        .head()
        .get(30..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |&[a, b, c, d, e, f]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    mixed(key)
}

/// As [`flow_hash`], over IPv6: of the last half of the destination address.
fn flow_hash_ipv6(frame: &TxFrame) -> u32 {
    let head = frame.head();
    let address = head.get(46..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
    let port = head.get(54..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
    mixed(u64::from_be_bytes(address) ^ u64::from(u16::from_be_bytes(port)).rotate_left(40))
}

/// Multiplicative hash. The upper bits depend on all bits of the key (Knuth, The Art of Computer
/// Programming, 6.4).
const fn mixed(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Whether two frames can be segments of one super-frame: destination and offloads are equal, and
/// all bytes up to the end of the UDP header except lengths, checksums and the identification.
fn same_flow(first: &TxFrame, other: &TxFrame) -> bool {
    let (a, b) = (first.head(), other.head());
    let same = |range: core::ops::Range<usize>| a.get(range.clone()) == b.get(range);
    first.to == other.to
        && first.offload == other.offload
        && same(0..16)
        && same(20..24)
        && same(26..38)
}

/// As [`same_flow`], over IPv6: all bytes up to the UDP ports except the length.
fn same_flow_ipv6(first: &TxFrame, other: &TxFrame) -> bool {
    let (a, b) = (first.head(), other.head());
    let same = |range: core::ops::Range<usize>| a.get(range.clone()) == b.get(range);
    first.to == other.to && first.offload == other.offload && same(0..18) && same(20..58)
}
