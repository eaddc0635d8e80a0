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

use crate::bundle;
use crate::encapsulate::OVERHEAD;
use crate::outer::{UDP_AT, UDP_CHECKSUM};
use crate::tcp_gro::{Layout, Part, Segment};
use frame::{Batch, Checksum, Destination, ETHERNET, Gso, GsoKind, Offload, Payload, TxFrame};
use wire::checksum::{Sum, checksum};
use wire::number::PROTOCOL_UDP;

/// Largest number of segments in a super-frame (`UDP_MAX_SEGMENTS`, `include/linux/udp.h`, before
/// Linux 6.9).
const SEGMENTS: usize = 64;
/// Largest UDP payload of a super-frame in bytes. Its IPv4 packet stays below 65,536.
const PAYLOAD: usize = 65_000;
/// Length of the headers that all segments of a super-frame share: Ethernet, IPv4 and UDP.
const SHARED: usize = UDP_AT + 8;
/// Group number of a flow whose last group is closed.
const CLOSED: u32 = u32::MAX;

/// A GSO group: frames of one flow that are sent as one, or a single frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GsoGroup {
    first: u32,
    last: u32,
    /// Number of frames.
    pub frames: u32,
    /// UDP or TCP payload of each frame but the last, in bytes. In a bundle, the length of the
    /// frames.
    pub segment: u32,
    /// The sum of these lengths over all frames.
    payload: u32,
    kind: Kind,
    /// Whether the last segment has the PSH flag.
    push: bool,
}

/// What the frames of a group have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An outer flow.
    Flow,
    /// A TCP stream.
    Stream(Layout),
    /// A pair of stations.
    Bundle,
}

/// Groups frames of a batch for transmission. Its memory is reused for the next batch.
#[derive(Debug, Default)]
pub struct Aggregator {
    trains: Vec<GsoGroup>,
    /// For each frame, the next frame of its group.
    next: Vec<u32>,
    /// Hash table of flows, with the last group of each. It has at least twice as many slots as
    /// there are frames, so it never fills up.
    places: Vec<Place>,
    /// Groups before this number are closed.
    ended: usize,
}

/// A slot of the hash table. It belongs to the flow that took it first (linear probing).
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    hash: u32,
    /// Number of the flow's last group, counted from one; 0 if the slot is free.
    train: u32,
}

impl Aggregator {
    /// Divides frames into groups; without `together`, into groups of one frame. Takes only frames
    /// whose [`Destination::is_bound`] equals `bound`.
    pub fn assemble(
        &mut self,
        batch: &Batch<'_>,
        frames: &[TxFrame],
        together: bool,
        bound: bool,
    ) -> &[GsoGroup] {
        self.trains.clear();
        self.next.clear();
        let frames_of_ours =
            frames.iter().zip(0u32..).filter(|(frame, _)| frame.to.is_bound() == bound);
        if !together {
            self.trains.extend(frames_of_ours.map(|(frame, index)| GsoGroup::of(frame, index)));
            return &self.trains;
        }
        self.next.resize(frames.len(), 0);
        self.places.clear();
        self.places.resize(2 * frames.len().next_power_of_two(), Place::default());
        self.ended = 0;
        // Encapsulated frames are never mixed with others in a batch.
        match frames.first().map(|first| first.to) {
            Some(Destination::Uplink { .. }) => self.assemble_flows(frames),
            _ if bound => self.assemble_bundles(batch, frames, frames_of_ours),
            _ => self.assemble_streams(batch, frames, frames_of_ours),
        }
        &self.trains
    }

    /// Groups encapsulated frames.
    fn assemble_flows(&mut self, frames: &[TxFrame]) {
        for (frame, index) in frames.iter().zip(0u32..) {
            let alone = GsoGroup::of(frame, index);
            if may_join(frame) {
                let first = |train: &GsoGroup| frames.get(train.first as usize);
                self.add(alone, flow_hash(frame), true, |train| {
                    first(train).is_some_and(|first| same_flow(first, frame))
                });
            } else {
                self.add_unknown(alone);
            }
        }
    }

    /// Groups frames for the bridge punt pair. Frames between two stations keep their order.
    fn assemble_bundles<'f>(
        &mut self,
        batch: &Batch<'_>,
        frames: &[TxFrame],
        ours: impl Iterator<Item = (&'f TxFrame, u32)>,
    ) {
        for (frame, index) in ours {
            let length = bundle::length(frame) as u32;
            let alone = GsoGroup {
                segment: length,
                payload: length,
                kind: Kind::Bundle,
                ..GsoGroup::of(frame, index)
            };
            let Some(header) = bundle::ethernet(frame, batch) else {
                self.add_unknown(alone);
                continue;
            };
            let joins = bundle::may_join(frame, &header);
            self.add(alone, stations_hash(&header), joins, |train| {
                let first = frames.get(train.first as usize);
                joins
                    && first.is_some_and(|first| {
                        (first.to, first.slot) == (frame.to, frame.slot)
                            && bundle::ethernet(first, batch) == Some(header)
                    })
            });
        }
    }

    /// Groups frames for hosts.
    fn assemble_streams<'f>(
        &mut self,
        batch: &Batch<'_>,
        frames: &[TxFrame],
        ours: impl Iterator<Item = (&'f TxFrame, u32)>,
    ) {
        for (frame, index) in ours {
            let alone = GsoGroup::of(frame, index);
            let (alone, hash, may_go_on) = match part(frame, batch) {
                Part::Data(Segment { hash, layout, payload, push }) => (
                    GsoGroup {
                        segment: payload,
                        payload,
                        kind: Kind::Stream(layout),
                        push,
                        ..alone
                    },
                    hash,
                    !push,
                ),
                Part::Other(hash) => (alone, hash, false),
                Part::None => {
                    self.trains.push(alone);
                    continue;
                }
                Part::Unknown => {
                    self.add_unknown(alone);
                    continue;
                }
            };
            self.add(alone, hash, may_go_on, |train| {
                let first = frames.get(train.first as usize);
                first.is_some_and(|first| train.takes((first, frame), alone.kind, batch))
            });
        }
    }

    /// Adds a frame that may belong to any flow, and closes all groups before it.
    fn add_unknown(&mut self, alone: GsoGroup) {
        self.ended = self.trains.len();
        self.trains.push(alone);
    }

    /// Adds a frame to the last group of its flow if that accepts it. Otherwise starts a new group,
    /// which stays open if `may_go_on` is set.
    #[inline(always)]
    fn add(
        &mut self,
        alone: GsoGroup,
        hash: u32,
        may_go_on: bool,
        takes: impl FnOnce(&GsoGroup) -> bool,
    ) {
        let Some(place) = place(&mut self.places, hash) else { return };
        let number = (place.train as usize).checked_sub(1).filter(|number| *number >= self.ended);
        if let Some(train) = number.and_then(|number| self.trains.get_mut(number))
            && alone.payload <= train.segment
            && (train.frames as usize) < SEGMENTS
            && (train.payload + alone.payload) as usize <= PAYLOAD
            && takes(train)
        {
            if let Some(next) = self.next.get_mut(train.last as usize) {
                *next = alone.first;
            }
            train.last = alone.first;
            train.frames += 1;
            train.payload += alone.payload;
            train.push = alone.push;
            if alone.payload < train.segment || !may_go_on {
                place.train = CLOSED;
            }
            return;
        }
        self.trains.push(alone);
        *place = Place { hash, train: if may_go_on { self.trains.len() as u32 } else { CLOSED } };
    }

    /// The groups of the last call of [`Self::assemble`].
    #[must_use]
    pub fn trains(&self) -> &[GsoGroup] {
        &self.trains
    }

    /// The indices of a group's frames, in order.
    pub fn members(&self, train: &GsoGroup) -> impl Iterator<Item = usize> + '_ {
        let mut at = train.first as usize;
        (0..train.frames).map(move |_| {
            let this = at;
            at = self.next.get(at).map_or(at, |next| *next as usize);
            this
        })
    }
}

impl GsoGroup {
    /// Length of the headers in the head of the first frame that all frames share: Ethernet, IPv4
    /// and UDP.
    pub const SHARED: usize = SHARED;

    /// A group of one frame.
    fn of(frame: &TxFrame, index: u32) -> Self {
        let payload = (frame.len().saturating_sub(SHARED)) as u32;
        Self {
            first: index,
            last: index,
            frames: 1,
            segment: payload,
            payload,
            kind: Kind::Flow,
            push: false,
        }
    }

    /// Whether `frame` can follow the group's frames as a segment of the same TCP stream. `first`
    /// is the first frame of the group.
    fn takes(&self, (first, frame): (&TxFrame, &TxFrame), kind: Kind, batch: &Batch<'_>) -> bool {
        let Kind::Stream(layout) = self.kind else { return false };
        kind == self.kind
            && first.to == frame.to
            && layout
                .is_followed((first.body(batch), frame.body(batch)), (self.frames, self.payload))
    }

    /// Number of frames, 1 to 64.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// Index of the first frame, whose headers are used for the group.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first as usize
    }

    /// Whether it is a UDP super-frame of encapsulated frames.
    #[must_use]
    pub const fn is_super_frame(&self) -> bool {
        self.frames > 1 && matches!(self.kind, Kind::Flow)
    }

    /// Whether the frames must be sent with a wrapper. `first` is the first frame of the group.
    #[must_use]
    pub const fn is_bundle(&self, first: &TxFrame) -> bool {
        matches!(self.kind, Kind::Bundle)
            && (self.frames > 1 || matches!(first.to, Destination::BundledHost(_)))
    }

    /// Whether the punt pair splits the group. If a segment is lost there, the kernel reports an
    /// error although the other segments have arrived.
    #[must_use]
    pub const fn may_arrive_in_part(&self) -> bool {
        matches!(self.kind, Kind::Bundle) && self.frames > 1
    }

    /// Sum of the frames' UDP or TCP payload in bytes; of their lengths in a bundle.
    #[must_use]
    pub const fn payload(&self) -> u32 {
        self.payload
    }

    /// Number of bytes to skip at the start of the head and of the body of each frame but the
    /// first, because the headers of the first are used.
    #[must_use]
    pub fn spoken_for(&self) -> (usize, usize) {
        match self.kind {
            Kind::Flow => (SHARED, 0),
            Kind::Stream(stream) => (0, stream.headers.into()),
            Kind::Bundle => (0, 0),
        }
    }

    /// Patches the first frame's headers so that they describe the whole group. Returns the
    /// offloads to request from the kernel.
    pub fn couple(&self, first: &mut TxFrame, batch: &Batch<'_>) -> Offload {
        if self.frames == 1 {
            return first.offload;
        }
        match self.kind {
            Kind::Stream(stream) => self.couple_stream(stream, first, batch).unwrap_or_default(),
            Kind::Bundle => self.cut(),
            Kind::Flow => {
                let headers =
                    first.head_mut().get_mut(ETHERNET..).and_then(<[u8]>::first_chunk_mut);
                let Some(headers) = headers else { return Offload::default() };
                speak_for(headers, self.payload as u16);
                self.cut()
            }
        }
    }

    /// Requests UDP segmentation behind an Ethernet, an IPv4 and a UDP header.
    const fn cut(&self) -> Offload {
        Offload {
            checksum: Checksum::Partial { start: UDP_AT as u16, offset: UDP_CHECKSUM },
            gso: Some(Gso { kind: GsoKind::Udp, size: self.segment as u16, ecn: false }),
        }
    }

    /// Moves the headers from the body to the head and patches them.
    fn couple_stream(
        &self,
        stream: Layout,
        first: &mut TxFrame,
        batch: &Batch<'_>,
    ) -> Option<Offload> {
        let Payload::Received { frame, range } = &first.body else { return None };
        let start = range.start + u32::from(stream.headers);
        let headers =
            batch.frame(*frame as usize)?.data.get(range.start as usize..start as usize)?;
        let body = Payload::Received { frame: *frame, range: start..range.end };
        if !first.extend_head(headers) {
            return None;
        }
        first.body = body;
        stream.speak_for(first.head_mut(), self.payload, self.segment, self.push)
    }
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
pub fn speak_for(headers: &mut [u8; SHARED - ETHERNET], payload: u16) {
    let length = payload + 8;
    let [a, b] = (length + 20).to_be_bytes();
    let [c, d] = length.to_be_bytes();
    (headers[2], headers[3], headers[10], headers[11]) = (a, b, 0, 0);
    (headers[24], headers[25]) = (c, d);
    [headers[10], headers[11]] = checksum(&headers[..20]).to_be_bytes();
    let pseudo = Sum::new().bytes(&headers[12..20]).word(PROTOCOL_UDP.into()).word(length);
    [headers[26], headers[27]] = pseudo.fold().to_be_bytes();
}

/// Whether an encapsulated frame needs nothing from the kernel but its outer checksum. Frames
/// without a checksum (`noudpcsum`) leave one by one, because the kernel would add a checksum to
/// each segment.
fn may_join(frame: &TxFrame) -> bool {
    let plain = matches!(
        frame.offload,
        Offload { checksum: Checksum::Partial { start: 34, .. }, gso: None }
    );
    plain
        && matches!(frame.to, Destination::Uplink { impaired: false, .. })
        && frame.head().len() >= OVERHEAD
}

/// The slot of the flow with this hash, or a free slot for it. Two flows with the same hash share a
/// slot and close each other's groups.
#[inline(always)]
fn place(places: &mut [Place], hash: u32) -> Option<&mut Place> {
    let mask = places.len().wrapping_sub(1);
    let mut at = ((u64::from(hash) * places.len() as u64) >> 32) as usize;
    // At least half of the slots are free, so this ends early.
    for _ in 0..places.len() {
        let place = places.get(at)?;
        if place.train == 0 || place.hash == hash {
            break;
        }
        at = (at + 1) & mask;
    }
    places.get_mut(at)
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
