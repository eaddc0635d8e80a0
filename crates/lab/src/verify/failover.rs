//! Link failures under traffic: of an uplink, which both ends detect by its carrier, and of a
//! circuit, which only BFD detects.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::bfd::Bfd;
use super::report::{Failover, Outage, WideAreaFailover};
use fabric::counters;
use fabric::deployed::Deployed;
use fabric::netns::NetnsError;
use fabric::topology::Endpoint;
use study::RunError;
use traffic::roce::Limit;
use traffic::stream::{CARRIED, Stream, Streamed};
use wan::CUT;

/// The duration of traffic before a link fails, and before it returns.
const BEFORE: Duration = Duration::from_secs(1);
/// The minimum time that a link is down, and the maximum if frames are still sent to it.
const DOWN: Duration = Duration::from_secs(2);
pub(super) const DOWN_AT_MOST: Duration = Duration::from_secs(10);
/// A link is unused after this time without frames.
const QUIET: Duration = Duration::from_millis(500);
/// The maximum time to wait until a returned link is used.
const RETURN: Duration = Duration::from_secs(20);
/// The minimum share of the frames on a link that is in use.
const USED: f64 = 0.02;

/// The traffic during a failure.
pub(super) struct Traffic<'a> {
    pub(super) deployed: &'a Deployed,
    /// Frames per second.
    pub(super) rate: u32,
    pub(super) sending: &'a dyn Fn(Limit) -> Result<Stream, NetnsError>,
    pub(super) interrupted: &'a AtomicBool,
    /// The maximum time that a link is down if frames are still sent to it.
    pub(super) limit: Duration,
}

/// A link that can be interrupted. Dropping the value restores it.
struct Link<'a> {
    set: &'a dyn Fn(bool) -> Result<(), RunError>,
    whole: bool,
}

impl Link<'_> {
    fn set(&mut self, whole: bool) -> Result<(), RunError> {
        if self.whole != whole {
            (self.set)(whole)?;
            self.whole = whole;
        }
        Ok(())
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        if !self.whole
            && let Err(error) = (self.set)(true)
        {
            eprintln!("lab: a link that was broken stays so: {error}");
        }
    }
}

impl Traffic<'_> {
    /// Sets the far end of an uplink down and up again; of a circuit, both its interfaces.
    pub(super) fn lose_uplink(&self, uplink: &Endpoint, share: f64) -> Result<Failover, RunError> {
        self.with_uplink(uplink, |link| self.lose(uplink, share, link))
    }

    fn with_uplink<T>(
        &self,
        uplink: &Endpoint,
        measure: impl FnOnce(Link<'_>) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let wire = self.deployed.topology().wire_at(uplink);
        let ends = wire.as_ref().map_or_else(|| vec![uplink], |wire| wire.cut_at(uplink));
        let set = |whole| {
            for end in &ends {
                let namespace = self.deployed.namespace(&end.node)?;
                namespace.rtnl(|rtnl| rtnl.set_up(&end.interface, whole))?;
            }
            Ok(())
        };
        measure(Link { set: &set, whole: true })
    }

    /// Cuts the circuit that `near` sends to, at its end `port`, and restores it.
    pub(super) fn lose_circuit(
        &self,
        near: &Endpoint,
        port: &Endpoint,
        share: f64,
    ) -> Result<WideAreaFailover, RunError> {
        let bfd = Bfd::observe(&self.deployed.namespace(&port.node)?, &port.interface)?;
        let (failover, cut) = self.with_circuit(port, |link| self.lose(near, share, link))?;
        let down = bfd.down()?.zip(cut);
        Ok(WideAreaFailover {
            circuit: port.to_string(),
            detected_after_milliseconds: down
                .map(|(down, cut)| down.saturating_duration_since(cut).as_secs_f64() * 1e3),
            failover,
        })
    }

    /// Lets `measure` cut a circuit at its end `port`. The interface is renamed, so that `lab wan`
    /// does not find it and forwards nothing in either direction. Both routers keep their carrier.
    /// Returns also when the circuit was cut.
    fn with_circuit<T>(
        &self,
        port: &Endpoint,
        measure: impl FnOnce(Link<'_>) -> Result<T, RunError>,
    ) -> Result<(T, Option<Instant>), RunError> {
        let namespace = self.deployed.namespace(&port.node)?;
        let cut = Cell::new(None);
        let set = |whole| {
            let (from, to) = if whole { (CUT, &*port.interface) } else { (&*port.interface, CUT) };
            let now = Instant::now();
            namespace.rtnl(|rtnl| rtnl.rename(from, to))?;
            cut.set(cut.get().or(Some(now)));
            Ok(())
        };
        let measured = measure(Link { set: &set, whole: true })?;
        Ok((measured, cut.get()))
    }

    /// The number of frames that `near` has sent.
    fn sent(&self, near: &Endpoint) -> Result<u64, RunError> {
        let counters = counters::read(&self.deployed.namespace(&near.node)?)?;
        Ok(counters.get(&near.interface).map_or(0, |counters| counters.frames_sent(CARRIED)))
    }

    /// Whether a link on which so many frames were sent in this time is in use.
    fn in_use(&self, frames: u64, time: Duration) -> bool {
        frames as f64 > (f64::from(self.rate) * USED * time.as_secs_f64()).max(20.0)
    }

    fn outage(&self, share: f64, Streamed { sent, arrived, .. }: &Streamed) -> Outage {
        let on_affected = f64::from(self.rate) * share;
        Outage {
            frames: sent.frames,
            lost: arrived.lost(),
            reordered: arrived.reordered(),
            milliseconds: if on_affected > 0.0 {
                arrived.lost() as f64 / on_affected * 1e3
            } else {
                0.0
            },
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Interrupts a link that `near` sends to, under traffic, until the traffic has moved.
    fn down(&self, near: &Endpoint, share: f64, link: &mut Link<'_>) -> Result<Outage, RunError> {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let mut quiet = (start, self.sent(near)?);
        let lost = (self.sending)(Limit::Time(BEFORE + self.limit))?.run(&stop, |_| {
            if start.elapsed() >= BEFORE {
                link.set(false)?;
            }
            let mut moved = false;
            if quiet.0.elapsed() >= QUIET {
                let now = (Instant::now(), self.sent(near)?);
                let used = self.in_use(now.1.saturating_sub(quiet.1), QUIET);
                quiet = now;
                moved = !used && start.elapsed() >= BEFORE + DOWN;
            }
            stop.fetch_or(moved || self.is_interrupted(), Ordering::Relaxed);
            Ok::<_, RunError>(())
        })?;
        Ok(self.outage(share, &lost))
    }

    /// Interrupts and restores a link that `near` sends to, under traffic.
    fn lose(&self, near: &Endpoint, share: f64, mut link: Link<'_>) -> Result<Failover, RunError> {
        let lost = self.down(near, share, &mut link)?;
        let stop = AtomicBool::new(false);
        let (start, begin) = (Instant::now(), self.sent(near)?);
        let (mut back, mut ended) = (None, None);
        let returned = (self.sending)(Limit::Time(RETURN))?.run(&stop, |_| {
            if start.elapsed() >= BEFORE {
                link.set(true)?;
            }
            if link.whole
                && back.is_none()
                && self.in_use(self.sent(near)?.saturating_sub(begin), Duration::from_secs(1))
            {
                back = Some(start.elapsed().saturating_sub(BEFORE));
                ended = Some(Instant::now());
            }
            // Traffic continues for a while, to detect losses after the return.
            let done = ended.is_some_and(|at: Instant| at.elapsed() >= BEFORE);
            stop.fetch_or(done || self.is_interrupted(), Ordering::Relaxed);
            Ok::<_, RunError>(())
        })?;
        Ok(Failover {
            uplink: near.to_string(),
            share,
            lost,
            returned: self.outage(share, &returned),
            returned_after_seconds: back.map(|time: Duration| time.as_secs_f64()),
        })
    }
}
