//! The sessions of a VTEP. It watches pairs with active sessions, one for each, and answers those of
//! other VTEPs with passive ones.
//!
//! A packet of an active session takes the path of its pair. What answers it may take any path: the
//! session is to tell whether the way there is alive. The way back is another one, which the other end
//! watches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use super::control::{Control, State};
use super::packet::{Arrived, LEAST_SOURCE};
use super::session::{Role, Session, Timers};
use crate::limit::Limit;
use crate::placer::Target;
use crate::prober::Pair;
use crate::random::Random;

/// The most passive sessions for each VTEP. Further ones are not answered.
pub const MOST_PASSIVE: usize = 512;
/// The most VTEPs whose sessions are answered.
const MOST_VTEPS: usize = 1024;
/// How long a session may take to be up. Until then, a packet is sent once a second (RFC 5880 section
/// 6.8.3).
const NEVER_UP: Duration = Duration::from_secs(5);
/// Inner UDP source ports from [`LEAST_SOURCE`] on.
const SOURCES: u16 = 16_384;

/// By which path a packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// By this pair.
    Pair(Pair),
    /// By any that is alive. The packets of a session have consecutive numbers: the path is to be
    /// another one each time ([`super::order`]).
    Turn(usize),
}

/// A packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// To which VTEP.
    pub target: Target,
    /// By which path.
    pub by: By,
    /// Inner UDP source port.
    pub source: u16,
    /// The control packet.
    pub control: Control,
}

/// How many packets there were, and of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets sent.
    pub sent: u64,
    /// Packets received for a session.
    pub received: u64,
    /// Packets received that belong to no session, and those above a limit.
    pub refused: u64,
    /// How often a watched pair was found dead.
    pub dead: u64,
}

/// A watched pair.
#[derive(Debug)]
struct Watched {
    session: Session,
    source: u16,
    /// Since when the pair is watched.
    since: Duration,
    /// Since when it is up, or was before it went down.
    up: Option<Duration>,
    /// The detection time while it was up last.
    detection: Duration,
}

impl Watched {
    fn is_up(&self) -> bool {
        self.session.state() == State::Up
    }
}

/// The sessions of other VTEPs with this one.
#[derive(Debug)]
struct Answered {
    /// By outer and inner UDP source port.
    sessions: BTreeMap<(u16, u16), Session>,
    limit: Limit,
}

/// To what a discriminator belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Watched(Target, Pair),
    Answered(Target, (u16, u16)),
}

/// All sessions.
#[derive(Debug)]
pub struct Watch {
    timers: Timers,
    /// Most packets that answer one VTEP in a second.
    rate: u32,
    random: Random,
    watched: BTreeMap<Target, BTreeMap<Pair, Watched>>,
    answered: BTreeMap<Target, Answered>,
    owners: HashMap<NonZeroU32, Owner>,
    source: u16,
    /// The last packets of sessions that were ended.
    farewells: Vec<Transmit>,
    /// What happened so far.
    pub counts: Counts,
}

impl Watch {
    /// No session yet.
    #[must_use]
    pub fn new(timers: Timers, rate: u32, random: Random) -> Self {
        Self {
            timers,
            rate,
            random,
            watched: BTreeMap::new(),
            answered: BTreeMap::new(),
            owners: HashMap::new(),
            source: 0,
            farewells: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// A discriminator that is not in use. A stranger cannot guess it.
    fn discriminator(&mut self, owner: Owner) -> NonZeroU32 {
        loop {
            let number = NonZeroU32::new(self.random.next() as u32);
            if let Some(number) = number.filter(|number| !self.owners.contains_key(number)) {
                self.owners.insert(number, owner);
                return number;
            }
        }
    }

    /// Sets the pairs that are watched on the way to a VTEP.
    pub fn set_watched(&mut self, target: Target, pairs: &BTreeSet<Pair>, now: Duration) {
        let sessions = self.watched.entry(target).or_default();
        let gone: Vec<Pair> =
            sessions.keys().filter(|pair| !pairs.contains(pair)).copied().collect();
        let new: Vec<Pair> =
            pairs.iter().filter(|pair| !sessions.contains_key(pair)).copied().collect();
        for pair in gone {
            let ended = self.watched.get_mut(&target).and_then(|sessions| sessions.remove(&pair));
            let Some(Watched { mut session, source, .. }) = ended else { continue };
            self.owners.remove(&session.discriminator());
            session.set_admin_down(true);
            if let Some(control) = session.tick(now, &mut self.random) {
                self.farewells.push(Transmit { target, by: By::Pair(pair), source, control });
            }
        }
        for pair in new {
            let my = self.discriminator(Owner::Watched(target, pair));
            self.source = (self.source + 1) % SOURCES;
            let session = Session::new(Role::Active, self.timers, my, now);
            let watched = Watched {
                session,
                source: LEAST_SOURCE + self.source,
                since: now,
                up: None,
                detection: Duration::ZERO,
            };
            self.watched.entry(target).or_default().insert(pair, watched);
        }
        if pairs.is_empty() {
            self.watched.remove(&target);
        }
    }

    /// Forgets the VTEPs that are not among these, and their sessions.
    pub fn retain(&mut self, is_known: impl Fn(&Target) -> bool) {
        self.watched.retain(|target, _| is_known(target));
        self.answered.retain(|target, _| is_known(target));
        let (watched, answered) = (&self.watched, &self.answered);
        self.owners.retain(|_, owner| match owner {
            Owner::Watched(target, _) => watched.contains_key(target),
            Owner::Answered(target, _) => answered.contains_key(target),
        });
    }

    /// Takes a packet of a VTEP. A packet without a receiver's discriminator belongs to the session
    /// with its ports (RFC 8971 section 5).
    pub fn receive(&mut self, arrived: &Arrived, now: Duration) {
        let Arrived { ends: (address, local), ports: (outer, port), source, control } = arrived;
        let target = Target { local: *local, address: *address, port: *port, by_kernel: false };
        let owner = match NonZeroU32::new(control.your) {
            Some(your) => self.owners.get(&your).copied(),
            None => self.answer(target, (*outer, *source), now),
        };
        let received = owner.and_then(|owner| self.receive_for(owner, target, control, now));
        let counter = match received {
            Some(()) => &mut self.counts.received,
            None => &mut self.counts.refused,
        };
        *counter += 1;
    }

    /// Takes a packet for a session. `None` if that is not one of the VTEP `from`.
    fn receive_for(
        &mut self,
        owner: Owner,
        from: Target,
        control: &Control,
        now: Duration,
    ) -> Option<()> {
        match owner {
            Owner::Watched(target, pair) => {
                let sessions = self.watched.get_mut(&target).filter(|_| target == from)?;
                let watched = sessions.get_mut(&pair)?;
                let was_up = watched.is_up();
                watched.session.receive(control, now);
                if watched.is_up() {
                    watched.up = watched.up.filter(|_| was_up).or(Some(now));
                    watched.detection = watched.session.detection_time().unwrap_or_default();
                }
            }
            Owner::Answered(target, ports) => {
                let answered = self.answered.get_mut(&target).filter(|_| target == from)?;
                answered.sessions.get_mut(&ports)?.receive(control, now);
            }
        }
        Some(())
    }

    /// The passive session with these ports, which is a new one if there is none.
    fn answer(&mut self, target: Target, ports: (u16, u16), now: Duration) -> Option<Owner> {
        let owner = Owner::Answered(target, ports);
        let (vteps, rate) = (self.answered.len(), self.rate);
        let sessions = self.answered.get(&target).map(|answered| &answered.sessions);
        if sessions.is_some_and(|sessions| sessions.contains_key(&ports)) {
            return Some(owner);
        }
        if sessions.map_or(vteps >= MOST_VTEPS, |sessions| sessions.len() >= MOST_PASSIVE) {
            return None;
        }
        let my = self.discriminator(owner);
        let session = Session::new(Role::Passive, self.timers, my, now);
        let new = || Answered { sessions: BTreeMap::new(), limit: Limit::new(rate, rate) };
        self.answered.entry(target).or_insert_with(new).sessions.insert(ports, session);
        Some(owner)
    }

    /// When [`Self::tick`] has something to do next.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        if !self.farewells.is_empty() {
            return Some(Duration::ZERO);
        }
        let watched = self.watched.values().flat_map(|watched| watched.values());
        let answered = self.answered.values().flat_map(|answered| answered.sessions.values());
        let sessions = watched.map(|watched| &watched.session).chain(answered);
        sessions.filter_map(Session::next).min()
    }

    /// The packets to send now.
    pub fn tick(&mut self, now: Duration) -> Vec<Transmit> {
        let mut out = std::mem::take(&mut self.farewells);
        for (target, watched) in &mut self.watched {
            for (pair, watched) in watched {
                if let Some(control) = watched.session.tick(now, &mut self.random) {
                    let (target, by) = (*target, By::Pair(*pair));
                    out.push(Transmit { target, by, source: watched.source, control });
                }
            }
        }
        for (target, Answered { sessions, limit }) in &mut self.answered {
            for ((_, source), session) in sessions.iter_mut() {
                let control = session.tick(now, &mut self.random);
                if let Some(control) = control.filter(|_| limit.take(now)) {
                    let by = By::Turn(session.packets());
                    out.push(Transmit { target: *target, by, source: *source, control });
                }
            }
            // A session that the other end does not use any more is forgotten.
            sessions.retain(|_, session| {
                let stays = !session.is_forgotten();
                if !stays {
                    self.owners.remove(&session.discriminator());
                }
                stays
            });
        }
        self.answered.retain(|_, answered| !answered.sessions.is_empty());
        self.counts.sent += out.len() as u64;
        out
    }

    /// The watched pairs that are dead: their sessions were up and are down, and another one that was up
    /// all the time has heard the VTEP for half a detection time longer. If none has, the VTEP or this
    /// end may have paused. Each is told once.
    pub fn take_dead(&mut self) -> Vec<(Target, Pair)> {
        let mut dead = Vec::new();
        for (target, sessions) in &mut self.watched {
            let heard = |watched: &Watched| Some((watched.up?, watched.session.heard()?));
            let up = sessions.values().filter(|watched| watched.is_up());
            let up: Vec<(Duration, Duration)> = up.filter_map(heard).collect();
            for (pair, watched) in sessions.iter_mut().filter(|(_, watched)| !watched.is_up()) {
                let Some((_, last)) = heard(watched) else { continue };
                let half = watched.detection / 2;
                if up.iter().any(|(since, heard)| *since <= last && *heard >= last + half) {
                    watched.up = None;
                    dead.push((*target, *pair));
                }
            }
        }
        self.counts.dead += dead.len() as u64;
        dead
    }

    /// The pairs to a VTEP whose sessions should be up by now, and were not since they were dead or not
    /// watched, while another one is up.
    pub fn never_up(&self, target: Target, now: Duration) -> impl Iterator<Item = Pair> {
        let answers = self.up(target).next().is_some();
        let sessions = self.watched.get(&target).into_iter().flatten();
        let never = move |(_, watched): &(_, &Watched)| {
            answers && watched.up.is_none() && now.saturating_sub(watched.since) >= NEVER_UP
        };
        sessions.filter(never).map(|(pair, _)| *pair)
    }

    /// The pairs to a VTEP whose sessions are up.
    pub fn up(&self, target: Target) -> impl Iterator<Item = Pair> {
        let sessions = self.watched.get(&target).into_iter().flatten();
        let up = sessions.filter(|(_, watched)| watched.is_up());
        up.map(|(pair, _)| *pair)
    }

    /// The number of watched pairs to a VTEP.
    #[must_use]
    pub fn watched(&self, target: Target) -> usize {
        self.watched.get(&target).map_or(0, BTreeMap::len)
    }

    /// The number of sessions of other VTEPs.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.answered.values().map(|answered| answered.sessions.len()).sum()
    }
}
