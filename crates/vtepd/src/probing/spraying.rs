//! Sprayed packets: with which VTEPs this one agrees about that, over which paths they go, and what
//! the other ends are told about arrivals.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use path::{Agreed, Arrivals, Arrived, Ends, MOST_PATHS, PathId, Pool, Spraying};
use pathmap::message::Probe;
use pathmap::message::arrivals::{ArrivalReport, MOST_VNIS};
use pathmap::placer::Target;
use pathmap::prober::Known;
use pathmap::spraying::{self, Due, KEEPALIVE, LOOK, Ledger, PACE, Reporter, SILENT};
use tables::Snapshot;
use wire::Vni;

use super::entry::{Entry, Versions};
use crate::pinning::SprayedTo;

/// The VTEPs with which packets are sprayed.
pub(super) struct Sprays {
    /// `None`: packets cannot be sprayed.
    shared: Option<Arc<Spraying>>,
    /// The VNIs that are sprayed here, by local address and UDP port.
    own: BTreeMap<(IpAddr, u16), BTreeSet<Vni>>,
    peers: BTreeMap<Target, Peer>,
    /// Whether workers have yet to be told about pools, and about arrivals.
    changed: (bool, bool),
}

/// A VTEP that may spray, too.
struct Peer {
    /// The VNIs of which it takes sprayed packets, and when it said so.
    heard: Option<(Duration, BTreeSet<Vni>)>,
    pool: Option<(Arc<Pool>, Ledger)>,
    /// The last report: the epoch and the number of its sender, and what had arrived.
    last: Option<(u32, u32, Vec<Arrived>)>,
    /// What is known of the paths, as of the pool.
    known: Versions,
    /// The delay of the slowest path.
    slowest: Duration,
    /// The shortest delay of each path.
    least: BTreeMap<PathId, Duration>,
    arrivals: Arc<Arrivals>,
    reporter: Reporter,
    /// What was reported last.
    reported: Vec<Arrived>,
}

const fn ends(target: &Target) -> Ends {
    (target.local, target.address, target.port)
}

impl Sprays {
    pub(super) const fn new(shared: Option<Arc<Spraying>>) -> Self {
        Self { shared, own: BTreeMap::new(), peers: BTreeMap::new(), changed: (false, false) }
    }

    /// Follows a snapshot and the VTEPs that are probed.
    pub(super) fn follow<'t>(
        &mut self,
        snapshot: &Snapshot,
        targets: impl Iterator<Item = &'t Target>,
    ) {
        let mut own = BTreeMap::<_, BTreeSet<Vni>>::new();
        let can = self.shared.is_some();
        for table in snapshot.vnis().filter(|table| can && table.sprays()) {
            let tunnel = &table.tunnel;
            let vnis = own.entry((tunnel.local, tunnel.destination_port)).or_default();
            if vnis.len() < MOST_VNIS {
                vnis.insert(tunnel.vni);
            }
        }
        let has_spraying = |target: &&Target| own.contains_key(&(target.local, target.port));
        let wanted: BTreeSet<Target> = targets.filter(has_spraying).copied().collect();
        if own == self.own && self.peers.keys().eq(wanted.iter()) {
            return;
        }
        self.own = own;
        self.peers.retain(|target, _| wanted.contains(target));
        for target in wanted {
            self.peers.entry(target).or_insert_with(Peer::new);
        }
        self.changed = (true, true);
    }

    /// Whether there is nobody to spray to, and workers know.
    pub(super) fn is_at_rest(&self) -> bool {
        self.peers.is_empty() && self.changed == (false, false)
    }

    /// Follows what probes have found on the paths to a VTEP.
    pub(super) fn learn(&mut self, target: &Target, entry: &Entry) {
        let Some(peer) = self.peers.get_mut(target) else { return };
        if !entry.is_ready() || peer.known == entry.versions() {
            return;
        }
        peer.known = entry.versions();
        self.changed.0 |= peer.follow_paths(|| entry.probed());
    }

    /// Follows the delays of the paths to a VTEP, which change without a change of paths.
    pub(super) fn follow_delays(&mut self, target: &Target, entry: &Entry) {
        if let Some(peer) = self.peers.get_mut(target) {
            peer.follow_delays(|| entry.probed());
        }
    }

    /// Takes a report of arrivals.
    pub(super) fn take(&mut self, now: Duration, target: &Target, report: ArrivalReport) {
        let Some(peer) = self.peers.get_mut(target) else { return };
        if peer.is_overtaken(&report.head) {
            return;
        }
        if let Some((pool, ledger)) = &mut peer.pool {
            ledger.report(now, pool, &report.paths, peer.slowest);
        }
        peer.last = Some((report.head.epoch, report.head.id, report.paths));
        let vnis: BTreeSet<Vni> = report.vnis.into_iter().collect();
        let before = peer.heard.replace((now, vnis));
        let is_same = before
            .is_some_and(|(_, vnis)| peer.heard.as_ref().is_some_and(|(_, heard)| *heard == vnis));
        self.changed.0 |= !is_same;
    }

    /// Tells workers what changed.
    pub(super) fn publish(&mut self, now: Duration) -> bool {
        for peer in self.peers.values_mut() {
            if peer.heard.as_ref().is_some_and(|(at, _)| now.saturating_sub(*at) >= SILENT) {
                peer.heard = None;
                self.changed.0 = true;
            }
        }
        let (pools, arrivals) = std::mem::take(&mut self.changed);
        let Some(shared) = &self.shared else { return false };
        if pools {
            let agreed = |(target, peer): (&Target, &Peer)| {
                let own = self.own.get(&(target.local, target.port))?;
                let (pool, (_, theirs)) = (&peer.pool.as_ref()?.0, peer.heard.as_ref()?);
                let vnis = own.intersection(theirs).copied().collect();
                Some((ends(target), Agreed { pool: Arc::clone(pool), vnis }))
            };
            shared.set_pools(self.peers.iter().filter_map(agreed).collect());
        }
        if arrivals {
            let of = |(target, peer): (&Target, &Peer)| (ends(target), Arc::clone(&peer.arrivals));
            shared.set_arrivals(self.peers.iter().map(of).collect());
        }
        pools
    }

    /// How packets to a VTEP are sprayed.
    pub(super) fn of(&self, target: &Target) -> SprayedTo {
        let Some(peer) = self.peers.get(target) else { return SprayedTo::default() };
        let vnis = self.vnis(target, peer).collect();
        let paths = peer
            .pool
            .iter()
            .flat_map(|(pool, _)| pool.paths().iter().zip(pool.sent().zip(pool.fates())));
        let up = peer.pool.as_ref().map_or(0, |(pool, _)| pool.up());
        let paths = paths.map(|(path, (sent, fate))| (*path, sent, fate)).collect();
        let waits = peer.pool.iter().flat_map(|(pool, _)| pool.waits()).collect();
        SprayedTo { vnis, up, paths, waits }
    }

    /// The VNIs of which both VTEPs spray.
    fn vnis(&self, target: &Target, peer: &Peer) -> impl Iterator<Item = u32> {
        let own = self.own.get(&(target.local, target.port)).into_iter().flatten();
        let theirs = peer.heard.as_ref();
        let both = own.filter(move |vni| theirs.is_some_and(|(_, theirs)| theirs.contains(*vni)));
        both.map(|vni| vni.get())
    }

    /// Each VTEP, with the VNIs whose packets are sprayed to it.
    pub(super) fn agreed(&self) -> impl Iterator<Item = (Target, BTreeSet<u32>)> {
        self.peers.iter().map(|(target, peer)| {
            let vnis = peer.pool.iter().flat_map(|_| self.vnis(target, peer));
            (*target, vnis.collect())
        })
    }

    /// The paths over which packets to a VTEP are sprayed.
    pub(super) fn used(&self, target: &Target) -> impl Iterator<Item = PathId> {
        let pool = self.peers.get(target).and_then(|peer| peer.pool.as_ref());
        pool.into_iter().flat_map(|(pool, _)| pool.paths().iter().copied())
    }

    /// The reports of arrivals to send now, with an empty head.
    pub(super) fn due(&mut self, now: Duration) -> Vec<(Target, Due, ArrivalReport)> {
        let mut due = Vec::new();
        for (target, peer) in &mut self.peers {
            let Some(own) = self.own.get(&(target.local, target.port)) else { continue };
            if !peer.reporter.is_worth_a_look(now, peer.arrivals.bytes()) {
                continue;
            }
            let mut paths: Vec<_> = peer.arrivals.read().collect();
            if paths.len() > MOST_PATHS {
                // Others than the paths of a pool: the numbers begin anew.
                peer.arrivals.clear();
                paths.clear();
            }
            let vnis = own.iter().copied().collect();
            let report = ArrivalReport { head: Probe::default(), vnis, paths };
            let (bytes, length) = (peer.arrivals.bytes(), report.length());
            if let Some(reason) = peer.reporter.due(now, bytes, &report.paths, length) {
                let congested = spraying::is_congested(&peer.reported, &report.paths);
                peer.arrivals.set_congested(congested);
                peer.reported.clone_from(&report.paths);
                due.push((*target, reason, report));
            }
        }
        due
    }

    /// When to take a turn at the latest.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        let wait = if self.is_active(now) { PACE } else { KEEPALIVE / 8 };
        (!self.peers.is_empty()).then(|| now + wait)
    }

    /// When to look for arrivals, also in the middle of a turn.
    pub(super) fn next_look(&self, now: Duration) -> Option<Duration> {
        self.is_active(now).then(|| now + LOOK)
    }

    fn is_active(&self, now: Duration) -> bool {
        self.peers.values().any(|peer| peer.reporter.is_active(now))
    }
}

impl Peer {
    fn new() -> Self {
        Self {
            heard: None,
            pool: None,
            last: None,
            known: Versions::default(),
            slowest: Duration::ZERO,
            least: BTreeMap::new(),
            arrivals: Arc::new(Arrivals::new(spraying::timer(std::iter::empty()))),
            reporter: Reporter::default(),
            reported: Vec::new(),
        }
    }

    /// Follows what is known of the paths. Returns whether there is another pool.
    fn follow_paths<'e, K>(&mut self, known: impl Fn() -> K) -> bool
    where
        K: Iterator<Item = (PathId, &'e Known)>,
    {
        let before = self.pool.as_ref().map(|(pool, _)| pool);
        let mut changed = false;
        if !before.is_some_and(|pool| spraying::still_fits(pool, &known)) {
            let pool = spraying::pool(known()).map(Arc::new);
            changed = pool.is_some() || self.pool.is_some();
            let last = self.last.as_ref().map(|(.., arrived)| &**arrived);
            self.pool = pool.map(|pool| {
                let ledger = Ledger::new(&pool, last);
                (pool, ledger)
            });
        }
        if let Some((pool, _)) = &self.pool {
            let alive: BTreeSet<PathId> = known().map(|(path, _)| path).collect();
            pool.set_down(|path| !alive.contains(&path));
        }
        self.follow_delays(known);
        changed
    }

    fn follow_delays<'e, K>(&mut self, known: impl Fn() -> K)
    where
        K: Iterator<Item = (PathId, &'e Known)>,
    {
        let now: BTreeMap<PathId, Duration> =
            known().map(|(path, known)| (path, known.delay)).collect();
        // Queues may make all paths alike. Without them, the delays differ as before.
        self.least.retain(|path, _| now.contains_key(path));
        for (path, delay) in &now {
            let least = self.least.entry(*path).or_insert(*delay);
            *least = (*least).min(*delay);
        }
        let timers = [&now, &self.least].map(|of| spraying::timer(of.values().copied()));
        self.arrivals.set_timer(timers.into_iter().max().unwrap_or_default());
        self.slowest = known().map(|(_, known)| known.delay).max().unwrap_or_default();
        if let Some((pool, ledger)) = &mut self.pool {
            ledger.follow_delays(pool.paths().iter().map(|path| now.get(path).copied()));
        }
    }

    /// Whether a later report has arrived before one with this head.
    fn is_overtaken(&self, head: &Probe) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|(epoch, id, _)| {
            *epoch == head.epoch && (head.id.wrapping_sub(*id) as i32) < 0
        })
    }
}

#[cfg(test)]
mod tests {
    use path::SprayOptions;

    use super::*;

    const TARGET: Target = Target {
        local: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        address: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
        port: 4789,
        by_kernel: false,
    };

    fn vnis<C: FromIterator<Vni>>(numbers: &[u32]) -> C {
        numbers.iter().map(|number| Vni::try_from(*number).unwrap()).collect()
    }

    /// Packets are sprayed only of VNIs that both have named lately, whatever else a VTEP says.
    #[test]
    fn a_silent_vtep_and_other_vnis_are_not_sprayed_to() {
        let mut sprays = Sprays::new(Some(Arc::new(Spraying::new(SprayOptions::default(), 1))));
        sprays.own.insert((TARGET.local, TARGET.port), vnis(&[10, 11]));
        sprays.peers.insert(TARGET, Peer::new());
        let ms = Duration::from_millis;
        let report = |numbers: &[u32]| ArrivalReport {
            head: Probe::default(),
            vnis: vnis(numbers),
            paths: Vec::new(),
        };
        assert_eq!(sprays.of(&TARGET).vnis, [0; 0]);
        sprays.take(ms(0), &TARGET, report(&[10, 12]));
        assert!(sprays.publish(ms(0)) && !sprays.publish(ms(1)));
        assert_eq!(sprays.of(&TARGET).vnis, [10]);
        sprays.take(ms(500), &TARGET, report(&[10, 12]));
        assert!(!sprays.publish(ms(1499)), "nothing has changed");
        assert!(sprays.publish(ms(1500)), "it is silent");
        assert_eq!(sprays.of(&TARGET).vnis, [0; 0]);
        sprays.take(ms(2000), &TARGET, report(&[11]));
        sprays.take(ms(2001), &TARGET, report(&[]));
        assert!(sprays.publish(ms(2001)) && sprays.of(&TARGET).vnis.is_empty());
        sprays.take(ms(2001), &TARGET, report(&[10]));
        assert!(sprays.publish(ms(2001)));
        sprays.follow(&Snapshot::default(), std::iter::empty());
        assert!(!sprays.is_at_rest() && sprays.publish(ms(2001)), "workers hear of the end");
        assert!(sprays.is_at_rest() && sprays.agreed().next().is_none());
        // Nobody asked this one.
        let stranger = Target { port: 4790, ..TARGET };
        sprays.take(ms(2002), &stranger, report(&[10]));
        assert!(!sprays.publish(ms(2002)) && sprays.of(&stranger).vnis.is_empty());
    }

    /// Reports take different paths. One that comes late is older than what is known.
    #[test]
    fn a_report_that_was_overtaken_says_nothing() {
        let mut sprays = Sprays::new(Some(Arc::new(Spraying::new(SprayOptions::default(), 1))));
        sprays.peers.insert(TARGET, Peer::new());
        let report = |epoch, id| ArrivalReport {
            head: Probe { epoch, id, ..Probe::default() },
            vnis: vnis(&[id]),
            paths: Vec::new(),
        };
        for (epoch, id, heard) in [(7, 5, 5), (7, 4, 5), (7, 6, 6), (8, 1, 1), (8, 2, 2)] {
            sprays.take(Duration::ZERO, &TARGET, report(epoch, id));
            let said = sprays.peers[&TARGET].heard.as_ref().unwrap().1.clone();
            assert_eq!(said, vnis(&[heard]));
        }
    }

    #[test]
    fn arrivals_are_reported_and_more_ports_than_a_pool_has_begin_anew() {
        let mut sprays = Sprays::new(Some(Arc::new(Spraying::new(SprayOptions::default(), 1))));
        sprays.own.insert((TARGET.local, TARGET.port), vnis(&[10]));
        sprays.peers.insert(TARGET, Peer::new());
        let ms = Duration::from_millis;
        let arrive = |sprays: &Sprays, ports: std::ops::Range<u16>| {
            ports.for_each(|port| {
                sprays.peers[&TARGET].arrivals.count(Arrived::one(port, false), 60_000)
            });
        };
        assert_eq!(sprays.due(ms(0)).len(), 1, "the VNIs, at once");
        assert_eq!(sprays.due(ms(10)).len(), 0);
        arrive(&sprays, 1..3);
        let [(target, Due::Regular, report)] = &sprays.due(ms(20))[..] else { panic!("one") };
        assert_eq!((target, report.paths.len()), (&TARGET, 2));
        assert_eq!(report.vnis, vnis::<Vec<Vni>>(&[10]));
        arrive(&sprays, 1..MOST_PATHS as u16 + 2);
        assert_eq!(sprays.due(ms(30))[0].2.paths, []);
    }
}
