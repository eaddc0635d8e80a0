//! Frames that leave together: encapsulated ones of one outer flow and one size as a UDP
//! super-frame, which the kernel carries as one and cuts where somebody wants it cut
//! (`__udp_gso_segment()`, `net/ipv4/udp_offload.c`), and segments of one TCP stream for a host as
//! the TCP super-frame that they were cut from; and decapsulated frames in bundles
//! ([`crate::bundle`]).
//!
//! Frames of one flow keep their order. A super-frame's segments are all of one size, but for the
//! last, which may be smaller: so a flow's next frame joins the open super-frame of that flow (of
//! its stations, in a bundle), or ends it. Super-frames leave in the order of their first frames.

use crate::batch::{Batch, Destination, Payload, TxFrame};
use crate::bundle;
use crate::encapsulate::OVERHEAD;
use crate::frame::{Checksum, ETHERNET, Gso, GsoKind, Offload};
use crate::outer::{UDP_AT, UDP_CHECKSUM};
use crate::tcp_gro::{Layout, Part, Segment};
use wire::checksum::{Sum, checksum};
use wire::number::PROTOCOL_UDP;

/// Segments of one super-frame (`UDP_MAX_SEGMENTS`, `include/linux/udp.h`, before Linux 6.9).
const SEGMENTS: usize = 64;
/// Bytes of a super-frame's UDP payload, so that its IPv4 packet stays below 65,536.
const PAYLOAD: usize = 65_000;
/// Ethernet, IPv4 and UDP header: what the segments of a super-frame share.
const SHARED: usize = UDP_AT + 8;
/// Of a flow whose last train takes no more.
const CLOSED: u32 = u32::MAX;

/// Consecutive frames of one flow that leave as one, or a single frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GsoGroup {
    first: u32,
    last: u32,
    /// Frames in it.
    pub frames: u32,
    /// UDP or TCP payload of each frame but the last, in bytes; whole frames in a bundle.
    pub segment: u32,
    /// The same of all of them.
    payload: u32,
    kind: Kind,
    /// Whether the last segment ends with what its sender pushed.
    push: bool,
}

/// What its frames have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The outer flow.
    Flow,
    /// The TCP stream that they are segments of.
    Stream(Layout),
    /// The stations that they are between.
    Bundle,
}

/// See the module's description. Its memory is kept from one batch to the next.
#[derive(Debug, Default)]
pub struct Aggregator {
    trains: Vec<GsoGroup>,
    /// Of each frame, the next one in its train.
    next: Vec<u32>,
    /// The last train of each flow: twice as many places as frames, so that all flows have one,
    /// however many there are.
    places: Vec<Place>,
    /// The trains before this number take no more.
    ended: usize,
}

/// A place that a flow takes with its first frame, the next free one from where its hash says, and
/// keeps.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    hash: u32,
    /// The number of its last train, counted from one; 0 of a free place.
    train: u32,
}

impl Aggregator {
    /// Deals frames over trains; `together` or each in its own. Of frames that go to the interface
    /// which a socket is `bound` to, and others, it takes the one or the other
    /// ([`Destination::is_bound`]).
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
        // Encapsulated frames are all for one socket.
        match frames.first().map(|first| first.to) {
            Some(Destination::Uplink { .. }) => self.assemble_flows(frames),
            _ if bound => self.assemble_bundles(batch, frames, frames_of_ours),
            _ => self.assemble_streams(batch, frames, frames_of_ours),
        }
        &self.trains
    }

    /// Encapsulated frames.
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

    /// Frames for the bridge punt pair. Those between two stations keep their order.
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

    /// Frames for hosts.
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

    /// A frame of which nobody knows whose it is, if it is anybody's.
    fn add_unknown(&mut self, alone: GsoGroup) {
        self.ended = self.trains.len();
        self.trains.push(alone);
    }

    /// A frame joins the last train of its flow, if that takes it, or begins one, which others may
    /// join if it may go on.
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

    /// The trains, as they were assembled last.
    #[must_use]
    pub fn trains(&self) -> &[GsoGroup] {
        &self.trains
    }

    /// The frames of a train, by their numbers, in order.
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
    /// Bytes of the head that a train's first frame has for all: Ethernet, IPv4 and UDP header.
    pub const SHARED: usize = SHARED;

    /// A train of one frame.
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

    /// Whether a frame, a segment of such a stream, may follow what this one has, whose first frame
    /// is the first.
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

    /// Number of its first frame, whose headers all share.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first as usize
    }

    /// Whether it is a UDP super-frame of encapsulated frames.
    #[must_use]
    pub const fn is_super_frame(&self) -> bool {
        self.frames > 1 && matches!(self.kind, Kind::Flow)
    }

    /// Whether its frames, of which this is the first, are to be wrapped.
    #[must_use]
    pub const fn is_bundle(&self, first: &TxFrame) -> bool {
        matches!(self.kind, Kind::Bundle)
            && (self.frames > 1 || matches!(first.to, Destination::BundledHost(_)))
    }

    /// Whether the punt pair cuts it: where that loses a piece the kernel says that it took none,
    /// and the others have arrived all the same.
    #[must_use]
    pub const fn may_arrive_in_part(&self) -> bool {
        matches!(self.kind, Kind::Bundle) && self.frames > 1
    }

    /// Bytes of its frames' UDP or TCP payload, or of a bundle's frames.
    #[must_use]
    pub const fn payload(&self) -> u32 {
        self.payload
    }

    /// How many bytes of head and body the frames behind the first have that it speaks for.
    #[must_use]
    pub fn spoken_for(&self) -> (usize, usize) {
        match self.kind {
            Kind::Flow => (SHARED, 0),
            Kind::Stream(stream) => (0, stream.headers.into()),
            Kind::Bundle => (0, 0),
        }
    }

    /// Has the first frame's headers speak for the whole train, and says what the kernel is to do
    /// with it.
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

    /// Behind an Ethernet, an IPv4 and a UDP header.
    const fn cut(&self) -> Offload {
        Offload {
            checksum: Checksum::Partial { start: UDP_AT as u16, offset: UDP_CHECKSUM },
            gso: Some(Gso { kind: GsoKind::Udp, size: self.segment as u16, ecn: false }),
        }
    }

    /// The headers move from the body to the head, where they can be written.
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

/// What a frame that is not encapsulated is to a TCP stream.
#[inline(never)]
fn part(frame: &TxFrame, batch: &Batch<'_>) -> Part {
    let whole = frame.offload == Offload::default() && frame.head().is_empty();
    if whole && matches!(frame.to, Destination::Host(_)) {
        Part::of(frame.body(batch))
    } else {
        Part::Unknown
    }
}

/// Has an IPv4 header (without options) and a UDP header speak for a UDP payload of so many bytes,
/// at most 65,507. The UDP checksum is the pseudo header's sum: the rest is left to whoever cuts
/// the super-frame.
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

/// Whether a frame is encapsulated, and nothing of it is left to the kernel but the outer checksum.
/// Frames without one (`noudpcsum`) leave one by one: whoever cuts a GSO frame gives each piece a
/// checksum.
fn may_join(frame: &TxFrame) -> bool {
    let plain = matches!(
        frame.offload,
        Offload { checksum: Checksum::Partial { start: 34, .. }, gso: None }
    );
    plain
        && matches!(frame.to, Destination::Uplink { impaired: false, .. })
        && frame.head().len() >= OVERHEAD
}

/// The place of a flow with such a hash, or the one that it is to take. Two flows of one hash, as
/// hardly any are, end each other's trains.
#[inline(always)]
fn place(places: &mut [Place], hash: u32) -> Option<&mut Place> {
    let mask = places.len().wrapping_sub(1);
    let mut at = ((u64::from(hash) * places.len() as u64) >> 32) as usize;
    // It ends long before: half of them are free.
    for _ in 0..places.len() {
        let place = places.get(at)?;
        if place.train == 0 || place.hash == hash {
            break;
        }
        at = (at + 1) & mask;
    }
    places.get_mut(at)
}

/// Of an outer flow: its destination address and source port.
fn flow_hash(frame: &TxFrame) -> u32 {
    let key = frame
        .head()
        .get(30..)
        .and_then(<[u8]>::first_chunk)
        .map_or(0, |&[a, b, c, d, e, f]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    mixed(key)
}

/// Of two stations.
fn stations_hash(&[d5, d4, d3, d2, d1, d0, s5, s4, s3, s2, s1, s0, _, _]: &[u8; ETHERNET]) -> u32 {
    let destination = u64::from_be_bytes([0, 0, d5, d4, d3, d2, d1, d0]);
    mixed(destination.rotate_left(24) ^ u64::from_be_bytes([0, 0, s5, s4, s3, s2, s1, s0]))
}

/// By a multiplication, whose upper bits depend on all of the key's (Knuth, The Art of Computer
/// Programming, 6.4).
pub(crate) const fn mixed(key: u64) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Whether all that a super-frame's segments share is the same: everything up to the UDP header's
/// end but lengths, checksums and the identification.
fn same_flow(first: &TxFrame, other: &TxFrame) -> bool {
    let (a, b) = (first.head(), other.head());
    let same = |range: core::ops::Range<usize>| a.get(range.clone()) == b.get(range);
    first.to == other.to
        && first.offload == other.offload
        && same(0..16)
        && same(20..24)
        && same(26..38)
}
