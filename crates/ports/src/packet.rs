//! AF_PACKET sockets with `PACKET_VNET_HDR` and batched receive and transmit (packet(7),
//! `net/packet/af_packet.c`).

use core::ops::Range;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use frame::{Batch, Checksum, Gso, GsoKind, Offload, TxBatch};
use nix::sys::socket::sockopt::SocketError;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};

use crate::port::Port;
use crate::ring::{Ring, RingSize};
use crate::tx::TxQueue;

/// Maximum number of frames in a batch. A super-frame counts as its segments.
pub const BATCH: usize = 1024;

/// `struct virtio_net_hdr` (`include/uapi/linux/virtio_net.h`), in host byte order.
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
    /// The header as it is stored in memory.
    pub(crate) const fn bytes(&self) -> [u8; size_of::<Self>()] {
        let [a, b] = self.header_length.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }

    /// Reads a header as it is stored in memory.
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
/// TCP with ECN, and TCP with accurate ECN, in which every segment repeats CWR (Linux 6.18).
pub(crate) const GSO_ECN: u8 = 0x80;
const GSO_ACCECN: u8 = 0x10;

/// The batch of a socket that only sends.
static NOTHING: Batch<'static> = Batch::none();

/// An AF_PACKET socket that is bound to one interface, or to none if it only sends.
pub struct PacketSocket {
    fd: OwnedFd,
    ifindex: u32,
    ring: Option<Ring>,
    tx: Box<TxQueue>,
}

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
    /// Opens a socket that receives every frame arriving on an interface of the calling thread's
    /// namespace, and sends there. It does not receive what the namespace itself sends.
    ///
    /// # Errors
    /// As socket(2), bind(2) and setsockopt(2): without CAP_NET_RAW, or when the interface does not
    /// exist.
    pub fn open(ifindex: u32, room: RingSize) -> io::Result<Self> {
        // Protocol 0 first: no frame may be queued before the options are set.
        let mut socket = Self::with_protocol(ifindex)?;
        let on: libc::c_int = 1;
        set_option(&socket.fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)?;
        socket.ring = Some(Ring::attach(&socket.fd, room)?);
        bind(&socket.fd, ifindex, (libc::ETH_P_ALL as u16).to_be())?;
        Ok(socket)
    }

    /// Makes the interface receive frames for other addresses too (`PACKET_MR_PROMISC`).
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn listen_to_all(&self) -> io::Result<()> {
        // SAFETY: packet_mreq is plain data for which zero bytes are a valid value.
        let mut request: libc::packet_mreq = unsafe { zeroed() };
        request.mr_ifindex = self.ifindex as i32;
        request.mr_type = libc::PACKET_MR_PROMISC as u16;
        set_option(&self.fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Opens a socket that sends to interfaces of the calling thread's namespace and receives
    /// nothing.
    ///
    /// # Errors
    /// As socket(2) and setsockopt(2): without CAP_NET_RAW.
    pub fn open_sender() -> io::Result<Self> {
        Self::with_protocol(0)
    }

    /// Drops frames immediately if the socket's send buffer is full, instead of waiting.
    #[must_use]
    pub fn non_blocking(mut self) -> Self {
        self.tx.non_blocking = true;
        self
    }

    fn with_protocol(ifindex: u32) -> io::Result<Self> {
        let fd = raw_socket()?;
        let on: libc::c_int = 1;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
        let bytes: libc::c_int = 8 << 20;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)?;
        Ok(Self { fd, ifindex, ring: None, tx: Box::new(TxQueue::new()) })
    }

    /// Interface index that the socket is bound to; 0 for none.
    #[must_use]
    pub const fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Frames that have arrived since the last call. Does not wait. A frame that could not be read
    /// is empty.
    pub fn receive(&mut self) -> &Batch<'_> {
        let socket = self.fd.as_fd();
        self.ring.as_mut().map_or(&NOTHING, |ring| ring.receive(socket))
    }

    /// Keeps VLAN tags in the bytes of received frames.
    pub const fn keep_tags(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.keep_tags();
        }
    }
}

impl Port for PacketSocket {
    fn receive(&mut self) -> io::Result<&Batch<'_>> {
        Ok(Self::receive(self))
    }

    fn batch(&self) -> &Batch<'_> {
        self.ring.as_ref().map_or(&NOTHING, Ring::batch)
    }

    /// A socket that is bound to an interface sends [`Destination::Bridge`](frame::Destination::Bridge)
    /// and `Port` there.
    fn transmit(&mut self, batch: &Batch<'_>, out: &mut TxBatch, groups: Range<usize>) {
        self.tx.send((self.fd.as_fd(), self.ifindex), batch, out, groups);
    }

    /// Frames that did not fit the ring or the socket's queue (`PACKET_STATISTICS`). Replaces a ring
    /// that is stuck.
    fn overruns(&mut self) -> io::Result<u64> {
        let mut dropped = drops(&self.fd)?;
        if let Some(ring) = self.ring.take() {
            let mut ring = ring.check(&self.fd, dropped)?;
            dropped += ring.take_cut();
            self.ring = Some(ring);
        }
        Ok(dropped)
    }

    /// Makes no system call, so it does not notice that the ring was full.
    fn has_overruns(&self) -> bool {
        self.ring.as_ref().is_some_and(Ring::has_cut)
    }

    /// Super-frames that the kernel cannot describe can arrive on any interface but a punt pair.
    fn may_stick(&self) -> bool {
        true
    }

    /// Clears ENETDOWN.
    fn clear_error(&self) {
        let _ = getsockopt(&self.fd, SocketError);
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.as_fd())
    }
}

/// The offload that a header describes; `None` for an unknown kind of segmentation.
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

/// A packet socket that receives nothing before it is bound.
pub(crate) fn raw_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Packet, SockType::Raw, flags, None)?)
}

/// Binds a packet socket to an interface, or to all with index 0, and to a protocol in network byte
/// order.
pub(crate) fn bind(socket: &OwnedFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    let address = address(ifindex, protocol);
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a whole sockaddr_ll and its length is given.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The address of an interface, for a protocol in network byte order.
pub(crate) fn address(ifindex: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: sockaddr_ll is plain data for which zero bytes are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = ifindex as i32;
    address
}

/// How many packets found no room in the socket since the last call (`PACKET_STATISTICS`).
pub(crate) fn drops(socket: &OwnedFd) -> io::Result<u64> {
    Ok(statistics(socket)?.tp_drops.into())
}

/// What the kernel has counted since the last call; packets that found no room are among the packets
/// (`packet_getsockopt()` in net/packet/af_packet.c).
pub(crate) fn statistics(socket: &OwnedFd) -> io::Result<libc::tpacket_stats> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: pointer and length describe `statistics`.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics) }
}

pub(crate) fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call.
    let set = unsafe {
        let length = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
