//! The paths to a VTEP that answers no probes: they are traced by expired TTLs, and only BFD tells
//! which of them are dead.

use std::collections::BTreeSet;
use std::time::Duration;

use pathmap::prober::Known;
use pathmap::trace::packet::Expired;
use pathmap::trace::{Tracer, Transmit};
use pathmap::{Pair, Prober, Random};

/// How long a VTEP has to be silent before its paths are traced. It may just be starting.
const SILENT: Duration = Duration::from_secs(2);

/// What is traced to one VTEP.
pub(super) struct Traced {
    random: Random,
    /// Since when its pairs were probed, and no probe was answered.
    silent: Option<Duration>,
    tracer: Option<Tracer>,
    /// The number of pairs and the version of the prober of which the tracer knows.
    follows: (usize, u64),
    /// Pairs that were used, and that BFD has found dead.
    dead: BTreeSet<Pair>,
    /// Changes with what is known.
    version: u64,
}

impl Traced {
    pub(super) const fn new(random: Random) -> Self {
        Self {
            random,
            silent: None,
            tracer: None,
            follows: (0, 0),
            dead: BTreeSet::new(),
            version: 0,
        }
    }

    /// Begins to trace if the VTEP has been silent for a while, and ends when it answers a probe.
    pub(super) fn follow(&mut self, prober: &Prober, now: Duration) {
        if !prober.is_ready() || prober.known().next().is_some() {
            self.silent = None;
            if self.tracer.take().is_some() {
                self.dead.clear();
                self.version += 1;
            }
            return;
        }
        let since = *self.silent.get_or_insert(now);
        if now.saturating_sub(since) < SILENT {
            return;
        }
        let follows = (prober.pairs().len(), prober.version());
        if self.tracer.is_some() && self.follows == follows {
            return;
        }
        self.follows = follows;
        let new = || Tracer::new(Random::new(self.random.next()));
        let pairs: BTreeSet<Pair> = prober.pairs().collect();
        self.dead.retain(|pair| pairs.contains(pair));
        self.tracer.get_or_insert_with(new).set_pairs(pairs);
    }

    /// When [`Self::tick`] has something to do next.
    pub(super) fn next(&self) -> Option<Duration> {
        self.tracer.as_ref()?.next()
    }

    /// The packet to send now.
    pub(super) fn tick(&mut self, now: Duration) -> Option<Transmit> {
        self.tracer.as_mut().and_then(|tracer| tracer.tick(now))
    }

    /// Takes a router's error.
    pub(super) fn expired(&mut self, error: &Expired, now: Duration) {
        if let Some(tracer) = &mut self.tracer {
            tracer.expired(now, error);
        }
    }

    /// The tracer, if it has traced all pairs.
    pub(super) fn ready(&self) -> Option<&Tracer> {
        self.tracer.as_ref().filter(|tracer| tracer.is_ready())
    }

    /// Numbers that change with what is known.
    pub(super) fn version(&self) -> (u64, u64) {
        (self.version, self.ready().map_or(0, Tracer::version))
    }

    /// The paths that may be used: those that were traced, but for those of dead pairs.
    pub(super) fn known(&self) -> impl Iterator<Item = (Pair, &Known)> {
        let tracer = self.ready();
        let route = |pair: &Pair| Some((pair.hop, tracer?.find(*pair)?));
        let dead: Vec<(u64, &Known)> = self.dead.iter().filter_map(route).collect();
        let is_dead = move |pair: Pair, known: &Known| {
            dead.iter().any(|(hop, of)| *hop == pair.hop && of.is_route_of(known))
        };
        let traced = tracer.into_iter().flat_map(Tracer::known);
        traced.filter(move |(pair, known)| !is_dead(*pair, known))
    }

    /// The pairs that are dead.
    pub(super) const fn dead(&self) -> &BTreeSet<Pair> {
        &self.dead
    }

    /// Whether pairs are traced. BFD alone tells then which are dead.
    pub(super) const fn is_tracing(&self) -> bool {
        self.tracer.is_some()
    }

    /// A pair is dead, or alive again.
    pub(super) fn set_dead(&mut self, pair: Pair, is_dead: bool) {
        let changed = if is_dead { self.dead.insert(pair) } else { self.dead.remove(&pair) };
        self.version += u64::from(changed);
    }
}
