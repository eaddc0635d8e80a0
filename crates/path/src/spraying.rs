//! Packets over all known paths: what the policy `spray` asks for the path of each packet, and what
//! workers count for it.
//!
//! One thread knows the paths, and publishes a [`Pool`] for each pair of VTEPs. Each worker has its
//! own scheme for each pool ([`Sprays`]). What became of packets is added to numbers of the pool
//! that never decrease. A worker that sees new ones tells its scheme the differences, so there is no
//! queue and no lock.

use core::net::IpAddr;
use core::num::NonZeroU16;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ::spray::{Entropy, Random, Signal, Spray as _, Sprayer};
use wire::Vni;
use wire::roce::opcode;

use crate::choice::Remote;
use crate::path_id::PathId;
use crate::range::SourcePortRange;
use crate::version::Version;

mod arrivals;
mod bundle;
mod pool;
mod turns;
mod waits;

use bundle::Bundle;
use waits::Waits;

pub use ::spray::Scheme;
pub use arrivals::{Arrivals, Arrived};
pub use pool::{Backlog, Fate, Pool};

/// The most paths over which packets between two VTEPs are sprayed.
pub const MOST_PATHS: usize = 64;

/// Whether the policy `spray` may send a packet with this opcode by any path: one of a send or an RDMA
/// write of a reliable connection.
#[inline]
#[must_use]
pub const fn is_sprayed(opcode: u8) -> bool {
    opcode <= opcode::RC_WRITE_ONLY_IMMEDIATE
}

/// Two VTEPs: the local address, the remote one, and the UDP port of VXLAN.
pub type Ends = (IpAddr, IpAddr, u16);

/// The VTEPs whose packets are counted.
pub type Counted = BTreeMap<Ends, Arc<Arrivals>>;

/// A value that one thread replaces, and others look at. They take a lock only after a change.
#[derive(Debug)]
struct Published<T> {
    version: AtomicU64,
    value: Mutex<Arc<T>>,
}

impl<T: Default> Default for Published<T> {
    fn default() -> Self {
        let version = AtomicU64::new(Version::<T>::NONE.number());
        Self { version, value: Mutex::default() }
    }
}

impl<T> Published<T> {
    fn set(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The value, if it is another one than that of `seen`.
    fn newer(&self, seen: &mut Version<T>) -> Option<Arc<T>> {
        let version = Version::of(self.version.load(Ordering::Acquire));
        (version != core::mem::replace(seen, version))
            .then(|| Arc::clone(&self.value.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// How packets are sprayed, from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SprayOptions {
    /// The scheme that chooses the path of each packet.
    pub scheme: Scheme,
    /// Whether the order of received packets is restored before hosts get them.
    pub restores_order: bool,
    /// Whether hosts get ECN marks of the underlay only while at least half of the paths have some.
    pub hides_marks: bool,
}

impl Default for SprayOptions {
    fn default() -> Self {
        Self { scheme: Scheme::PrimeLike, restores_order: true, hides_marks: false }
    }
}

/// What all workers share with the thread that knows the paths.
#[derive(Debug)]
pub struct Spraying {
    /// The configuration.
    pub options: SprayOptions,
    start: Instant,
    seed: u64,
    pools: Published<BTreeMap<Ends, Agreed>>,
    arrivals: Published<Counted>,
}

impl Spraying {
    /// Nothing is sprayed yet. `seed` is secret, and differs between processes.
    #[must_use]
    pub fn new(options: SprayOptions, seed: u64) -> Self {
        let (pools, arrivals) = Default::default();
        Self { options, start: Instant::now(), seed, pools, arrivals }
    }

    /// A secret number of this process.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sets over which paths packets are sprayed.
    pub fn set_pools(&self, pools: BTreeMap<Ends, Agreed>) {
        self.pools.set(pools);
    }

    /// The VTEPs whose packets are counted, if they are others than those of `seen`.
    #[must_use]
    pub fn newer_arrivals(&self, seen: &mut Version<Counted>) -> Option<Arc<Counted>> {
        self.arrivals.newer(seen)
    }

    /// Sets the VTEPs whose packets are counted.
    pub fn set_arrivals(&self, arrivals: Counted) {
        self.arrivals.set(arrivals);
    }
}

/// Where packets to a VTEP go, and of which VNIs.
#[derive(Debug, Clone)]
pub struct Agreed {
    /// The paths.
    pub pool: Arc<Pool>,
    /// The VNIs of which both VTEPs spray.
    pub vnis: BTreeSet<Vni>,
}

/// The state of a worker: a scheme for each pool.
#[derive(Debug, Clone, Default)]
pub struct Sprays {
    shared: Option<Arc<Spraying>>,
    seen: Version<BTreeMap<Ends, Agreed>>,
    /// The time of the batch, in nanoseconds since the start.
    now: u64,
    /// In the order of their ends.
    pools: Vec<(Ends, Sprayed)>,
    /// The pools with a bundle of this batch, whose packets are yet to be counted.
    uncounted: Vec<PoolNumber>,
    random: Random,
}

/// The number of a pool of a worker, as long as its pools are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolNumber(NonZeroU16);

impl PoolNumber {
    fn new(index: usize) -> Option<Self> {
        Some(Self(NonZeroU16::MIN.checked_add(u16::try_from(index).ok()?)?))
    }

    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A pool, and the scheme of this worker.
#[derive(Debug, Clone)]
struct Sprayed {
    agreed: Agreed,
    sprayer: Sprayer,
    bundle: Bundle,
    seen: Version<Pool>,
    /// What the scheme knows of each path.
    known: Box<[Fate]>,
    /// How long packets wait on each path; `None` if the scheme takes no feedback.
    waits: Option<Waits>,
}

impl Sprays {
    /// The state of a worker.
    #[must_use]
    pub(crate) fn new(shared: Option<Arc<Spraying>>) -> Self {
        let random = Random::new(shared.as_ref().map_or(0, |shared| shared.seed));
        Self { shared, random, ..Self::default() }
    }

    /// Begins a batch at this time.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant) {
        if self.shared.is_none() {
            return;
        }
        self.end();
        let Some(shared) = &self.shared else { return };
        self.now = shared.nanoseconds(now);
        if let Some(pools) = shared.pools.newer(&mut self.seen) {
            self.follow(&pools);
        }
    }

    /// Takes over other pools. Those that stay keep what their schemes know.
    #[cold]
    fn follow(&mut self, pools: &BTreeMap<Ends, Agreed>) {
        let mut before: BTreeMap<_, _> = core::mem::take(&mut self.pools).into_iter().collect();
        let scheme = self.shared.as_ref().map_or(Scheme::PrimeLike, |shared| shared.options.scheme);
        for (ends, agreed) in pools {
            let same = |known: &Sprayed| Arc::ptr_eq(&known.agreed.pool, &agreed.pool);
            let sprayed = match before.remove(ends).filter(same) {
                Some(known) => Sprayed { agreed: agreed.clone(), ..known },
                None => Sprayed::new(agreed.clone(), scheme, &mut self.random),
            };
            self.pools.push((*ends, sprayed));
        }
    }

    /// Changes with the pools.
    #[inline]
    pub(crate) const fn version(&self) -> u64 {
        self.seen.number()
    }

    /// The pool for packets to a VTEP. `None` if those of this VNI are not sprayed, or if a path has a
    /// source port that the VNI does not use.
    pub(crate) fn pool(&self, to: &Remote<'_>, range: SourcePortRange) -> Option<PoolNumber> {
        let ends = (to.local, to.address, to.destination_port);
        let index = self.pools.binary_search_by_key(&ends, |(ends, _)| *ends).ok()?;
        let Agreed { pool, vnis } = &self.pools.get(index)?.1.agreed;
        let is_usable = pool.paths().iter().all(|path| range.contains(path.source_port));
        PoolNumber::new(index).filter(|_| is_usable && vnis.contains(&to.vni))
    }

    /// Ends a batch: all its packets count as sent.
    #[inline]
    pub(crate) fn end(&mut self) {
        for pool in self.uncounted.drain(..) {
            if let Some((_, sprayed)) = self.pools.get_mut(pool.index()) {
                sprayed.count();
            }
        }
    }

    /// The path of a packet. It counts as sent by the end of the batch.
    #[inline]
    pub fn next(&mut self, pool: PoolNumber) -> Option<PathId> {
        let (_, sprayed) = self.pools.get_mut(pool.index())?;
        if !sprayed.bundle.again(self.now) {
            let size = sprayed.begin_bundle(self.now, &mut self.random);
            if size > 1 && self.uncounted.last() != Some(&pool) {
                self.uncounted.push(pool);
            }
        }
        sprayed.bundle.path()
    }

    /// Whether the next packet has the path of the last one of this pool. If so, it counts as sent.
    #[inline]
    pub fn again(&mut self, pool: PoolNumber) -> bool {
        let sprayed = self.pools.get_mut(pool.index());
        sprayed.is_some_and(|(_, sprayed)| sprayed.bundle.again(self.now))
    }
}

impl Sprayed {
    fn new(agreed: Agreed, scheme: Scheme, random: &mut Random) -> Self {
        let pool = &agreed.pool;
        let sprayer = Sprayer::new(scheme, pool.tiers, pool.times(), random);
        // What happened before is nothing to a scheme that begins.
        let (seen, known) = (pool.version(), pool.fates().collect());
        let takes_feedback = !matches!(scheme, Scheme::Ecmp | Scheme::Oblivious);
        let waits = takes_feedback.then(|| Waits::of(pool));
        Self { agreed, sprayer, bundle: Bundle::default(), seen, known, waits }
    }

    /// Counts the packets of the bundle.
    #[inline]
    fn count(&mut self) {
        if let Some((number, packets)) = self.bundle.take_uncounted() {
            self.agreed.pool.count_sent(number, packets);
        }
    }

    /// Chooses a path for the next packets, and returns how many may take it. One counts as sent at
    /// once.
    fn begin_bundle(&mut self, now: u64, random: &mut Random) -> u16 {
        self.count();
        let seen = self.agreed.pool.version();
        if seen != self.seen {
            self.seen = seen;
            self.learn(now);
        }
        let Self { agreed, sprayer, waits, bundle, .. } = self;
        let size = bundle.size(now, agreed.pool.paths().len());
        let mut number = sprayer.next(now, random).index();
        if let Some(waits) = waits {
            let next = || sprayer.next(now, random).index();
            number = waits.admit(number, size, next);
        }
        let Some(path) = agreed.pool.paths().get(number) else { return 0 };
        bundle.begin(now, size, (number, *path));
        if size == 1 {
            self.count();
        }
        size
    }

    /// Tells the scheme what became of packets since the last time.
    #[cold]
    fn learn(&mut self, now: u64) {
        let Self { agreed, sprayer, known, waits, .. } = self;
        let mut news = [Fate::default(); MOST_PATHS];
        for ((known, fate), news) in known.iter_mut().zip(agreed.pool.fates()).zip(&mut news) {
            let before = core::mem::replace(known, fate);
            *news = Fate {
                good: fate.good - before.good,
                marked: fate.marked - before.marked,
                lost: fate.lost - before.lost,
            };
        }
        let heard = news.iter().filter(|news| news.good + news.marked > 0).count();
        // Marks on most paths say nothing about one: they are for the hosts.
        if news.iter().filter(|news| news.marked > 0).count() * 2 > heard {
            news.iter_mut().for_each(|news| news.good += core::mem::take(&mut news.marked));
        }
        let good = news.map(|news| news.good);
        for number in turns::turns(good.get(..known.len()).unwrap_or_default()) {
            sprayer.feedback(now, Entropy(number), Signal::Good(1));
        }
        for (number, Fate { marked, lost, .. }) in (0..).zip(news) {
            let mut tell = |packets: u64, signal: fn(u16) -> Signal| {
                if packets > 0 {
                    let packets = u16::try_from(packets).unwrap_or(u16::MAX);
                    sprayer.feedback(now, Entropy(number), signal(packets));
                }
            };
            tell(marked, Signal::Marked);
            tell(lost, Signal::Lost);
        }
        if let Some(waits) = waits {
            waits.learn(&agreed.pool);
        }
    }
}

#[cfg(test)]
mod tests;
