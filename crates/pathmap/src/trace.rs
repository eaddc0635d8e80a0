//! Finds the paths to a VTEP that answers no probes: packets with the outer headers of data and a
//! short time to live are dropped on the way, and the routers that drop them name themselves in ICMP
//! errors (RFC 792, RFC 4443). The time to live stands for the hop limit of IPv6, too.
//!
//! The first paths of each next hop are sent with increasing TTLs, to find at which distances routers
//! answer. Then every other path is sent with these TTLs. A path is the list of the routers that
//! answered, so that several links between the same two routers are one link here.
//!
//! Routers limit their errors: Linux sends six at once and then one a second to each receiver
//! (`net.ipv4.icmp_ratelimit`, `net.ipv6.icmp.ratelimit`). So packets are repeated, and it takes seconds to minutes to know all paths. Errors
//! have no authentication; their sender has to know a random identification of 16 bits. They do not
//! tell whether the VTEP is alive, so they decide only which of several paths has how many queue pairs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use path::{PathId, Version};
use spray::Random;

use crate::key::Key;
use crate::prober::Known;

pub mod packet;

use packet::Expired;

/// The time between two packets: at most 100 a second.
const PACE: Duration = Duration::from_millis(10);
/// How long a router may take to answer.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Paths of each next hop with which distances are found.
const SCOUTS: usize = 4;
/// How often a distance is tried with each of these paths.
const SCOUT_TRIES: u8 = 4;
/// How often a distance is tried with another path.
const TRIES: u8 = 200;
/// How far behind the last router that answered others are looked for: two may be silent.
const AHEAD: u8 = 3;
/// The largest distance.
const FARTHEST: u8 = 16;
/// How often one router of one path is asked again when all are known.
const REFRESH: Duration = Duration::from_millis(500);
/// The shortest time after which all paths are traced again because one leads elsewhere.
const AGAIN: Duration = Duration::from_secs(10);
/// When all paths are traced again if no router has answered.
const RETRY: Duration = Duration::from_secs(30);

/// A packet to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// By which next hop and from which port.
    pub path: PathId,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
}

/// A router to be found: the one that a path passes at this distance.
#[derive(Debug, Clone, Copy)]
struct Step {
    path: PathId,
    ttl: u8,
    /// How often it may still be sent.
    tries: u8,
}

/// What is known of a next hop.
#[derive(Debug, Default)]
struct Hop {
    scouts: Vec<PathId>,
    /// The first router.
    first: Option<IpAddr>,
    /// The distances at which routers answer.
    tiers: BTreeSet<u8>,
    /// The largest distance that is tried so far.
    tried: u8,
    /// Whether the distances are known.
    is_scouted: bool,
    /// Steps that are not done.
    pending: usize,
}

/// Traces the paths to one remote VTEP.
#[derive(Debug)]
pub struct Tracer {
    random: Random,
    /// Makes identifications, from the number of this tracer and how many it has made.
    secret: Key,
    number: u32,
    made: u32,
    paths: BTreeSet<PathId>,
    hops: BTreeMap<u64, Hop>,
    waiting: VecDeque<Step>,
    /// Packets without an answer, by identification.
    outstanding: BTreeMap<u16, (Step, Duration)>,
    /// The same, in the order of sending.
    sent: VecDeque<(Duration, u16)>,
    /// The routers, and the time until the answer.
    routers: BTreeMap<(PathId, u8), (IpAddr, Duration)>,
    known: BTreeMap<PathId, Known>,
    next: Duration,
    began: Duration,
    ready: bool,
    version: Version<Self>,
    /// Packets sent, errors accepted.
    pub counts: [u64; 2],
}

impl Tracer {
    /// A tracer that knows nothing. `secret` is a key of this process alone.
    #[must_use]
    pub fn new(secret: Key, mut random: Random) -> Self {
        Self {
            number: random.next() as u32,
            made: 0,
            secret,
            random,
            paths: BTreeSet::new(),
            hops: BTreeMap::new(),
            waiting: VecDeque::new(),
            outstanding: BTreeMap::new(),
            sent: VecDeque::new(),
            routers: BTreeMap::new(),
            known: BTreeMap::new(),
            next: Duration::ZERO,
            began: Duration::ZERO,
            ready: false,
            version: Version::NONE,
            counts: [0; 2],
        }
    }

    /// Sets the paths that are traced. What is known of others is forgotten.
    pub fn set_paths(&mut self, paths: BTreeSet<PathId>) {
        let number = self.known.len();
        self.known.retain(|path, _| paths.contains(path));
        if self.known.len() != number {
            self.version = self.version.next();
        }
        self.routers.retain(|(path, _), _| paths.contains(path));
        self.hops.retain(|hop, _| paths.iter().any(|path| path.hop == *hop));
        for gone in self.paths.difference(&paths) {
            let Some(hop) = self.hops.get_mut(&gone.hop) else { continue };
            hop.scouts.retain(|scout| scout != gone);
            let waiting = self.waiting.iter().filter(|step| step.path == *gone);
            let sent = self.outstanding.values().filter(|(step, _)| step.path == *gone);
            hop.pending -= waiting.count() + sent.count();
        }
        self.waiting.retain(|step| paths.contains(&step.path));
        self.outstanding.retain(|_, (step, _)| paths.contains(&step.path));
        let new: Vec<PathId> = paths.difference(&self.paths).copied().collect();
        self.paths = paths;
        new.into_iter().for_each(|path| self.add(path));
    }

    fn add(&mut self, path: PathId) {
        let hop = self.hops.entry(path.hop).or_default();
        if hop.is_scouted {
            self.trace(path);
        } else if hop.scouts.len() < SCOUTS {
            hop.scouts.push(path);
            let tried = hop.tried.max(AHEAD);
            hop.tried = tried;
            (1..=tried).for_each(|ttl| self.enqueue(Step { path, ttl, tries: SCOUT_TRIES }));
        }
    }

    /// Looks for the routers of a path at the distances of its next hop. The first one is that of all.
    fn trace(&mut self, path: PathId) {
        let Some(hop) = self.hops.get(&path.hop) else { return };
        for ttl in hop.tiers.clone().into_iter().filter(|ttl| *ttl > 1) {
            self.enqueue(Step { path, ttl, tries: TRIES });
        }
    }

    fn enqueue(&mut self, step: Step) {
        if let Some(hop) = self.hops.get_mut(&step.path.hop) {
            hop.pending += 1;
            self.waiting.push_back(step);
        }
    }

    /// Forgets the routers, but not yet the paths, and looks for them again.
    fn begin(&mut self, now: Duration) {
        self.began = now;
        self.hops.clear();
        self.waiting.clear();
        self.outstanding.clear();
        self.routers.clear();
        for path in self.paths.clone() {
            self.add(path);
        }
    }

    /// When [`Self::tick`] has something to do next.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let missing = self.sent.front().map(|(at, _)| *at + TIMEOUT);
        let sends = !self.waiting.is_empty() || self.is_idle();
        [missing, sends.then_some(self.next)].into_iter().flatten().min()
    }

    /// The packet to send now.
    pub fn tick(&mut self, now: Duration) -> Option<Transmit> {
        while let Some((at, id)) = self.sent.front().copied().filter(|(at, _)| *at + TIMEOUT <= now)
        {
            self.sent.pop_front();
            let Some((step, _)) = self.outstanding.get(&id).filter(|(_, sent)| *sent == at) else {
                continue;
            };
            let step = *step;
            self.outstanding.remove(&id);
            if step.tries > 0 {
                self.waiting.push_back(step);
            } else {
                self.done(step.path, now);
            }
        }
        if now < self.next {
            return None;
        }
        if let Some(step) = self.waiting.pop_front() {
            self.next = now + PACE;
            return self.send(step, now);
        }
        if !self.is_idle() {
            return None;
        }
        self.next = now + REFRESH;
        if self.known.is_empty() && now.saturating_sub(self.began) >= RETRY {
            self.begin(now);
            return None;
        }
        let step = self.refresh()?;
        self.send(step, now)
    }

    /// Whether all paths were traced, and no answer is waited for.
    fn is_idle(&self) -> bool {
        self.ready && self.waiting.is_empty() && self.outstanding.is_empty()
    }

    fn send(&mut self, step: Step, now: Duration) -> Option<Transmit> {
        let Step { path, ttl, tries } = step;
        self.made = self.made.wrapping_add(1);
        let id = self.secret.number([self.number, self.made]) as u16;
        if self.outstanding.contains_key(&id) {
            // Rare: another number next time.
            self.waiting.push_front(step);
            return None;
        }
        self.outstanding.insert(id, (Step { path, ttl, tries: tries.saturating_sub(1) }, now));
        self.sent.push_back((now, id));
        self.counts[0] += 1;
        Some(Transmit { path, ttl, id })
    }

    /// A step that was done before, another one each time.
    fn refresh(&mut self) -> Option<Step> {
        let steps = self.routers.keys().filter(|(_, ttl)| *ttl > 1);
        let number = self.random.index(steps.clone().count());
        let (path, ttl) = *steps.into_iter().nth(number).filter(|_| self.ready)?;
        self.hops.get_mut(&path.hop)?.pending += 1;
        Some(Step { path, ttl, tries: 1 })
    }

    /// Takes an error about a packet of this VTEP. `false` if it fits none that waits for one.
    pub fn expired(&mut self, now: Duration, error: &Expired) -> bool {
        let waits = self.outstanding.get(&error.id);
        let Some((step, at)) =
            waits.filter(|(step, _)| step.path.source_port == error.ports.0).copied()
        else {
            return false;
        };
        self.outstanding.remove(&error.id);
        self.counts[1] += 1;
        let Step { path, ttl, .. } = step;
        let router = (error.router, now.saturating_sub(at));
        let before = self.routers.insert((path, ttl), router);
        let is_elsewhere = before.is_some_and(|(before, _)| before != error.router);
        if is_elsewhere && self.is_idle() && now.saturating_sub(self.began) >= AGAIN {
            // Others may lead elsewhere too.
            self.begin(now);
            return true;
        }
        self.note(path, ttl, error.router);
        self.done(path, now);
        true
    }

    /// There is a router at this distance: others are looked for behind it.
    fn note(&mut self, path: PathId, ttl: u8, router: IpAddr) {
        let Some(hop) = self.hops.get_mut(&path.hop).filter(|hop| !hop.is_scouted) else { return };
        hop.tiers.insert(ttl);
        if ttl == 1 {
            hop.first = Some(router);
        }
        let (from, to) = (hop.tried + 1, (ttl + AHEAD).min(FARTHEST));
        if to < from {
            return;
        }
        hop.tried = to;
        for path in hop.scouts.clone() {
            (from..=to).for_each(|ttl| self.enqueue(Step { path, ttl, tries: SCOUT_TRIES }));
        }
    }

    /// A step is done. After the last one of the scouts the others follow, and after the last one of
    /// all the paths are known.
    fn done(&mut self, path: PathId, now: Duration) {
        let Some(hop) = self.hops.get_mut(&path.hop) else { return };
        hop.pending = hop.pending.saturating_sub(1);
        if hop.pending == 0 && !std::mem::replace(&mut hop.is_scouted, true) {
            let scouts = hop.scouts.clone();
            let others = self.paths.iter().filter(|other| other.hop == path.hop);
            let others: Vec<PathId> =
                others.filter(|other| !scouts.contains(other)).copied().collect();
            others.into_iter().for_each(|other| self.trace(other));
        }
        if self.hops.values().all(|hop| hop.pending == 0) {
            self.publish(now);
        }
    }

    /// The paths are known.
    fn publish(&mut self, now: Duration) {
        let path = |path: &PathId| Some((*path, self.path(*path, now)?));
        let known: BTreeMap<PathId, Known> = self.paths.iter().filter_map(path).collect();
        let same = |(old, new): (&Known, &Known)| old.is_route_of(new);
        let is_same =
            known.keys().eq(self.known.keys()) && self.known.values().zip(known.values()).all(same);
        if !is_same || !self.ready {
            self.version = self.version.next();
        }
        self.known = known;
        self.ready = true;
    }

    /// What is known of a path, if every router that answers was found.
    fn path(&self, path: PathId, now: Duration) -> Option<Known> {
        let hop = self.hops.get(&path.hop)?;
        let last = *hop.tiers.last()?;
        let router = |ttl: &u8| {
            let found = self.routers.get(&(path, *ttl)).map(|(router, _)| *router);
            found.or(hop.first.filter(|_| *ttl == 1))
        };
        let traced: Option<Vec<IpAddr>> = hop.tiers.iter().map(router).collect();
        let of_hop = |((other, ttl), _): &(&(PathId, u8), _)| other.hop == path.hop && *ttl == last;
        let delay = match self.routers.get(&(path, last)) {
            Some((_, delay)) => *delay,
            None => self.routers.iter().find(of_hop).map(|(_, (_, delay))| *delay)?,
        };
        Some(Known {
            arrival: 0,
            routers: last,
            recorded: None,
            traced: Some(traced?.into()),
            delay,
            heard: now,
        })
    }

    /// Whether all paths were traced once.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.ready
    }

    /// A number that changes with what is known.
    #[must_use]
    pub const fn version(&self) -> Version<Self> {
        self.version
    }

    /// The paths of which the routers are known.
    pub fn known(&self) -> impl Iterator<Item = (PathId, &Known)> {
        self.known.iter().map(|(path, known)| (*path, known))
    }

    /// What is known of a path.
    #[must_use]
    pub fn find(&self, path: PathId) -> Option<&Known> {
        self.known.get(&path)
    }
}
