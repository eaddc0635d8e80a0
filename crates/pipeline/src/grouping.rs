//! Grouping of frames that are sent together:
//!
//! - Encapsulated frames of one outer flow and one size become a UDP super-frame. The kernel splits
//!   it where necessary (`__udp_gso_segment()`, `net/ipv4/udp_offload.c`).
//! - Segments of one TCP stream for a host become one TCP super-frame again.
//! - Decapsulated frames for the bridge punt pair become bundles ([`crate::bundle`]).
//!
//! Frames of one flow keep their order. All segments of a super-frame have one size, except that
//! the last may be shorter. The next frame of a flow therefore joins the flow's open group or
//! closes it. In a bundle, a flow is all frames between two stations. Groups leave in the order of
//! their first frames.

use frame::{
    Batch, Checksum, Destination, ETHERNET, GroupKind, Groups, Gso, GsoGroup, GsoKind, Offload,
    Payload, Queue, SHARED_HEADERS, SHARED_HEADERS_IPV6, TxBatch, TxFrame,
};
use wire::checksum::{Sum, checksum};
use wire::number::PROTOCOL_UDP;

use crate::bundle;
use crate::outer::{OVERHEAD, OVERHEAD_IPV6, UDP_AT, UDP_AT_IPV6, UDP_CHECKSUM};
use crate::tcp_gro::{Layout, Part, Segment};

/// Largest number of segments in a super-frame (`UDP_MAX_SEGMENTS`, `include/linux/udp.h`, before
/// Linux 6.9).
const SEGMENTS: u32 = 64;
/// Largest UDP payload of a super-frame in bytes. Its IPv4 packet stays below 65,536.
const PAYLOAD: u32 = 65_000;
/// Group number of a flow whose last group is closed.
const CLOSED: u32 = u32::MAX;

/// Which frames are grouped. Others leave one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grouping {
    /// Encapsulated frames become UDP super-frames.
    pub uplinks: bool,
    /// TCP segments for hosts become TCP super-frames.
    pub hosts: bool,
    /// Frames for the bridge punt pair become bundles.
    pub bridge: bool,
}

impl Grouping {
    /// Every frame that can be grouped.
    pub const ALL: Self = Self { uplinks: true, hosts: true, bridge: true };

    const fn of(self, queue: Queue) -> bool {
        match queue {
            Queue::Uplinks => self.uplinks,
            Queue::Hosts => self.hosts,
            Queue::Bridge => self.bridge,
            // Stations behind access ports get their frames as they are.
            Queue::Ports => false,
        }
    }
}

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
    /// Divides the frames of these queues into groups, and has the headers of the first frame of
    /// each group describe the whole group. `batch` must be the batch that the frames were made
    /// from.
    pub fn finish(
        &mut self,
        batch: &Batch<'_>,
        out: &mut TxBatch,
        queues: &[Queue],
        grouping: Grouping,
    ) {
        for &queue in queues {
            if grouping.of(queue) {
                self.group(batch, out, queue);
            } else {
                out.separate(queue);
            }
        }
    }

    fn group(&mut self, batch: &Batch<'_>, out: &mut TxBatch, queue: Queue) {
        let (frames, groups) = out.split_mut();
        groups.next.resize(frames.len(), 0);
        self.slots.clear();
        self.slots.resize(2 * frames.len().next_power_of_two(), Slot::default());
        let start = groups.list.len();
        self.closed = start;
        match queue {
            Queue::Uplinks => self.group_flows(frames, groups),
            Queue::Bridge => self.group_bundles(batch, frames, groups),
            Queue::Hosts | Queue::Ports => self.group_streams(batch, frames, groups),
        }
        groups.set_queue(queue, start);
        let Groups { list, wrappers, .. } = groups;
        for group in list.iter_mut().skip(start) {
            if group.frames == 1 && queue != Queue::Bridge {
                continue;
            }
            if let Some(first) = frames.get_mut(group.first as usize) {
                group.offload = describe(group, first, batch);
                group.wrapper = bundle::wrap(group, first, batch, wrappers);
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
                self.add(groups, single, flow_hash(frame), true, |group| {
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
        let kind = GroupKind::FlowIpv6;
        let single = GsoGroup { segment: payload, payload, kind, ..single };
        self.add(groups, single, flow_hash_ipv6(frame), true, |group| {
            let first = frames.get(group.first as usize);
            first.is_some_and(|first| same_flow_ipv6(first, frame))
        });
    }

    /// Groups frames for the bridge punt pair. Frames between two stations keep their order.
    fn group_bundles(&mut self, batch: &Batch<'_>, frames: &[TxFrame], groups: &mut Groups) {
        for (frame, index) in queued(frames, Queue::Bridge) {
            let length = bundle::length(frame) as u32;
            let single = GsoGroup {
                segment: length,
                payload: length,
                kind: GroupKind::Bundle,
                ..GsoGroup::single(frame, index)
            };
            let Some(header) = bundle::ethernet(frame, batch) else {
                self.add_unknown(groups, single);
                continue;
            };
            let joins = bundle::may_join(frame, &header);
            self.add(groups, single, stations_hash(&header), joins, |group| {
                let first = frames.get(group.first as usize);
                joins
                    && first.is_some_and(|first| {
                        (first.to, first.vni) == (frame.to, frame.vni)
                            && bundle::ethernet(first, batch) == Some(header)
                    })
            });
        }
    }

    /// Groups frames for hosts.
    fn group_streams(&mut self, batch: &Batch<'_>, frames: &[TxFrame], groups: &mut Groups) {
        for (frame, index) in queued(frames, Queue::Hosts) {
            let single = GsoGroup::single(frame, index);
            let (single, hash, stays_open) = match part(frame, batch) {
                Part::Data(Segment { hash, layout, payload, push }) => {
                    let Layout { headers, l4 } = layout;
                    let kind = GroupKind::Stream { headers, l4 };
                    (GsoGroup { segment: payload, payload, kind, push, ..single }, hash, !push)
                }
                Part::Other(hash) => (single, hash, false),
                Part::None => {
                    groups.list.push(single);
                    continue;
                }
                Part::Unknown => {
                    self.add_unknown(groups, single);
                    continue;
                }
            };
            self.add(groups, single, hash, stays_open, |group| {
                let first = frames.get(group.first as usize);
                first.is_some_and(|first| continues(group, (first, frame), single.kind, batch))
            });
        }
    }

    /// Adds a frame that may belong to any flow, and closes all groups before it.
    fn add_unknown(&mut self, groups: &mut Groups, single: GsoGroup) {
        self.closed = groups.list.len();
        groups.list.push(single);
    }

    /// Adds a frame to the last group of its flow if that accepts it. Otherwise starts a new group,
    /// to which further frames can be added if `stays_open` is set.
    #[inline(always)]
    fn add(
        &mut self,
        groups: &mut Groups,
        single: GsoGroup,
        hash: u32,
        stays_open: bool,
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
            group.push = single.push;
            if single.payload < group.segment || !stays_open {
                slot.group = CLOSED;
            }
            return;
        }
        groups.list.push(single);
        let group = if stays_open { groups.list.len() as u32 } else { CLOSED };
        *slot = Slot { hash, group };
    }
}

/// The frames of a queue, with their indices.
fn queued(frames: &[TxFrame], queue: Queue) -> impl Iterator<Item = (&TxFrame, u32)> {
    frames.iter().zip(0u32..).filter(move |(frame, _)| frame.to.queue() == queue)
}

/// Whether the last of `frames` can follow the group's frames as a segment of the same TCP stream.
/// The first of `frames` is the first frame of the group.
fn continues(
    group: &GsoGroup,
    (first, frame): (&TxFrame, &TxFrame),
    kind: GroupKind,
    batch: &Batch<'_>,
) -> bool {
    let GroupKind::Stream { headers, l4 } = group.kind else { return false };
    kind == group.kind
        && first.to == frame.to
        && Layout { headers, l4 }
            .is_followed((first.body(batch), frame.body(batch)), (group.frames, group.payload))
}

/// Patches the first frame's headers so that they describe the whole group. Returns the offloads to
/// request from the kernel.
fn describe(group: &GsoGroup, first: &mut TxFrame, batch: &Batch<'_>) -> Offload {
    if group.frames == 1 {
        return first.offload;
    }
    match group.kind {
        GroupKind::Stream { headers, l4 } => {
            describe_stream(group, Layout { headers, l4 }, first, batch).unwrap_or_default()
        }
        GroupKind::Bundle => udp_segmentation(group, UDP_AT),
        GroupKind::Flow => {
            let headers = first.head_mut().get_mut(ETHERNET..).and_then(<[u8]>::first_chunk_mut);
            let Some(headers) = headers else { return Offload::default() };
            patch_lengths(headers, group.payload as u16);
            udp_segmentation(group, UDP_AT)
        }
        GroupKind::FlowIpv6 => describe_ipv6(group, first),
    }
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

/// Moves the headers from the body to the head and patches them.
fn describe_stream(
    group: &GsoGroup,
    stream: Layout,
    first: &mut TxFrame,
    batch: &Batch<'_>,
) -> Option<Offload> {
    let Payload::Received { frame, range } = &first.body else { return None };
    let start = range.start + u32::from(stream.headers);
    let headers = batch.frame(*frame as usize)?.data.get(range.start as usize..start as usize)?;
    let body = Payload::Received { frame: *frame, range: start..range.end };
    if !first.extend_head(headers) {
        return None;
    }
    first.body = body;
    stream.patch(first.head_mut(), group.payload, group.segment, group.push)
}

/// Classifies a decapsulated frame for TCP grouping.
#[inline(never)]
fn part(frame: &TxFrame, batch: &Batch<'_>) -> Part {
    let whole = frame.offload == Offload::default() && frame.head().is_empty();
    if whole && matches!(frame.to, Destination::Host(_)) {
        Part::of(frame.body(batch))
    } else {
        Part::Unknown
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

/// Hash of a pair of stations.
fn stations_hash(&[d5, d4, d3, d2, d1, d0, s5, s4, s3, s2, s1, s0, _, _]: &[u8; ETHERNET]) -> u32 {
    let destination = u64::from_be_bytes([0, 0, d5, d4, d3, d2, d1, d0]);
    mixed(destination.rotate_left(24) ^ u64::from_be_bytes([0, 0, s5, s4, s3, s2, s1, s0]))
}

/// Multiplicative hash. The upper bits depend on all bits of the key (Knuth, The Art of Computer
/// Programming, 6.4).
pub(crate) const fn mixed(key: u64) -> u32 {
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
