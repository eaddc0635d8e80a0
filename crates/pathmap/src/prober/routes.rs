//! Which routes are known, and which were. A router may keep all known ports away from a link that
//! returns, as a resilient next-hop group does. Only fresh ports then show that the route is back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use path::{PathId, Version};

use super::{Known, Prober};

/// For how long fresh ports are probed because a route is gone.
const GONE: Duration = Duration::from_secs(600);
/// The most routes that are remembered: a remote VTEP could invent others all the time.
const MOST: usize = 1024;

/// Next hop, arrival uplink, number of routers and recorded addresses.
type Route = (u64, u32, u8, Option<Arc<[Ipv4Addr]>>);

/// The routes to one VTEP.
#[derive(Debug, Default)]
pub(super) struct Routes {
    known: BTreeSet<Route>,
    /// Since when each is gone.
    gone: BTreeMap<Route, Duration>,
    version: Version<Prober>,
}

impl Routes {
    /// Whether a route was known in the last ten minutes and is not now. `paths` are those that are
    /// known; they are looked at if the `version` is another one.
    pub(super) fn is_any_gone<'k>(
        &mut self,
        paths: impl Iterator<Item = (PathId, &'k Known)>,
        version: Version<Prober>,
        now: Duration,
    ) -> bool {
        if std::mem::replace(&mut self.version, version) != version {
            let route = |(path, known): (PathId, &Known)| {
                (path.hop, known.arrival, known.routers, known.recorded.clone())
            };
            let known: BTreeSet<Route> = paths.map(route).collect();
            for route in std::mem::take(&mut self.known) {
                // What was recorded since is no other route.
                let ends = (route.0, route.1, route.2);
                let is_same =
                    |of: &Route| route.3.is_none() && (of.0, of.1, of.2) == ends || *of == route;
                if !known.iter().any(is_same) && self.gone.len() < MOST {
                    self.gone.insert(route, now);
                }
            }
            self.gone.retain(|route, _| !known.contains(route));
            self.known = known;
        }
        self.gone.retain(|_, since| now.saturating_sub(*since) < GONE);
        !self.gone.is_empty()
    }

    /// Forgets the routes of other next hops than these.
    pub(super) fn retain(&mut self, hops: &[u64]) {
        self.known.retain(|(hop, ..)| hops.contains(hop));
        self.gone.retain(|(hop, ..), _| hops.contains(hop));
    }
}
