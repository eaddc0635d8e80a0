//! What a prober is told, and what it finds.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
///
/// After the last id of an epoch comes the first one of the next epoch. At the highest rate of
/// probes that takes 12 days, so a process that starts later has a higher epoch nevertheless.
#[derive(Debug, Clone)]
pub struct Ids(
    /// The number that was used last: the epoch in the upper half, the id in the lower one.
    Arc<AtomicU64>,
);

impl Ids {
    /// Counts from the number after this epoch and id. The epoch is the time of the start in seconds
    /// since 1970, so that it is higher than that of earlier processes.
    #[must_use]
    pub fn new((epoch, last): (u32, u32)) -> Self {
        Self(Arc::new(AtomicU64::new(u64::from(epoch) << 32 | u64::from(last))))
    }

    /// The epoch and the id that were used last.
    #[must_use]
    pub fn last(&self) -> (u32, u32) {
        halves(self.0.load(Ordering::Relaxed))
    }

    /// The epoch and the id of the next probe.
    pub(super) fn next(&self) -> (u32, u32) {
        halves(self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

const fn halves(number: u64) -> (u32, u32) {
    ((number >> 32) as u32, number as u32)
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
    /// The least time from a probe to its answer lately: a longer one raises it by 1/16 of the
    /// difference.
    pub delay: Duration,
    /// When the last answer arrived, by the clock of the prober.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Window;

    /// The other end answers the probes after the last id of an epoch, too.
    #[test]
    fn after_the_last_id_comes_the_next_epoch() {
        let ids = Ids::new((7, u32::MAX - 1));
        let (mut window, now) = (Window::new(7, 5, Duration::ZERO), Duration::ZERO);
        for expected in [(7, u32::MAX), (8, 0), (8, 1)] {
            let (epoch, id) = ids.next();
            assert_eq!((epoch, id), expected);
            assert!(window.accept(epoch, id, now), "{expected:?}");
        }
        assert_eq!(ids.last(), (8, 1));
    }
}
