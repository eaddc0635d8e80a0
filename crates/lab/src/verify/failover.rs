//! Link failures under traffic: of an uplink, which both ends detect by its carrier, and of a
//! circuit, which only BFD detects.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::bfd::Bfd;
use super::report::{Failover, Outage, WideAreaFailover};
use super::{LOOK, POLL};
use fabric::STABLE_TIME;
use fabric::counters::{CountersError, Table};
use fabric::deployed::Deployed;
use fabric::netns::NetnsError;
use fabric::progress::note;
use fabric::rtnl::Route;
use fabric::topology::Endpoint;
use study::RunError;
use traffic::roce::Limit;
use traffic::stream::{CARRIED, Stream, Streamed};
use wan::CUT;

/// The duration of traffic before a link fails, and before it returns.
const BEFORE: Duration = Duration::from_secs(1);
/// The minimum time that a link is down while traffic is measured, and the maximum if frames are
/// still sent to it. It stays down until routes are stable.
const DOWN: Duration = Duration::from_secs(2);
const DOWN_AT_MOST: Duration = Duration::from_secs(10);
/// A link is unused after this time without frames.
const QUIET: Duration = Duration::from_millis(500);
/// The maximum time to wait until a returned link is used.
const RETURN: Duration = Duration::from_secs(20);
/// The minimum share of the frames on a link that is in use.
const USED: f64 = 0.02;

/// The traffic during a failure.
pub(super) struct Traffic<'a> {
    pub(super) deployed: &'a Deployed,
    /// The receiving host's VTEP.
    pub(super) vtep: IpAddr,
    /// Frames per second.
    pub(super) rate: u32,
    pub(super) sending: &'a dyn Fn(Limit) -> Result<Stream, NetnsError>,
    pub(super) interrupted: &'a AtomicBool,
}

/// What a link lost under traffic, and whether routers lost other ways while it returned, as on a
/// busy machine: the frames lost then say nothing about the link.
pub(super) struct Measured<T> {
    pub(super) failover: T,
    pub(super) is_disturbed: bool,
}

/// The interfaces by which each router sends to the receiving VTEP.
type Ways = Vec<BTreeSet<u32>>;

/// Whether a router uses fewer interfaces than before, no new one, and not all of those that it used
/// while the fabric was `whole`.
fn are_fewer(now: &Ways, before: &Ways, whole: &Ways) -> bool {
    let mut all = now.iter().zip(before).zip(whole);
    all.any(|((now, before), whole)| {
        now != before && now.is_subset(before) && !now.is_superset(whole)
    })
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
            note(format_args!("a link that was broken stays so: {error}"));
        }
    }
}

impl Traffic<'_> {
    /// Sets the far end of an uplink down and up again; of a circuit, both its interfaces.
    pub(super) fn lose_uplink(
        &self,
        uplink: &Endpoint,
        share: f64,
    ) -> Result<Measured<Failover>, RunError> {
        let wire = self.deployed.topology().wire_at(uplink);
        let ends = wire.as_ref().map_or_else(|| vec![uplink], |wire| wire.cut_at(uplink));
        let set = |whole| {
            for end in &ends {
                let namespace = self.deployed.namespace(&end.node)?;
                namespace.rtnl(|rtnl| rtnl.set_up(&end.interface, whole))?;
            }
            Ok(())
        };
        self.lose(uplink, share, Link { set: &set, whole: true })
    }

    /// Cuts the circuit that `near` sends to, at its end `port`, and restores it. The interface is
    /// renamed, so that `lab wan` does not find it and forwards nothing in either direction. Both
    /// routers keep their carrier.
    pub(super) fn lose_circuit(
        &self,
        near: &Endpoint,
        port: &Endpoint,
        share: f64,
    ) -> Result<Measured<WideAreaFailover>, RunError> {
        let namespace = self.deployed.namespace(&port.node)?;
        let bfd = Bfd::observe(&namespace, &port.interface)?;
        let cut = Cell::new(None);
        let set = |whole| {
            let (from, to) = if whole { (CUT, &*port.interface) } else { (&*port.interface, CUT) };
            let now = Instant::now();
            namespace.rtnl(|rtnl| rtnl.rename(from, to))?;
            cut.set(cut.get().or(Some(now)));
            Ok(())
        };
        let measured = self.lose(near, share, Link { set: &set, whole: true })?;
        let detected = bfd
            .down()?
            .zip(cut.get())
            .map(|(down, cut)| down.saturating_duration_since(cut).as_secs_f64() * 1e3);
        let failover = WideAreaFailover {
            circuit: port.to_string(),
            detected_after_milliseconds: detected,
            failover: measured.failover,
        };
        Ok(Measured { failover, is_disturbed: measured.is_disturbed })
    }

    /// The ways to the receiving VTEP.
    fn ways(&self) -> Result<Ways, RunError> {
        let of = |routes: &Vec<Route>| {
            let routes = routes.iter().filter(|route| route.is_to(self.vtep));
            routes.flat_map(Route::interfaces).collect()
        };
        Ok(self.deployed.routes()?.iter().map(of).collect())
    }

    /// Waits until the ways stay as they are, at most for [`RETURN`].
    fn await_stable(&self) -> Result<(), RunError> {
        let start = Instant::now();
        let mut stable = (start, self.ways()?);
        while stable.0.elapsed() < STABLE_TIME && start.elapsed() < RETURN && !self.is_interrupted()
        {
            std::thread::sleep(LOOK);
            let now = self.ways()?;
            if now != stable.1 {
                stable = (Instant::now(), now);
            }
        }
        Ok(())
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
    fn down(
        &self,
        meter: &mut Meter<'_>,
        share: f64,
        link: &mut Link<'_>,
    ) -> Result<Outage, RunError> {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        let mut quiet = (start, meter.sent()?);
        let lost = (self.sending)(Limit::Time(BEFORE + DOWN_AT_MOST))?.run(&stop, |_| {
            if start.elapsed() >= BEFORE {
                link.set(false)?;
            }
            let mut moved = false;
            if quiet.0.elapsed() >= QUIET {
                let now = (Instant::now(), meter.sent()?);
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
    fn lose(
        &self,
        near: &Endpoint,
        share: f64,
        mut link: Link<'_>,
    ) -> Result<Measured<Failover>, RunError> {
        let mut meter = Meter::new(self.deployed, near)?;
        self.await_stable()?;
        let whole = self.ways()?;
        let lost = self.down(&mut meter, share, &mut link)?;
        self.await_stable()?;
        let stop = AtomicBool::new(false);
        let (start, begin) = (Instant::now(), meter.sent()?);
        let (mut back, mut ended, mut metered) = (None, None, start);
        let (mut ways, mut looked, mut is_disturbed) = (self.ways()?, start, false);
        let returned = (self.sending)(Limit::Time(RETURN))?.run(&stop, |_| {
            if start.elapsed() >= BEFORE {
                link.set(true)?;
            }
            if looked.elapsed() >= LOOK {
                let now = self.ways()?;
                is_disturbed |= are_fewer(&now, &ways, &whole);
                (ways, looked) = (now, Instant::now());
            }
            if link.whole && back.is_none() && metered.elapsed() >= POLL {
                metered = Instant::now();
                if self.in_use(meter.sent()?.saturating_sub(begin), Duration::from_secs(1)) {
                    back = Some(start.elapsed().saturating_sub(BEFORE));
                    ended = Some(metered);
                }
            }
            // Traffic continues for a while, to detect losses after the return.
            let done = ended.is_some_and(|at: Instant| at.elapsed() >= BEFORE);
            stop.fetch_or(done || self.is_interrupted(), Ordering::Relaxed);
            Ok::<_, RunError>(())
        })?;
        let failover = Failover {
            uplink: near.to_string(),
            share,
            lost,
            returned: self.outage(share, &returned),
            returned_after_seconds: back.map(|time: Duration| time.as_secs_f64()),
        };
        is_disturbed |= are_fewer(&self.ways()?, &ways, &whole);
        Ok(Measured { failover, is_disturbed })
    }
}

/// Counts the frames that are sent to a link.
struct Meter<'a> {
    table: Table,
    interface: &'a str,
}

impl<'a> Meter<'a> {
    fn new(deployed: &Deployed, near: &'a Endpoint) -> Result<Self, RunError> {
        let table = Table::of(&deployed.namespace(&near.node)?)?;
        Ok(Self { table, interface: &near.interface })
    }

    /// The frames so far.
    fn sent(&mut self) -> Result<u64, RunError> {
        let mut counters = self.table.read().map_err(CountersError::from)?;
        let own = counters.find(|(name, _)| *name == self.interface);
        Ok(own.map_or(0, |(_, counters)| counters.frames_sent(CARRIED)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_is_lost_disturbs_and_one_that_is_replaced_does_not() {
        let ways = |of: [&[u32]; 2]| of.map(|ways| ways.iter().copied().collect()).to_vec();
        let (whole, before) = (ways([&[1, 2], &[3]]), ways([&[1, 5], &[3, 4]]));
        for (now, fewer) in [
            (ways([&[1, 5], &[3, 4]]), false),
            (ways([&[1, 2, 5], &[3, 4]]), false),
            // The shorter way in place of two longer ones; it may have been one of them.
            (ways([&[2], &[3, 4]]), false),
            (ways([&[1, 5], &[3]]), false),
            (ways([&[1], &[3, 4]]), true),
            (ways([&[1, 2, 5], &[]]), true),
        ] {
            assert_eq!(are_fewer(&now, &before, &whole), fewer, "{now:?}");
        }
    }
}
