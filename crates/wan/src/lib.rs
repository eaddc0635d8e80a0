//! Emulates a circuit between two sites. Frames pass from one interface to another in both
//! directions, in order, with delay, jitter, loss and a rate limit. It works the same on kernels
//! with and without netem.
//!
//! The kernel timestamps arriving frames, so reading a frame late does not add to its delay. No
//! frame leaves before its time.

mod control;
mod faults;
mod frame;
mod links;
mod report;
mod schedule;
mod socket;
mod temporary;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use control::Control;
use experiment::random::Random;
use fabric::packet::PacketError;
use fabric::progress::note;
use fabric::rtnl::RtnlError;
use fabric::topology::Circuit;
use frame::Frame;
use links::Link;
use netlink::{NotificationKind, Notifications};
use roce::Histogram;
use schedule::{Fate, Schedule, Times};
use socket::{Sending, Socket};
use temporary::Temporary;

pub use control::{Change, ChangeError, change, counts};
pub use report::{Counts, DirectionReport, Report};
pub use schedule::Impairment;

/// The temporary name of a circuit's interface while the circuit is cut.
pub const CUT: &str = "lab-cut";

/// The maximum number of bytes in transit in one direction.
const IN_TRANSIT_LIMIT: usize = 64 << 20;
/// The shortest sleep. Frames that become due during it leave together, so a frame may be this
/// late.
const TICK: Duration = Duration::from_micros(100);
/// While there is traffic, interfaces are polled at this interval, or four times in the minimum
/// delay if that is shorter.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// The maximum duration of the wait in one call of [`Wan::poll`].
const WAIT_LIMIT: Duration = Duration::from_millis(500);
/// The interval between attempts to open an interface that failed.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of batches that are read from one interface before the next one.
const BATCHES: usize = 8;

/// A circuit could not be run.
#[derive(Debug, thiserror::Error)]
pub enum WanError {
    /// An interface cannot be used.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// An interface could not be set up or down.
    #[error(transparent)]
    Rtnl(#[from] RtnlError),
    /// Notifications of changes are not to be had.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// Interfaces could not be listed, or waiting failed.
    #[error("cannot {action}")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// There are no circuits, or two circuits use the same interface.
    #[error("{0}")]
    Circuits(String),
}

/// The circuits and their properties.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The circuits. No interface may be in two of them.
    pub circuits: Vec<Circuit>,
    /// The impairment in each direction of every circuit.
    pub impairment: Impairment,
    /// The seed of jitter and loss.
    pub seed: u64,
    /// Whether a lost carrier at one end is propagated to the other end, as on a wavelength between
    /// optical transponders. Otherwise the other end does not notice it, as with a carrier's
    /// Ethernet service.
    pub carrier: bool,
}

/// An interface of a circuit, and the socket on it if it exists.
#[derive(Debug)]
struct Port {
    name: String,
    socket: Option<Socket>,
    /// Why there is no socket, if the interface exists.
    trouble: Option<PacketError>,
}

/// The state of carrier propagation of a circuit. Sides are 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// Both sides have a carrier.
    Through,
    /// This side has lost its carrier, so the other side was set down.
    Lost(usize),
    /// This side was set up again and does not have a carrier yet.
    Returning(usize),
}

/// One direction of a circuit. Ports are given by index.
#[derive(Debug)]
struct Direction {
    from: usize,
    to: usize,
    schedule: Schedule,
    /// Frames in transit in the order of their departure.
    waiting: VecDeque<(Times, Frame)>,
    held: usize,
    counts: Counts,
    lateness: Histogram,
}

/// Running circuits, in the namespace of the thread that created the value.
#[derive(Debug)]
pub struct Wan {
    start: Instant,
    ports: Vec<Port>,
    directions: Vec<Direction>,
    carriers: Option<Vec<Carrier>>,
    /// `None` only in tests.
    watch: Option<Notifications>,
    control: Option<Control>,
    /// Messages of users that may not change circuits.
    strangers: u64,
    temporary: Temporary,
    /// When interfaces were last listed, and when to list them again without a notification.
    listed: Duration,
    list_again: Option<Duration>,
    /// The polling interval while there is traffic.
    poll_interval: Duration,
    /// The time of the next poll.
    next_poll: Duration,
}

impl Wan {
    /// Connects the interfaces. Interfaces that do not exist yet are connected once they appear,
    /// and again if they are deleted and recreated.
    ///
    /// # Errors
    /// [`WanError::Circuits`]; or other errors without `CAP_NET_RAW` and `CAP_NET_ADMIN`.
    pub fn new(settings: &Settings) -> Result<Self, WanError> {
        let names: Vec<&String> = settings.circuits.iter().flat_map(|circuit| &circuit.0).collect();
        if let Some(twice) =
            names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|n| n == *name))
        {
            return Err(WanError::Circuits(format!("interface '{}' is in two circuits", twice.1)));
        }
        let ports: Vec<Port> = names
            .iter()
            .map(|name| Port { name: (*name).clone(), socket: None, trouble: None })
            .collect();
        if ports.is_empty() {
            return Err(WanError::Circuits(
                "no circuits; name two interfaces, such as eth1:eth2".to_owned(),
            ));
        }
        let mut random = Random::new(settings.seed);
        let directions = (0..ports.len()).map(|from| Direction {
            from,
            to: from ^ 1,
            schedule: Schedule::new(settings.impairment, Random::new(random.next())),
            waiting: VecDeque::new(),
            held: 0,
            counts: Counts::default(),
            lateness: Histogram::default(),
        });
        let mut wan = Self {
            start: Instant::now(),
            directions: directions.collect(),
            ports,
            carriers: settings.carrier.then(|| vec![Carrier::Through; settings.circuits.len()]),
            watch: Some(Notifications::open(NotificationKind::Links)?),
            temporary: Temporary::default(),
            control: Control::open().map_err(io_error("open the control socket"))?,
            strangers: 0,
            listed: Duration::ZERO,
            list_again: None,
            poll_interval: POLL_INTERVAL,
            next_poll: Duration::ZERO,
        };
        wan.set_poll_interval();
        wan.find_ports()?;
        Ok(wan)
    }

    /// The interfaces that do not exist or cannot be opened, with the error.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let missing = self.ports.iter().filter(|port| port.socket.is_none());
        let say = |port: &Port| match &port.trouble {
            Some(PacketError::Io { action, source, .. }) => {
                format!("{} (cannot {action}: {source})", port.name)
            }
            _ => port.name.clone(),
        };
        missing.map(say).collect()
    }

    /// The counters of all directions so far.
    #[must_use]
    pub fn report(&mut self) -> Report {
        let name = |index: usize| self.ports.get(index).map_or("", |port| &port.name).to_owned();
        let report = |direction: &mut Direction| {
            let overruns = self.ports.get(direction.from).and_then(|port| port.socket.as_ref());
            direction.counts.overruns += overruns.map_or(0, Socket::overruns);
            direction.counts.waiting = direction.waiting.len() as u64;
            let late = |per_mille| direction.lateness.quantile(per_mille).div_ceil(1000);
            DirectionReport {
                from: name(direction.from),
                to: name(direction.to),
                counts: direction.counts,
                late_median_us: late(500),
                late_p99_us: late(990),
            }
        };
        Report(self.directions.iter_mut().map(report).collect())
    }

    /// Waits until a frame has arrived or is due, for half a second at most or until a signal. Then
    /// receives and sends frames.
    ///
    /// # Errors
    /// If a system call fails that has to succeed.
    pub fn poll(&mut self) -> Result<(), WanError> {
        self.wait()?;
        self.follow();
        self.end_changes();
        // A socket that fails may have lost some.
        let has_changes = self.watch.as_ref().is_some_and(|watch| watch.changed().unwrap_or(true));
        if has_changes || self.list_again.is_some_and(|at| self.start.elapsed() >= at) {
            self.find_ports()?;
        }
        if self.start.elapsed() >= self.next_poll {
            let found = self.fetch();
            self.next_poll =
                if found { self.start.elapsed() + self.poll_interval } else { Duration::ZERO };
        }
        self.send();
        if self.ports.iter().any(|port| port.trouble.is_some()) {
            self.list_again = Some(self.listed + RETRY_INTERVAL);
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), WanError> {
        let now = self.start.elapsed();
        let due = self
            .directions
            .iter()
            .filter_map(|direction| direction.waiting.front())
            .map(|(times, _)| times.leaves)
            .min();
        let mut until =
            due.map_or(now + WAIT_LIMIT, |due| due.max(now + TICK).min(now + WAIT_LIMIT));
        let others = [self.list_again, self.temporary.next()];
        until = others.into_iter().flatten().fold(until, Duration::min);
        let mut descriptors = Vec::new();
        if now < self.next_poll {
            until = until.min(self.next_poll);
        } else {
            let sockets =
                self.ports.iter().filter_map(|port| port.socket.as_ref().map(Socket::as_fd));
            let control = self.control.as_ref().map(Control::as_fd);
            let all = sockets.chain(self.watch.as_ref().map(AsFd::as_fd)).chain(control);
            descriptors = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        }
        match ppoll(&mut descriptors, Some(TimeSpec::from(until.saturating_sub(now))), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(io_error("wait for frames")(errno.into())),
        }
    }

    /// Receives the frames that have arrived. Returns whether there were any.
    fn fetch(&mut self) -> bool {
        let mut found = false;
        for direction in &mut self.directions {
            let Some(port) = self.ports.get_mut(direction.from) else { continue };
            let Some(socket) = &mut port.socket else { continue };
            for _ in 0..BATCHES {
                let received = match socket.receive() {
                    Ok(received) => received,
                    Err(error) => {
                        port.lose(error);
                        break;
                    }
                };
                let now = self.start.elapsed();
                direction.counts.unreadable += received.unreadable;
                if received.frames.is_empty() && received.unreadable == 0 {
                    break;
                }
                found = true;
                for (frame, age) in received.frames {
                    direction.take(frame, now.saturating_sub(age));
                }
            }
        }
        found
    }

    /// Sends the frames that are due.
    fn send(&mut self) {
        for direction in &mut self.directions {
            let Some(port) = self.ports.get_mut(direction.to) else { continue };
            loop {
                let now = self.start.elapsed();
                let due = direction
                    .waiting
                    .iter()
                    .take_while(|(times, _)| times.leaves <= now)
                    .map(|(_, frame)| frame);
                if direction.waiting.front().is_none_or(|(times, _)| times.leaves > now) {
                    break;
                }
                let sent =
                    port.socket.as_ref().map_or(Ok(Sending::Refused), |socket| socket.send(due));
                let sent = sent.unwrap_or_else(|error| {
                    port.lose(error);
                    Sending::Refused
                });
                match sent {
                    Sending::Later => break,
                    Sending::Refused => {
                        direction.gone(1, now, false);
                    }
                    Sending::Sent(count) => direction.gone(count, now, true),
                }
            }
        }
    }

    /// Opens interfaces that have appeared and closes those that were deleted. Then propagates
    /// carrier changes.
    fn find_ports(&mut self) -> Result<(), WanError> {
        self.find_ports_after(|| ())
    }

    /// `listed` runs when the interfaces have been listed. They may then be others.
    fn find_ports_after(&mut self, listed: impl FnOnce()) -> Result<(), WanError> {
        let links = links::all().map_err(io_error("list interfaces"))?;
        listed();
        (self.listed, self.list_again) = (self.start.elapsed(), None);
        self.ports.iter_mut().try_for_each(|port| port.find(links.get(&port.name)))?;
        self.propagate_carrier(&links)
    }

    fn propagate_carrier(&mut self, links: &BTreeMap<String, Link>) -> Result<(), WanError> {
        let set = |port: &Port, up: bool| {
            let link = links.get(&port.name).filter(|link| link.up != up);
            match link.map_or(Ok(()), |link| links::set(&link.interface, up)) {
                // The interface was deleted; the notification will follow.
                Err(error) if error.errno() == Some(Errno::ENODEV as i32) => Ok(()),
                set => set.map_err(WanError::from),
            }
        };
        for (sides, carrier) in self.ports.chunks_exact(2).zip(self.carriers.iter_mut().flatten()) {
            let [a, b] = sides else { continue };
            let carriers =
                [a, b].map(|port| links.get(&port.name).is_some_and(|link| link.carrier));
            let changed = match (*carrier, carriers) {
                (Carrier::Through, [false, _]) => Carrier::Lost(0),
                (Carrier::Through, [_, false]) => Carrier::Lost(1),
                (Carrier::Lost(0), [true, _]) => Carrier::Returning(1),
                (Carrier::Lost(1), [_, true]) => Carrier::Returning(0),
                (Carrier::Returning(0), [_, false]) => Carrier::Lost(1),
                (Carrier::Returning(1), [false, _]) => Carrier::Lost(0),
                (Carrier::Returning(_), [true, true]) => Carrier::Through,
                (same, _) => same,
            };
            if changed == *carrier {
                continue;
            }
            *carrier = changed;
            match changed {
                Carrier::Lost(side) => set(if side == 0 { b } else { a }, false)?,
                Carrier::Returning(side) => set(if side == 0 { a } else { b }, true)?,
                Carrier::Through => {}
            }
        }
        Ok(())
    }
}

impl Drop for Wan {
    /// Sets interfaces up that were set down to propagate a lost carrier.
    fn drop(&mut self) {
        let lost =
            self.carriers.iter().flatten().enumerate().filter_map(
                |(circuit, carrier)| match carrier {
                    Carrier::Lost(side) => Some(2 * circuit + (1 - side)),
                    _ => None,
                },
            );
        let Ok(links) = links::all() else { return };
        for port in lost.filter_map(|index| self.ports.get(index)) {
            if let Some(Err(error)) =
                links.get(&port.name).map(|link| links::set(&link.interface, true))
            {
                note(format_args!("{} stays down: {error}", port.name));
            }
        }
    }
}

impl Port {
    /// Opens the interface if necessary. A failure is recorded and retried later, because the
    /// interface may have been deleted since it was listed.
    fn find(&mut self, link: Option<&Link>) -> Result<(), WanError> {
        let Some(link) = link else {
            (self.socket, self.trouble) = (None, None);
            return Ok(());
        };
        if self.socket.as_ref().is_some_and(|socket| socket.is_on(&link.interface)) {
            return Ok(());
        }
        match Socket::open(&link.interface) {
            Ok(socket) => (self.socket, self.trouble) = (Some(socket), None),
            Err(PacketError::Io { action, interface, source })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                return Err(PacketError::Io { action, interface, source }.into());
            }
            Err(error) => self.lose(error),
        }
        Ok(())
    }

    fn lose(&mut self, error: PacketError) {
        (self.socket, self.trouble) = (None, Some(error));
    }
}

impl Direction {
    fn set(&mut self, now: Duration, impairment: Impairment) {
        let frames = self.waiting.iter_mut().map(|(times, frame)| (frame.wire_bytes(), times));
        self.schedule.set(now, impairment, frames);
    }

    fn take(&mut self, mut frame: Frame, arrived: Duration) {
        let bytes = frame.wire_bytes();
        self.counts.frames += 1;
        self.counts.bytes += bytes;
        if self.held + frame.size() > IN_TRANSIT_LIMIT {
            self.counts.buffer_full += 1;
            return;
        }
        let marked = self.schedule.marks(arrived);
        match self.schedule.fate(arrived, bytes) {
            Fate::Leaves(times) => {
                self.counts.marked += u64::from(marked && frame.mark());
                self.held += frame.size();
                self.waiting.push_back((times, frame));
            }
            Fate::Lost => self.counts.lost += 1,
            Fate::QueueFull => self.counts.queue_full += 1,
        }
    }

    /// Removes the first `count` frames from the queue: they were sent or refused.
    fn gone(&mut self, count: usize, now: Duration, sent: bool) {
        for (times, frame) in self.waiting.drain(..count.min(self.waiting.len())) {
            self.held -= frame.size();
            if sent {
                self.counts.sent += 1;
                self.lateness.record(now.saturating_sub(times.leaves).as_nanos() as u64);
            } else {
                self.counts.refused += 1;
            }
        }
    }
}

fn io_error(action: &'static str) -> impl Fn(io::Error) -> WanError {
    move |source| WanError::Io { action, source }
}
