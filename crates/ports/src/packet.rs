//! AF_PACKET sockets with `PACKET_VNET_HDR`, batched both ways (packet(7), `net/packet/af_packet.c`).

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use pipeline::{Batch, Checksum, DropReason, Gso, GsoKind, Offload, Received, Transmit, VlanTag};

use crate::outbox::Outbox;

/// Frames that one system call moves at most.
pub const BATCH: usize = 64;

/// `struct virtio_net_hdr` (`include/uapi/linux/virtio_net.h`), in the machine's byte order.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct VnetHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) header_length: u16,
    pub(crate) gso_size: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

impl VnetHeader {
    /// As it lies in memory.
    pub(crate) const fn bytes(&self) -> [u8; size_of::<Self>()] {
        let [a, b] = self.header_length.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }

    /// From how it lies in memory.
    pub(crate) const fn from_bytes(
        [flags, gso_type, a, b, c, d, e, f, g, h]: [u8; size_of::<Self>()],
    ) -> Self {
        Self {
            flags,
            gso_type,
            header_length: u16::from_ne_bytes([a, b]),
            gso_size: u16::from_ne_bytes([c, d]),
            checksum_start: u16::from_ne_bytes([e, f]),
            checksum_offset: u16::from_ne_bytes([g, h]),
        }
    }
}

pub(crate) const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;
/// TCP with ECN, and with accurate ECN, which repeats CWR in every segment (Linux 6.18).
pub(crate) const GSO_ECN: u8 = 0x80;
const GSO_ACCECN: u8 = 0x10;

const VLAN_VALID: u32 = libc::TP_STATUS_VLAN_VALID;
const VLAN_TPID_VALID: u32 = libc::TP_STATUS_VLAN_TPID_VALID;

/// Room for one `PACKET_AUXDATA` control message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 64]);

/// A socket bound to one interface, or to none for sending only.
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
    headers: Vec<VnetHeader>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    outbox: Box<Outbox>,
}

// SAFETY: the raw pointers inside `vectors` and `messages` are written anew by each call before the kernel reads them, and
// never read between calls; nothing refers to the thread that made them.
unsafe impl Send for PacketSocket {}

impl std::fmt::Debug for PacketSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSocket")
            .field("fd", &self.fd)
            .field("ifindex", &self.ifindex)
            .finish_non_exhaustive()
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PacketSocket {
    /// A socket that receives every frame that arrives on an interface of the calling thread's namespace, and sends there.
    /// What the namespace itself sends is not received.
    ///
    /// # Errors
    /// As socket(2), bind(2) and setsockopt(2): without CAP_NET_RAW, or when the interface does not exist.
    pub fn open(ifindex: u32, receive_buffer: usize) -> io::Result<Self> {
        // Protocol 0 first: no frame may be queued before the options hold.
        let socket = Self::with_protocol(ifindex)?;
        let on: libc::c_int = 1;
        socket.option(libc::SOL_PACKET, libc::PACKET_AUXDATA, &on)?;
        socket.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)?;
        let bytes = libc::c_int::try_from(receive_buffer).unwrap_or(libc::c_int::MAX);
        socket.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)?;
        let address = socket.address(ifindex, (libc::ETH_P_ALL as u16).to_be());
        // SAFETY: `address` is a whole sockaddr_ll and its length is given.
        let bound = unsafe {
            libc::bind(
                socket.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    /// Has the interface hand over what is for others than itself, too (`PACKET_MR_PROMISC`).
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn listen_to_all(&self) -> io::Result<()> {
        // SAFETY: packet_mreq is plain data for which zero bytes are a valid value.
        let mut request: libc::packet_mreq = unsafe { zeroed() };
        request.mr_ifindex = self.ifindex as i32;
        request.mr_type = libc::PACKET_MR_PROMISC as u16;
        self.option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// A socket that sends to interfaces of the calling thread's namespace and receives nothing. With `super_frames`, encapsulated
    /// frames of one outer flow leave together ([`pipeline::aggregate`]).
    ///
    /// # Errors
    /// As socket(2) and setsockopt(2): without CAP_NET_RAW.
    pub fn open_sender(super_frames: bool) -> io::Result<Self> {
        let mut socket = Self::with_protocol(0)?;
        socket.outbox.together = super_frames;
        Ok(socket)
    }

    fn with_protocol(ifindex: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket(2) takes no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: all of these are plain data for which zero bytes are a valid value.
        let (vector, message) = unsafe { (zeroed(), zeroed()) };
        let socket = Self {
            fd,
            ifindex,
            headers: vec![VnetHeader::default(); BATCH],
            controls: vec![Control([0; 64]); BATCH],
            vectors: vec![vector; 2 * BATCH],
            messages: vec![message; BATCH],
            outbox: Box::new(Outbox::new()),
        };
        let on: libc::c_int = 1;
        socket.option(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
        let bytes: libc::c_int = 8 << 20;
        socket.option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)?;
        Ok(socket)
    }

    fn option<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: pointer and length describe `value`, which outlives the call.
        let set = unsafe {
            let length = size_of::<T>() as libc::socklen_t;
            libc::setsockopt(self.fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
        };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn address(&self, ifindex: u32, protocol: u16) -> libc::sockaddr_ll {
        // SAFETY: sockaddr_ll is plain data for which zero bytes are a valid value.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = ifindex as i32;
        address
    }

    /// The interface it is bound to; 0 for none.
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Frames that found the receive buffer full since the last call (`PACKET_STATISTICS`).
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn overruns(&self) -> io::Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: pointer and length describe `statistics`.
        let got = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from(statistics.tp_drops)) }
    }

    /// Fills the batch (which is cleared first) with what has arrived; does not wait. Returns how many frames the
    /// kernel dropped because the header cannot say their offloads (on Linux 6.1: UDP super-frames).
    ///
    /// # Errors
    /// As recvmmsg(2), but "nothing there" and "the interface is down" are an empty batch.
    pub fn receive(&mut self, batch: &mut Batch) -> io::Result<u64> {
        batch.clear();
        let mut prepared = 0;
        for (index, room) in batch.room().take(BATCH).enumerate() {
            let (Some(header), Some(control)) = (self.headers.get_mut(index), self.controls.get_mut(index))
            else {
                break;
            };
            let Some(vectors) = self.vectors.get_mut(2 * index..2 * index + 2) else { break };
            let [first, second] = vectors else { break };
            *first = libc::iovec { iov_base: (&raw mut *header).cast(), iov_len: size_of::<VnetHeader>() };
            *second = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            let Some(message) = self.messages.get_mut(index) else { break };
            message.msg_hdr.msg_name = std::ptr::null_mut();
            message.msg_hdr.msg_namelen = 0;
            message.msg_hdr.msg_iov = first;
            message.msg_hdr.msg_iovlen = 2;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            message.msg_hdr.msg_controllen = control.0.len();
            message.msg_hdr.msg_flags = 0;
            message.msg_len = 0;
            prepared += 1;
        }
        // SAFETY: the first `prepared` messages point at memory of `self` and `batch` that outlives the call, each piece at one
        // message only, with its length.
        let received = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                prepared,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // ENETDOWN is told once after the interface went down, or was when it was bound; it may come up again.
                Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(0),
                // The kernel could not describe the frame's offloads and has dropped it (`virtio_net_hdr_from_skb`).
                Some(libc::EINVAL) => Ok(1),
                _ => Err(error),
            };
        }
        for (message, header) in self.messages.iter().zip(&self.headers).take(received as usize) {
            let length = (message.msg_len as usize).saturating_sub(size_of::<VnetHeader>());
            let whole = message.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            match (whole, offload(header)) {
                (true, Some(offload)) => {
                    batch.push(Received { length, vlan: vlan(&message.msg_hdr), offload })
                }
                // A frame that cannot be used keeps its place, for the bytes of those behind it stand where they are. The pipeline
                // counts the empty frame as unreadable.
                _ => batch.push(Received { length: 0, ..Received::default() }),
            }
        }
        Ok(0)
    }

    /// Sends frames, each to its own destination ([`pipeline::Destination::Bridge`] and [`pipeline::Destination::Port`] are the
    /// interface that the socket is bound to). `outcome` is told what became of each. The frames of one outer flow keep their order.
    pub fn transmit(
        &mut self,
        batch: &Batch,
        frames: &mut [Transmit],
        outcome: impl FnMut(&Transmit, Result<(), DropReason>),
    ) {
        self.outbox.send((self.fd.as_fd(), self.ifindex), batch, frames, outcome);
    }
}

/// What the header says; `None` for a kind of segmentation that is not known here.
pub(crate) fn offload(header: &VnetHeader) -> Option<Offload> {
    let checksum = if header.flags & NEEDS_CSUM != 0 {
        Checksum::Partial { start: header.checksum_start, offset: header.checksum_offset }
    } else if header.flags & DATA_VALID != 0 {
        Checksum::Valid
    } else {
        Checksum::AsIs
    };
    let kind = match header.gso_type & !(GSO_ECN | GSO_ACCECN) {
        GSO_NONE => return Some(Offload { checksum, gso: None }),
        GSO_TCPV4 => GsoKind::TcpV4,
        GSO_TCPV6 => GsoKind::TcpV6,
        GSO_UDP_L4 => GsoKind::Udp,
        _ => return None,
    };
    let gso = Gso { kind, size: header.gso_size, ecn: header.gso_type & GSO_ECN != 0 };
    Some(Offload { checksum, gso: Some(gso) })
}

/// The tag that the kernel took out of the frame, from `PACKET_AUXDATA`.
fn vlan(message: &libc::msghdr) -> Option<VlanTag> {
    // SAFETY: the kernel has filled `msg_control` up to `msg_controllen`; CMSG_FIRSTHDR checks that a whole header is there, and
    // the length is checked before the data is read, which may be unaligned.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(message).as_ref()?;
        let whole =
            control.cmsg_len as usize >= libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) as usize;
        if control.cmsg_level != libc::SOL_PACKET || control.cmsg_type != libc::PACKET_AUXDATA || !whole {
            return None;
        }
        let auxdata: libc::tpacket_auxdata =
            libc::CMSG_DATA(control).cast::<libc::tpacket_auxdata>().read_unaligned();
        if auxdata.tp_status & VLAN_VALID == 0 {
            return None;
        }
        let tpid = if auxdata.tp_status & VLAN_TPID_VALID != 0 { auxdata.tp_vlan_tpid } else { 0x8100 };
        Some(VlanTag { tpid, tci: auxdata.tp_vlan_tci })
    }
}
