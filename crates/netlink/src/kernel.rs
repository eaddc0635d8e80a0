//! The kernel as a source of events: watch first, then dump.
//!
//! [`Kernel::open`] joins the multicast groups, so it sees every later change. A subsequent
//! [`Kernel::dump`] returns the state so far. Applying the events after the dump yields the
//! kernel's state: an event may repeat what the dump has, but all later events of the object follow
//! it.
//!
//! [`Event::Overrun`] breaks this chain: the kernel dropped events. Events that were queued before
//! are discarded, because they are older than the dump that must follow.
//!
//! A bridge entry that moves is an exception: frames move it without a lock. For two moves at the
//! same moment, the events may come in the wrong order, and the last one stays wrong. Therefore
//! [`Requests::bridge_entry`] reads moved entries again.
//!
//! Pitfalls of the kernel, all observed on Linux 6.18:
//! - A link that goes down or is deleted takes its IPv4 routes and next-hop objects with it, and
//!   prunes groups and multipath routes, **without an event** (`fib_sync_down_dev`,
//!   `nexthop_flush_dev`). Routes and next hops must then be dumped again.
//! - Deleting one next hop of an IPv6 multipath route is a delete of the prefix with that one hop.
//!   The route stays.
//! - `ip route append` makes a second IPv4 route of the same table, prefix and metric. The older
//!   one is used.
//! - The FDB dump also lists the multicast addresses that each netdev listens to (`self`,
//!   permanent), whose changes are no events. Only `self` entries of vxlan netdevs are FDB entries.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::libc::ENOBUFS;
use tokio::io::unix::AsyncFd;

use crate::decode::Messages;
use crate::dump::Dump;
use crate::error::Error;
use crate::events::{Events, drain, registered};
use crate::message::Message;
use crate::path_mtu::PathMtuReports;
use crate::request::Requests;
use crate::socket::{BUFFER, Socket, failed};

/// `RTNLGRP_LINK`, `_NEIGH` (FDB entries too), `_TC` (queueing disciplines), `_IPV4_IFADDR`,
/// `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, `_IPV6_RULE`, `_IPV4_NETCONF`
/// (`rp_filter`), `_MDB`, `_NEXTHOP`.
const GROUPS: [u32; 12] = [1, 3, 4, 5, 7, 8, 9, 11, 19, 24, 26, 32];
/// `XFRMNLGRP_POLICY` (`include/uapi/linux/xfrm.h`).
const IPSEC_POLICIES: u32 = 4;
/// Receive buffer for events, in bytes: room for about 10,000 FDB entries. The kernel also counts
/// its own overhead.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// Maximum number of datagrams that are read before other tasks get their turn.
const BATCH: usize = 512;

/// An event of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Changes, in order.
    Messages(Vec<Message>),
    /// Changes were lost. Everything must be dumped again.
    Overrun,
    /// Routers report that packets to these destinations are too long. The kernel may have new path
    /// MTUs for them, now or a moment later.
    TooLong(BTreeSet<IpAddr>),
}

/// The kernel's network state in one namespace.
#[derive(Debug)]
pub struct Kernel {
    monitor: AsyncFd<Socket>,
    requests: Arc<Mutex<Requests>>,
    buffer: Vec<u8>,
    /// `None` if the kernel has no IPsec.
    ipsec: Option<Ipsec>,
    too_long: PathMtuReports,
}

/// The kernel's IPsec database.
#[derive(Debug)]
struct Ipsec {
    events: Events,
    requests: Arc<Mutex<Requests>>,
}

impl Kernel {
    /// Starts to watch the calling thread's network namespace. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Self::with_receive_buffer(RECEIVE_BUFFER)
    }

    /// [`Kernel::open`] with another size of the receive buffer, in bytes.
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
            monitor: registered(socket).map_err(failed("register with the runtime"))?,
            requests,
            buffer: Vec::with_capacity(BUFFER),
            ipsec,
            too_long: PathMtuReports::open(),
        })
    }

    /// Duplicates the descriptor of the event socket, so that the caller can poll whether events
    /// wait.
    ///
    /// # Errors
    /// When no descriptor is available.
    pub fn waiting(&self) -> io::Result<OwnedFd> {
        self.monitor.get_ref().as_fd().try_clone_to_owned()
    }

    /// The next changes. Cancellation-safe: what is read from the kernel is returned in the same
    /// poll.
    ///
    /// # Errors
    /// When the socket fails. Lost events are not an error but [`Event::Overrun`].
    pub async fn next(&mut self) -> Result<Event, Error> {
        let Self { monitor, ipsec, buffer, too_long, .. } = self;
        loop {
            tokio::select! {
                ready = monitor.readable() => {
                    let mut ready = ready.map_err(failed("wait for events"))?;
                    if let Ok(event) = ready.try_io(|socket| receive(socket.get_ref(), buffer)) {
                        return event.map_err(failed("receive events"));
                    }
                }
                changed = ipsec_changed(ipsec.as_mut()) => {
                    changed?;
                    return Ok(Event::Messages(vec![Message::IpsecChanged]));
                }
                destinations = too_long.next() => return destinations.map(Event::TooLong),
            }
        }
    }

    /// All objects of one kind, as of a moment after this call.
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

    /// Runs requests on a thread that may block. They are carried out even if the future is
    /// dropped.
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
        match Events::join(Socket::open_ipsec()?, IPSEC_POLICIES, "receive IPsec events") {
            Ok(events) => Ok(Some(Self { events, requests: Arc::new(Mutex::new(requests)) })),
            // Possible only without CAP_NET_ADMIN, for example in a dry run. Nothing could be taken
            // over then.
            Err(error) if error.is_forbidden() => {
                tracing::warn!("without CAP_NET_ADMIN, IPsec policies cannot be read");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

async fn run<T, F>(requests: &Arc<Mutex<Requests>>, work: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce(&mut Requests) -> Result<T, Error> + Send + 'static,
{
    let requests = Arc::clone(requests);
    // A panic in another request leaves no inconsistent state: answers are matched by their
    // sequence numbers.
    let run = move || work(&mut requests.lock().unwrap_or_else(PoisonError::into_inner));
    tokio::task::spawn_blocking(run).await.map_err(|_| Error::RuntimeEnded)?
}

/// Waits until the IPsec database changes; forever if there is none. The database is dumped
/// afterwards, so lost or merged events do no harm. Cancellation-safe.
async fn ipsec_changed(ipsec: Option<&mut Ipsec>) -> Result<bool, Error> {
    match ipsec {
        Some(ipsec) => ipsec.events.changed(|changed, _| *changed = true).await,
        None => std::future::pending().await,
    }
}

/// Reads the events that wait on the socket, at most one batch.
fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<Event> {
    let mut messages = Vec::new();
    for _ in 0..BATCH {
        match socket.receive(buffer) {
            // A message larger than the buffer is lost.
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

/// Empties the socket. The kernel queues nothing on an overrun socket until it is empty, so this
/// ends.
fn overrun(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<Event> {
    let drained: io::Result<bool> = drain(socket, buffer, |any, _| *any = true);
    match drained {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(Event::Overrun),
    }
}
