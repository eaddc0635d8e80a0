//! vtepd under a stream of probe frames: the time until it forwards, its reaction to changes, and
//! the longest gaps.
//!
//! A reaction starts just before a netlink request or FPM message is written. For a lost link, it
//! starts with the kernel's notification. It ends with the kernel's timestamp of the first frame
//! that arrives on the new path.

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use testbed::Daemon;
use testbed::daemon::beside_this_program;
use wire::MacAddr;

use super::fabric::{LARGE, mac, vtep};
use super::fixture::{Fixture, gateway_mac};
use super::messages::{self, framed};
use super::probe::{Arrival, Probe, now};
use super::{median_and_worst, row};
use crate::table::{Better, Row};

type Failure = Box<dyn Error>;

/// The interval between two measured changes, so that none waits for the publication of another.
const APART: Duration = Duration::from_millis(5);
/// The interval between two changes of the churn in nanoseconds: 1,000 changes per second.
const CHURN: u64 = 1_000_000;
/// The maximum number of frames in flight when each MAC address gets one frame.
const WINDOW: u32 = 128;
/// The id of a next-hop object.
const OBJECT: u32 = 77;
/// `RTNLGRP_LINK`.
const LINK_GROUP: u32 = 1;

/// Measures start, gaps and reactions.
///
/// # Errors
/// If namespaces or sockets cannot be created, or vtepd does not react as expected.
pub fn measure(quick: bool) -> Result<Vec<Row>, Failure> {
    let (count, time) =
        if quick { (10, Duration::from_secs(1)) } else { (100, Duration::from_secs(5)) };
    let fixture = Fixture::new()?;
    let mut probe = fixture.probe(mac(0))?;
    let mut daemon = Daemon::start(&beside_this_program()?, &fixture.leaf, &[])?;
    let mut rows = start(&mut probe)?;
    daemon.await_offloaded(1)?;
    let mut probe = fixture.probe(mac(0))?;
    let gaps = still_and_churning(&fixture, &mut probe, time)?;
    rows.extend(reactions(&fixture, &mut probe, count)?);
    rows.extend(link_loss(&fixture, &mut probe, count.min(50))?);
    daemon.stop()?;
    let of_kernel = still_and_churning(&fixture, &mut probe, time)?;
    for ((what, target, gaps), (.., of_kernel)) in gaps.into_iter().zip(of_kernel) {
        let what = format!("longest gap in a second of 10000 frames, {what}");
        let of_kernel = both(&what, of_kernel, None, None);
        for (row, of_kernel) in both(&what, gaps, target, None).into_iter().zip(of_kernel) {
            rows.push(Row { kernel: Some(of_kernel.vtepd), ..row });
        }
    }
    Ok(rows)
}

/// The time from the start of vtepd to the first frame that it forwards, and to the last of one
/// frame to each MAC address.
fn start(probe: &mut Probe) -> Result<Vec<Row>, Failure> {
    let start = now()?;
    let first = probe.until("vtepd's first frame", |arrival| arrival.by_vtepd)?.at;
    let (mut arrived, mut last, offset) = (0, first, probe.sent() as u64);
    let mut see = |arrived: &mut u32, arrival: Arrival| {
        let home = arrival.number.checked_sub(offset).map(|number| vtep(LARGE.home(number as u32)));
        if arrival.by_vtepd && home == Some(arrival.vtep) {
            *arrived += 1;
            last = last.max(arrival.at);
        }
    };
    let patient_until = now()? + 20_000_000_000;
    for number in 0..LARGE.macs {
        probe.send_to(mac(number))?;
        while number.saturating_sub(arrived) > WINDOW && now()? < patient_until {
            probe.receive(|arrival| see(&mut arrived, arrival))?;
        }
    }
    let patient_until = now()? + 1_000_000_000;
    while arrived < LARGE.macs && now()? < patient_until {
        probe.receive(|arrival| see(&mut arrived, arrival))?;
    }
    let seconds = |time: u64| time.saturating_sub(start) as f64 / 1e9;
    let row = |what: &str, unit: &str, figure, target| {
        row(&format!("start with {} MACs: {what}", LARGE.macs), unit, figure, target, Better::Lower)
    };
    let lost = f64::from(LARGE.macs - arrived);
    Ok(vec![
        row("first frame forwarded", "s", seconds(first), None),
        row("last of a frame to each forwarded", "s", seconds(last), None),
        row("lost of a frame to each", "frames", lost, Some(0.0)),
    ])
}

/// A case, its target in ms, and the longest time without a frame in each second.
type Gap = (&'static str, Option<f64>, Vec<Duration>);

/// The longest times in which a frame was due and none arrived. They are measured without changes,
/// and while MAC addresses move and routes change.
fn still_and_churning(
    fixture: &Fixture,
    probe: &mut Probe,
    time: Duration,
) -> Result<[Gap; 2], Failure> {
    let still = gap(probe, time, |_| Ok(()))?;
    let kernel = fixture.kernel(&[])?;
    let churn = |number: u32| {
        // The entry of the probe's destination does not change.
        let message = if number.is_multiple_of(2) {
            let moved = 1 + number % (LARGE.macs - 1);
            messages::fdb(fixture.vxlan, mac(moved), vtep(number / 2 % LARGE.vteps))
        } else {
            let hops = [fixture.hop(1), fixture.hop(2)];
            let hops = if number.is_multiple_of(4) { hops.get(1..) } else { hops.get(..) };
            messages::route(vtep(1 + number % (LARGE.vteps - 1)), hops.unwrap_or_default())
        };
        Ok(kernel.ask(&message)?)
    };
    let churning = gap(probe, time, churn)?;
    Ok([("nothing changes", None, still), ("1000 changes/s", Some(1.0), churning)])
}

fn gap(
    probe: &mut Probe,
    time: Duration,
    mut change: impl FnMut(u32) -> Result<(), Failure>,
) -> Result<Vec<Duration>, Failure> {
    let start = now()?;
    let end = start + time.as_nanos() as u64;
    let (mut arrivals, mut changes) = (Vec::new(), 0u32);
    loop {
        let now = now()?;
        if now >= end {
            break;
        }
        if now >= start + u64::from(changes) * CHURN {
            change(changes)?;
            changes += 1;
        }
        probe.poll(|arrival| arrivals.push((arrival.at, arrival.number)))?;
    }
    arrivals.sort_unstable();
    let mut longest = vec![Duration::ZERO; time.as_secs().max(1) as usize];
    let mut before: Option<(u64, u64)> = None;
    for (at, number) in arrivals {
        if let Some((last, newest)) = before {
            let awaited = probe.sent_at(newest + 1).max(last);
            let second = (at.saturating_sub(start) / 1_000_000_000) as usize;
            if let Some(longest) = longest.get_mut(second) {
                *longest = Duration::from_nanos(at.saturating_sub(awaited)).max(*longest);
            }
        }
        before = Some((at, before.map_or(number, |(_, newest)| newest.max(number))));
    }
    before.ok_or("no probe frame arrived")?;
    Ok(longest)
}

/// The time from a change to the first frame on the new path.
fn reactions(fixture: &Fixture, probe: &mut Probe, count: u32) -> Result<Vec<Row>, Failure> {
    let kernel = fixture.kernel(&[])?;
    let mut rows = Vec::new();
    let to = |round: u32| vtep(1 + round % 2);
    let moved = |round| Ok(kernel.ask(&messages::fdb(fixture.vxlan, mac(0), to(round)))?);
    let times = react(probe, count, moved, |round, arrival| arrival.vtep == to(round))?;
    rows.extend(reaction("a MAC moves (netlink)", times));

    // The uplink that the probe's flow uses.
    let uplink = probe.until("a frame", |_| true)?.uplink;
    let mac_of = |round: u32| MacAddr([2, 0xee, 1, 0, (round >> 8) as u8, round as u8]);
    let (ifindex, address) = fixture.hop(uplink);
    let changed = |round| Ok(kernel.ask(&messages::neighbour(ifindex, address, mac_of(round)))?);
    let times = react(probe, count, changed, |round, arrival| arrival.gateway == mac_of(round))?;
    kernel.ask(&messages::neighbour(ifindex, address, gateway_mac(uplink)))?;
    rows.extend(reaction("a gateway's MAC address changes (netlink)", times));

    // Routes of FPM take precedence over the kernel's once zebra's replay has ended.
    kernel.ask(&messages::fdb(fixture.vxlan, mac(0), vtep(1)))?;
    let uplink = |round: u32| 1 + round as usize % 2;
    let elsewhere =
        3 - probe.until("a frame to the VTEP", |arrival| arrival.vtep == vtep(1))?.uplink;
    let mut zebra = fixture.zebra()?;
    zebra.write_all(&framed(&messages::route(vtep(1), &[fixture.hop(elsewhere)])))?;
    probe.until("zebra's route", |arrival| arrival.uplink == elsewhere)?;
    let shift = if elsewhere == 1 { 1 } else { 0 };
    let by = |round: u32| uplink(round + shift);
    let changed =
        |round| Ok(zebra.write_all(&framed(&messages::route(vtep(1), &[fixture.hop(by(round))])))?);
    let times = react(probe, count, changed, |round, arrival| arrival.uplink == by(round))?;
    rows.extend(reaction("a route changes (FPM)", times));

    zebra.write_all(&framed(&messages::next_hop(OBJECT, fixture.hop(2))))?;
    zebra.write_all(&framed(&messages::route_by(vtep(1), OBJECT)))?;
    probe.until("zebra's next hop", |arrival| arrival.uplink == 2)?;
    let changed = |round| {
        Ok(zebra.write_all(&framed(&messages::next_hop(OBJECT, fixture.hop(uplink(round)))))?)
    };
    let times = react(probe, count, changed, |round, arrival| arrival.uplink == uplink(round))?;
    rows.extend(reaction("a next-hop object changes (FPM)", times));
    Ok(rows)
}

fn react(
    probe: &mut Probe,
    count: u32,
    mut change: impl FnMut(u32) -> Result<(), Failure>,
    new: impl Fn(u32, &Arrival) -> bool,
) -> Result<Vec<Duration>, Failure> {
    let mut times = Vec::new();
    for round in 0..count {
        // Vary the interval, so that changes are not synchronised with the probe.
        probe.pass(APART + Duration::from_micros(u64::from(round * 37 % 100)))?;
        let start = now()?;
        change(round)?;
        let first = probe.until("a frame on the new path", |arrival| {
            arrival.at >= start && new(round, arrival)
        })?;
        times.push(Duration::from_nanos(first.at - start));
    }
    Ok(times)
}

fn reaction(what: &str, times: Vec<Duration>) -> [Row; 2] {
    both(&format!("event to frame: {what}"), times, Some(2.0), None)
}

/// Rows with the median and the maximum in ms.
fn both(what: &str, times: Vec<Duration>, median: Option<f64>, worst: Option<f64>) -> [Row; 2] {
    let (middle, longest) = median_and_worst(times);
    [("median", middle, median), ("worst", longest, worst)].map(|(which, micros, target)| {
        row(&format!("{what}, {which}"), "ms", micros / 1e3, target, Better::Lower)
    })
}

/// Sets the far end of the uplink down that the probe's flow uses. The time is measured from the
/// kernel's notification, and from the last frame that arrived there. The second is longer, because
/// it includes the time that the kernel needs to set the far end down.
fn link_loss(fixture: &Fixture, probe: &mut Probe, count: u32) -> Result<Vec<Row>, Failure> {
    let events = fixture.kernel(&[LINK_GROUP])?;
    let (mut reactions, mut gaps) = (Vec::new(), Vec::new());
    for _ in 0..count {
        probe.pass(APART)?;
        let before = probe.until("a frame", |_| true)?;
        let lost = before.uplink;
        let _ = events.heard();
        let (event, last, first) = std::thread::scope(|scope| -> Result<_, Failure> {
            let down =
                scope.spawn(|| fixture.set_far_end(lost, false).map_err(|error| error.to_string()));
            let (mut event, mut last, mut first) = (None, before.at, None);
            let patient_until = now()? + 5_000_000_000;
            while (event.is_none() || first.is_none()) && now()? < patient_until {
                if event.is_none() && events.heard() {
                    event = Some(now()?);
                }
                probe.poll(|arrival| {
                    if arrival.uplink == lost {
                        last = last.max(arrival.at);
                    } else if first.is_none() {
                        first = Some(arrival.at);
                    }
                })?;
            }
            down.join().map_err(|_| "the thread panicked")??;
            Ok((
                event.ok_or("the kernel says nothing")?,
                last,
                first.ok_or("no frame on the other uplink")?,
            ))
        })?;
        reactions.push(Duration::from_nanos(first.saturating_sub(event)));
        gaps.push(Duration::from_nanos(first.saturating_sub(last)));
        fixture.set_far_end(lost, true)?;
        probe.until("the flow to come back", |arrival| arrival.uplink == lost)?;
    }
    let mut rows =
        both("event to frame: an uplink loses its carrier", reactions, Some(10.0), Some(10.0))
            .to_vec();
    rows.extend(both("an uplink loses its carrier: time without a frame", gaps, None, None));
    Ok(rows)
}
