//! Sprayed packets between two VTEPs: over which paths they go ([`pool`]), what became of them
//! ([`Ledger`]), and when the other end is told what arrived ([`Reporter`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use path::{Arrived, MOST_PATHS, PathId, Pool};
use spray::order::Tiers;

use crate::prober::Known;

mod ledger;
mod reporter;

pub use ledger::Ledger;
pub use reporter::{Due, LOOK, Reporter};

/// A VTEP that has reported no arrivals for this long takes no sprayed packets.
pub const SILENT: Duration = Duration::from_secs(1);
/// How often it reports without any.
pub const KEEPALIVE: Duration = Duration::from_millis(250);
/// The shortest time between two reports.
pub const PACE: Duration = Duration::from_millis(2);
/// The shortest and the longest time that a packet waits for the one before it.
const TIMER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The pool of the paths that probes have found: as many as there are routes, if that is a power of
/// two. Otherwise up to [`MOST_PATHS`] source ports, with as many on each route as possible. Paths
/// whose next hops differ come one after the other. `None` without two routes.
#[must_use]
pub fn pool<'k>(known: impl Iterator<Item = (PathId, &'k Known)>) -> Option<Pool> {
    let mut slowest = Duration::ZERO;
    let routes = routes(known.inspect(|(_, known)| slowest = slowest.max(known.delay)));
    if routes.len() < 2 {
        return None;
    }
    let mut of_hops = BTreeMap::<u64, Vec<Vec<PathId>>>::new();
    for (hop, _, paths) in routes {
        of_hops.entry(hop).or_default().push(paths);
    }
    let hops = of_hops.len();
    let number = of_hops.values().map(Vec::len).sum::<usize>();
    let each = of_hops.values().map(Vec::len).max().unwrap_or(0);
    let is_even = of_hops.values().all(|routes| routes.len() == each);
    // One route of each next hop, then another one of each.
    let in_turns: Vec<&Vec<PathId>> =
        (0..each).flat_map(|turn| of_hops.values().filter_map(move |of| of.get(turn))).collect();
    let wanted = if number.is_power_of_two() { number } else { MOST_PATHS };
    let chosen = with_own_ports(&in_turns, wanted.min(MOST_PATHS));
    let tiers = match (is_even && chosen.len() == number, u16::try_from(hops), u16::try_from(each))
    {
        (true, Ok(hops), Ok(each)) if hops.is_power_of_two() => Tiers::new(&[hops, each]).ok()?,
        _ => Tiers::new(&[u16::try_from(chosen.len()).ok()?]).ok()?,
    };
    let feedback = slowest + PACE * 2;
    Pool::new(chosen, tiers, u64::try_from(feedback.as_nanos()).ok()?)
}

/// Whether a pool still has paths on each route, and on each about as many. Those on a dead route do
/// not count: it may come back.
#[must_use]
pub fn still_fits<'k, K>(of: &Pool, known: impl Fn() -> K) -> bool
where
    K: Iterator<Item = (PathId, &'k Known)>,
{
    let own = routes(known().filter(|(path, _)| of.paths().contains(path)));
    let numbers = || own.iter().map(|(.., paths)| paths.len());
    let (Some(least), Some(most)) = (numbers().min(), numbers().max()) else { return false };
    let is_even = least == most || most == least + 1 && of.paths().len() == MOST_PATHS;
    own.len() > 1 && own.len() == routes(known()).len() && is_even
}

/// The paths on each route: a next hop, and where probes by it lead.
fn routes<'k>(
    known: impl Iterator<Item = (PathId, &'k Known)>,
) -> Vec<(u64, &'k Known, Vec<PathId>)> {
    let mut routes: Vec<(u64, &Known, Vec<PathId>)> = Vec::new();
    for (path, known) in known {
        let is_same =
            |(hop, route, _): &&mut (u64, &Known, _)| *hop == path.hop && route.is_route_of(known);
        match routes.iter_mut().find(is_same) {
            Some((.., paths)) => paths.push(path),
            None => routes.push((path.hop, known, vec![path])),
        }
    }
    routes
}

/// A power of two of paths with different source ports, from all routes in turns.
fn with_own_ports(routes: &[&Vec<PathId>], wanted: usize) -> Vec<PathId> {
    let (mut ports, mut chosen) = (BTreeSet::new(), Vec::new());
    let mut left: Vec<_> = routes.iter().map(|paths| paths.iter()).collect();
    while chosen.len() < wanted && !left.is_empty() {
        left.retain_mut(|paths| {
            let path = paths.find(|path| ports.insert(path.source_port));
            chosen.extend(path);
            path.is_some()
        });
    }
    chosen.truncate(wanted);
    let number = if chosen.is_empty() { 0 } else { 1 << chosen.len().ilog2() };
    chosen.truncate(number);
    chosen
}

/// Most nanoseconds that a packet waits for the one before it: twice the spread of the paths' delays.
#[must_use]
pub fn timer(delays: impl Iterator<Item = Duration>) -> u64 {
    let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
    for delay in delays {
        (least, most) = (least.min(delay), most.max(delay));
    }
    let (shortest, longest) = TIMER;
    let timer = (most.saturating_sub(least) * 2).clamp(shortest, longest);
    u64::try_from(timer.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether at least half of the paths by which packets arrived since an earlier time have marks.
#[must_use]
pub fn is_congested(before: &[Arrived], now: &[Arrived]) -> bool {
    let new = now.iter().map(|now| {
        let before = before.iter().find(|before| before.port == now.port);
        let (received, marked) = before.map_or((0, 0), |before| (before.received, before.marked));
        (now.received.wrapping_sub(received), now.marked.wrapping_sub(marked))
    });
    let used: Vec<bool> = new.filter(|(received, _)| *received > 0).map(|(_, m)| m > 0).collect();
    !used.is_empty() && used.iter().filter(|is_marked| **is_marked).count() * 2 >= used.len()
}

#[cfg(test)]
mod tests;
