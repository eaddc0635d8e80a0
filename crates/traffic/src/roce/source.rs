//! The sender: queue pairs take turns at a constant rate.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use roce::SourcePort;

use super::connection::Connection;
use super::error::RoceError;
use super::frame::{Addresses, FrameTemplate};
use fabric::arp::resolve;
use fabric::packet::{BATCH, Interface, PacketSocket};

/// How long to wait for the ARP answer of the destination.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// The shortest sleep. Frames that become due during a sleep are sent as a burst.
const TICK: Duration = Duration::from_micros(200);
/// The maximum delay after which a sender still catches up. A longer delay would cause a burst that
/// overflows queues.
const DEBT_MAX: Duration = Duration::from_millis(5);

/// A source of numbered frames.
#[derive(Debug, Clone)]
pub struct Source {
    /// The interface to send from, in the calling thread's namespace.
    pub interface: String,
    /// The destination address. It must be on the interface's link.
    pub destination: Ipv4Addr,
    /// The connections, which take turns.
    pub connections: Vec<Connection>,
    /// The UDP source port of the connections.
    pub inner_port: SourcePort,
    /// The payload of a frame in bytes: a multiple of 4, 16 to 4096. A frame is 58 bytes longer.
    pub payload: usize,
    /// Frames per second of all queue pairs together; at least 1.
    pub rate: u32,
    /// The mark by which the sink recognises the frames.
    pub mark: u64,
    /// The CPU of the sending thread. Over veth links it also does the routers' work, and kernel
    /// VXLAN has a route cache for each CPU.
    pub cpu: Option<usize>,
}

/// When to stop sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After this number of frames.
    Frames(u64),
    /// After this time.
    Time(Duration),
}

/// What was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// The number of frames of all queue pairs.
    pub frames: u64,
    /// The number of queue pairs.
    pub queue_pairs: u64,
    /// The duration in nanoseconds.
    pub nanoseconds: u128,
}

impl Sent {
    /// The number of frames that were sent to the queue pair at `index` in the list of connections.
    #[must_use]
    pub fn to(&self, index: u64) -> u64 {
        let share = self.frames.checked_div(self.queue_pairs).unwrap_or_default();
        share + u64::from(index < self.frames - share * self.queue_pairs)
    }
}

impl Source {
    /// Sends until `limit` is reached or `stop` is set. `progress` is called with the number of frames
    /// of each batch, when it has been sent.
    ///
    /// # Errors
    /// [`RoceError`] if a setting is out of range, the destination does not answer or the interface
    /// fails.
    pub fn run(
        &self,
        limit: Limit,
        stop: &AtomicBool,
        progress: impl FnMut(u64),
    ) -> Result<Sent, RoceError> {
        if self.rate == 0 || self.connections.is_empty() {
            return Err(RoceError::Setting(
                "a rate of at least 1 frame/s and one queue pair are needed".into(),
            ));
        }
        if let Some(cpu) = self.cpu {
            pin(cpu)?;
        }
        let interface = Interface::find(&self.interface)?;
        let address = interface
            .ipv4
            .ok_or_else(|| RoceError::Setting(format!("{} has no IPv4 address", self.interface)))?;
        let addresses = Addresses {
            source: (interface.mac, address),
            destination: (resolve(self.destination, RESOLVE_LIMIT)?, self.destination),
        };
        let templates: Vec<FrameTemplate> = self
            .connections
            .iter()
            .map(|connection| {
                FrameTemplate::new(addresses, *connection, self.inner_port, self.payload, self.mark)
            })
            .collect::<Result<_, _>>()?;
        let socket = PacketSocket::sender(&interface)?;
        self.send(&templates, &socket, limit, stop, progress)
    }

    fn send(
        &self,
        templates: &[FrameTemplate],
        socket: &PacketSocket,
        limit: Limit,
        stop: &AtomicBool,
        mut progress: impl FnMut(u64),
    ) -> Result<Sent, RoceError> {
        let mut turns =
            (0_u64..).flat_map(|number| templates.iter().map(move |template| (template, number)));
        let mut frames: Vec<Vec<u8>> = vec![Vec::new(); BATCH];
        let mut sent = 0_u64;
        let start = Instant::now();
        let mut pace = Pace::new(self.rate, start);
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let left = match limit {
                Limit::Frames(all) => all - sent,
                Limit::Time(all) => {
                    if now - start < all {
                        u64::MAX
                    } else {
                        0
                    }
                }
            };
            if left == 0 {
                break;
            }
            let due = pace.due(now).min(left).min(BATCH as u64);
            if due == 0 {
                thread::sleep(pace.until_next(now).max(TICK).min(Duration::from_millis(50)));
                continue;
            }
            let count = usize::try_from(due).unwrap_or(BATCH);
            for (frame, (template, number)) in frames.iter_mut().take(count).zip(&mut turns) {
                template.write(number, frame);
            }
            let mut rest: Vec<&[u8]> = frames.iter().take(count).map(Vec::as_slice).collect();
            while !rest.is_empty() && !stop.load(Ordering::Relaxed) {
                let taken = socket.send(&rest)?;
                rest.drain(..taken);
                if taken == 0 {
                    thread::sleep(TICK);
                }
            }
            let due = due - rest.len() as u64;
            pace.sent(due);
            sent += due;
            progress(due);
        }
        let nanoseconds = start.elapsed().as_nanos();
        Ok(Sent { frames: sent, queue_pairs: templates.len() as u64, nanoseconds })
    }
}

/// Computes how many frames are due. Times are relative to an origin, so rounding errors do not
/// accumulate.
struct Pace {
    rate: u64,
    origin: Instant,
    sent: u64,
}

impl Pace {
    fn new(rate: u32, origin: Instant) -> Self {
        Self { rate: rate.into(), origin, sent: 0 }
    }

    fn due(&mut self, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(self.origin).as_nanos();
        let scheduled =
            u64::try_from(elapsed * u128::from(self.rate) / 1_000_000_000).unwrap_or(u64::MAX);
        let due = (scheduled + 1).saturating_sub(self.sent);
        let debt_max =
            1 + u64::try_from(DEBT_MAX.as_nanos() * u128::from(self.rate) / 1_000_000_000)
                .unwrap_or(u64::MAX);
        if due > debt_max {
            self.origin = now;
            self.sent = 0;
            return 1;
        }
        due
    }

    fn sent(&mut self, frames: u64) {
        self.sent += frames;
    }

    fn until_next(&self, now: Instant) -> Duration {
        let at = u128::from(self.sent) * 1_000_000_000 / u128::from(self.rate);
        let next = self.origin + Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX));
        next.saturating_duration_since(now)
    }
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// [`RoceError::Io`] if there is no such CPU.
fn pin(cpu: usize) -> Result<(), RoceError> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|errno| RoceError::Io { action: "stay on that CPU", source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_take_turns() {
        let sent = Sent { frames: 10, queue_pairs: 4, nanoseconds: 1 };
        assert_eq!([0, 1, 2, 3].map(|index| sent.to(index)), [3, 3, 2, 2]);
    }

    #[test]
    fn pace_keeps_the_rate_and_forgives_what_was_missed() {
        let origin = Instant::now();
        let at = |micros| origin + Duration::from_micros(micros);
        let mut pace = Pace::new(100_000, origin);
        assert_eq!(pace.due(origin), 1);
        pace.sent(1);
        assert_eq!(pace.due(at(5)), 0);
        assert_eq!(pace.until_next(at(5)), Duration::from_micros(5));
        assert_eq!(pace.due(at(200)), 20);
        pace.sent(20);
        // After a second without CPU, the pace starts anew instead of sending 100,000 frames in a
        // burst.
        assert_eq!(pace.due(at(1_000_000)), 1);
        pace.sent(1);
        assert_eq!(pace.due(at(1_000_100)), 10);
    }
}
