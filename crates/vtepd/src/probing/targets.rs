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
use pathmap::trace::packet::Expired;
use pathmap::{Key, Pair, Prober, Random, Way, trace};
use tables::Snapshot;

use super::traced::Traced;
use super::{Probing, usable};
use crate::pinning::{Probed, Shared};

/// The most VTEPs that are probed. Queue pairs to others are placed by `qp-hash`.
const MOST: usize = 1024;
/// How many VTEPs are traced at once. Each of them is sent one packet.
const TRACED: usize = 2;
/// Probes that are sent before answers are read.
const AT_ONCE: usize = 256;

struct Entry {
    prober: Prober,
    traced: Traced,
    weights: BTreeMap<u64, u16>,
    /// The interfaces of the next hops.
    uplinks: BTreeMap<u64, u32>,
    /// The versions of what is known that the placement has.
    applied: (u64, (u64, u64)),
    /// A pair of each route, in the order in which answers take them.
    diverse: Vec<Pair>,
}

impl Entry {
    /// The pairs whose paths are known: by probes or, without any answer to these, by traces.
    fn known(&self) -> impl Iterator<Item = (Pair, &Known)> {
        self.prober.known().chain(self.traced.known())
    }
}

/// The remote VTEPs that are probed.
pub(super) struct Targets {
    settings: Settings,
    /// Whether the paths to VTEPs that answer no probes are traced.
    traces: bool,
    secret: Key,
    epoch: u32,
    random: Random,
    entries: BTreeMap<Target, Entry>,
    /// Probes that wait because many were due at once.
    waiting: Vec<(Target, Transmit)>,
    /// The VTEP that is traced next.
    turn: usize,
    /// Whether the limit was reported.
    full: bool,
}

impl Targets {
    pub(super) fn new(probing: &Probing, secret: Key, epoch: u32, random: Random) -> Self {
        let (settings, traces) = (probing.settings, probing.trace);
        let (entries, waiting, turn) = (BTreeMap::new(), Vec::new(), 0);
        Self { settings, traces, secret, epoch, random, entries, waiting, turn, full: false }
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
                let traced = Traced::new(Random::new(self.random.next()));
                let (weights, uplinks) = (BTreeMap::new(), BTreeMap::new());
                let (applied, diverse) = Default::default();
                Entry { prober, traced, weights, uplinks, applied, diverse }
            };
            let entry = self.entries.entry(target).or_insert_with(new);
            let hops: Vec<u64> = weights.keys().copied().collect();
            if (&entry.weights, &entry.uplinks) != (&weights, &uplinks) {
                (entry.weights, entry.uplinks) = (weights, uplinks);
                entry.applied.0 = u64::MAX;
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

    /// The packets that trace paths and that are to be sent now. To be called every 10 ms.
    pub(super) fn trace(&mut self, now: Duration) -> Vec<(Target, trace::Transmit)> {
        let mut out = Vec::new();
        if !self.traces {
            return out;
        }
        let number = self.entries.len();
        let start = self.turn % number.max(1);
        for (index, (target, entry)) in self.entries.iter_mut().enumerate() {
            entry.traced.follow(&entry.prober, now);
            let is_next = (index + number - start) % number < TRACED;
            let sent = if is_next { entry.traced.tick(now) } else { None };
            out.extend(sent.map(|transmit| (*target, transmit)));
        }
        self.turn = start + TRACED;
        out
    }

    /// Takes a router's error about an expired TTL.
    pub(super) fn expired(&mut self, error: &Expired, now: Duration) {
        let ((local, address), (_, port)) = (error.ends, error.ports);
        if let Some(entry) = self.entries.get_mut(&Target { local, address, port }) {
            entry.traced.expired(error, now);
        }
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
        let known = self.entries.get(&target).into_iter().flat_map(Entry::known);
        let mut pairs: Vec<Pair> = known.map(|(pair, _)| pair).collect();
        pairs.dedup_by_key(|pair| pair.hop);
        pairs
    }

    /// A pair is dead, as BFD found.
    pub(super) fn declare_dead(&mut self, target: Target, pair: Pair, now: Duration) {
        let Some(entry) = self.entries.get_mut(&target) else { return };
        if entry.traced.is_tracing() {
            entry.traced.set_dead(pair, true);
        } else {
            entry.prober.declare_dead(pair, now);
        }
    }

    /// The dead pairs of a VTEP whose paths are traced: only BFD tells when they are alive again.
    /// `None` if probes tell that.
    pub(super) fn traced_dead(&self, target: Target) -> Option<BTreeSet<Pair>> {
        let traced = &self.entries.get(&target)?.traced;
        traced.is_tracing().then(|| traced.dead().clone())
    }

    /// A dead pair of a VTEP whose paths are traced is alive again.
    pub(super) fn declare_alive(&mut self, target: Target, pair: Pair) {
        if let Some(entry) = self.entries.get_mut(&target) {
            entry.traced.set_dead(pair, false);
        }
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
        let entry = self.entries.get(&target)?;
        let living: Vec<Pair> =
            entry.known().map(|(pair, _)| pair).filter(|pair| pair.hop == hop).collect();
        living.get(random.below(living.len())).copied()
    }

    /// Tells the placement what changed.
    pub(super) fn apply_changes(&mut self, shared: &Shared) {
        for (target, entry) in &mut self.entries {
            let version = (entry.prober.version(), entry.traced.version());
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
                .known()
                .map(|(pair, known)| Found {
                    pair,
                    links: links(*target, pair, known, entry.traced.is_tracing()),
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
            let dead = entry.traced.dead().iter().copied();
            let lost: BTreeSet<Pair> = entry.prober.lost().chain(dead).collect();
            shared.change(|placer| placer.update(*target, &entry.weights, &found, &lost));
        }
        self.watch_used(shared);
    }

    /// Has the pairs that are in use probed often.
    pub(super) fn watch_used(&mut self, shared: &Shared) {
        for (target, entry) in &mut self.entries {
            let used = shared.read(|placer| placer.used(*target));
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
        let probed = |(target, entry): (&Target, &Entry)| {
            let Entry { prober, traced, .. } = entry;
            let known = || entry.known().map(|(_, known)| known);
            let routers = || known().map(|known| known.routers);
            Probed {
                target: *target,
                ready: prober.is_ready() && (!traced.is_tracing() || traced.ready().is_some()),
                pairs: prober.pairs().len(),
                known: known().count(),
                lost: prober.lost().count() + traced.dead().len(),
                routers: (routers().min().unwrap_or(0), routers().max().unwrap_or(0)),
                recorded: known().all(Known::is_complete),
                traced: traced.is_tracing(),
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

/// The links of a path, as far as they are known. Traces name routers, and not their interfaces.
fn links(target: Target, pair: Pair, known: &Known, is_traced: bool) -> Vec<Link> {
    let uplink = std::iter::once(Link::Uplink(pair.hop));
    match &known.recorded {
        Some(routers) if is_traced => {
            let next = routers.iter().skip(1).chain([&target.address]);
            let between = routers.iter().zip(next).map(|(from, to)| Link::Between(*from, *to));
            uplink.chain(between).collect()
        }
        Some(routers) if !routers.is_empty() => {
            uplink.chain(routers.iter().map(|router| Link::Router(*router))).collect()
        }
        _ => uplink.chain([Link::Arrival(target.address, known.arrival)]).collect(),
    }
}
