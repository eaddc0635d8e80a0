//! The remote VTEPs that are probed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use path::{NextHop, Policy};
use pathmap::bfd::order;
use pathmap::load::Link;
use pathmap::message::Answer;
use pathmap::placer::{Found, Target};
use pathmap::prober::{Change, Known, Settings, Transmit};
use pathmap::{Key, Pair, Prober, Random, Way};
use tables::Snapshot;

use super::usable;
use crate::pinning::{Probed, Shared};

/// The most VTEPs that are probed. Queue pairs to others are placed by `qp-hash`.
const MOST: usize = 1024;
/// Probes that are sent before answers are read.
const AT_ONCE: usize = 256;

struct Entry {
    prober: Prober,
    weights: BTreeMap<u64, u16>,
    /// The interfaces of the next hops.
    uplinks: BTreeMap<u64, u32>,
    /// The version of the prober that the placement knows.
    applied: u64,
    /// A pair of each route, in the order in which answers take them.
    diverse: Vec<Pair>,
}

/// The remote VTEPs that are probed.
pub(super) struct Targets {
    settings: Settings,
    secret: Key,
    epoch: u32,
    random: Random,
    entries: BTreeMap<Target, Entry>,
    /// Probes that wait because many were due at once.
    waiting: Vec<(Target, Transmit)>,
    /// Whether the limit was reported.
    full: bool,
}

impl Targets {
    pub(super) fn new(settings: Settings, secret: Key, epoch: u32, random: Random) -> Self {
        let (entries, waiting) = (BTreeMap::new(), Vec::new());
        Self { settings, secret, epoch, random, entries, waiting, full: false }
    }

    /// Probes the VTEPs of this snapshot for the VNIs with `qp-pin`.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, shared: &Shared) {
        let mut wanted = BTreeMap::new();
        for table in snapshot.vnis().filter(|table| table.entropy.policy() == Policy::QpPin) {
            let IpAddr::V4(local) = table.tunnel.local else { continue };
            for vtep in snapshot.vteps() {
                let IpAddr::V4(address) = vtep.address else { continue };
                let target = Target { local, address, port: table.tunnel.destination_port };
                let range = table.entropy.range();
                let hops = vtep.paths.next_hops();
                wanted.entry(target).or_insert_with(|| (usable(hops), uplinks(hops), range));
            }
        }
        let gone: Vec<Target> =
            self.entries.keys().filter(|target| !wanted.contains_key(target)).copied().collect();
        for target in gone {
            self.entries.remove(&target);
            shared.change(|placer| placer.remove(target));
        }
        let now = shared.now();
        for (target, (weights, uplinks, range)) in wanted {
            if self.entries.len() >= MOST && !self.entries.contains_key(&target) {
                if !std::mem::replace(&mut self.full, true) {
                    tracing::warn!(
                        "paths to {MOST} VTEPs are probed; queue pairs to others are placed by qp-hash"
                    );
                }
                continue;
            }
            let new = || {
                let settings = Settings { range, ..self.settings };
                let random = Random::new(self.random.next());
                let prober = Prober::new(settings, self.secret.clone(), self.epoch, random);
                let (weights, uplinks) = (BTreeMap::new(), BTreeMap::new());
                Entry { prober, weights, uplinks, applied: 0, diverse: Vec::new() }
            };
            let entry = self.entries.entry(target).or_insert_with(new);
            let hops: Vec<u64> = weights.keys().copied().collect();
            if (&entry.weights, &entry.uplinks) != (&weights, &uplinks) {
                (entry.weights, entry.uplinks) = (weights, uplinks);
                entry.applied = u64::MAX;
            }
            entry.prober.set_hops(now, &hops);
        }
    }

    /// When something is to be done next.
    pub(super) fn next(&self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        self.entries.values().filter_map(|entry| entry.prober.next()).min()
    }

    /// The probes to send now.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<(Target, Transmit)> {
        if self.waiting.is_empty() {
            let mut out = Vec::new();
            for (target, entry) in &mut self.entries {
                if entry.prober.next().is_some_and(|at| at <= now) {
                    entry.prober.tick(now, &mut out);
                    self.waiting.extend(out.drain(..).map(|transmit| (*target, transmit)));
                }
            }
        }
        let rest = self.waiting.split_off(self.waiting.len().min(AT_ONCE));
        std::mem::replace(&mut self.waiting, rest)
    }

    /// Takes an answer. Returns whether it fits a probe.
    pub(super) fn answer(&mut self, now: Duration, target: Target, answer: &Answer) -> bool {
        self.entries.get_mut(&target).is_some_and(|entry| entry.prober.answer(now, answer))
    }

    /// The VTEPs that are probed.
    pub(super) fn addresses(&self) -> Vec<Target> {
        self.entries.keys().copied().collect()
    }

    /// The pairs in use.
    pub(super) fn used(&self, target: Target) -> BTreeSet<Pair> {
        self.entries.get(&target).map_or_else(BTreeSet::new, |entry| entry.prober.used().clone())
    }

    /// The first known pair of each next hop.
    pub(super) fn first_known(&self, target: Target) -> Vec<Pair> {
        let known = self.entries.get(&target).into_iter().flat_map(|entry| entry.prober.known());
        let mut pairs: Vec<Pair> = known.map(|(pair, _)| pair).collect();
        pairs.dedup_by_key(|pair| pair.hop);
        pairs
    }

    /// A pair is dead, as BFD found.
    pub(super) fn declare_dead(&mut self, target: Target, pair: Pair, now: Duration) {
        self.entries
            .get_mut(&target)
            .into_iter()
            .for_each(|entry| entry.prober.declare_dead(pair, now));
    }

    /// Sets the pairs whose death BFD tells.
    pub(super) fn set_detected(&mut self, target: Target, pairs: BTreeSet<Pair>, now: Duration) {
        self.entries
            .get_mut(&target)
            .into_iter()
            .for_each(|entry| entry.prober.set_detected(now, pairs.clone()));
    }

    /// A living pair by this next hop.
    pub(super) fn living(&self, target: Target, hop: u64, random: &mut Random) -> Option<Pair> {
        let prober = &self.entries.get(&target)?.prober;
        let living: Vec<Pair> =
            prober.known().map(|(pair, _)| pair).filter(|pair| pair.hop == hop).collect();
        living.get(random.below(living.len())).copied()
    }

    /// Tells the placement what changed.
    pub(super) fn apply_changes(&mut self, shared: &Shared) {
        for (target, entry) in &mut self.entries {
            let version = entry.prober.version();
            if entry.applied == version || !entry.prober.is_ready() {
                continue;
            }
            entry.applied = version;
            for change in entry.prober.changes() {
                let (what, pair) = match change {
                    Change::Lost(pair) => ("is dead", pair),
                    Change::Moved(pair) => ("leads elsewhere", pair),
                    Change::Returned(pair) => ("is alive again", pair),
                };
                tracing::debug!(vtep = %target.address, port = pair.port, hop = pair.hop, "a path {what}");
            }
            let found: Vec<Found> = entry
                .prober
                .known()
                .map(|(pair, known)| Found {
                    pair,
                    links: links(*target, pair, known),
                    way: Way {
                        uplink: entry.uplinks.get(&pair.hop).copied().unwrap_or(0),
                        arrival: known.arrival,
                        routers: known.routers,
                        recorded: known.recorded.clone(),
                    },
                    delay: known.delay,
                })
                .collect();
            entry.diverse = order::diverse(&found);
            let lost: BTreeSet<Pair> = entry.prober.lost().collect();
            shared.change(|placer| placer.update(*target, &entry.weights, &found, &lost));
        }
        self.watch_used(shared);
    }

    /// Has the pairs that are in use probed often.
    pub(super) fn watch_used(&mut self, shared: &Shared) {
        for (target, entry) in &mut self.entries {
            let mut used = shared.read(|placer| placer.used(*target));
            if used.is_empty() {
                // Its answers tell the load of links that this leaf may share.
                used.extend(entry.prober.known().map(|(pair, _)| pair).next());
            }
            entry.prober.set_used(shared.now(), used);
        }
    }

    /// A living pair, each time another one.
    pub(super) fn in_turn(&self, target: Target, number: usize) -> Option<Pair> {
        let diverse = &self.entries.get(&target)?.diverse;
        diverse.get(number.checked_rem(diverse.len())?).copied()
    }

    /// What is known about each VTEP. `sessions`: the number of its BFD sessions, and of those that are
    /// up.
    pub(super) fn probed(&self, sessions: impl Fn(Target) -> (usize, usize)) -> Vec<Probed> {
        let probed = |(target, Entry { prober, .. }): (&Target, &Entry)| {
            let known = || prober.known().map(|(_, known)| known);
            let routers = || known().map(|known| known.routers);
            Probed {
                target: *target,
                ready: prober.is_ready(),
                pairs: prober.pairs(),
                known: known().count(),
                lost: prober.lost().count(),
                routers: (routers().min().unwrap_or(0), routers().max().unwrap_or(0)),
                recorded: known().all(|known| known.recorded.is_some()),
                heard: known().map(|known| known.heard).max(),
                counts: prober.counts,
                sessions: sessions(*target),
            }
        };
        self.entries.iter().map(probed).collect()
    }
}

/// The interface of each next hop.
fn uplinks(hops: &[NextHop]) -> BTreeMap<u64, u32> {
    hops.iter().map(|hop| (hop.identity, hop.ifindex)).collect()
}

/// The links of a path, as far as they are known.
fn links(target: Target, pair: Pair, known: &Known) -> Vec<Link> {
    let uplink = std::iter::once(Link::Uplink(pair.hop));
    match &known.recorded {
        Some(routers) if !routers.is_empty() => {
            uplink.chain(routers.iter().map(|router| Link::Router(*router))).collect()
        }
        _ => uplink.chain([Link::Arrival(target.address, known.arrival)]).collect(),
    }
}
