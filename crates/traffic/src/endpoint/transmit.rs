//! Sends the frames of an endpoint. Where the kernel cuts UDP super-frames before they leave the
//! interface, consecutive frames of a queue pair go to the kernel as one super-frame. The frames on
//! the link are the same, but the kernel adds UDP checksums, which RoCE does not use.

use fabric::super_frames::SEGMENTATION;
use frame::{
    Batch, Checksum, Destination, DropReason, ETHERNET, Frame, Gso, GsoGroup, GsoKind, Offload,
    Payload, Queue, SHARED_HEADERS, TxBatch,
};
use ports::{PacketSocket, Port as _, ethtool};
use roce::{Frames, Group};

/// Where the UDP header is in a frame, and where the checksum is in it.
const UDP: u16 = 34;
const UDP_CHECKSUM: u16 = 6;
/// Frames leave by the interface of the socket.
const TO: Destination = Destination::Port(0);

/// What is sent, and how.
#[derive(Debug)]
pub struct Transmit {
    out: TxBatch,
    /// Whether super-frames may be sent.
    groups: bool,
    /// Whether the kernel has taken one.
    is_taken: bool,
}

impl Transmit {
    /// Frames that leave by an interface of the calling thread's namespace. The longest has
    /// `longest` bytes. No super-frames are sent if a queueing discipline would see them, or if a
    /// frame may exceed the MTU: the kernel does not report that for super-frames.
    #[must_use]
    pub fn new(interface: &str, longest: usize) -> Self {
        let link = netlink::Requests::open().and_then(|mut requests| requests.link(interface));
        let fits = link
            .ok()
            .flatten()
            .is_some_and(|link| link.qdisc == "noqueue" && longest <= link.mtu as usize + ETHERNET);
        let groups = fits && ethtool::is_off(interface, SEGMENTATION).unwrap_or(false);
        Self { out: TxBatch::new(), groups, is_taken: false }
    }

    /// Whether super-frames are sent.
    #[must_use]
    pub const fn has_super_frames(&self) -> bool {
        self.groups
    }

    /// Sends frames. A full queue drops frames, as a NIC's does.
    ///
    /// # Errors
    /// Why the first frame that could not be sent was refused.
    pub fn send(&mut self, socket: &mut PacketSocket, frames: &Frames) -> Result<(), DropReason> {
        let mut batch = self.fill(frames);
        let mut sent = 0;
        let mut groups = self.out.split_mut().1.list.iter();
        if self.groups
            && !self.is_taken
            && let Some(first) = groups.position(|group| group.frames > 1)
        {
            // Linux before 6.2 takes no UDP super-frames. Nothing may overtake the first one.
            socket.transmit(&batch, &mut self.out, 0..first + 1);
            let outcome = self.out.split_mut().1.list.get(first).map(|group| group.outcome);
            self.is_taken = outcome == Some(Ok(()));
            sent = first + 1;
            if outcome == Some(Err(DropReason::TransmitError)) {
                self.groups = false;
                batch = self.fill(frames);
                sent = first;
            }
        }
        let all = self.out.split_mut().1.list.len();
        socket.transmit(&batch, &mut self.out, sent..all);
        match self.out.outcome() {
            Err(DropReason::TransmitBusy) => Ok(()),
            outcome => outcome,
        }
    }

    /// Makes groups of the frames. Those before the first super-frame have one frame each.
    fn fill<'a>(&mut self, frames: &'a Frames) -> Batch<'a> {
        let mut batch = Batch::new(frames.len());
        self.out.clear();
        for group in frames.groups() {
            self.add(&mut batch, &group);
        }
        let count = self.out.len() as u32;
        let (_, groups) = self.out.split_mut();
        groups.next.extend(1..=count);
        groups.set_queue(Queue::Ports, 0);
        batch
    }

    /// Adds a group as one super-frame, or its frames one by one.
    fn add<'a>(&mut self, batch: &mut Batch<'a>, group: &Group<'a>) {
        let headers = if self.groups { group.headers() } else { None };
        let start = if headers.is_some() { SHARED_HEADERS as u32 } else { 0 };
        let first = self.out.len() as u32;
        for (data, number) in group.frames().zip(0..) {
            let body = Payload::Received { frame: first + number, range: start..data.len() as u32 };
            batch.push(Frame { data, vlan: None, offload: Offload::default() });
            let Some(frame) = self.out.append(TO, 0, body, Offload::default()) else { return };
            if let Some(headers) = headers.filter(|_| number == 0) {
                // The headers fit: a head has room for more.
                let _ = frame.extend_head(&headers);
            }
        }
        let (frames, groups) = self.out.split_mut();
        let singles = frames.iter().zip(0..).skip(first as usize);
        let mut singles = singles.map(|(frame, index)| GsoGroup::single(frame, index));
        if headers.is_none() {
            groups.list.extend(singles);
        } else if let Some(single) = singles.next() {
            let gso = Gso { kind: GsoKind::Udp, size: group.segment() as u16, ecn: false };
            let checksum = Checksum::Partial { start: UDP, offset: UDP_CHECKSUM };
            let offload = Offload { checksum, gso: Some(gso) };
            let last = frames.len() as u32 - 1;
            groups.list.push(GsoGroup { last, frames: last - first + 1, offload, ..single });
        }
    }
}
