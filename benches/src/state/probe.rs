//! Sends numbered frames from a host, and records when they arrive at the far ends of a leaf's
//! uplinks.

use std::error::Error;
use std::io::IoSliceMut;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use fabric::Namespace;
use fabric::packet::{Interface, PacketSocket};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use wire::MacAddr;

type Failure = Box<dyn Error>;

/// The interval between two probe frames in nanoseconds: 10,000 frames per second.
const PERIOD: u64 = 100_000;
/// How long to wait for an expected frame. Five seconds of it are the pause after which zebra's
/// replay counts as complete.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The lowest outer source port of vtepd's policies. The kernel is configured to use lower ones.
const PORTS: u16 = 49_152;
/// The length in bytes of the outer headers of an IPv4 VXLAN frame.
const OUTER: usize = 14 + 20 + 8 + 8;
/// The position of a frame's number, after the RoCE header.
const NUMBER: Range<usize> = 54..62;
const LENGTH: usize = 128;
const RECEIVE_BUFFER: usize = 64 << 20;

/// The time in nanoseconds of the clock that the kernel uses to timestamp received frames.
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
    /// The time of arrival, by the clock of [`now`].
    pub at: u64,
    /// The uplink, 1 or 2.
    pub uplink: usize,
    /// The outer destination MAC address.
    pub gateway: MacAddr,
    /// The outer destination IP address.
    pub vtep: Ipv4Addr,
    /// Whether vtepd sent it; otherwise the kernel did.
    pub by_vtepd: bool,
    /// The number of the frame.
    pub number: u64,
}

/// A sender of numbered frames, with receivers at both uplinks' far ends.
#[derive(Debug)]
pub struct Probe {
    sender: PacketSocket,
    receivers: [OwnedFd; 2],
    frame: Vec<u8>,
    /// The time when each frame was sent, by number.
    sent: Vec<u64>,
    due: u64,
}

impl Probe {
    /// Sends from `eth0` of one namespace, and receives on `down1` and `down2` of the other. Frames
    /// are sent to `to` until [`Probe::send_to`] is called.
    ///
    /// # Errors
    /// If sockets cannot be opened.
    pub fn open(
        host: &Namespace,
        wire: &Namespace,
        from: MacAddr,
        to: MacAddr,
    ) -> Result<Self, Failure> {
        // Reduces the timer slack, so that sleeps are precise.
        nix::sys::prctl::set_timerslack(1)?;
        let sender = || PacketSocket::sender(&Interface::find("eth0")?);
        let receivers = || -> Result<_, String> { Ok([receiver("down1")?, receiver("down2")?]) };
        let mut frame = crate::leaf::roce(LENGTH, 0x100, 0)?;
        frame.splice(..12, [to.0, from.0].concat());
        let (sender, receivers) = (host.enter(sender)??, wire.enter(receivers)??);
        Ok(Self { sender, receivers, frame, sent: Vec::new(), due: now()? })
    }

    /// Sends a frame to a MAC address and returns its number.
    ///
    /// # Errors
    /// If the interface no longer exists.
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

    /// The number of frames sent so far.
    #[must_use]
    pub const fn sent(&self) -> usize {
        self.sent.len()
    }

    /// When a frame was sent; `u64::MAX` if it was not sent yet.
    #[must_use]
    pub fn sent_at(&self, number: u64) -> u64 {
        usize::try_from(number)
            .ok()
            .and_then(|number| self.sent.get(number))
            .copied()
            .unwrap_or(u64::MAX)
    }

    /// Sends a frame if one is due, calls `see` with the frames that have arrived, and sleeps until
    /// the next one is due. It does not poll in a loop, because the kernel would run the worker
    /// that it wakes on the same CPU.
    ///
    /// # Errors
    /// If an interface no longer exists.
    pub fn poll(&mut self, see: impl FnMut(Arrival)) -> Result<(), Failure> {
        let begun = now()?;
        if begun >= self.due {
            // A longer delay is not made up for, because that would be a burst.
            self.due = (self.due + PERIOD).max(begun.saturating_sub(10 * PERIOD));
            self.send()?;
        }
        self.receive(see)?;
        std::thread::sleep(Duration::from_nanos(self.due.saturating_sub(now()?)));
        Ok(())
    }

    /// Calls `see` with the frames that have arrived.
    ///
    /// # Errors
    /// If an interface no longer exists.
    pub fn receive(&self, mut see: impl FnMut(Arrival)) -> Result<(), Failure> {
        for (receiver, uplink) in self.receivers.iter().zip(1..) {
            while let Some(arrival) = receive(receiver, uplink)? {
                arrival.into_iter().for_each(&mut see);
            }
        }
        Ok(())
    }

    /// Runs [`Probe::poll`] for some time.
    ///
    /// # Errors
    /// As [`Probe::poll`].
    pub fn pass(&mut self, time: Duration) -> Result<(), Failure> {
        let end = now()? + time.as_nanos() as u64;
        while now()? < end {
            self.poll(|_| ())?;
        }
        Ok(())
    }

    /// Runs [`Probe::poll`] until a frame arrives that fulfils `wanted`.
    ///
    /// # Errors
    /// As [`Probe::poll`], or after 20 seconds without such a frame.
    pub fn until(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Arrival) -> bool,
    ) -> Result<Arrival, Failure> {
        let end = now()? + TIMEOUT.as_nanos() as u64;
        let mut found: Option<Arrival> = None;
        while now()? < end {
            self.poll(|arrival| {
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

/// A socket that receives an interface's frames with timestamps, in the calling thread's namespace.
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

/// Reads one frame from the socket: `None` if there is none, `Some(None)` for another frame than a
/// probe's.
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
        // The kernel reports ENETDOWN once after an interface went down.
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
