//! Neighbours that the kernel is asked to resolve, and how often.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::stores::neighbours::Adjacency;

/// The interval of requests for a neighbour that the kernel does not know.
pub(crate) const UNRESOLVED: Duration = Duration::from_secs(1);
/// The interval of requests to check a stale neighbour. The kernel checks it only for packets that
/// it sends itself, and vtepd's packets do not pass its neighbour code.
pub(crate) const STALE: Duration = Duration::from_secs(10);

/// Remembers when each neighbour was asked for.
#[derive(Debug, Default)]
pub(crate) struct NeighbourRequests {
    asked: HashMap<Adjacency, Instant>,
}

impl NeighbourRequests {
    /// Whether to ask now. If so, the time is recorded.
    pub(crate) fn ask(&mut self, adjacency: Adjacency, interval: Duration, now: Instant) -> bool {
        if self.due(adjacency, interval).is_some_and(|due| due > now) {
            return false;
        }
        self.asked.retain(|_, asked| now.saturating_duration_since(*asked) < STALE);
        self.asked.insert(adjacency, now);
        true
    }

    /// The neighbour has answered.
    pub(crate) fn forget(&mut self, adjacency: Adjacency) {
        self.asked.remove(&adjacency);
    }

    /// When to ask next; `None`: now.
    pub(crate) fn due(&self, adjacency: Adjacency, interval: Duration) -> Option<Instant> {
        self.asked.get(&adjacency).map(|asked| *asked + interval)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn each_neighbour_is_asked_for_once_an_interval() {
        let start = Instant::now();
        let mut requests = NeighbourRequests::default();
        let neighbour = |address: [u8; 4]| Adjacency { ifindex: 2, address: IpAddr::from(address) };
        assert!(requests.ask(neighbour([10, 0, 0, 1]), UNRESOLVED, start));
        assert!(!requests.ask(neighbour([10, 0, 0, 1]), UNRESOLVED, start + UNRESOLVED / 2));
        assert!(requests.ask(neighbour([10, 0, 0, 2]), UNRESOLVED, start + UNRESOLVED / 2));
        assert!(requests.ask(neighbour([10, 0, 0, 1]), UNRESOLVED, start + UNRESOLVED));
        requests.forget(neighbour([10, 0, 0, 1]));
        assert!(
            requests.ask(neighbour([10, 0, 0, 1]), UNRESOLVED, start + UNRESOLVED),
            "answered, and lost again"
        );
        assert!(requests.ask(neighbour([10, 0, 0, 3]), UNRESOLVED, start + 3 * STALE));
        assert_eq!(requests.asked.len(), 1, "old questions are forgotten");
    }
}
