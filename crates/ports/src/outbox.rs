//! Frames on their way into an AF_PACKET socket: many in one system call, those of one flow as one super-frame.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use pipeline::aggregate::{Aggregator, Train};
use pipeline::{Batch, Checksum, Destination, DropReason, GsoKind, Offload, Transmit};

use crate::packet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader};

/// Frames that one system call takes at most.
const MOST: usize = 512;

/// Memory for one system call, kept for the next.
pub(crate) struct Outbox {
    headers: Vec<VnetHeader>,
    vectors: Vec<libc::iovec>,
    addresses: Vec<libc::sockaddr_ll>,
    messages: Vec<libc::mmsghdr>,
    aggregator: Aggregator,
    /// Whether frames leave together.
    pub(crate) together: bool,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        // SAFETY: all of these are plain data for which zero bytes are a valid value.
        let (vector, address, message) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self {
            headers: vec![VnetHeader::default(); MOST],
            // The header, and two pieces of each frame.
            vectors: vec![vector; 3 * MOST],
            addresses: vec![address; MOST],
            messages: vec![message; MOST],
            aggregator: Aggregator::default(),
            together: false,
        }
    }

    /// See [`crate::PacketSocket::transmit`]; `bridge` is where [`Destination::Bridge`] is.
    pub(crate) fn send(
        &mut self,
        (socket, bridge): (BorrowedFd<'_>, u32),
        batch: &Batch,
        frames: &mut [Transmit],
        mut outcome: impl FnMut(&Transmit, Result<(), DropReason>),
    ) {
        for frames in frames.chunks_mut(MOST) {
            let mut aggregator = std::mem::take(&mut self.aggregator);
            let trains = aggregator.assemble(frames, self.together).len();
            self.prepare(bridge, batch, frames, &mut aggregator);
            let mut tell = |number: usize, result: Result<(), DropReason>| {
                let Some(train) = aggregator.trains().get(number) else { return };
                for frame in aggregator.members(train).filter_map(|index| frames.get(index)) {
                    outcome(frame, result);
                }
            };
            let mut sent = 0;
            let (mut patience, mut told) = (4, false);
            while sent < trains {
                // SAFETY: messages `sent..trains` point at memory of `self`, `batch` and `frames` that outlives the call.
                let done = unsafe {
                    let first = self.messages.as_mut_ptr().add(sent);
                    libc::sendmmsg(socket.as_raw_fd(), first, (trains - sent) as u32, libc::MSG_DONTWAIT)
                };
                if done > 0 {
                    (sent..sent + done as usize).for_each(|number| tell(number, Ok(())));
                    sent += done as usize;
                    continue;
                }
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    // It may be over: what the socket was told when its interface went down, it tells once.
                    Some(libc::ENETDOWN) if !told => {
                        told = true;
                        continue;
                    }
                    Some(libc::EAGAIN) if patience > 0 => {
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
    }

    /// Writes a message for each train.
    fn prepare(&mut self, bridge: u32, batch: &Batch, frames: &mut [Transmit], aggregator: &mut Aggregator) {
        let mut used = 0;
        let places = self.messages.iter_mut().zip(&mut self.headers).zip(&mut self.addresses);
        for (train, ((message, header), address)) in aggregator.trains().iter().zip(places) {
            let Some(first) = frames.get_mut(train.first()) else { continue };
            *header = vnet_header(&train.couple(first));
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_halen = 6;
            address.sll_ifindex = match first.to {
                Destination::Uplink { ifindex, .. } => ifindex as i32,
                Destination::Bridge | Destination::Port(_) => bridge as i32,
            };
            let from = used;
            let mut piece = |base: *const u8, length: usize| {
                if let Some(vector) = self.vectors.get_mut(used) {
                    *vector = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
                    used += 1;
                }
            };
            piece((&raw const *header).cast::<u8>(), size_of::<VnetHeader>());
            for (index, shared) in
                aggregator.members(train).zip(std::iter::once(0).chain(std::iter::repeat(Train::SHARED)))
            {
                let Some(frame) = frames.get(index) else { continue };
                let (head, body) = (frame.head().get(shared..).unwrap_or_default(), frame.body(batch));
                piece(head.as_ptr(), head.len());
                piece(body.as_ptr(), body.len());
            }
            message.msg_hdr.msg_name = (&raw mut *address).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            message.msg_hdr.msg_iov = self.vectors.as_mut_ptr().wrapping_add(from);
            message.msg_hdr.msg_iovlen = used - from;
            message.msg_hdr.msg_control = std::ptr::null_mut();
            message.msg_hdr.msg_controllen = 0;
            message.msg_hdr.msg_flags = 0;
        }
    }
}

/// Waits a little until the socket's send buffer has room again.
fn wait_for_room(socket: BorrowedFd<'_>) {
    let timeout = PollTimeout::try_from(Duration::from_millis(2)).unwrap_or(PollTimeout::ZERO);
    // Whatever it answers, the next attempt to send finds out.
    let _ = nix::poll::poll(&mut [PollFd::new(socket, PollFlags::POLLOUT)], timeout);
}

/// Why the kernel did not take a frame.
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
        // What the kernel copies into the linear part: the headers, at least.
        header.header_length = header.checksum_start + transport;
    }
    header
}
