//! Sockets of events that only tell what to read again, so that lost or merged ones do no harm.

use std::io;
use std::os::fd::AsRawFd;

use nix::libc::ENOBUFS;
use tokio::io::unix::AsyncFd;

use crate::error::Error;
use crate::socket::{BUFFER, Socket, failed};

/// Registers a socket with the runtime.
pub(crate) fn registered<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe; this socket owns its descriptor and never changes it"
    )]
    AsyncFd::new(socket)
}

/// The events of a multicast group.
#[derive(Debug)]
pub(crate) struct Events {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
    /// What an error calls the reading of them.
    action: &'static str,
}

impl Events {
    /// Joins a group. An error calls the reading of its events `action`. Must be called within a tokio
    /// runtime.
    pub(crate) fn join(socket: Socket, group: u32, action: &'static str) -> Result<Self, Error> {
        socket.set_non_blocking()?;
        socket.join(group)?;
        let socket = registered(socket).map_err(failed("register with the runtime"))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER), action })
    }

    /// Waits for changes, as [`drain`] reads them. Cancellation-safe: what is read from the kernel is
    /// returned in the same poll.
    pub(crate) async fn changed<C: Default + PartialEq>(
        &mut self,
        add: impl Fn(&mut C, Option<&[u8]>),
    ) -> Result<C, Error> {
        loop {
            let mut ready = self.socket.readable().await.map_err(failed(self.action))?;
            let read = |socket: &AsyncFd<Socket>| drain(socket.get_ref(), &mut self.buffer, &add);
            if let Ok(changes) = ready.try_io(read) {
                return changes.map_err(failed(self.action));
            }
        }
    }
}

/// Reads all events that wait, and merges them. `add` gets each datagram, and `None` for lost ones.
/// `WouldBlock` if there are no changes.
pub(crate) fn drain<C: Default + PartialEq>(
    socket: &Socket,
    buffer: &mut Vec<u8>,
    add: impl Fn(&mut C, Option<&[u8]>),
) -> io::Result<C> {
    let mut changes = C::default();
    loop {
        match socket.receive(buffer) {
            Ok(length) => add(&mut changes, Some(buffer.as_slice()).filter(|b| length <= b.len())),
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => add(&mut changes, None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && changes != C::default() => {
                return Ok(changes);
            }
            Err(error) => return Err(error),
        }
    }
}
