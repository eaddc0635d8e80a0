//! Numbered frames from a host, and when they arrive at the far ends of a leaf's uplinks.

use std::error::Error;
use std::io::IoSliceMut;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use lab::Namespace;
use lab::packet::{Interface, PacketSocket};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use wire::MacAddr;

type Failure = Box<dyn Error>;

/// Between two probe frames: 10,000 each second.
const PERIOD: u64 = 100_000;
/// How long anything that has to happen may take. Five seconds of it are zebra's silence after a
/// replay.
const PATIENCE: Duration = Duration::from_secs(20);
/// The first outer source port of vtepd's policies; the kernel is told to use lower ones.
const PORTS: u16 = 49_152;
/// Outer headers of an IPv4 VXLAN frame.
const OUTER: usize = 14 + 20 + 8 + 8;
/// Where a frame has its number, after RoCE's header.
const NUMBER: Range<usize> = 54..62;
const LENGTH: usize = 128;
const RECEIVE_BUFFER: usize = 64 << 20;

/// Nanoseconds of the clock by which the kernel stamps received frames.
///
/// # Errors
/// None in practice.
pub fn now() -> Result<u64, Failure> {
    Ok(nanoseconds(clock_gettime(ClockId::CLOCK_REALTIME)?))
}

const fn nanoseconds(time: TimeSpec) -> u64 {
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// A probe frame at the far end of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, by [`now`]'s clock.
    pub at: u64,
    /// Which uplink, 1 or 2.
    pub uplink: usize,
    /// Outer destination MAC address.
    pub gateway: MacAddr,
    /// Outer destination.
    pub vtep: Ipv4Addr,
    /// Whether vtepd sent it, and not the kernel.
    pub by_vtepd: bool,
    /// Its number.
    pub number: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct Probe {
    sender: PacketSocket,
    receivers: [OwnedFd; 2],
    frame: Vec<u8>,
    /// When each frame was sent, by number.
    sent: Vec<u64>,
    due: u64,
}

impl Probe {
    /// From `eth0` of one namespace to `down1` and `down2` of the other, to one MAC address at
    /// first.
    ///
    /// # Errors
    /// When sockets cannot be had.
    pub fn open(
        host: &Namespace,
        wire: &Namespace,
        from: MacAddr,
        to: MacAddr,
    ) -> Result<Self, Failure> {
        // Sleep no longer than asked for.
        nix::sys::prctl::set_timerslack(1)?;
        let sender = || PacketSocket::sender(&Interface::find("eth0")?);
        let receivers = || -> Result<_, String> { Ok([receiver("down1")?, receiver("down2")?]) };
        let mut frame = crate::leaf::roce(LENGTH, 0x100, 0)?;
        frame.splice(..12, [to.0, from.0].concat());
        let (sender, receivers) = (host.enter(sender)??, wire.enter(receivers)??);
        Ok(Self { sender, receivers, frame, sent: Vec::new(), due: now()? })
    }

    /// Sends a frame to a MAC address now. Returns its number.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn send_to(&mut self, to: MacAddr) -> Result<u64, Failure> {
        self.frame.splice(..6, to.0);
        self.send()
    }

    fn send(&mut self) -> Result<u64, Failure> {
        let number = self.sent.len() as u64;
        self.frame.splice(NUMBER, number.to_be_bytes());
        self.sent.push(now()?);
        self.sender.send(&[&self.frame])?;
        Ok(number)
    }

    /// Frames sent so far.
    #[must_use]
    pub const fn sent(&self) -> usize {
        self.sent.len()
    }

    /// When a frame was sent; never, if it was not yet.
    #[must_use]
    pub fn sent_at(&self, number: u64) -> u64 {
        usize::try_from(number)
            .ok()
            .and_then(|number| self.sent.get(number))
            .copied()
            .unwrap_or(u64::MAX)
    }

    /// Sends a frame if one is due, hands over what has arrived, and rests until the next one is
    /// due: whoever spins has a processor to itself, and the kernel puts the worker that it wakes
    /// there.
    ///
    /// # Errors
    /// When an interface is gone.
    pub fn turn(&mut self, see: impl FnMut(Arrival)) -> Result<(), Failure> {
        let begun = now()?;
        if begun >= self.due {
            // More than that is not made up for: it would be a burst.
            self.due = (self.due + PERIOD).max(begun.saturating_sub(10 * PERIOD));
            self.send()?;
        }
        self.receive(see)?;
        std::thread::sleep(Duration::from_nanos(self.due.saturating_sub(now()?)));
        Ok(())
    }

    /// Hands over what has arrived.
    ///
    /// # Errors
    /// When an interface is gone.
    pub fn receive(&self, mut see: impl FnMut(Arrival)) -> Result<(), Failure> {
        for (receiver, uplink) in self.receivers.iter().zip(1..) {
            while let Some(arrival) = receive(receiver, uplink)? {
                arrival.into_iter().for_each(&mut see);
            }
        }
        Ok(())
    }

    /// Goes on for a while.
    ///
    /// # Errors
    /// As [`Probe::turn`].
    pub fn pass(&mut self, time: Duration) -> Result<(), Failure> {
        let end = now()? + time.as_nanos() as u64;
        while now()? < end {
            self.turn(|_| ())?;
        }
        Ok(())
    }

    /// Goes on until such a frame arrives.
    ///
    /// # Errors
    /// As [`Probe::turn`], or when none does.
    pub fn until(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Arrival) -> bool,
    ) -> Result<Arrival, Failure> {
        let end = now()? + PATIENCE.as_nanos() as u64;
        let mut found: Option<Arrival> = None;
        while now()? < end {
            self.turn(|arrival| {
                if found.is_none() && wanted(&arrival) {
                    found = Some(arrival);
                }
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(format!("waited in vain for {what}").into())
    }
}

/// A socket that sees what an interface of the calling thread's namespace receives, with the time.
fn receiver(interface: &str) -> Result<OwnedFd, String> {
    let found = Interface::find(interface).map_err(|error| error.to_string())?;
    let open = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let descriptor = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthIp)?;
        setsockopt(&descriptor, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
        setsockopt(&descriptor, sockopt::ReceiveTimestampns, &true)?;
        bind(descriptor.as_raw_fd(), &found.link)?;
        Ok(descriptor)
    };
    open().map_err(|error: Errno| format!("cannot listen on {interface}: {error}"))
}

/// What the socket has: nothing, something else, or a probe frame.
fn receive(socket: &OwnedFd, uplink: usize) -> Result<Option<Option<Arrival>>, Failure> {
    let (mut bytes, mut control) = ([0; 256], nix::cmsg_space!(TimeSpec));
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received =
        recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_DONTWAIT);
    let (length, at) = match received {
        Ok(message) => {
            let stamp = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::ScmTimestampns(time) => Some(nanoseconds(time)),
                _ => None,
            });
            (message.bytes, stamp)
        }
        // An interface that goes down says so once.
        Err(Errno::EAGAIN | Errno::ENETDOWN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let frame = bytes.get(..length).unwrap_or(&bytes);
    Ok(Some(at.and_then(|at| parse(frame, at, uplink))))
}

fn parse(frame: &[u8], at: u64, uplink: usize) -> Option<Arrival> {
    let field = |at: usize, length: usize| frame.get(at..at + length);
    let port = |at: usize| Some(u16::from_be_bytes(field(at, 2)?.try_into().ok()?));
    if frame.len() != OUTER + LENGTH || port(36) != Some(wire::number::PORT_VXLAN) {
        return None;
    }
    Some(Arrival {
        at,
        uplink,
        gateway: MacAddr(field(0, 6)?.try_into().ok()?),
        vtep: Ipv4Addr::from(<[u8; 4]>::try_from(field(30, 4)?).ok()?),
        by_vtepd: port(34)? >= PORTS,
        number: u64::from_be_bytes(field(OUTER + NUMBER.start, 8)?.try_into().ok()?),
    })
}
