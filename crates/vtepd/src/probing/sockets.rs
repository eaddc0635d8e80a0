//! The sockets of probes: one for each underlay.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use pathmap::packet;
use ports::ProbeSocket;
use ports::probe_socket::Underlay;

/// The sockets for IPv4 and IPv6.
#[derive(Debug)]
pub(super) struct Sockets {
    ipv4: ProbeSocket,
    ipv6: ProbeSocket,
}

impl Sockets {
    /// Opens the sockets in the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        let open = |underlay| ProbeSocket::open(underlay, packet::VNI, packet::ETHERTYPE);
        Ok(Self { ipv4: open(Underlay::Ipv4)?, ipv6: open(Underlay::Ipv6)? })
    }

    /// The descriptors to wait for.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.ipv4.as_fd(), self.ipv6.as_fd()]
    }

    /// The socket of an underlay.
    pub(super) const fn of(&self, underlay: Underlay) -> &ProbeSocket {
        match underlay {
            Underlay::Ipv4 => &self.ipv4,
            Underlay::Ipv6 => &self.ipv6,
        }
    }

    /// Sends a packet to this VTEP. One that cannot be sent is lost.
    pub(super) fn send(&self, address: IpAddr, ifindex: u32, packet: &[u8]) {
        let socket = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        let _ = socket.send(ifindex, packet);
    }
}
