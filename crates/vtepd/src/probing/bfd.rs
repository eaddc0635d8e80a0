//! BFD over VXLAN: answers the sessions of other VTEPs and, with `detector = "bfd"`, watches the paths
//! in use.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use pathmap::bfd::packet::Arrived;
pub(super) use pathmap::bfd::watch::Transmit;
use pathmap::bfd::{Timers, Watch};
use pathmap::placer::Target;
use pathmap::prober::Settings;
use pathmap::{Pair, Random};
use serde::Deserialize;

use super::targets::Targets;
use crate::pinning::Shared;

/// What tells that a path in use is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Detector {
    /// Probes without an answer.
    #[default]
    Probes,
    /// BFD over VXLAN (RFC 8971), and probes while a session is not up.
    Bfd,
}

impl fmt::Display for Detector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Probes => "probes",
            Self::Bfd => "bfd",
        })
    }
}

/// Missing packets after which the other end declares a session down.
const MULTIPLIER: u8 = 3;

/// The sessions, and who uses what they tell.
pub(super) struct Bfd {
    detector: Detector,
    watch: Watch,
}

impl Bfd {
    pub(super) fn new(detector: Detector, settings: &Settings, random: Random) -> Self {
        let timers = Timers { interval: settings.interval, multiplier: MULTIPLIER };
        Self { detector, watch: Watch::new(timers, settings.rate, random) }
    }

    /// When something is to be done next.
    pub(super) fn next(&self) -> Option<Duration> {
        self.watch.next()
    }

    /// Takes a packet of a known VTEP.
    pub(super) fn receive(&mut self, arrived: &Arrived, now: Duration) {
        self.watch.receive(arrived, now);
    }

    /// Whether probes alone tell which paths are dead.
    pub(super) fn is_off(&self) -> bool {
        self.detector == Detector::Probes
    }

    /// Forgets the sessions of VTEPs that are gone.
    pub(super) fn retain(&mut self, is_known: impl Fn(&Target) -> bool) {
        self.watch.retain(is_known);
    }

    /// The packets to send now.
    pub(super) fn tick(&mut self, now: Duration) -> Vec<Transmit> {
        self.watch.tick(now)
    }

    /// Has the pairs in use watched, and one more for each next hop: if all sessions go down at once,
    /// not the paths are dead.
    pub(super) fn follow(&mut self, targets: &mut Targets, now: Duration) {
        if self.is_off() {
            return;
        }
        for target in targets.addresses() {
            let mut pairs = targets.used(target);
            pairs.extend(targets.traced_dead(target).into_iter().flatten());
            let others: Vec<Pair> = targets.first_known(target);
            let is_watched =
                |hop: u64, pairs: &BTreeSet<Pair>| pairs.iter().any(|pair| pair.hop == hop);
            for pair in others {
                if !is_watched(pair.hop, &pairs) {
                    pairs.insert(pair);
                }
            }
            self.watch.set_watched(target, &pairs, now);
        }
    }

    /// Tells the probers which paths are watched, and which are dead.
    pub(super) fn tell(&mut self, targets: &mut Targets, shared: &Shared) {
        if self.is_off() {
            return;
        }
        let now = shared.now();
        for (target, pair) in self.watch.take_dead() {
            tracing::debug!(vtep = %target.address, port = pair.port, hop = pair.hop, "the BFD session of a path is down");
            targets.declare_dead(target, pair, now);
        }
        for target in targets.addresses() {
            let up: BTreeSet<Pair> = self.watch.up(target).collect();
            if let Some(dead) = targets.traced_dead(target) {
                dead.intersection(&up).for_each(|pair| targets.declare_alive(target, *pair));
                for pair in self.watch.never_up(target, now) {
                    targets.declare_dead(target, pair, now);
                }
            }
            targets.set_detected(target, up, now);
        }
    }

    /// The number of watched pairs of a VTEP, and of those whose sessions are up.
    pub(super) fn sessions(&self, target: Target) -> (usize, usize) {
        (self.watch.watched(target), self.watch.up(target).count())
    }
}
