//! The kernel as a source of events: watch first, then dump.
//!
//! [`Kernel::open`] joins the multicast groups, so whatever changes after it is seen; a
//! [`Kernel::dump`] after it has the state so far. Applying the events after the dump ends in the
//! kernel's state, because an event that the dump already contains is followed by every later one
//! of the same object.
//!
//! After [`Event::Overrun`] that chain is broken: the kernel dropped events. What was queued before
//! the gap is then discarded here, for it is older than the dump that must follow.
//!
//! It does not hold for a bridge's entry that moves: a frame moves it without a lock, and of two
//! moves at once the events may come in the other order, so that the last event is wrong for good
//! (one in a thousand of such meetings; [`Requests::bridge_entry`] asks).
//!
//! Traps of the kernel's, each seen on Linux 6.18:
//! - A link that goes down or away takes its IPv4 routes and next-hop objects along, and prunes
//!   groups and multipath routes, **without an event** (`fib_sync_down_dev`, `nexthop_flush_dev`):
//!   dump routes and next hops afresh then.
//! - Deleting one next hop of an IPv6 multipath route is a delete of the prefix with that one hop;
//!   the route stays.
//! - `ip route append` makes a second IPv4 route of the same table, prefix and metric; the older
//!   one is used.
//! - The FDB dump also lists the multicast addresses that each netdev listens to (`self`,
//!   permanent), whose changes are no events. Only `self` entries of vxlan netdevs are FDB entries.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::libc::ENOBUFS;
use tokio::io::unix::AsyncFd;

use crate::decode::Messages;
use crate::error::Error;
use crate::message::Message;
use crate::request::{Dump, Requests};
use crate::socket::{BUFFER, Socket, failed};

/// `RTNLGRP_LINK`, `_NEIGH` (FDB entries too), `_TC` (queueing disciplines), `_IPV4_IFADDR`,
/// `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, `_IPV4_NETCONF` (`rp_filter`),
/// `_MDB`, `_NEXTHOP`.
const GROUPS: [u32; 11] = [1, 3, 4, 5, 7, 8, 9, 11, 24, 26, 32];
/// `XFRMNLGRP_POLICY` (`include/uapi/linux/xfrm.h`).
const IPSEC_POLICIES: u32 = 4;
/// Bytes of kernel memory for events that wait: about 10,000 FDB entries. (The kernel counts its
/// own overhead.)
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
    /// Absent where the kernel has no IPsec.
    ipsec: Option<Ipsec>,
}

/// The kernel's IPsec database.
#[derive(Debug)]
struct Ipsec {
    monitor: AsyncFd<Socket>,
    requests: Arc<Mutex<Requests>>,
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
        let requests = Arc::new(Mutex::new(Requests::open()?));
        let ipsec = Ipsec::open()?;
        Ok(Self {
            monitor: registered(socket)?,
            requests,
            buffer: Vec::with_capacity(BUFFER),
            ipsec,
        })
    }

    /// A second descriptor of the socket that events come from, for whoever wants to know whether
    /// any wait to be read.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn waiting(&self) -> io::Result<OwnedFd> {
        self.monitor.get_ref().as_fd().try_clone_to_owned()
    }

    /// The next changes. Cancellation-safe: nothing is taken from the kernel before it is returned.
    ///
    /// # Errors
    /// When the socket fails; lost events are no error but [`Event::Overrun`].
    pub async fn next(&mut self) -> Result<Event, Error> {
        let Self { monitor, ipsec, buffer, .. } = self;
        loop {
            tokio::select! {
                ready = monitor.readable() => {
                    let mut ready = ready.map_err(failed("wait for events"))?;
                    if let Ok(event) = ready.try_io(|socket| receive(socket.get_ref(), buffer)) {
                        return event.map_err(failed("receive events"));
                    }
                }
                changed = ipsec_changed(ipsec.as_ref()) => {
                    changed?;
                    return Ok(Event::Messages(vec![Message::IpsecChanged]));
                }
            }
        }
    }

    /// Everything of one kind, as of a moment after this call.
    ///
    /// # Errors
    /// As [`Requests::dump`].
    pub async fn dump(&self, what: Dump) -> Result<Vec<Message>, Error> {
        if what != Dump::IpsecPolicies {
            return self.request(move |requests| requests.dump(what)).await;
        }
        match &self.ipsec {
            Some(ipsec) => run(&ipsec.requests, Requests::ipsec_policies).await,
            None => Ok(Vec::new()),
        }
    }

    /// Runs requests on a thread that may block. When the future is dropped they are carried out
    /// all the same.
    ///
    /// # Errors
    /// Those of `work`, or [`Error::RuntimeEnded`].
    pub async fn request<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Requests) -> Result<T, Error> + Send + 'static,
    {
        run(&self.requests, work).await
    }
}

impl Ipsec {
    fn open() -> Result<Option<Self>, Error> {
        let Some(requests) = Requests::open_ipsec()? else { return Ok(None) };
        let socket = Socket::open_ipsec()?;
        socket.set_non_blocking()?;
        if let Err(error) = socket.join(IPSEC_POLICIES) {
            // A look by somebody without CAP_NET_ADMIN, who could take nothing over.
            return if error.is_forbidden() {
                tracing::warn!("without CAP_NET_ADMIN, IPsec policies cannot be read");
                Ok(None)
            } else {
                Err(error)
            };
        }
        Ok(Some(Self { monitor: registered(socket)?, requests: Arc::new(Mutex::new(requests)) }))
    }
}

fn registered(socket: Socket) -> Result<AsyncFd<Socket>, Error> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe; this socket owns its descriptor and never changes it"
    )]
    AsyncFd::new(socket).map_err(failed("register with the runtime"))
}

async fn run<T, F>(requests: &Arc<Mutex<Requests>>, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce(&mut Requests) -> Result<T, Error> + Send + 'static,
{
    let requests = Arc::clone(requests);
    // A panic elsewhere leaves nothing half-done here: answers are told apart by their sequence
    // numbers.
    let run = move || work(&mut requests.lock().unwrap_or_else(PoisonError::into_inner));
    tokio::task::spawn_blocking(run).await.map_err(|_| Error::RuntimeEnded)?
}

/// Waits until the IPsec database changes; for ever where there is none. What changed is asked for
/// afterwards, so that lost or merged events do no harm. Cancellation-safe.
async fn ipsec_changed(ipsec: Option<&Ipsec>) -> Result<(), Error> {
    let Some(ipsec) = ipsec else { return std::future::pending().await };
    loop {
        let mut ready = ipsec.monitor.readable().await.map_err(failed("wait for IPsec events"))?;
        if let Ok(drained) = ready.try_io(|socket| drain(socket.get_ref())) {
            return drained.map_err(failed("receive IPsec events"));
        }
    }
}

/// Drops all events that wait. `WouldBlock` where there are none.
fn drain(socket: &Socket) -> io::Result<()> {
    // An event that is cut says enough.
    let mut buffer = Vec::with_capacity(4096);
    let mut any = false;
    loop {
        match socket.receive(&mut buffer) {
            Ok(_) => any = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && any => return Ok(()),
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => any = true,
            Err(error) => return Err(error),
        }
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
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !messages.is_empty() => {
                break;
            }
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => return overrun(socket, buffer),
            Err(error) => return Err(error),
        }
    }
    Ok(Event::Messages(messages))
}

/// Empties the socket. The kernel queues nothing new on an overrun socket until it is empty, so
/// this ends.
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
