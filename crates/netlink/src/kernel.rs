//! The kernel as a source of events: watch first, then dump.
//!
//! [`Kernel::open`] joins the multicast groups, so whatever changes after it is seen; a [`Kernel::dump`] after it has
//! the state so far. Applying the events after the dump ends in the kernel's state, because an event that the dump
//! already contains is followed by every later one of the same object.
//!
//! After [`Event::Overrun`] that chain is broken: the kernel dropped events. What was queued before the gap is then
//! discarded here, for it is older than the dump that must follow.
//!
//! It does not hold for a bridge's entry that moves: a frame moves it without a lock, and of two moves at once the events may come in the
//! other order, so that the last event is wrong for good (one in a thousand of such meetings; [`Requests::bridge_entry`] asks).
//!
//! Traps of the kernel's, each seen on Linux 6.18:
//! - A link that goes down or away takes its IPv4 routes and next-hop objects along, and prunes groups and multipath
//!   routes, **without an event** (`fib_sync_down_dev`, `nexthop_flush_dev`): dump routes and next hops afresh then.
//! - Deleting one next hop of an IPv6 multipath route is a delete of the prefix with that one hop; the route stays.
//! - `ip route append` makes a second IPv4 route of the same table, prefix and metric; the older one is used.
//! - The FDB dump also lists the multicast addresses that each netdev listens to (`self`, permanent), whose changes
//!   are no events. Only `self` entries of vxlan netdevs are FDB entries.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use nix::libc::ENOBUFS;
use tokio::io::unix::AsyncFd;

use crate::decode::Messages;
use crate::error::Error;
use crate::message::Message;
use crate::request::{Dump, Requests};
use crate::socket::{BUFFER, Socket, failed};

/// `RTNLGRP_LINK`, `_NEIGH` (FDB entries too), `_TC` (queueing disciplines), `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV6_IFADDR`,
/// `_IPV6_ROUTE`, `_MDB`, `_NEXTHOP`.
const GROUPS: [u32; 9] = [1, 3, 4, 5, 7, 9, 11, 26, 32];
/// Bytes of kernel memory for events that wait: about 10,000 FDB entries. (The kernel counts its own overhead.)
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// Datagrams taken at once, so that a flood of events does not keep other tasks waiting.
const BATCH: usize = 512;

/// Something new from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Changes, in order.
    Messages(Vec<Message>),
    /// Changes were lost: dump everything again.
    Overrun,
}

/// The kernel's network state in one namespace.
#[derive(Debug)]
pub struct Kernel {
    monitor: AsyncFd<Socket>,
    requests: Arc<Mutex<Requests>>,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Starts to watch the calling thread's network namespace. Call it within a tokio runtime.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Self::with_receive_buffer(RECEIVE_BUFFER)
    }

    /// [`Kernel::open`] with another size of kernel memory for events that wait, in bytes.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn with_receive_buffer(bytes: usize) -> Result<Self, Error> {
        let socket = Socket::open(Some(bytes))?;
        socket.set_non_blocking()?;
        for group in GROUPS {
            socket.join(group)?;
        }
        #[expect(
            deprecated,
            reason = "its successor is unsafe; this socket owns its descriptor and never changes it"
        )]
        let monitor = AsyncFd::new(socket).map_err(failed("register with the runtime"))?;
        let requests = Arc::new(Mutex::new(Requests::open()?));
        Ok(Self { monitor, requests, buffer: Vec::with_capacity(BUFFER) })
    }

    /// The next changes. Cancellation-safe: nothing is taken from the kernel before it is returned.
    ///
    /// # Errors
    /// When the socket fails; lost events are no error but [`Event::Overrun`].
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let mut ready = self.monitor.readable().await.map_err(failed("wait for events"))?;
            if let Ok(event) = ready.try_io(|socket| receive(socket.get_ref(), &mut self.buffer)) {
                return event.map_err(failed("receive events"));
            }
        }
    }

    /// Everything of one kind, as of a moment after this call.
    ///
    /// # Errors
    /// As [`Requests::dump`].
    pub async fn dump(&self, what: Dump) -> Result<Vec<Message>, Error> {
        self.request(move |requests| requests.dump(what)).await
    }

    /// Runs requests on a thread that may block. When the future is dropped they are carried out all the same.
    ///
    /// # Errors
    /// Those of `work`, or [`Error::RuntimeEnded`].
    pub async fn request<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Requests) -> Result<T, Error> + Send + 'static,
    {
        let requests = Arc::clone(&self.requests);
        // A panic elsewhere leaves nothing half-done here: answers are told apart by their sequence numbers.
        let run = move || work(&mut requests.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(run).await.map_err(|_| Error::RuntimeEnded)?
    }
}

/// What waits on the socket, up to a batch of it.
fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<Event> {
    let mut messages = Vec::new();
    for _ in 0..BATCH {
        match socket.receive(buffer) {
            // An object beyond the buffer is as good as lost.
            Ok(length) if length > buffer.len() => return overrun(socket, buffer),
            Ok(_) => {
                for message in Messages::new(buffer) {
                    match message {
                        Ok(message) => messages.push(message),
                        Err(error) => tracing::warn!(%error, "an event is left out"),
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !messages.is_empty() => break,
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => return overrun(socket, buffer),
            Err(error) => return Err(error),
        }
    }
    Ok(Event::Messages(messages))
}

/// Empties the socket. The kernel queues nothing new on an overrun socket until it is empty, so this ends.
fn overrun(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<Event> {
    loop {
        match socket.receive(buffer) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Event::Overrun),
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => {}
            Err(error) => return Err(error),
        }
    }
}
