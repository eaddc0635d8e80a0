//! What a prober is told, and what it finds.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use path::{PathId, SourcePortRange};

use crate::message::Probe;

/// How to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often paths in use are probed.
    pub interval: Duration,
    /// Number of ports on every next hop to start with.
    pub ports: u16,
    /// Most ports on every next hop.
    pub most_ports: u16,
    /// The ports to choose from.
    pub range: SourcePortRange,
    /// Most probes in a second, as packets, and most at once. The other end must answer as many:
    /// [`crate::Responder::new`].
    pub rate: u32,
    /// Whether routers can be asked to record their addresses: there is no such option over IPv6.
    pub records: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(50),
            ports: 64,
            most_ports: 256,
            range: SourcePortRange::DEFAULT,
            rate: 4000,
            records: true,
        }
    }
}

/// The numbers of probes: an epoch, and ids that are counted in it. The other end answers each of
/// them once ([`crate::replay`]), so all probers of one VTEP count together, also one after another.
#[derive(Debug, Clone)]
pub struct Ids {
    pub(super) epoch: u32,
    last: Arc<AtomicU32>,
}

impl Ids {
    /// Counts from the id after `last`. `epoch` is higher than that of earlier processes.
    #[must_use]
    pub fn new(epoch: u32, last: u32) -> Self {
        Self { epoch, last: Arc::new(AtomicU32::new(last)) }
    }

    /// The id that was used last.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }

    pub(super) fn next(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The uplink of the remote VTEP by which probes arrive, as its interface index.
    pub arrival: u32,
    /// Number of routers on the way.
    pub routers: u8,
    /// The address of each router's outgoing interface, in order. `None` if not every router has
    /// recorded one: the tiers between the leaves are unknown.
    pub recorded: Option<Arc<[Ipv4Addr]>>,
    /// The address from which each router sends errors, in order, without routers that send none.
    /// `None` if the path was probed, and not traced.
    pub traced: Option<Arc<[IpAddr]>>,
    /// Time from probe to answer.
    pub delay: Duration,
    /// When the last answer arrived.
    pub heard: Duration,
}

impl Known {
    /// Whether every router on the way is known.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let recorded = self.recorded.as_ref().map(|routers| routers.len());
        let traced = self.traced.as_ref().map(|routers| routers.len());
        recorded.or(traced) == Some(self.routers.into())
    }

    /// Whether both are the same route.
    #[must_use]
    pub fn is_route_of(&self, other: &Self) -> bool {
        self.arrival == other.arrival
            && self.routers == other.routers
            && self.recorded == other.recorded
            && self.traced == other.traced
    }
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is dead.
    Lost(PathId),
    /// It leads somewhere else.
    Moved(PathId),
    /// It was dead, and is not any more.
    Returned(PathId),
}

/// A probe to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// By which next hop and from which port.
    pub path: PathId,
    /// The probe. The sender fills in the uplink.
    pub probe: Probe,
}

/// The TTL of a probe when it is sent.
pub const TTL: u8 = 64;
