//! The paths to a VTEP that answers no probes: they are traced by expired TTLs. Nothing tells which of
//! them are dead.

use std::time::Duration;

use path::{PathId, Version};
use pathmap::prober::Known;
use pathmap::trace::packet::Expired;
use pathmap::trace::{Tracer, Transmit};
use pathmap::{Key, Prober, Random};

/// How long a VTEP has to be silent before its paths are traced. It may just be starting.
const SILENT: Duration = Duration::from_secs(2);

/// What is traced to one VTEP.
pub(super) struct Traced {
    secret: Key,
    random: Random,
    /// Since when its paths were probed, and no probe was answered.
    silent: Option<Duration>,
    tracer: Option<Tracer>,
    /// The number of paths and the version of the prober of which the tracer knows.
    follows: (usize, Version<Prober>),
    /// The last end of tracing.
    ended: Version<Self>,
}

impl Traced {
    /// `secret` is that of [`Tracer::new`].
    pub(super) const fn new(secret: Key, random: Random) -> Self {
        Self {
            secret,
            random,
            silent: None,
            tracer: None,
            follows: (0, Version::NONE),
            ended: Version::NONE,
        }
    }

    /// Begins to trace if the VTEP has been silent for a while, and ends when it answers a probe.
    pub(super) fn follow(&mut self, prober: &Prober, now: Duration) {
        if !prober.is_ready() || prober.known().next().is_some() {
            self.silent = None;
            if self.tracer.take().is_some() {
                self.ended = self.ended.next();
            }
            return;
        }
        let since = *self.silent.get_or_insert(now);
        if now.saturating_sub(since) < SILENT {
            return;
        }
        let follows = (prober.paths().len(), prober.version());
        if self.tracer.is_some() && self.follows == follows {
            return;
        }
        self.follows = follows;
        let new = || Tracer::new(self.secret.clone(), Random::new(self.random.next()));
        self.tracer.get_or_insert_with(new).set_paths(prober.paths().collect());
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

    /// The tracer, if it has traced all paths.
    pub(super) fn ready(&self) -> Option<&Tracer> {
        self.tracer.as_ref().filter(|tracer| tracer.is_ready())
    }

    /// The versions of what is known.
    pub(super) fn version(&self) -> (Version<Self>, Version<Tracer>) {
        (self.ended, self.ready().map_or(Version::NONE, Tracer::version))
    }

    /// The paths that were traced.
    pub(super) fn known(&self) -> impl Iterator<Item = (PathId, &Known)> {
        self.ready().into_iter().flat_map(Tracer::known)
    }

    /// Whether paths are traced.
    pub(super) const fn is_tracing(&self) -> bool {
        self.tracer.is_some()
    }
}
