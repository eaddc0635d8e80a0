//! A netlink socket in the calling thread's network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_sys::SocketAddr;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_XFRM};
use nix::libc::MSG_TRUNC;
use nix::sys::socket::{setsockopt, sockopt};

use crate::error::Error;

/// Size of a receive buffer in bytes. The kernel splits dumps into datagrams of at most 32 KiB. A
/// notification is one object; the largest are routes with thousands of next hops.
pub(crate) const BUFFER: usize = 256 * 1024;

/// Converts an I/O error, naming the operation that failed.
pub(crate) fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { operation, source }
}

/// A bound socket.
#[derive(Debug)]
pub(crate) struct Socket(netlink_sys::Socket);

impl Socket {
    /// Opens and binds a rtnetlink socket. `receive_buffer` is in bytes; `None` keeps the system's
    /// default.
    pub(crate) fn open(receive_buffer: Option<usize>) -> Result<Self, Error> {
        Self::open_protocol(NETLINK_ROUTE, receive_buffer)
    }

    /// Opens and binds a netfilter socket.
    pub(crate) fn open_netfilter() -> Result<Self, Error> {
        Self::open_protocol(NETLINK_NETFILTER, None)
    }

    /// Opens and binds a socket to the IPsec database. Fails if the kernel has none.
    pub(crate) fn open_ipsec() -> Result<Self, Error> {
        Self::open_protocol(NETLINK_XFRM, None)
    }

    /// Opens and binds a `sock_diag(7)` socket.
    pub(crate) fn open_sock_diag() -> Result<Self, Error> {
        Self::open_protocol(NETLINK_SOCK_DIAG, None)
    }

    fn open_protocol(protocol: isize, receive_buffer: Option<usize>) -> Result<Self, Error> {
        let mut socket = netlink_sys::Socket::new(protocol).map_err(failed("open"))?;
        if let Some(bytes) = receive_buffer {
            // Without CAP_NET_ADMIN the size is limited by net.core.rmem_max. Events are then lost
            // earlier.
            if setsockopt(&socket, sockopt::RcvBufForce, &bytes).is_err() {
                setsockopt(&socket, sockopt::RcvBuf, &bytes)
                    .map_err(|errno| failed("set the receive buffer")(errno.into()))?;
            }
        }
        socket.bind_auto().map_err(failed("bind"))?;
        // Optional features of newer kernels: they check filters in dump requests, and make error
        // messages explain the error and omit the request.
        for option in [
            netlink_sys::Socket::set_netlink_get_strict_chk,
            netlink_sys::Socket::set_ext_ack,
            netlink_sys::Socket::set_cap_ack,
        ] {
            if let Err(error) = option(&socket, true) {
                tracing::debug!(%error, "a netlink socket option is not known to this kernel");
            }
        }
        Ok(Self(socket))
    }

    pub(crate) fn join(&self, group: u32) -> Result<(), Error> {
        self.0.add_membership(group).map_err(failed("join a multicast group"))
    }

    pub(crate) fn set_non_blocking(&self) -> Result<(), Error> {
        self.0.set_non_blocking(true).map_err(failed("make non-blocking"))
    }

    pub(crate) fn send(&self, request: &[u8]) -> io::Result<()> {
        self.0.send_to(request, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Reads one datagram of the kernel into `buffer`, replacing its content. Returns the
    /// datagram's length, which exceeds that of the buffer if the datagram was truncated. Datagrams
    /// of other processes are dropped.
    pub(crate) fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            buffer.clear();
            match self.0.recv_from(buffer, MSG_TRUNC) {
                Ok((length, sender)) if sender.port_number() == 0 => return Ok(length),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
