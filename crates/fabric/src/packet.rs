//! Sends and receives whole frames in batches through AF_PACKET, for the traffic generator.
//!
//! Frames that are sent this way carry no hash of the kernel, unlike those of a connected UDP
//! socket. Routers therefore compute their hash from the headers alone.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, MultiHeaders, SockFlag, SockProtocol, SockType, bind,
    recvmmsg, sendmmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use wire::MacAddr;

/// The maximum number of frames per system call.
pub const BATCH: usize = 64;

/// `PACKET_OUTGOING` (include/uapi/linux/if_packet.h).
const OUTGOING: u8 = 4;

/// The receive buffer in bytes, for times when the receiver is not scheduled.
const RECEIVE_BUFFER: usize = 64 << 20;

/// An interface could not be found, opened or used.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// There is no interface of that name, or it has no Ethernet header.
    #[error("no Ethernet interface '{0}'")]
    NoInterface(String),
    /// A system call failed.
    #[error("cannot {action} on '{interface}'")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The interface.
        interface: String,
        /// The cause.
        source: io::Error,
    },
}

/// A network interface in the calling thread's namespace.
#[derive(Debug, Clone)]
pub struct Interface {
    /// The name.
    pub name: String,
    /// The MAC address.
    pub mac: MacAddr,
    /// The first IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// The link-layer address, for `bind(2)`.
    pub link: LinkAddr,
}

impl Interface {
    /// Looks an interface up in the calling thread's namespace.
    ///
    /// # Errors
    /// [`PacketError::NoInterface`].
    pub fn find(name: &str) -> Result<Self, PacketError> {
        let missing = || PacketError::NoInterface(name.to_owned());
        let (mut link, mut ipv4) = (None, None);
        for entry in
            getifaddrs().map_err(|_| missing())?.filter(|entry| entry.interface_name == name)
        {
            let Some(address) = entry.address else { continue };
            link = link.or(address.as_link_addr().copied());
            ipv4 = ipv4.or(address.as_sockaddr_in().map(|address| address.ip()));
        }
        // Other interfaces have link-layer addresses, too, such as those of tunnels.
        let is_ethernet = |link: &LinkAddr| link.hatype() == nix::libc::ARPHRD_ETHER;
        let link = link.filter(is_ethernet).ok_or_else(missing)?;
        let mac = MacAddr(link.addr().ok_or_else(missing)?);
        Ok(Self { name: name.to_owned(), mac, ipv4, link })
    }
}

/// A packet socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    descriptor: OwnedFd,
    interface: String,
}

impl PacketSocket {
    /// A socket that only sends.
    ///
    /// # Errors
    /// [`PacketError::Io`], for example without `CAP_NET_RAW`.
    pub fn sender(interface: &Interface) -> Result<Self, PacketError> {
        let action = "open a packet socket";
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
        let descriptor = descriptor.map_err(|errno| io_error(action, &interface.name, errno))?;
        Self::bound(descriptor, interface)
    }

    /// A socket that receives the frames that arrive at the interface, also those that an endpoint on
    /// it discards at the ingress ([`netlink::Discard`]). A receive call waits for `timeout` at most.
    ///
    /// # Errors
    /// As [`PacketSocket::sender`].
    pub fn receiver(interface: &Interface, timeout: Duration) -> Result<Self, PacketError> {
        let action = "open a packet socket";
        let set_up = || {
            // Until `bind`, the socket also receives frames of other interfaces. Its reader ignores
            // them, because it recognises its own frames by their content.
            let descriptor = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                // For IPv4 alone, it would come after the ingress hook.
                SockProtocol::EthAll,
            )?;
            setsockopt(&descriptor, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
            let micros = i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX);
            let timeout = TimeVal::new(micros / 1_000_000, micros % 1_000_000);
            setsockopt(&descriptor, sockopt::ReceiveTimeout, &timeout)?;
            Ok(descriptor)
        };
        let descriptor =
            set_up().map_err(|errno: Errno| io_error(action, &interface.name, errno))?;
        Self::bound(descriptor, interface)
    }

    fn bound(descriptor: OwnedFd, interface: &Interface) -> Result<Self, PacketError> {
        bind(descriptor.as_raw_fd(), &interface.link)
            .map_err(|errno| io_error("bind a packet socket", &interface.name, errno))?;
        Ok(Self { descriptor, interface: interface.name.clone() })
    }

    /// Sends at most [`BATCH`] frames. Returns how many the kernel accepted, which is fewer if a
    /// queue is full.
    ///
    /// # Errors
    /// [`PacketError::Io`] if the interface is down or gone, or the first frame exceeds its MTU.
    pub fn send(&self, frames: &[&[u8]]) -> Result<usize, PacketError> {
        let slices: Vec<[IoSlice; 1]> =
            frames.iter().take(BATCH).map(|frame| [IoSlice::new(frame)]).collect();
        let mut headers = MultiHeaders::<()>::preallocate(slices.len(), None);
        let addresses = vec![None; slices.len()];
        let sent = sendmmsg(
            self.descriptor.as_raw_fd(),
            &mut headers,
            &slices,
            addresses,
            [],
            MsgFlags::empty(),
        );
        match sent {
            Ok(results) => Ok(results.count()),
            Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => Ok(0),
            Err(errno) => Err(io_error("send", &self.interface, errno)),
        }
    }

    /// Receives up to [`BATCH`] frames into `buffer`, in chunks of `frame_size` bytes, and calls
    /// `see` with each. Longer frames are truncated. Returns the number of frames: 0 after a
    /// timeout.
    ///
    /// # Errors
    /// [`PacketError::Io`] if the interface was set down, or no longer exists.
    pub fn receive(
        &self,
        buffer: &mut [u8],
        frame_size: usize,
        mut see: impl FnMut(&[u8]),
    ) -> Result<usize, PacketError> {
        // The length of each frame that arrived, and `None` for those that this host sends.
        let lengths: Vec<Option<usize>> = {
            let mut slices: Vec<[IoSliceMut; 1]> = buffer
                .chunks_exact_mut(frame_size)
                .take(BATCH)
                .map(|chunk| [IoSliceMut::new(chunk)])
                .collect();
            let mut headers = MultiHeaders::<LinkAddr>::preallocate(slices.len(), None);
            let flags = MsgFlags::MSG_WAITFORONE;
            let received =
                recvmmsg(self.descriptor.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None);
            match received {
                Ok(results) => results
                    .map(|message| {
                        let sent = message.address.is_some_and(|of| of.pkttype() == OUTGOING);
                        (!sent).then_some(message.bytes)
                    })
                    .collect(),
                Err(Errno::EAGAIN | Errno::EINTR) => Vec::new(),
                Err(errno) => return Err(io_error("receive", &self.interface, errno)),
            }
        };
        for (chunk, length) in buffer.chunks_exact(frame_size).zip(&lengths) {
            if let Some(length) = length {
                see(chunk.get(..*length).unwrap_or(chunk));
            }
        }
        Ok(lengths.len())
    }
}

/// [`PacketError::Io`] of a failed system call.
#[must_use]
pub fn io_error(action: &'static str, interface: &str, errno: Errno) -> PacketError {
    PacketError::Io { action, interface: interface.to_owned(), source: errno.into() }
}
