//! A RoCE endpoint on an interface: the protocol of crate `roce`, an AF_PACKET ring to receive and
//! batches to send.

mod bench;
mod perftest;
mod session;
mod transmit;

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use frame::DropReason;
use netlink::Discard;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use ports::{PacketSocket, Poller, Port as _, RingSize};
use roce::{Address, Endpoint, Frames, Memory, OVERHEAD, Pattern, SettingError, Settings};
use wire::number::PORT_ROCE;

pub use bench::{Bench, BenchError, bench};
pub use perftest::{ControlError, PORT};
pub use session::{Kind, Requests, Session, SessionError, Side, connect, serve};
pub use transmit::Transmit;

use fabric::packet::{BATCH, Interface, PacketError};

/// Frames that the kernel holds while the endpoint does not run.
const RING: usize = 4096;
/// Bytes of RETH, AETH and immediate data, of which a frame has some.
const EXTENSIONS: usize = 24;
/// Batches that are sent before received frames are handled again.
const BATCHES: usize = 8;

/// An endpoint cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// The interface cannot be used.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The interface has no IPv4 address.
    #[error("{0} has no IPv4 address: add one with 'ip address add'")]
    NoAddress(String),
    /// The MTU of the interface is too small.
    #[error(
        "frames of path MTU {mtu} do not fit the MTU of {interface}, which must be {needed} bytes: \
         use a smaller path MTU"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// The path MTU.
        mtu: u32,
        /// The interface MTU that it needs.
        needed: usize,
    },
    /// A system call failed.
    #[error("cannot {action} on {interface}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The interface.
        interface: String,
        /// The cause.
        source: io::Error,
    },
}

/// An endpoint on an interface of the namespace in which it was opened. Usually, its memory is a
/// pattern: each byte that is sent or received is known by its address, and checked.
pub struct Nic<M = Pattern> {
    /// The protocol.
    pub endpoint: Endpoint,
    /// The memory.
    pub memory: M,
    address: Address,
    interface: String,
    socket: PacketSocket,
    transmit: Transmit,
    /// A socket on the RoCE port. Without it, the host would answer each frame with ICMP port
    /// unreachable.
    _listener: Option<UdpSocket>,
    /// The IP stack need not handle what the packet socket has received. `None` if the kernel has
    /// no nftables.
    _discard: Option<Discard>,
    frames: Frames,
    poller: Poller,
    origin: Instant,
    slept: Duration,
    overruns: u64,
}

impl Nic {
    /// Opens an endpoint whose memory is a pattern of this seed: [`Nic::with_memory`].
    ///
    /// # Errors
    /// [`NicError`], for example without `CAP_NET_RAW`.
    pub fn open(interface: &str, settings: Settings, seed: u64) -> Result<Self, NicError> {
        Self::with_memory(interface, settings, Pattern::new(seed))
    }
}

impl<M: Memory> Nic<M> {
    /// Opens an endpoint without queue pairs on an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// [`NicError`], for example without `CAP_NET_RAW`.
    pub fn with_memory(interface: &str, settings: Settings, memory: M) -> Result<Self, NicError> {
        let found = Interface::find(interface)?;
        let io_error = |action| {
            move |source: io::Error| NicError::Io {
                action,
                interface: interface.to_owned(),
                source,
            }
        };
        let ip = found.ipv4.ok_or_else(|| NicError::NoAddress(interface.to_owned()))?;
        let longest = settings.mtu as usize + OVERHEAD + EXTENSIONS;
        let index = found.link.ifindex();
        let index = u32::try_from(index).map_err(|_| PacketError::NoInterface(interface.into()))?;
        let endpoint = Endpoint::new(settings)?;
        let socket = PacketSocket::open(index, RingSize { frames: RING, longest });
        let listener = UdpSocket::bind(("0.0.0.0", PORT_ROCE)).ok();
        Ok(Self {
            endpoint,
            memory,
            address: Address { mac: found.mac, ip },
            socket: socket.map_err(io_error("open a packet socket"))?,
            transmit: Transmit::new(interface, longest),
            // Nobody else in the namespace receives RoCE frames.
            _discard: listener.as_ref().and_then(|_| Discard::udp(interface, ip, PORT_ROCE).ok()),
            _listener: listener,
            interface: interface.to_owned(),
            frames: Frames::default(),
            poller: Poller::default(),
            origin: Instant::now(),
            slept: Duration::ZERO,
            overruns: 0,
        })
    }

    /// The MAC and IPv4 address of the interface.
    #[must_use]
    pub const fn address(&self) -> Address {
        self.address
    }

    /// Nanoseconds since the endpoint was opened.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time that the endpoint has slept since it was opened.
    #[must_use]
    pub const fn slept(&self) -> Duration {
        self.slept
    }

    /// Handles what has arrived, and sends what is due. Does not wait. Returns when to call again
    /// if nothing arrives, in nanoseconds as [`Nic::now`]; `None` if only input causes more work.
    ///
    /// # Errors
    /// [`NicError::Packet`] if the interface no longer exists.
    pub fn work(&mut self) -> Result<Option<u64>, NicError> {
        let now = self.now();
        for frame in self.socket.receive().frames() {
            self.endpoint.receive(now, frame.data, &mut self.memory);
        }
        let mut wake = None;
        for _ in 0..BATCHES {
            let now = self.now();
            self.frames.clear();
            wake = self.endpoint.transmit(now, &mut self.frames, BATCH, &self.memory);
            if self.frames.is_empty() {
                break;
            }
            self.send()?;
        }
        Ok(wake)
    }

    fn send(&mut self) -> Result<(), NicError> {
        let interface = || self.interface.clone();
        self.transmit.send(&mut self.socket, &self.frames).map_err(|reason| match reason {
            DropReason::TooBig => {
                let mtu = self.endpoint.settings().mtu;
                // The Ethernet header is not part of the MTU.
                let needed = mtu as usize + OVERHEAD + EXTENSIONS - wire::Ethernet::LENGTH;
                NicError::Mtu { interface: interface(), mtu, needed }
            }
            reason => NicError::Io {
                action: "send",
                interface: interface(),
                source: io::Error::other(reason.sentence()),
            },
        })
    }

    /// Sleeps until frames arrive, `until` (as [`Nic::now`]), `most` has passed, or a descriptor of
    /// `others` is readable.
    ///
    /// # Errors
    /// [`NicError::Io`].
    pub fn wait(
        &mut self,
        until: Option<u64>,
        most: Duration,
        others: &[BorrowedFd<'_>],
    ) -> Result<(), NicError> {
        let now = self.now();
        let time =
            until.map_or(most, |until| Duration::from_nanos(until.saturating_sub(now)).min(most));
        if time.is_zero() {
            return Ok(());
        }
        let descriptors = std::iter::once(self.socket.as_fd()).chain(others.iter().copied());
        self.poller.wait(descriptors, Some(time)).map(drop).map_err(|source| NicError::Io {
            action: "wait for frames",
            interface: self.interface.clone(),
            source,
        })?;
        self.socket.clear_error();
        self.slept += Duration::from_nanos(self.now().saturating_sub(now));
        Ok(())
    }

    /// Frames that the kernel dropped because the endpoint did not read its ring in time, since it
    /// was opened.
    ///
    /// # Errors
    /// [`NicError::Io`].
    pub fn overruns(&mut self) -> Result<u64, NicError> {
        let new = self.socket.overruns().map_err(|source| NicError::Io {
            action: "read the statistics",
            interface: self.interface.clone(),
            source,
        })?;
        self.overruns += new;
        Ok(self.overruns)
    }
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// If there is no such CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(io::Error::from)
}
