//! Frames that leave together: those of one outer flow and one size as a UDP super-frame, which the kernel carries as one and cuts
//! where somebody wants it cut (`__udp_gso_segment()`, `net/ipv4/udp_offload.c`).
//!
//! Frames of one flow keep their order. A super-frame's segments are all of one size, but for the last, which may be smaller: so
//! a flow's next frame joins the open super-frame of that flow, or ends it. Super-frames leave in the order of their first frames.

use crate::batch::{Destination, Transmit};
use crate::encapsulate::OVERHEAD;
use crate::frame::{Checksum, Gso, GsoKind, Offload};
use crate::outer::{UDP_AT, UDP_CHECKSUM};
use wire::checksum::{Sum, checksum};

/// Segments of one super-frame (`UDP_MAX_SEGMENTS`, `include/linux/udp.h`, before Linux 6.9).
const SEGMENTS: usize = 64;
/// Bytes of a super-frame's UDP payload, so that its IPv4 packet stays below 65,536.
const PAYLOAD: usize = 65_000;
/// Ethernet, IPv4 and UDP header: what the segments of a super-frame share.
const SHARED: usize = UDP_AT + 8;
/// Flows whose super-frames can be open at once. More of them, and some leave early.
const FLOWS: usize = 256;

/// Consecutive frames of one flow that leave as one, or a single frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train {
    first: u32,
    last: u32,
    /// Frames in it.
    pub frames: u32,
    /// UDP payload of each frame but the last, in bytes.
    pub segment: u32,
    /// UDP payload of all of them.
    payload: u32,
}

/// See the module's description. Its memory is kept from one batch to the next.
#[derive(Debug, Default)]
pub struct Aggregator {
    trains: Vec<Train>,
    /// Of each frame, the next one in its train.
    next: Vec<u32>,
    /// Of each place, the number of an open train, counted from one.
    open: Vec<u32>,
}

impl Aggregator {
    /// Deals frames over trains; `together` or each in its own.
    pub fn assemble(&mut self, frames: &[Transmit], together: bool) -> &[Train] {
        self.trains.clear();
        self.next.clear();
        self.next.resize(frames.len(), 0);
        self.open.clear();
        self.open.resize(FLOWS, 0);
        for (frame, index) in frames.iter().zip(0u32..) {
            let payload = (frame.len().saturating_sub(SHARED)) as u32;
            let alone = Train { first: index, last: index, frames: 1, segment: payload, payload };
            if !together || !may_join(frame) {
                // Whose flow it is, if it has one, nobody knows.
                self.open.fill(0);
                self.trains.push(alone);
                continue;
            }
            let Some(open) = self.open.get_mut(place(frame)) else { continue };
            let train = (*open as usize).checked_sub(1).and_then(|number| self.trains.get_mut(number));
            if let Some(train) = train
                && payload <= train.segment
                && (train.frames as usize) < SEGMENTS
                && (train.payload + payload) as usize <= PAYLOAD
                && frames.get(train.first as usize).is_some_and(|first| same_flow(first, frame))
            {
                if let Some(next) = self.next.get_mut(train.last as usize) {
                    *next = index;
                }
                train.last = index;
                train.frames += 1;
                train.payload += payload;
                if payload < train.segment {
                    *open = 0;
                }
                continue;
            }
            self.trains.push(alone);
            *open = self.trains.len() as u32;
        }
        &self.trains
    }

    /// The trains, as they were assembled last.
    #[must_use]
    pub fn trains(&self) -> &[Train] {
        &self.trains
    }

    /// The frames of a train, by their numbers, in order.
    pub fn members(&self, train: &Train) -> impl Iterator<Item = usize> + '_ {
        let mut at = train.first as usize;
        (0..train.frames).map(move |_| {
            let this = at;
            at = self.next.get(at).map_or(at, |next| *next as usize);
            this
        })
    }
}

impl Train {
    /// Bytes of the head that a train's first frame has for all: Ethernet, IPv4 and UDP header.
    pub const SHARED: usize = SHARED;

    /// Number of its first frame, whose headers all share.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first as usize
    }

    /// Has the first frame's outer headers speak for the whole train, and says what the kernel is to do with it.
    pub fn couple(&self, first: &mut Transmit) -> Offload {
        if self.frames == 1 {
            return first.offload;
        }
        let udp_length = (self.payload as u16) + 8;
        let head = first.head_mut();
        let Some(header) = head.get_mut(14..SHARED) else { return Offload::default() };
        let mut put = |at: usize, word: u16| {
            if let Some(field) = header.get_mut(at..at + 2) {
                field.copy_from_slice(&word.to_be_bytes());
            }
        };
        put(2, udp_length + 20);
        put(10, 0);
        put(24, udp_length);
        put(26, 0);
        let sum = header.get(..20).map_or(0, checksum);
        let pseudo = header
            .get(12..20)
            .map_or(0, |addresses| Sum::new().bytes(addresses).word(17).word(udp_length).fold());
        let mut put = |at: usize, word: u16| {
            if let Some(field) = header.get_mut(at..at + 2) {
                field.copy_from_slice(&word.to_be_bytes());
            }
        };
        put(10, sum);
        put(26, pseudo);
        Offload {
            checksum: Checksum::Partial { start: UDP_AT as u16, offset: UDP_CHECKSUM },
            gso: Some(Gso { kind: GsoKind::Udp, size: self.segment as u16, ecn: false }),
        }
    }
}

/// Whether a frame is encapsulated, and nothing of it is left to the kernel but the outer checksum.
fn may_join(frame: &Transmit) -> bool {
    let plain = matches!(
        frame.offload,
        Offload { checksum: Checksum::AsIs | Checksum::Partial { start: 34, .. }, gso: None }
    );
    plain && matches!(frame.to, Destination::Uplink { .. }) && frame.head().len() >= OVERHEAD
}

/// Where a flow's open train is looked for: by the outer addresses' low bytes and the source port.
fn place(frame: &Transmit) -> usize {
    let byte = |at: usize| frame.head().get(at).copied().unwrap_or(0);
    let port = usize::from(byte(34)) << 8 | usize::from(byte(35));
    let far = usize::from(byte(33)) ^ usize::from(byte(32)) << 3;
    (port ^ port >> 7 ^ far.wrapping_mul(31)) % FLOWS
}

/// Whether all that a super-frame's segments share is the same: everything up to the UDP header's end but lengths, checksums and
/// the identification.
fn same_flow(first: &Transmit, other: &Transmit) -> bool {
    let (a, b) = (first.head(), other.head());
    let same = |range: core::ops::Range<usize>| a.get(range.clone()) == b.get(range);
    first.to == other.to && first.offload == other.offload && same(0..16) && same(20..24) && same(26..38)
}
