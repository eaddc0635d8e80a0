//! Watches interfaces being created, deleted, and set up or down.
//!
//! An event only tells which interface to read again, so lost or merged events do no harm.

use std::collections::BTreeSet;
use std::io;

use nix::libc::ENOBUFS;
use tokio::io::unix::AsyncFd;

use crate::decode::Messages;
use crate::error::Error;
use crate::message::Message;
use crate::socket::{BUFFER, Socket, failed};

/// `RTNLGRP_LINK`.
const LINKS: u32 = 1;

/// Names of interfaces that changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkChanges {
    /// These were created, deleted, renamed or changed.
    pub names: BTreeSet<String>,
    /// Whether events were lost, so that any interface may have changed.
    pub any: bool,
}

/// Watches the interfaces of a network namespace.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl LinkMonitor {
    /// Starts to watch the calling thread's network namespace. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(None)?;
        socket.set_non_blocking()?;
        socket.join(LINKS)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; this socket owns its descriptor and never changes it"
        )]
        let socket = AsyncFd::new(socket).map_err(failed("register with the runtime"))?;
        Ok(Self { socket, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Waits for changes. Cancellation-safe: what is read from the kernel is returned in the same
    /// poll.
    ///
    /// # Errors
    /// When the socket fails. Lost events are not an error.
    pub async fn changed(&mut self) -> Result<LinkChanges, Error> {
        loop {
            let mut ready =
                self.socket.readable().await.map_err(failed("wait for events of links"))?;
            if let Ok(changes) = ready.try_io(|socket| drain(socket.get_ref(), &mut self.buffer)) {
                return changes.map_err(failed("receive events of links"));
            }
        }
    }
}

/// Reads all events that wait on the socket, and merges them.
fn drain(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<LinkChanges> {
    let mut changes = LinkChanges::default();
    loop {
        match socket.receive(buffer) {
            Ok(length) if length <= buffer.len() => {
                for message in Messages::new(buffer) {
                    match message {
                        Ok(Message::Link(_, link)) => drop(changes.names.insert(link.name)),
                        Ok(_) => {}
                        Err(_) => changes.any = true,
                    }
                }
            }
            Ok(_) => changes.any = true,
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => changes.any = true,
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    && changes != LinkChanges::default() =>
            {
                return Ok(changes);
            }
            Err(error) => return Err(error),
        }
    }
}
