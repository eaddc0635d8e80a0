//! Whole frames in and out of an interface, each with what the kernel has left undone of it:
//! checksums, and segments of super-frames (`PACKET_VNET_HDR`, packet(7)). What was received is
//! sent in the same words.

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
use crate::packet::{Interface, PacketError, io_error};

/// Frames that one system call moves at most.
const BATCH: usize = 32;
/// The largest super-frame with its Ethernet header, a tag and [`VNET_HEADER`].
const CAPACITY: usize = VNET_HEADER + 14 + 4 + (1 << 16);
/// What the kernel may hold for a reader that is not scheduled, and for receivers that are not, in
/// bytes.
const BUFFER: usize = 32 << 20;
/// Batches of what a new socket may have heard of others in the microseconds before it was bound.
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

/// What a look into the socket has found.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// Frames, each with how long ago it arrived.
    pub(super) frames: Vec<(Frame, Duration)>,
    /// Frames that arrived, but that the kernel cannot hand over whole with their offloads.
    pub(super) unreadable: u64,
}

/// What the kernel said to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// So many have gone, one or more.
    Sent(usize),
    /// None can go now; later they can.
    Later,
    /// The first will never go.
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
    /// Hears all that arrives on the interface from now on; nothing that leaves it.
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
        // Until it was bound it heard the other interfaces, too.
        for _ in 0..STRAY {
            if socket.receive()?.frames.is_empty() {
                break;
            }
        }
        Ok(socket)
    }

    /// Whether this is still the interface. The kernel lets go of one that is removed, and another
    /// may come by its number.
    pub(super) fn is_on(&self, interface: &Interface) -> bool {
        // Not `LinkAddr`: the kernel's answer is shorter than that, by what an Ethernet address
        // does not fill.
        let own = getsockname::<SockaddrStorage>(self.descriptor.as_raw_fd()).ok();
        let own = own.as_ref().and_then(SockaddrStorage::as_link_addr);
        own.is_some_and(|own| own.ifindex() == interface.link.ifindex())
    }

    #[cfg(test)]
    pub(super) fn replace(&mut self, descriptor: OwnedFd) {
        self.descriptor = descriptor;
    }

    /// What has arrived, at most one batch; does not wait.
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
                // ENETDOWN is told once after the interface went down; it may come up again.
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => return Ok(received),
                // The kernel could not describe the frame's offloads and has dropped it
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

    /// Sends the first of these frames, as many as the kernel takes at once.
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
            // Down or gone, too long for the far side's MTU, or (ENOMEM) a super-frame that it
            // cannot cut.
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

    /// Frames that found the buffer full since the last call.
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

/// What is known of a frame beside its bytes.
struct About {
    length: usize,
    whole: bool,
    /// Since 1970, by the kernel's clock.
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

/// The tag in a `struct tpacket_auxdata` (`include/uapi/linux/if_packet.h`): status (32 bits), two
/// lengths (32 each), two offsets, the tag's TCI and TPID (16 each).
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
