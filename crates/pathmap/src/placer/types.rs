//! What a placer is told, and what it remembers about a VTEP.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use path::Key as FlowKey;
use path::{CounterId, PathId};
use wire::QueuePair;

use crate::load::Link;
use crate::pairing::Channel;
use crate::routes::Routes;
use crate::way::{Common, Way};

/// Added to the difference of delays for the pause that a move needs.
const MARGIN: Duration = Duration::from_micros(200);
/// Queue pairs that a plan is made for.
pub(super) const LENGTH: usize = 64;

/// A remote VTEP, as outer addresses of one family and UDP destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The local VTEP.
    pub local: IpAddr,
    /// The remote VTEP.
    pub address: IpAddr,
    /// UDP destination port.
    pub port: u16,
    /// Whether kernel VXLAN encapsulates. The next hop then follows from the source port, by a hash
    /// of the kernel, so that not all paths can be used.
    pub by_kernel: bool,
}

impl Target {
    /// The same VTEP, whoever encapsulates: as probes and reports name it.
    #[must_use]
    pub const fn vtep(self) -> Self {
        Self { by_kernel: false, ..self }
    }
}

/// A queue pair towards a remote VTEP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The VNI as a number.
    pub vni: u32,
    /// Inner addresses and queue pair.
    pub key: FlowKey,
    /// Where its frames go.
    pub target: Target,
}

impl FlowId {
    /// The hosts and the number of the queue pair. `None` for a flow of another kind.
    pub(super) const fn channel(&self) -> Option<(Channel, QueuePair)> {
        let FlowKey::QueuePair { source, destination, queue_pair } = self.key else { return None };
        let (target, vni) = (self.target.vtep(), self.vni);
        Some((Channel { target, vni, hosts: (source, destination) }, queue_pair))
    }
}

/// When queue pairs may move to another path although theirs is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Moves {
    /// After a pause in the traffic that is long enough.
    #[default]
    AfterPause,
    /// Never.
    Never,
}

/// Limits and options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most queue pairs. Beyond that they are placed by `qp-hash`.
    pub most: u32,
    /// Time without a frame after which a queue pair is forgotten.
    pub idle: Duration,
    /// When queue pairs move.
    pub moves: Moves,
    /// How long others take to hear of a claim to move, and to answer. Twice the interval of probes.
    pub settle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            most: 65_536,
            idle: Duration::from_secs(30),
            moves: Moves::default(),
            settle: Duration::from_millis(100),
        }
    }
}

/// The path of a queue pair, and the number under which its frames are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Next hop and port.
    pub path: PathId,
    /// Its index in the table of counts, from 1.
    pub counter: CounterId,
}

/// A path that probes found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Next hop and port.
    pub path: PathId,
    /// Its links, in order.
    pub links: Vec<Link>,
    /// Where it leads.
    pub way: Way,
    /// Time from probe to answer.
    pub delay: Duration,
}

/// What happened so far, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Queue pairs that were placed.
    pub placed: u64,
    /// Queue pairs that moved because their path was dead.
    pub moved_dead: u64,
    /// Queue pairs that moved for balance.
    pub moved_balance: u64,
    /// Queue pairs that were forgotten because they were idle or their connection ended.
    pub forgotten: u64,
    /// Decisions by `qp-hash` for each of [`Beyond::ALL`](super::Beyond::ALL).
    pub beyond: [u64; 5],
    /// Messages of the communication manager that were beyond the share of their host.
    pub beyond_messages: u64,
}

/// The routes of the next queue pairs to a target.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) routes: VecDeque<usize>,
    /// The load of a queue pair and those of the links for which it was made. `None` after a part of
    /// it was used.
    pub(super) made_for: Option<(u64, Vec<u64>)>,
    /// The [version](super::Placer::renew_plans) of the loads for which it was made. Until there is
    /// one for the current loads, it is used.
    pub(super) version: u64,
    /// Queue pairs that were placed since the next plan was begun, which does not know them.
    pub(super) placed: usize,
}

impl Plan {
    pub(super) fn is_short(&self) -> bool {
        self.routes.len() < LENGTH / 2
    }

    /// Takes the next route out of the plan; `current`, if its turn comes in this round, in which each
    /// of the `number` routes has one.
    pub(super) fn take(&mut self, number: usize, current: Option<usize>) -> Option<usize> {
        (self.made_for, self.placed) = (None, self.placed + 1);
        let rest = number - (LENGTH - self.routes.len()).checked_rem(number)?;
        let mut round = self.routes.iter().take(rest);
        let at = current.and_then(|current| round.position(|route| *route == current));
        self.routes.remove(at.unwrap_or(0))
    }
}

/// The paths to one remote VTEP.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) routes: Arc<Routes>,
    /// The paths that take each route, with their delays.
    pub(super) of_route: Vec<Vec<(PathId, Duration)>>,
    pub(super) of_path: BTreeMap<PathId, usize>,
    pub(super) weights: BTreeMap<u64, u16>,
    /// The different ways, each with a path that takes it.
    pub(super) ways: Vec<(Way, PathId)>,
    pub(super) way_of: BTreeMap<PathId, usize>,
    /// Whether links between routers may have /30 networks ([`Way::common`]).
    pub(super) has_30: bool,
    pub(super) plan: Plan,
    /// What the best moves would gain when they were looked for last.
    pub(super) gain: f64,
}

impl Paths {
    pub(super) fn route_of(&self, path: PathId) -> Option<usize> {
        self.of_path.get(&path).copied()
    }

    /// Sets the delays of known paths.
    pub(super) fn set_delays(&mut self, delays: impl Iterator<Item = (PathId, Duration)>) {
        for (path, delay) in delays {
            let route = self.route_of(path).and_then(|route| self.of_route.get_mut(route));
            let known = route.into_iter().flatten().filter(|(of, _)| *of == path);
            known.for_each(|(_, known)| *known = delay);
        }
        for (route, paths) in self.of_route.iter_mut().enumerate() {
            let links: Vec<Link> = self.routes.route(route).collect();
            level(&links, paths);
        }
    }

    /// Where a path leads.
    pub(super) fn way(&self, path: PathId) -> Option<&Way> {
        self.ways.get(*self.way_of.get(&path)?).map(|(way, _)| way)
    }

    /// Sets where paths lead. Paths that are `used` stand for their way first.
    pub(super) fn set_ways(&mut self, found: &[&Found], used: impl Fn(&PathId) -> bool) {
        let mut paths = BTreeMap::<&Way, Vec<PathId>>::new();
        for path in found {
            paths.entry(&path.way).or_default().push(path.path);
        }
        for (way, paths) in paths {
            let Some(first) = paths.iter().copied().min_by_key(|path| (!used(path), *path)) else {
                continue;
            };
            self.way_of.extend(paths.into_iter().map(|path| (path, self.ways.len())));
            self.ways.push((way.clone(), first));
        }
        self.has_30 = self.ways.iter().all(|(way, _)| way.may_have_30());
    }

    /// What a path has in common with an opposite way.
    pub(super) fn common(&self, path: PathId, opposite: &Way) -> Common {
        let has_30 = self.has_30 && opposite.may_have_30();
        self.way(path).map_or(Common::None, |way| way.common(opposite, has_30))
    }

    /// Whether ways are known that begin where an opposite way ends, and that end where it begins.
    /// Otherwise one VTEP may name its interfaces differently when it sends and when it receives.
    pub(super) fn knows_ends(&self, opposite: &Way) -> bool {
        let any = |is: &dyn Fn(&Way) -> bool| self.ways.iter().any(|(way, _)| is(way));
        any(&|way| way.uplink == opposite.arrival) && any(&|way| way.arrival == opposite.uplink)
    }

    /// The path that has most in common with an opposite way: at least all routers.
    pub(super) fn opposite(&self, opposite: &Way) -> Option<(Common, PathId)> {
        let has_30 = self.has_30 && opposite.may_have_30();
        let common = self.ways.iter().map(|(way, path)| (way.common(opposite, has_30), *path));
        common.filter(|(common, _)| *common >= Common::Routers).max_by_key(|(common, _)| *common)
    }

    fn delay(&self, path: PathId) -> Option<Duration> {
        let paths = self.of_route.get(self.route_of(path)?)?;
        paths.iter().find(|(of, _)| *of == path).map(|(_, delay)| *delay)
    }

    /// How long a flow must be silent before it moves from one path to the other.
    pub(super) fn pause(&self, from: PathId, to: PathId) -> Duration {
        match (self.delay(from), self.delay(to)) {
            (Some(from), Some(to)) => from.abs_diff(to) + MARGIN,
            (_, to) => to.unwrap_or_default() + MARGIN,
        }
    }
}

/// Sets the delays of the paths of a route to the least of them, if they have all links in common: the
/// others have waited for a processor at one of the ends.
pub(super) fn level(links: &[Link], paths: &mut [(PathId, Duration)]) {
    let is_known = !links.iter().any(|link| matches!(link, Link::Arrival(..)));
    let least = paths.iter().map(|(_, delay)| *delay).min();
    if let Some(least) = least.filter(|_| is_known) {
        paths.iter_mut().for_each(|(_, delay)| *delay = least);
    }
}
