//! A packet socket for probes between VTEPs: it receives their packets on every interface, and sends
//! on any.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::packet::{address, bind, raw_socket, set_option};

/// Room for packets that wait to be read, and for those that wait to be sent, in bytes.
const ROOM: libc::c_int = 8 << 20;

/// The protocol of outer packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Underlay {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl Underlay {
    /// Its EtherType in network byte order.
    const fn protocol(self) -> u16 {
        let ethertype = match self {
            Self::Ipv4 => libc::ETH_P_IP,
            Self::Ipv6 => libc::ETH_P_IPV6,
        };
        (ethertype as u16).to_be()
    }
}

/// A packet socket for probes.
#[derive(Debug)]
pub struct ProbeSocket {
    fd: OwnedFd,
    underlay: Underlay,
}

impl AsFd for ProbeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ProbeSocket {
    /// Opens a socket in the calling thread's network namespace. It receives the packets over this
    /// underlay that steering programs leave to the kernel and that the filter lets pass, which
    /// `set_filter` gives it.
    ///
    /// # Errors
    /// As socket(2), setsockopt(2) and bind(2): without CAP_NET_RAW. The error of `set_filter`.
    pub fn open(
        underlay: Underlay,
        set_filter: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let fd = raw_socket()?;
        set_filter(fd.as_fd())?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &ROOM)?;
        bind(&fd, 0, underlay.protocol())?;
        Ok(Self { fd, underlay })
    }

    /// Sends a packet, from its Ethernet header on, without waiting.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send(&self, ifindex: u32, packet: &[u8]) -> io::Result<()> {
        let address = address(ifindex, self.underlay.protocol());
        // SAFETY: pointers and lengths describe `packet` and `address`, which live through the call.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                LENGTH as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads a packet, from its Ethernet header on. Returns its length in `buffer` and the index of
    /// the interface by which it arrived; `None` if none waits.
    ///
    /// # Errors
    /// As recvfrom(2), except `EAGAIN`.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, u32)>> {
        let mut from = address(0, 0);
        let mut length = LENGTH as libc::socklen_t;
        // SAFETY: pointers and lengths describe `buffer` and `from`, which live through the call.
        let read = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        if read >= 0 {
            return Ok(Some((read as usize, from.sll_ifindex as u32)));
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
    }
}

const LENGTH: usize = size_of::<libc::sockaddr_ll>();
