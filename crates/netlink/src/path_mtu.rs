//! Reports of routers that a packet of this host is too long: ICMP "fragmentation needed" (RFC 1191)
//! and ICMPv6 "packet too big" (RFC 8201).
//!
//! The kernel remembers the path MTU that such a message has, but sends no notification. A raw
//! socket gets a copy of each message that is addressed to this host, immediately before the kernel
//! reads the message itself (`raw_local_deliver()`). Whether the kernel believes the message is for
//! the reader to find out: anybody can send one.

use std::collections::BTreeSet;
use std::future;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::libc;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::unix::AsyncFd;
use wire::icmp::{Icmp, Icmpv6};
use wire::{Ipv4, Ipv6};

use crate::error::Error;
use crate::events::registered;
use crate::socket::failed;

/// Number of bytes that are read of a message: an IPv4 header with options, the header of the
/// message, and the header of the packet that was too long.
const READ: usize = 60 + 8 + 40;
/// Receive buffer of a socket, in bytes. What does not fit is lost.
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Maximum number of messages that are read at once.
const BATCH: usize = 64;
/// Minimum time between two batches, so that a flood of messages wakes nobody more often.
const PACE: Duration = Duration::from_millis(1);
/// `IPPROTO_UDP`.
const UDP: u32 = 17;

/// Receives reports for one network namespace.
#[derive(Debug)]
pub(crate) struct PathMtuReports {
    ipv4: Option<AsyncFd<Socket>>,
    ipv6: Option<AsyncFd<Socket>>,
    /// When the next batch may be read.
    after: Instant,
}

impl PathMtuReports {
    /// Starts to receive in the calling thread's network namespace. Must be called within a tokio
    /// runtime. Without CAP_NET_RAW, or for a family that the kernel does not have, none come.
    pub(crate) fn open() -> Self {
        let open = |domain, protocol, filter: &[SockFilter]| {
            let opened = open(domain, protocol, filter);
            opened
                .inspect_err(
                    |error| tracing::debug!(%error, "path MTUs are read once a second only"),
                )
                .ok()
        };
        Self {
            ipv4: open(Domain::IPV4, Protocol::ICMPV4, &ipv4_filter()),
            ipv6: open(Domain::IPV6, Protocol::ICMPV6, &ipv6_filter()),
            after: Instant::now(),
        }
    }

    /// The destinations of the UDP packets that were too long. Cancellation-safe: what is read from
    /// the kernel is returned in the same poll.
    ///
    /// # Errors
    /// When a socket fails. Lost messages are not an error.
    pub(crate) async fn next(&mut self) -> Result<BTreeSet<IpAddr>, Error> {
        // A timer would wait for its next tick.
        if Instant::now() < self.after {
            tokio::time::sleep_until(self.after.into()).await;
        }
        let destinations = tokio::select! {
            destinations = receive(self.ipv4.as_ref(), quoted_ipv4) => destinations?,
            destinations = receive(self.ipv6.as_ref(), quoted_ipv6) => destinations?,
        };
        self.after = Instant::now() + PACE;
        Ok(destinations)
    }
}

fn open(domain: Domain, protocol: Protocol, filter: &[SockFilter]) -> io::Result<AsyncFd<Socket>> {
    let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
    socket.attach_filter(filter)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    registered(socket)
}

/// Waits for messages and reads a batch; forever without a socket.
async fn receive(
    socket: Option<&AsyncFd<Socket>>,
    quoted: fn(&[u8]) -> Option<IpAddr>,
) -> Result<BTreeSet<IpAddr>, Error> {
    let Some(socket) = socket else { return future::pending().await };
    loop {
        let mut ready = socket.readable().await.map_err(failed("wait for ICMP errors"))?;
        if let Ok(destinations) = ready.try_io(|socket| drain(socket.get_ref(), quoted)) {
            return destinations.map_err(failed("receive ICMP errors"));
        }
    }
}

/// Reads the messages that wait, at most one batch. `WouldBlock` if there are none.
fn drain(mut socket: &Socket, quoted: fn(&[u8]) -> Option<IpAddr>) -> io::Result<BTreeSet<IpAddr>> {
    let (mut destinations, mut buffer) = (BTreeSet::new(), [0; READ]);
    for read in 0..BATCH {
        match socket.read(&mut buffer) {
            Ok(length) => destinations.extend(buffer.get(..length).and_then(quoted)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && read > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(destinations)
}

/// The destination of the packet that an ICMP message quotes. `message` starts with its IPv4 header.
fn quoted_ipv4(message: &[u8]) -> Option<IpAddr> {
    let (outer, _) = Ipv4::parse(message).ok()?;
    let quoted = message.get(usize::from(outer.ihl()) * 4 + Icmp::LENGTH..)?;
    Some(Ipv4::parse(quoted).ok()?.0.destination().into())
}

/// The destination of the packet that an ICMPv6 message quotes.
fn quoted_ipv6(message: &[u8]) -> Option<IpAddr> {
    Some(Ipv6::parse(message.get(Icmpv6::LENGTH..)?).ok()?.0.destination().into())
}

const fn load_byte(mode: u32, offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_B | mode) as u16, 0, 0, offset)
}

/// Continues if the loaded byte is `value`, and otherwise skips `others` statements.
const fn continue_if(value: u32, others: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, others, value)
}

const fn keep(bytes: u32) -> SockFilter {
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, bytes)
}

/// Keeps the messages "fragmentation needed" about UDP packets. The kernel shows it a message from
/// its IPv4 header on.
fn ipv4_filter() -> [SockFilter; 9] {
    let header_length = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
    [
        SockFilter::new(header_length, 0, 0, 0),
        load_byte(libc::BPF_IND, 0),
        continue_if(Icmp::UNREACHABLE.into(), 5),
        load_byte(libc::BPF_IND, 1),
        continue_if(Icmp::FRAGMENTATION_NEEDED.into(), 3),
        load_byte(libc::BPF_IND, 8 + 9),
        continue_if(UDP, 1),
        keep(READ as u32),
        keep(0),
    ]
}

/// Keeps the messages "packet too big" about UDP packets. The kernel shows it a message from its
/// ICMPv6 header on.
fn ipv6_filter() -> [SockFilter; 6] {
    [
        load_byte(libc::BPF_ABS, 0),
        continue_if(Icmpv6::PACKET_TOO_BIG.into(), 3),
        load_byte(libc::BPF_ABS, 8 + 6),
        continue_if(UDP, 1),
        keep(READ as u32),
        keep(0),
    ]
}
