//! The remote VTEPs that are probed.

use std::collections::BTreeMap;
use std::time::Duration;

use configuration::Probing;
use path::{PathId, Version};
use pathmap::message::{Answer, Probe};
use pathmap::placer::Target;
use pathmap::prober::{Change, Ids, Known, Settings, Transmit};
use pathmap::trace::packet::Expired;
use pathmap::{Key, Prober, Random, trace};
use tables::{FlowLabel, Snapshot};

use super::choices::Lookups;
use super::entry::{Entry, Wanted, wanted};
use super::spraying::Sprays;
use super::traced::Traced;
use crate::pinning::{Probed, Shared};

/// The most VTEPs that are probed. Queue pairs to others are placed by `qp-hash`.
const MOST: usize = 1024;
/// How many VTEPs are traced at once. Each of them is sent one packet.
const TRACED: usize = 2;
/// VTEPs whose paths in use are probed together, and the times within the interval at which such
/// groups are.
const TOGETHER: usize = 32;
const PHASES: usize = 8;
/// Probes that are sent before answers are read.
const AT_ONCE: usize = 256;

/// The remote VTEPs that are probed.
pub(super) struct Targets {
    settings: Settings,
    /// Whether the paths to VTEPs that answer no probes are traced.
    traces: bool,
    lookups: Lookups,
    key: Key,
    secret: Key,
    /// The highest epoch and id of the probers that are gone. A VTEP that comes back has heard of
    /// them.
    last: (u32, u32),
    /// The counts of the probers that are gone.
    gone: [u64; 3],
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
    /// `secret` is that of [`Prober::new`], `epoch` that of [`Ids::new`].
    pub(super) fn new(
        probing: &Probing,
        lookups: Lookups,
        (secret, epoch): (Key, u32),
        random: Random,
    ) -> Self {
        let (settings, traces) = (probing.settings, probing.trace);
        let (entries, waiting, turn) = (BTreeMap::new(), Vec::new(), 0);
        let key = probing.key.clone();
        Self {
            settings,
            traces,
            lookups,
            key,
            secret,
            last: (epoch, 0),
            gone: [0; 3],
            random,
            entries,
            waiting,
            turn,
            full: false,
        }
    }

    /// Probes the VTEPs of this snapshot for the VNIs with `qp-pin`.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, shared: &Shared) {
        let wanted = wanted(snapshot);
        // With another flow label, all paths may lead elsewhere.
        let is_same = |target: &Target, entry: &Entry| {
            wanted.get(target).is_some_and(|wanted| wanted.label == entry.label)
        };
        let gone = self.entries.iter().filter(|(target, entry)| !is_same(target, entry));
        let gone: Vec<Target> = gone.map(|(target, _)| *target).collect();
        for target in gone {
            if let Some(entry) = self.entries.remove(&target) {
                self.last = self.last.max(entry.ids.last());
                self.gone = added(self.gone, entry.prober.counts);
            }
            shared.remove([target, Target { by_kernel: true, ..target }]);
        }
        let now = shared.now();
        for (target, wanted) in wanted {
            let Wanted { weights, uplinks, range, label, gateways, kernel } = wanted;
            if self.entries.len() >= MOST && !self.entries.contains_key(&target) {
                if !std::mem::replace(&mut self.full, true) {
                    tracing::warn!(
                        "paths to {MOST} VTEPs are probed; queue pairs to others are placed by qp-hash"
                    );
                }
                continue;
            }
            let ids = self.ids(target);
            // Many probes at once would wait for each other.
            let phase = (self.entries.len() / TOGETHER % PHASES) as u32;
            let phase = self.settings.interval / PHASES as u32 * phase;
            let new = || {
                let records = target.address.is_ipv4();
                let most = self.settings.most_ports;
                // Each port has one path only if the kernel chooses the next hop.
                let for_each = if kernel.is_some() { weights.len().max(1) as u16 } else { 1 };
                let ports = self.settings.ports.saturating_mul(for_each).min(most);
                let settings = Settings { range, records, ports, ..self.settings };
                let random = Random::new(self.random.next());
                let prober = Prober::new(settings, self.secret.clone(), ids.clone(), random);
                let opening = self.key.opening_token((target.local, target.address));
                let prober = prober.with_phase(phase).with_opening_token(opening);
                let random = Random::new(self.random.next());
                let traced = Traced::new(self.secret.clone(), random);
                let (weights, uplinks) = (BTreeMap::new(), BTreeMap::new());
                let (applied, choices) = Default::default();
                Entry { prober, ids, traced, label, weights, uplinks, choices, applied }
            };
            let entry = self.entries.entry(target).or_insert_with(new);
            let hops: Vec<u64> = weights.keys().copied().collect();
            let had_sender = entry.choices.is_some();
            entry.set_sender(kernel, gateways);
            if had_sender && entry.choices.is_none() {
                shared.remove([Target { by_kernel: true, ..target }]);
            }
            if (&entry.weights, &entry.uplinks) != (&weights, &uplinks) {
                (entry.weights, entry.uplinks) = (weights, uplinks);
                entry.applied.probed = Version::NEVER;
            }
            entry.prober.set_hops(now, &hops);
        }
    }

    /// The numbers of probes to a VTEP, which it answers once: for all its UDP ports, and also if it
    /// was gone for a while.
    fn ids(&self, target: Target) -> Ids {
        let with = |port| Target { port, ..target };
        let mut beside = self.entries.range(with(0)..=with(u16::MAX));
        let ids = beside.next().map(|(_, entry)| entry.ids.clone());
        ids.unwrap_or_else(|| Ids::new(self.last))
    }

    /// The next hop by which kernel VXLAN sends from this port, as the kernel tells now. `None` if it
    /// is none of those that are probed.
    pub(super) fn hop_by_kernel(&mut self, target: Target, port: u16) -> Option<u64> {
        let choices = self.entries.get_mut(&target)?.choices.as_mut()?;
        choices.look_up(&mut self.lookups, target, port)
    }

    /// How often paths in use are probed.
    pub(super) const fn interval(&self) -> Duration {
        self.settings.interval
    }

    /// Whether more is to be looked up than could be at once.
    pub(super) const fn has_lookups_waiting(&self) -> bool {
        self.lookups.are_used_up()
    }

    /// When a path is traced next.
    pub(super) fn next_trace(&self) -> Option<Duration> {
        self.entries.values().filter_map(|entry| entry.traced.next()).min()
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

    /// The packets that trace paths and that are to be sent now. To be called
    /// every 10 ms while any are due.
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
        let target = Target { local, address, port, by_kernel: false };
        if let Some(entry) = self.entries.get_mut(&target) {
            entry.traced.expired(error, now);
        }
    }

    /// Takes an answer. Returns whether it fits a probe.
    pub(super) fn answer(&mut self, now: Duration, target: Target, answer: &Answer) -> bool {
        self.entries.get_mut(&target).is_some_and(|entry| entry.prober.answer(now, answer))
    }

    /// The flow label of data to a VTEP with this source port. It is the port if no VNI with
    /// `qp-pin` has the VTEP.
    pub(super) fn label(&self, target: Target, port: u16) -> u32 {
        self.entries.get(&target).map_or_else(FlowLabel::default, |entry| entry.label).of(port)
    }

    /// A living path by this next hop.
    pub(super) fn living(&self, target: Target, hop: u64, random: &mut Random) -> Option<PathId> {
        let entry = self.entries.get(&target)?;
        let living: Vec<PathId> =
            entry.known().map(|(path, _)| path).filter(|path| path.hop == hop).collect();
        living.get(random.index(living.len())).copied()
    }

    /// The living path with the shortest delay.
    pub(super) fn quickest(&self, target: Target) -> Option<PathId> {
        let known = self.entries.get(&target)?.known();
        known.min_by_key(|(_, known)| known.delay).map(|(path, _)| path)
    }

    /// Any living path.
    pub(super) fn any_living(&self, target: Target, random: &mut Random) -> Option<PathId> {
        let living: Vec<PathId> =
            self.entries.get(&target)?.known().map(|(path, _)| path).collect();
        living.get(random.index(living.len())).copied()
    }

    /// As [`Prober::head`].
    pub(super) fn head(&mut self, now: Duration, target: Target, path: PathId) -> Option<Probe> {
        Some(self.entries.get_mut(&target)?.prober.head(now, path))
    }

    /// The VTEPs that are probed.
    pub(super) fn all(&self) -> impl Iterator<Item = &Target> {
        self.entries.keys()
    }

    /// Tells what is known of the paths.
    pub(super) fn tell_sprays(&self, sprays: &mut Sprays) {
        self.entries.iter().for_each(|(target, entry)| sprays.learn(target, entry));
    }

    /// Tells the delays of the paths.
    pub(super) fn tell_spray_delays(&self, sprays: &mut Sprays) {
        self.entries.iter().for_each(|(target, entry)| sprays.follow_delays(target, entry));
    }

    /// Looks up by which next hops kernel VXLAN sends.
    pub(super) fn ask_kernel(&mut self, now: Duration) {
        self.lookups.renew(now);
        for (target, entry) in &mut self.entries {
            let Some(choices) = &mut entry.choices else { continue };
            let Entry { prober, .. } = entry;
            choices.follow(&mut self.lookups, *target, prober, now);
        }
    }

    /// Whether there is something to tell the placement.
    pub(super) fn has_changes(&self) -> bool {
        self.entries.values().any(Entry::has_changed)
    }

    /// Tells the placement what changed.
    pub(super) fn apply_changes(&mut self, shared: &Shared) {
        for (target, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.has_changed()) {
            entry.applied = entry.versions();
            for change in entry.prober.changes() {
                let (what, path) = match change {
                    Change::Lost(path) => ("is dead", path),
                    Change::Moved(path) => ("leads elsewhere", path),
                    Change::Returned(path) => ("is alive again", path),
                };
                tracing::debug!(vtep = %target.address, port = path.source_port, hop = path.hop, "a path {what}");
            }
            entry.update(*target, shared);
        }
    }

    /// Tells the placement the delays of paths, which change without a change of routes.
    pub(super) fn tell_delays(&self, shared: &Shared) {
        self.entries.iter().for_each(|(target, entry)| entry.tell_delays(*target, shared));
    }

    /// Has the paths that are in use probed often, and all VTEPs while queue pairs are to move for
    /// balance.
    pub(super) fn watch_used(&mut self, shared: &Shared, sprays: &Sprays) {
        let now = shared.now();
        let eager = shared.read(|placer| placer.wants_reports(now));
        for (target, entry) in &mut self.entries {
            let used = shared.read(|placer| {
                let mut used = placer.used(*target);
                used.extend(placer.used(Target { by_kernel: true, ..*target }));
                used
            });
            let used = used.into_iter().chain(sprays.used(target)).collect();
            entry.prober.set_used(now, used);
            entry.prober.set_eager(now, eager);
        }
    }

    /// The probes that were sent, the answers that were accepted, and those that fitted no probe.
    pub(super) fn messages(&self) -> [u64; 3] {
        self.entries.values().map(|entry| entry.prober.counts).fold(self.gone, added)
    }

    /// What is known about each VTEP.
    pub(super) fn probed(&self, sprays: &Sprays) -> Vec<Probed> {
        let probed = |(target, entry): (&Target, &Entry)| {
            let Entry { prober, traced, .. } = entry;
            let known = || entry.known().map(|(_, known)| known);
            let routers = || known().map(|known| known.routers);
            Probed {
                target: *target,
                ready: prober.is_ready() && (!traced.is_tracing() || traced.ready().is_some()),
                paths: prober.paths().len(),
                known: known().count(),
                lost: prober.lost().count(),
                routers: (routers().min().unwrap_or(0), routers().max().unwrap_or(0)),
                recorded: known().all(Known::is_complete),
                traced: traced.is_tracing(),
                heard: known().map(|known| known.heard).max(),
                counts: prober.counts,
                sprayed: sprays.of(target),
            }
        };
        self.entries.iter().map(probed).collect()
    }
}

const fn added([a, b, c]: [u64; 3], [x, y, z]: [u64; 3]) -> [u64; 3] {
    [a + x, b + y, c + z]
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use path::{Entropy, Policy};
    use pathmap::placer::Options;
    use tables::{SnapshotBuilder, Tunnel, VniIndex, VniTable, Vtep, VtepIndex};

    use super::*;

    const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"];

    fn address(number: usize) -> IpAddr {
        ADDRESSES[number].parse().unwrap()
    }

    fn target(local: usize, remote: usize) -> Target {
        Target { local: address(local), address: address(remote), port: 4789, by_kernel: false }
    }

    /// A VNI over IPv4 and one over IPv6 with this flow label, and a remote VTEP for each.
    fn snapshot(label: FlowLabel) -> Snapshot {
        let entropy = path::Settings { policy: Policy::QpPin, ..path::Settings::default() };
        let mut builder = SnapshotBuilder::new(1);
        for (index, local) in [(1, 0), (2, 2)] {
            let vni = u32::from(index).try_into().unwrap();
            let tunnel = Tunnel {
                flow_label: if local == 2 { label } else { FlowLabel::Fixed(0) },
                ..Tunnel::new(vni, address(local))
            };
            let entropy = Entropy::new(entropy).unwrap();
            let table = VniTable::new(VniIndex::new(index).unwrap(), tunnel, entropy);
            builder.vni(Arc::new(table));
            let vtep = Vtep { address: address(local + 1), paths: Arc::default() };
            builder.vtep(VtepIndex(index.into()), vtep);
        }
        builder.build()
    }

    #[test]
    fn vteps_of_a_vnis_family_are_probed_with_its_flow_label() {
        let key = Key::new(&[1; 16]).unwrap();
        let probing = Probing {
            key: key.clone(),
            settings: Settings::default(),
            options: Options::default(),
            trace: true,
            spray: None,
        };
        let shared = Shared::new(probing.options, 1);
        let lookups = Lookups::open(None).unwrap();
        let mut targets = Targets::new(&probing, lookups, (key, 1), Random::new(1));
        targets.follow(&snapshot(FlowLabel::Fixed(5)), &shared);
        assert!(targets.entries.keys().eq([target(0, 1), target(2, 3)].iter()));
        let labels = [(0, 1), (2, 3), (2, 1)].map(|(a, b)| targets.label(target(a, b), 50_000));
        assert_eq!(labels, [0, 5, 50_000]);
        // With another label, only that VTEP is probed anew.
        for path in [target(0, 1), target(2, 3)] {
            targets.entries.get_mut(&path).unwrap().applied.probed = Version::of(7);
        }
        let applied = |targets: &Targets| -> Vec<u64> {
            targets.entries.values().map(|entry| entry.applied.probed.number()).collect()
        };
        targets.follow(&snapshot(FlowLabel::Fixed(5)), &shared);
        assert_eq!(applied(&targets), [7, 7]);
        targets.follow(&snapshot(FlowLabel::SourcePort), &shared);
        assert_eq!(applied(&targets), [7, 0]);
        assert_eq!(targets.label(target(2, 3), 50_001), 50_001);
        // What was counted of those that are gone stays.
        targets.entries.get_mut(&target(0, 1)).unwrap().prober.counts = [3, 2, 1];
        assert_eq!(targets.messages(), [3, 2, 1]);
        targets.follow(&Snapshot::default(), &shared);
        assert_eq!((targets.entries.len(), targets.messages()), (0, [3, 2, 1]));
    }
}
