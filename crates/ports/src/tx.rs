//! Transmit queue of an AF_PACKET socket: sends many frames with one system call, and groups of
//! frames as one super-frame.

use core::ops::Range;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use frame::{Batch, Checksum, Destination, DropReason, GsoKind, Offload, TxBatch};
use nix::poll::{PollFd, PollFlags, PollTimeout};

use crate::packet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};

/// Maximum number of messages for one system call.
const MESSAGES: usize = 1024;
/// Maximum number of pieces for one system call: of each group, its virtio-net header, and two
/// pieces for each frame.
const PIECES: usize = 3 * MESSAGES;
/// How many times [`TxQueue::send`] waits for room in the send buffer, for at most 2 ms each,
/// before a frame is dropped.
const WAITS: u32 = 4;

/// The buffers of a system call, reused by the next.
pub(crate) struct TxQueue {
    headers: Vec<VnetHeader>,
    vectors: Vec<libc::iovec>,
    addresses: Vec<libc::sockaddr_ll>,
    messages: Vec<libc::mmsghdr>,
    /// Whether frames are dropped at once when the send buffer is full.
    pub(crate) non_blocking: bool,
}

// SAFETY: each call writes the raw pointers inside `vectors` and `messages` before the kernel reads
// them. Nothing reads them between calls, and nothing refers to the thread that created them.
unsafe impl Send for TxQueue {}

impl TxQueue {
    pub(crate) fn new() -> Self {
        // SAFETY: all of these are plain data for which zero bytes are a valid value.
        let (vector, address, message) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self {
            headers: vec![VnetHeader::default(); MESSAGES],
            vectors: vec![vector; PIECES],
            addresses: vec![address; MESSAGES],
            messages: vec![message; MESSAGES],
            non_blocking: false,
        }
    }

    /// As [`Port::transmit`](crate::Port::transmit). `bound` is the interface index of the socket, or 0.
    pub(crate) fn send(
        &mut self,
        (socket, bound): (BorrowedFd<'_>, u32),
        batch: &Batch<'_>,
        out: &mut TxBatch,
        groups: Range<usize>,
    ) {
        let mut start = groups.start;
        while start < groups.end {
            let count = self.prepare(bound, batch, out, start..groups.end);
            self.submit(socket, out, start..start + count);
            start += count;
        }
    }

    /// Sends the prepared messages, one for each of these groups, and writes the outcomes.
    fn submit(&mut self, socket: BorrowedFd<'_>, out: &mut TxBatch, groups: Range<usize>) {
        let count = groups.len();
        let set = |out: &mut TxBatch, messages: Range<usize>, outcome| {
            let range = groups.start + messages.start..groups.start + messages.end;
            let groups = out.groups_mut().list.get_mut(range).unwrap_or_default();
            groups.iter_mut().for_each(|group| group.outcome = outcome);
        };
        let (mut sent, mut down) = (0, false);
        let mut waits = if self.non_blocking { 0 } else { WAITS };
        while sent < count {
            // SAFETY: messages `sent..count` point at memory of `self`, of the batch and of
            // `out` that outlives the call.
            let done = unsafe {
                let first = self.messages.as_mut_ptr().add(sent);
                libc::sendmmsg(socket.as_raw_fd(), first, (count - sent) as u32, libc::MSG_DONTWAIT)
            };
            if done > 0 {
                set(out, sent..sent + done as usize, Ok(()));
                sent += done as usize;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => continue,
                // The interface may be up again: the socket returns a pending ENETDOWN once.
                Some(libc::ENETDOWN) if !down => {
                    down = true;
                    continue;
                }
                Some(libc::EAGAIN) if waits > 0 => {
                    waits -= 1;
                    wait_for_room(socket);
                    continue;
                }
                error => set(out, sent..sent + 1, Err(refusal(error))),
            }
            sent += 1;
        }
    }

    /// Writes a message for each of these groups, until the buffers are full. Returns their number,
    /// at least one.
    fn prepare(
        &mut self,
        bound: u32,
        batch: &Batch<'_>,
        out: &TxBatch,
        groups: Range<usize>,
    ) -> usize {
        let (mut count, mut used) = (0, 0);
        let places = self.messages.iter_mut().zip(&mut self.headers).zip(&mut self.addresses);
        let groups = out.groups().list.get(groups).unwrap_or_default();
        for (group, ((message, header), address)) in groups.iter().zip(places) {
            if used + 1 + 2 * group.frames as usize > self.vectors.len() {
                break;
            }
            count += 1;
            let Some(first) = out.first(group) else { continue };
            *header = vnet_header(&group.offload);
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_halen = 6;
            address.sll_ifindex = match first.to {
                Destination::Uplink { ifindex, .. } | Destination::Host(ifindex) => ifindex as i32,
                Destination::Bridge | Destination::Port(_) => bound as i32,
            };
            let start = used;
            let mut piece = |base: *const u8, length: usize| {
                if let Some(vector) = self.vectors.get_mut(used) {
                    *vector = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
                    used += 1;
                }
            };
            piece((&raw const *header).cast::<u8>(), size_of::<VnetHeader>());
            out.for_each_piece(group, batch, |bytes| piece(bytes.as_ptr(), bytes.len()));
            message.msg_hdr.msg_name = (&raw mut *address).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            message.msg_hdr.msg_iov = self.vectors.as_mut_ptr().wrapping_add(start);
            message.msg_hdr.msg_iovlen = used - start;
            message.msg_hdr.msg_control = std::ptr::null_mut();
            message.msg_hdr.msg_controllen = 0;
            message.msg_hdr.msg_flags = 0;
        }
        count
    }
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
