//! What a placer is told, and what it remembers about a VTEP.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use path::Key as FlowKey;

use crate::load::Link;
use crate::plan::Routes;
use crate::prober::Pair;

/// Added to the difference of delays for the gap that a move needs.
const MARGIN: Duration = Duration::from_micros(200);

/// A remote VTEP, as outer addresses and UDP destination port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The local VTEP.
    pub local: Ipv4Addr,
    /// The remote VTEP.
    pub address: Ipv4Addr,
    /// UDP destination port.
    pub port: u16,
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

/// When queue pairs may move to another path although theirs is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Moves {
    /// After a gap in the traffic that is long enough.
    #[default]
    AfterGap,
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
    /// How long others take to hear of a wish to move, and to answer. Twice the interval of probes.
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
    pub pair: Pair,
    /// Its place in the table of counts, from 1.
    pub slot: u32,
}

/// A path that probes found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Next hop and port.
    pub pair: Pair,
    /// Its links, in order.
    pub links: Vec<Link>,
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
    /// Queue pairs that were forgotten because they were idle.
    pub forgotten: u64,
    /// Decisions for which the table was full.
    pub beyond: u64,
}

/// The paths to one remote VTEP.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) routes: Routes,
    /// The pairs that take each route, with their delays.
    pub(super) pairs: Vec<Vec<(Pair, Duration)>>,
    pub(super) of_pair: BTreeMap<Pair, usize>,
    pub(super) weights: BTreeMap<u64, u16>,
    pub(super) plan: VecDeque<usize>,
    /// What the best moves would gain when they were looked for last.
    pub(super) gain: u128,
}

impl Paths {
    pub(super) fn route_of(&self, pair: Pair) -> Option<usize> {
        self.of_pair.get(&pair).copied()
    }

    fn delay(&self, pair: Pair) -> Option<Duration> {
        let pairs = self.pairs.get(self.route_of(pair)?)?;
        pairs.iter().find(|(of, _)| *of == pair).map(|(_, delay)| *delay)
    }

    /// How long a flow must be silent before it moves from one pair to the other.
    pub(super) fn gap(&self, from: Pair, to: Pair) -> Duration {
        match (self.delay(from), self.delay(to)) {
            (Some(from), Some(to)) => from.abs_diff(to) + MARGIN,
            (_, to) => to.unwrap_or_default() + MARGIN,
        }
    }
}
