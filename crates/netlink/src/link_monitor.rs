//! Watching the interfaces of a namespace come, go, and be set up and down.
//!
//! An event only says where to look again: what is there is asked for afterwards, so lost or merged
//! events do no harm.

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

/// Interfaces that changed, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkChanges {
    /// These were made, deleted, renamed or changed.
    pub names: BTreeSet<String>,
    /// Perhaps any: events were lost.
    pub any: bool,
}

/// See the module's description.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl LinkMonitor {
    /// Starts to watch the calling thread's network namespace. Call it within a tokio runtime.
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

    /// Waits for changes. Cancellation-safe: nothing is taken from the kernel before it is
    /// returned.
    ///
    /// # Errors
    /// When the socket fails; lost events are no error.
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

/// What all that waits on the socket says.
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
