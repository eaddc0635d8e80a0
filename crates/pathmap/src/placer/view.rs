//! What others see of the placement: paths with their loads, and the balance of tiers.

use std::time::Duration;

use path::{CounterId, PathId};

use super::sums::links_of;
use super::{Beyond, Flow, FlowId, Placer, Target};
use crate::balance;
use crate::load::Link;

/// A path to a remote VTEP.
#[derive(Debug, Clone, PartialEq)]
pub struct PathView {
    /// Its links, in order.
    pub links: Vec<Link>,
    /// The paths that take it.
    pub paths: Vec<PathId>,
    /// The shortest time from probe to answer among them.
    pub delay: Duration,
    /// Number of queue pairs on it.
    pub flows: usize,
    /// Their rate in 1000 bytes a second.
    pub kilobytes: u64,
}

/// The balance of the links of one tier on the way to a remote VTEP.
#[derive(Debug, Clone, PartialEq)]
pub struct TierView {
    /// Number of links.
    pub links: usize,
    /// Maximum over mean of the queue pairs on each link. The share of a next hop is its weight
    /// ([`balance::weighted_mmr`]).
    pub mmr: f64,
    /// Jain's index of the queue pairs on each link, each divided by the weight of its next hop.
    pub jain: f64,
    /// The lowest maximum over mean that whole queue pairs allow with these weights.
    pub floor: f64,
}

impl Placer {
    /// All targets with known paths.
    pub fn targets(&self) -> impl Iterator<Item = Target> {
        self.targets.keys().copied()
    }

    /// All queue pairs.
    pub fn flows(&self) -> impl Iterator<Item = (&FlowId, &Flow)> {
        self.flows.iter()
    }

    /// The number of queue pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is no queue pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters that were used so far.
    pub fn counters(&self) -> impl Iterator<Item = CounterId> + use<> {
        self.flows.numbers().filter_map(CounterId::new)
    }

    /// The queue pair with these counters.
    #[must_use]
    pub fn at(&self, counter: CounterId) -> Option<(&FlowId, &Flow)> {
        self.flows.at(counter)
    }

    /// Why a new queue pair would not be placed, apart from rates. `None` if it would.
    #[must_use]
    pub fn beyond(&self, id: &FlowId) -> Option<Beyond> {
        if self.flows.is_full() { Some(Beyond::Table) } else { self.shares.beyond(id) }
    }

    /// A known queue pair.
    #[must_use]
    pub fn flow(&self, id: &FlowId) -> Option<&Flow> {
        self.flows.get(id)
    }

    /// The links of a path, as far as they are known.
    #[must_use]
    pub fn links(&self, target: Target, path: PathId) -> Vec<Link> {
        links_of(self.targets.get(&target), path)
    }

    /// The paths to a target. Queue pairs count on them whoever encapsulates.
    #[must_use]
    pub fn paths(&self, target: Target) -> Vec<PathView> {
        let Some(paths) = self.targets.get(&target) else { return Vec::new() };
        let mut views: Vec<PathView> = (0..paths.routes.len())
            .map(|route| {
                let alike = paths.of_route.get(route).map_or(&[][..], Vec::as_slice);
                PathView {
                    links: paths.routes.route(route).collect(),
                    paths: alike.iter().map(|(path, _)| *path).collect(),
                    delay: alike.iter().map(|(_, delay)| *delay).min().unwrap_or_default(),
                    flows: 0,
                    kilobytes: 0,
                }
            })
            .collect();
        for by_kernel in [false, true] {
            for (path, flows, kilobytes) in self.sums.traffic(Target { by_kernel, ..target }) {
                if let Some(view) = paths.route_of(path).and_then(|route| views.get_mut(route)) {
                    view.flows += flows;
                    view.kilobytes += kilobytes;
                }
            }
        }
        views
    }

    /// The balance of each tier on the way to a target, by the number of its queue pairs.
    #[must_use]
    pub fn balance(&self, target: Target) -> Vec<TierView> {
        let Some(paths) = self.targets.get(&target) else { return Vec::new() };
        let views = self.paths(target);
        let flows: usize = views.iter().map(|view| view.flows).sum();
        let tier = |links: Vec<Link>| {
            let count = |link: &Link| {
                let on = views.iter().filter(|view| view.links.contains(link));
                on.map(|view| view.flows as f64).sum::<f64>()
            };
            let weight = |link: &Link| match link {
                Link::Uplink(hop) => paths.weights.get(hop).map_or(1, |weight| (*weight).max(1)),
                Link::Router(_) | Link::Between(..) | Link::Arrival(..) => 1,
            };
            let loads: Vec<f64> = links.iter().map(count).collect();
            let weights: Vec<u16> = links.iter().map(weight).collect();
            let each = loads.iter().zip(&weights);
            let shares: Vec<f64> = each.map(|(load, weight)| load / f64::from(*weight)).collect();
            TierView {
                links: links.len(),
                mmr: balance::weighted_mmr(&loads, &weights),
                jain: balance::jain(&shares),
                floor: balance::weighted_floor(flows, &weights),
            }
        };
        paths.routes.tiers().map(|links| tier(links.collect())).collect()
    }

    /// The load of a link by this leaf and by others, in 1000 bytes a second.
    #[must_use]
    pub fn load(&self, link: Link) -> (u64, u64) {
        (self.sums.own.get(&link).copied().unwrap_or(0), self.peers.of(link))
    }

    /// The number of queue pairs whose connection uses the same links in both directions, of those
    /// whose connection does not, and of those for which this is not known.
    #[must_use]
    pub const fn same_links(&self) -> [u64; 3] {
        self.sums.same_links
    }

    /// The number of links on which other VTEPs report load.
    #[must_use]
    pub fn reported(&self) -> usize {
        self.peers.len()
    }
}
