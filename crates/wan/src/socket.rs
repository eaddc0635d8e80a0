//! Receives and sends whole frames with their pending offloads: checksums, and segments of
//! super-frames (`PACKET_VNET_HDR`, packet(7)). The description of the offloads is passed on with
//! the frame.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::sockopt::{self, GetStruct, SetBool, SetStruct};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockFlag, SockProtocol,
    SockType, SockaddrStorage, bind, getsockname, getsockopt, recvmmsg, sendmmsg, setsockopt,
    socket,
};

use super::frame::{Frame, VNET_HEADER};
use fabric::packet::{Interface, PacketError, io_error};

/// The maximum number of frames per system call.
const BATCH: usize = 32;
/// The largest super-frame with its Ethernet header, a VLAN tag and [`VNET_HEADER`].
const CAPACITY: usize = VNET_HEADER + 14 + 4 + (1 << 16);
/// The size of the receive and send buffers in bytes, for times when a reader is not scheduled.
const BUFFER: usize = 32 << 20;
/// The maximum number of batches of other interfaces' frames that a new socket discards.
const STRAY: usize = 64;

#[derive(Clone, Copy)]
struct VnetHeader;
nix::setsockopt_impl!(VnetHeader, libc::SOL_PACKET, libc::PACKET_VNET_HDR, bool, SetBool);
#[derive(Clone, Copy)]
struct AuxData;
nix::setsockopt_impl!(AuxData, libc::SOL_PACKET, libc::PACKET_AUXDATA, bool, SetBool);
#[derive(Clone, Copy)]
struct IgnoreOutgoing;
nix::setsockopt_impl!(
    IgnoreOutgoing,
    libc::SOL_PACKET,
    libc::PACKET_IGNORE_OUTGOING,
    bool,
    SetBool
);
#[derive(Clone, Copy)]
struct Membership;
nix::setsockopt_impl!(
    Membership,
    libc::SOL_PACKET,
    libc::PACKET_ADD_MEMBERSHIP,
    libc::packet_mreq,
    SetStruct<'_, libc::packet_mreq>
);
#[derive(Clone, Copy)]
struct Statistics;
nix::getsockopt_impl!(
    Statistics,
    libc::SOL_PACKET,
    libc::PACKET_STATISTICS,
    libc::tpacket_stats,
    GetStruct<libc::tpacket_stats>
);

/// The frames of one receive call.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The frames, each with the time since its arrival.
    pub(super) frames: Vec<(Frame, Duration)>,
    /// Frames whose offloads cannot be described.
    pub(super) unreadable: u64,
}

/// The result of a send call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// This number of frames was sent; at least one.
    Sent(usize),
    /// None could be sent now; try again later.
    Later,
    /// The first frame can never be sent.
    Refused,
}

/// A packet socket on one interface.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: OwnedFd,
    interface: String,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket that receives all frames that arrive on the interface, and none that leave
    /// it.
    pub(super) fn open(interface: &Interface) -> Result<Self, PacketError> {
        let open = || -> nix::Result<OwnedFd> {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let descriptor =
                socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
            setsockopt(&descriptor, VnetHeader, &true)?;
            setsockopt(&descriptor, AuxData, &true)?;
            setsockopt(&descriptor, IgnoreOutgoing, &true)?;
            setsockopt(&descriptor, sockopt::ReceiveTimestampns, &true)?;
            setsockopt(&descriptor, sockopt::RcvBufForce, &BUFFER)?;
            setsockopt(&descriptor, sockopt::SndBufForce, &BUFFER)?;
            bind(descriptor.as_raw_fd(), &interface.link)?;
            let all = libc::packet_mreq {
                mr_ifindex: i32::try_from(interface.link.ifindex()).unwrap_or_default(),
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            setsockopt(&descriptor, Membership, &all)?;
            Ok(descriptor)
        };
        let descriptor =
            open().map_err(|errno| io_error("open a packet socket", &interface.name, errno))?;
        let mut socket = Self {
            descriptor,
            interface: interface.name.clone(),
            buffer: vec![0; BATCH * CAPACITY],
        };
        // Until it was bound, the socket received frames of other interfaces, too.
        for _ in 0..STRAY {
            if socket.receive()?.frames.is_empty() {
                break;
            }
        }
        Ok(socket)
    }

    /// Whether the socket is still bound to this interface. The kernel unbinds it when the
    /// interface is deleted. A new interface may then have the same index.
    pub(super) fn is_on(&self, interface: &Interface) -> bool {
        // This does not use `LinkAddr` directly, because the kernel's answer is shorter than
        // `struct sockaddr_ll` for an Ethernet address.
        let own = getsockname::<SockaddrStorage>(self.descriptor.as_raw_fd()).ok();
        let own = own.as_ref().and_then(SockaddrStorage::as_link_addr);
        own.is_some_and(|own| own.ifindex() == interface.link.ifindex())
    }

    /// Only tests replace it.
    pub(super) fn replace(&mut self, descriptor: OwnedFd) {
        self.descriptor = descriptor;
    }

    /// Receives at most one batch without waiting.
    pub(super) fn receive(&mut self) -> Result<Received, PacketError> {
        let mut received = Received::default();
        let control = nix::cmsg_space!(libc::timespec, libc::tpacket_auxdata);
        let mut headers = MultiHeaders::<()>::preallocate(BATCH, Some(control));
        let about: Vec<About> = {
            let mut slices: Vec<[IoSliceMut; 1]> = self
                .buffer
                .chunks_exact_mut(CAPACITY)
                .map(|chunk| [IoSliceMut::new(chunk)])
                .collect();
            let fd = self.descriptor.as_raw_fd();
            match recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
                Ok(messages) => messages.map(|message| About::of(&message)).collect(),
                // The kernel reports ENETDOWN once after the interface went down. It may come up
                // again.
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => return Ok(received),
                // The kernel could not describe the offloads of a frame and has dropped it
                // (`virtio_net_hdr_from_skb`).
                Err(Errno::EINVAL) => {
                    received.unreadable = 1;
                    return Ok(received);
                }
                Err(errno) => return Err(io_error("receive", &self.interface, errno)),
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for (chunk, about) in self.buffer.chunks_exact(CAPACITY).zip(about) {
            match chunk.get(..about.length).filter(|bytes| about.whole && bytes.len() > VNET_HEADER)
            {
                Some(bytes) => {
                    let age = about.arrived.map_or(Duration::ZERO, |at| now.saturating_sub(at));
                    match Frame::new(bytes, about.tag).cut() {
                        Some(frames) => {
                            received.frames.extend(frames.into_iter().map(|frame| (frame, age)))
                        }
                        None => received.unreadable += 1,
                    }
                }
                None => received.unreadable += 1,
            }
        }
        Ok(received)
    }

    /// Sends the first of these frames, as many as the kernel accepts in one call.
    pub(super) fn send<'a>(
        &self,
        frames: impl Iterator<Item = &'a Frame>,
    ) -> Result<Sending, PacketError> {
        let slices: Vec<[IoSlice; 1]> =
            frames.take(BATCH).map(|frame| [IoSlice::new(frame.bytes())]).collect();
        let mut headers = MultiHeaders::<()>::preallocate(slices.len(), None);
        let addresses = vec![None; slices.len()];
        let flags = MsgFlags::MSG_DONTWAIT;
        match sendmmsg(self.descriptor.as_raw_fd(), &mut headers, &slices, addresses, [], flags) {
            Ok(sent) => Ok(Sending::Sent(sent.count())),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Sending::Later),
            // The interface is down or deleted, the frame exceeds its MTU, or (ENOMEM) the kernel
            // cannot split the super-frame.
            Err(
                Errno::ENOMEM
                | Errno::ENETDOWN
                | Errno::ENXIO
                | Errno::ENODEV
                | Errno::ENOBUFS
                | Errno::EMSGSIZE
                | Errno::EINVAL,
            ) => Ok(Sending::Refused),
            Err(errno) => Err(io_error("send", &self.interface, errno)),
        }
    }

    /// The number of frames that were dropped because the buffer was full, since the last call.
    pub(super) fn overruns(&self) -> u64 {
        getsockopt(&self.descriptor, Statistics)
            .map_or(0, |statistics| u64::from(statistics.tp_drops))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The metadata of a received frame.
struct About {
    length: usize,
    whole: bool,
    /// The kernel's timestamp, as the time since 1970.
    arrived: Option<Duration>,
    tag: Option<[u8; 4]>,
}

impl About {
    fn of(message: &RecvMsg<'_, '_, ()>) -> Self {
        let mut about = Self {
            length: message.bytes,
            whole: !message.flags.contains(MsgFlags::MSG_TRUNC),
            arrived: None,
            tag: None,
        };
        for control in message.cmsgs().into_iter().flatten() {
            match control {
                ControlMessageOwned::ScmTimestampns(time) => {
                    about.arrived = Some(Duration::from(time))
                }
                ControlMessageOwned::Unknown(unknown)
                    if unknown.cmsg_header.cmsg_level == libc::SOL_PACKET
                        && unknown.cmsg_header.cmsg_type == libc::PACKET_AUXDATA =>
                {
                    about.tag = tag(&unknown.data_bytes);
                }
                _ => {}
            }
        }
        about
    }
}

/// Reads the VLAN tag from a `struct tpacket_auxdata` (`include/uapi/linux/if_packet.h`): status
/// (32 bits), two lengths (32 each), two offsets, TCI and TPID (16 each).
fn tag(auxdata: &[u8]) -> Option<[u8; 4]> {
    let status = u32::from_ne_bytes(auxdata.get(..4)?.try_into().ok()?);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let number = |at: usize| Some(u16::from_ne_bytes(auxdata.get(at..at + 2)?.try_into().ok()?));
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { number(18)? } else { 0x8100 };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), number(16)?.to_be_bytes());
    Some([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_as_the_kernel_tells_it() {
        let auxdata = |status: u32| {
            let mut bytes = status.to_ne_bytes().to_vec();
            bytes.extend([0; 12]);
            bytes.extend(100_u16.to_ne_bytes());
            bytes.extend(0x88a8_u16.to_ne_bytes());
            bytes
        };
        assert_eq!(tag(&auxdata(0)), None);
        assert_eq!(tag(&auxdata(libc::TP_STATUS_VLAN_VALID)), Some([0x81, 0, 0, 100]));
        let both = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(tag(&auxdata(both)), Some([0x88, 0xa8, 0, 100]));
    }
}
