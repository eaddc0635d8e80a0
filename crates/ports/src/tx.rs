//! Transmit queue of an AF_PACKET socket: sends many frames with one system call, and groups of
//! frames as one super-frame.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use frame::{Batch, Checksum, Destination, DropReason, GsoKind, Offload, TxFrame};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use pipeline::aggregate::{Aggregator, GsoGroup};
use pipeline::bundle::{self, WRAPPER};

use crate::packet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};

/// Maximum number of frames for one system call.
const MOST: usize = 1024;
/// How many times [`TxQueue::send`] waits for room in the send buffer, for at most 2 ms each,
/// before a frame is dropped.
const PATIENCE: u32 = 4;

/// The buffers of a system call, reused by the next.
pub(crate) struct TxQueue {
    headers: Vec<VnetHeader>,
    vectors: Vec<libc::iovec>,
    addresses: Vec<libc::sockaddr_ll>,
    messages: Vec<libc::mmsghdr>,
    wrappers: Vec<[u8; WRAPPER]>,
    aggregator: Aggregator,
    /// Whether frames are grouped.
    pub(crate) together: bool,
    /// How many times a call waits for room in the send buffer.
    pub(crate) patience: u32,
}

/// Counts of the super-frames of a transmitted batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SuperFrames {
    /// Super-frames that the kernel accepted.
    pub sent: u64,
    /// Frames in them.
    pub frames: u64,
}

impl SuperFrames {
    const fn count(&mut self, train: &GsoGroup, result: Result<(), DropReason>) {
        if result.is_ok() && train.is_super_frame() {
            self.sent += 1;
            self.frames += train.frames() as u64;
        }
    }

    fn count_whole(&mut self, frame: &TxFrame, result: Result<(), DropReason>) {
        if result.is_ok() && is_whole(frame) {
            self.sent += 1;
            self.frames += u64::from(frame.segments);
        }
    }
}

// SAFETY: each call writes the raw pointers inside `vectors` and `messages` before the kernel reads
// them. Nothing reads them between calls, and nothing refers to the thread that created them.
unsafe impl Send for TxQueue {}

impl TxQueue {
    pub(crate) fn new() -> Self {
        // SAFETY: all of these are plain data for which zero bytes are a valid value.
        let (vector, address, message) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self {
            headers: vec![VnetHeader::default(); MOST],
            // For each frame three pieces at most, and two for header and wrapper.
            vectors: vec![vector; 5 * MOST],
            addresses: vec![address; MOST],
            messages: vec![message; MOST],
            wrappers: vec![[0; WRAPPER]; MOST],
            aggregator: Aggregator::default(),
            together: false,
            patience: PATIENCE,
        }
    }

    /// As [`crate::PacketSocket::transmit`]. `bridge` is the interface index of
    /// [`Destination::Bridge`], or 0.
    pub(crate) fn send(
        &mut self,
        (socket, bridge): (BorrowedFd<'_>, u32),
        batch: &Batch<'_>,
        frames: &mut [TxFrame],
        mut outcome: impl FnMut(&TxFrame, Result<(), DropReason>),
    ) -> SuperFrames {
        let mut super_frames = SuperFrames::default();
        for frames in frames.chunks_mut(MOST) {
            let mut aggregator = std::mem::take(&mut self.aggregator);
            let trains = aggregator.assemble(batch, frames, self.together, bridge != 0).len();
            self.prepare(bridge, batch, frames, &mut aggregator);
            let mut tell = |number: usize, result: Result<(), DropReason>| {
                let Some(train) = aggregator.trains().get(number) else { return };
                super_frames.count(train, result);
                for frame in aggregator.members(train).filter_map(|index| frames.get(index)) {
                    super_frames.count_whole(frame, result);
                    outcome(frame, result);
                }
            };
            let mut sent = 0;
            let (mut patience, mut told) = (self.patience, false);
            // There is no waiting if bundles for host ports are among the frames.
            let to_host = |frame: &TxFrame| matches!(frame.to, Destination::BundledHost(_));
            while sent < trains {
                // The kernel reports an error only for the first message of a call. A message that
                // may arrive in part must not be sent again, so it is always the first.
                let behind = aggregator.trains().iter().skip(sent + 1);
                let whole = |train: &GsoGroup| frames.get(train.first()).is_some_and(is_whole);
                let in_part = |train: &GsoGroup| train.may_arrive_in_part() || whole(train);
                let call = 1 + behind.take_while(|train| !in_part(train)).count();
                // SAFETY: messages `sent..sent + call` point at memory of `self`, `batch` and
                // `frames` that outlives the call.
                let done = unsafe {
                    let first = self.messages.as_mut_ptr().add(sent);
                    libc::sendmmsg(socket.as_raw_fd(), first, call as u32, libc::MSG_DONTWAIT)
                };
                if done > 0 {
                    (sent..sent + done as usize).for_each(|number| tell(number, Ok(())));
                    sent += done as usize;
                    continue;
                }
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    // The interface may be up again: the socket returns a pending ENETDOWN once.
                    Some(libc::ENETDOWN) if !told => {
                        told = true;
                        continue;
                    }
                    Some(libc::EAGAIN) if patience > 0 && !frames.iter().any(to_host) => {
                        patience -= 1;
                        wait_for_room(socket);
                        continue;
                    }
                    error => tell(sent, Err(refusal(error))),
                }
                sent += 1;
            }
            self.aggregator = aggregator;
        }
        super_frames
    }

    /// Writes a message for each GSO group.
    fn prepare(
        &mut self,
        bridge: u32,
        batch: &Batch<'_>,
        frames: &mut [TxFrame],
        aggregator: &mut Aggregator,
    ) {
        let mut used = 0;
        let places = self.messages.iter_mut().zip(&mut self.headers).zip(&mut self.addresses);
        let places = places.zip(&mut self.wrappers);
        for (train, (((message, header), address), wrapper)) in
            aggregator.trains().iter().zip(places)
        {
            let Some(first) = frames.get_mut(train.first()) else { continue };
            *header = vnet_header(&train.couple(first, batch));
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_halen = 6;
            address.sll_ifindex = match first.to {
                Destination::Uplink { ifindex, .. } | Destination::Host(ifindex) => ifindex as i32,
                Destination::Bridge | Destination::BundledHost(_) | Destination::Port(_) => {
                    bridge as i32
                }
            };
            let marked = is_whole(first);
            let from = used;
            let mut piece = |base: *const u8, length: usize| {
                if let Some(vector) = self.vectors.get_mut(used) {
                    *vector = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
                    used += 1;
                }
            };
            piece((&raw const *header).cast::<u8>(), size_of::<VnetHeader>());
            if train.is_bundle(first) {
                bundle::wrap(wrapper, first, batch, train.payload());
                piece(wrapper.as_ptr(), WRAPPER);
                for frame in aggregator.members(train).filter_map(|index| frames.get(index)) {
                    for part in
                        bundle::pieces(frame, batch).into_iter().filter(|part| !part.is_empty())
                    {
                        piece(part.as_ptr(), part.len());
                    }
                }
            } else {
                let behind = std::iter::repeat(train.spoken_for());
                let skips = std::iter::once((0, 0)).chain(behind);
                for (index, (head, body)) in aggregator.members(train).zip(skips) {
                    let Some(frame) = frames.get(index) else { continue };
                    let head = frame.head().get(head..).unwrap_or_default();
                    let body = frame.body(batch).get(body..).unwrap_or_default();
                    piece(head.as_ptr(), head.len());
                    piece(body.as_ptr(), body.len());
                }
            }
            message.msg_hdr.msg_name = (&raw mut *address).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            message.msg_hdr.msg_iov = self.vectors.as_mut_ptr().wrapping_add(from);
            message.msg_hdr.msg_iovlen = used - from;
            message.msg_hdr.msg_control = std::ptr::null_mut();
            message.msg_hdr.msg_controllen = 0;
            if marked {
                message.msg_hdr.msg_control = (&raw const MARK).cast_mut().cast();
                message.msg_hdr.msg_controllen = size_of::<Mark>();
            }
            message.msg_hdr.msg_flags = 0;
        }
    }
}

/// A control message that sets the `SO_MARK` of one message.
#[repr(C)]
struct Mark {
    header: libc::cmsghdr,
    value: u32,
}

/// The mark of TCP super-frames over an uplink. The program `vtepd_tunnel` at the uplink's egress
/// looks for it (`WHOLE` in `programs/steering.bpf.c`).
static MARK: Mark = Mark {
    header: libc::cmsghdr {
        cmsg_len: size_of::<libc::cmsghdr>() + size_of::<u32>(),
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SO_MARK,
    },
    value: 0x7674_6570,
};

/// Whether this is a TCP super-frame that leaves over an uplink without being split.
const fn is_whole(frame: &TxFrame) -> bool {
    matches!(frame.to, Destination::Uplink { .. }) && frame.offload.gso.is_some()
}

/// Waits up to 2 ms for room in the socket's send buffer.
fn wait_for_room(socket: BorrowedFd<'_>) {
    let timeout = PollTimeout::try_from(Duration::from_millis(2)).unwrap_or(PollTimeout::ZERO);
    // The result is ignored, because the next attempt to send shows whether there is room.
    let _ = nix::poll::poll(&mut [PollFd::new(socket, PollFlags::POLLOUT)], timeout);
}

/// The drop reason for an error of sendmmsg(2).
const fn refusal(error: Option<i32>) -> DropReason {
    match error {
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => DropReason::LinkDown,
        Some(libc::EMSGSIZE) => DropReason::TooBig,
        Some(libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM) => DropReason::TransmitBusy,
        _ => DropReason::TransmitError,
    }
}

pub(crate) fn vnet_header(offload: &Offload) -> VnetHeader {
    let mut header = VnetHeader::default();
    if let Checksum::Partial { start, offset } = offload.checksum {
        header.flags = NEEDS_CSUM;
        header.checksum_start = start;
        header.checksum_offset = offset;
    }
    if let Some(gso) = offload.gso {
        let (kind, transport) = match gso.kind {
            GsoKind::TcpV4 => (GSO_TCPV4, 20),
            GsoKind::TcpV6 => (GSO_TCPV6, 20),
            GsoKind::Udp => (GSO_UDP_L4, 8),
        };
        header.gso_type = kind | if gso.ecn { GSO_ECN } else { 0 };
        header.gso_size = gso.size;
        // Bytes that the kernel copies into the linear part of the skb: at least the headers.
        header.header_length = header.checksum_start + transport;
    }
    header
}
