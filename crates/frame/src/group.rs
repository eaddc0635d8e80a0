//! Groups of frames that are sent as one, and the queues by which they leave.

use core::ops::Range;

use crate::drop_reason::DropReason;
use crate::frame::Offload;
use crate::tx_frame::TxFrame;

/// Length of the headers that all segments of a UDP super-frame share: Ethernet, IPv4 and UDP.
pub const SHARED_HEADERS: usize = 14 + 20 + 8;
/// The same over IPv6.
pub const SHARED_HEADERS_IPV6: usize = 14 + 40 + 8;

/// A GSO group: frames of one flow that are sent as one, or a single frame. The headers of the
/// first frame describe the whole group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GsoGroup {
    /// Index of the first frame.
    pub first: u32,
    /// Index of the last frame.
    pub last: u32,
    /// Number of frames, 1 to 64.
    pub frames: u32,
    /// UDP payload of each frame but the last, in bytes.
    pub segment: u32,
    /// The sum of these lengths over all frames.
    pub payload: u32,
    /// Length of the headers that the frames share: [`SHARED_HEADERS`] or
    /// [`SHARED_HEADERS_IPV6`].
    pub shared: usize,
    /// Offloads to request from the kernel for the whole group.
    pub offload: Offload,
    /// What became of it. A group counts as dropped until a port has sent it.
    pub outcome: Result<(), DropReason>,
}

impl GsoGroup {
    /// A group of one frame.
    #[inline]
    #[must_use]
    pub fn single(frame: &TxFrame, index: u32) -> Self {
        let payload = (frame.len().saturating_sub(SHARED_HEADERS)) as u32;
        Self {
            first: index,
            last: index,
            frames: 1,
            segment: payload,
            payload,
            shared: SHARED_HEADERS,
            offload: frame.offload,
            outcome: Err(DropReason::LinkDown),
        }
    }

    /// Whether it is a UDP super-frame of encapsulated frames.
    #[must_use]
    pub const fn is_super_frame(&self) -> bool {
        self.frames > 1
    }
}

/// The queue by which a frame leaves: one for each kind of egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// Uplinks.
    Uplinks,
    /// Host ports, bypassing the bridge.
    Hosts,
    /// The bridge punt pair.
    Bridge,
    /// Access ports.
    Ports,
}

impl Queue {
    /// All queues.
    pub const ALL: [Self; 4] = [Self::Uplinks, Self::Hosts, Self::Bridge, Self::Ports];
}

/// The groups of a transmit batch, queue by queue.
#[derive(Debug, Default)]
pub struct Groups {
    /// The groups. Those of one queue are next to each other, in the order in which they leave.
    pub list: Vec<GsoGroup>,
    /// For each frame, the next frame of its group.
    pub next: Vec<u32>,
    queues: [Range<usize>; Queue::ALL.len()],
}

impl Groups {
    /// Removes all groups.
    pub fn clear(&mut self) {
        self.list.clear();
        self.next.clear();
        self.queues = Default::default();
    }

    /// Declares the groups from index `start` on as those of a queue.
    pub fn set_queue(&mut self, queue: Queue, start: usize) {
        let end = self.list.len();
        if let Some(range) = self.queues.get_mut(queue as usize) {
            *range = start..end;
        }
    }

    /// The indices of a queue's groups.
    #[must_use]
    pub fn of(&self, queue: Queue) -> Range<usize> {
        self.queues.get(queue as usize).cloned().unwrap_or_default()
    }

    /// The indices of a group's frames, in order.
    #[inline]
    pub fn members(&self, group: &GsoGroup) -> impl Iterator<Item = usize> + use<'_> {
        let mut at = group.first as usize;
        (0..group.frames).map(move |_| {
            let this = at;
            at = self.next.get(at).map_or(at, |next| *next as usize);
            this
        })
    }
}
