//! Which path is next, and which moves make the load more even.
//!
//! The measure is the potential: the sum of the eighth powers of the loads of all links. Each load is
//! relative to the mean of its tier and to the capacity of its link. A tier is a position in the
//! routes to a VTEP. With equal flows the potential is lowest where every tier is at the integer
//! floor. With unequal ones, a high power makes the most loaded links count, and not how even the
//! others are. Every move that lowers the potential lowers it for all leaves together, so leaves
//! that move in turns come to an end.

use std::collections::BTreeMap;

use spray::Random;

use crate::load::Link;

/// The power of the loads in the potential. With squares, few unequal flows on 4×4 paths gave a tier
/// 1.4 times its optimum.
const POWER: i32 = 8;
/// How many sequences are tried for a plan.
const RESTARTS: usize = 48;

/// The routes to one VTEP.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// For each route, its links as indices.
    routes: Vec<Vec<usize>>,
    links: Vec<Link>,
    /// For each link, the capacity of its tier over its own, to the power of [`POWER`] - 1.
    weights: Vec<f64>,
    tiers: Vec<Vec<usize>>,
}

/// The moves that gain most so far.
struct Best(Option<Moves>);

/// Moves that lower the potential: by how much, and for each flow (by index) its new route.
pub type Moves = (f64, Vec<(usize, usize)>);

impl Best {
    fn offer(&mut self, gain: f64, moves: impl FnOnce() -> Vec<(usize, usize)>) {
        if self.0.as_ref().is_none_or(|(most, _)| gain > *most) {
            self.0 = Some((gain, moves()));
        }
    }
}

impl Routes {
    /// Routes as lists of links. `capacity` is a link's share of its tier: 1 to 256, 1 if all are
    /// alike.
    #[must_use]
    pub fn new(routes: &[Vec<Link>], capacity: impl Fn(Link) -> u16) -> Self {
        let mut index = BTreeMap::<Link, usize>::new();
        let mut links = Vec::new();
        let mut tiers: Vec<Vec<usize>> = Vec::new();
        let mut numbered = Vec::new();
        for route in routes {
            let mut numbers = Vec::new();
            for (tier, link) in route.iter().enumerate() {
                let number = *index.entry(*link).or_insert_with(|| {
                    links.push(*link);
                    links.len() - 1
                });
                numbers.push(number);
                if tiers.len() <= tier {
                    tiers.push(Vec::new());
                }
                if let Some(of) = tiers.get_mut(tier).filter(|of| !of.contains(&number)) {
                    of.push(number);
                }
            }
            numbered.push(numbers);
        }
        let mut weights = vec![0.0; links.len()];
        for tier in &tiers {
            let capacities = tier.iter().filter_map(|number| {
                Some((*number, f64::from(capacity(*links.get(*number)?).max(1))))
            });
            let sum: f64 = capacities.clone().map(|(_, own)| own).sum();
            for (number, own) in capacities {
                if let Some(weight) = weights.get_mut(number) {
                    *weight = (sum / own).powi(POWER - 1);
                }
            }
        }
        Self { routes: numbered, links, weights, tiers }
    }

    /// The number of routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// All links.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The links of each tier.
    pub fn tiers(&self) -> impl Iterator<Item = impl Iterator<Item = Link>> {
        self.tiers.iter().map(|tier| tier.iter().filter_map(|link| self.links.get(*link).copied()))
    }

    /// The links of a route.
    pub fn route(&self, route: usize) -> impl Iterator<Item = Link> {
        self.numbers(route).iter().filter_map(|link| self.links.get(*link).copied())
    }

    fn numbers(&self, route: usize) -> &[usize] {
        self.routes.get(route).map_or(&[], Vec::as_slice)
    }

    /// What a flow of this load adds to the potential on a route.
    fn cost(&self, loads: &[u64], route: usize, load: u64) -> f64 {
        let of = |link: &usize| {
            let (now, weight) = (loads.get(*link)?, self.weights.get(*link)?);
            Some(weight * added(*now as f64, load as f64))
        };
        self.numbers(route).iter().filter_map(of).sum()
    }

    /// Changes the loads of the links of a route.
    pub(crate) fn change(&self, loads: &mut [u64], route: usize, change: impl Fn(u64) -> u64) {
        for link in self.numbers(route) {
            if let Some(load) = loads.get_mut(*link) {
                *load = change(*load);
            }
        }
    }

    /// The cheapest route for one more flow of this load; among equal ones a random one.
    pub fn cheapest(&self, loads: &[u64], load: u64, random: &mut Random) -> Option<usize> {
        let mut best: Option<(f64, usize)> = None;
        let mut equal = 0;
        for route in 0..self.routes.len() {
            let cost = self.cost(loads, route, load);
            match best {
                Some((least, _)) if cost > least => {}
                Some((least, _)) if cost == least => {
                    equal += 1;
                    if random.index(equal) == 0 {
                        best = Some((cost, route));
                    }
                }
                _ => (best, equal) = (Some((cost, route)), 1),
            }
        }
        best.map(|(_, route)| route)
    }

    /// The routes of the next `length` flows of this load, so that the load is as even as possible
    /// after each of them.
    #[must_use]
    pub fn sequence(
        &self,
        loads: &[u64],
        load: u64,
        length: usize,
        random: &mut Random,
    ) -> Vec<usize> {
        let mut best: Option<(f64, Vec<usize>)> = None;
        for _ in 0..RESTARTS {
            let (mut loads, mut cost) = (loads.to_vec(), 0.0);
            let mut sequence = Vec::with_capacity(length);
            for position in 0..length {
                let Some(route) = self.cheapest(&loads, load, random) else { return sequence };
                // A flow counts as often as there are positions from its own on.
                cost += self.cost(&loads, route, load) * (length - position) as f64;
                self.change(&mut loads, route, |now| now + load);
                sequence.push(route);
            }
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, sequence));
            }
        }
        best.map(|(_, sequence)| sequence).unwrap_or_default()
    }

    /// The move or exchange of two flows that lowers the potential most, or else moves of several.
    /// `flows` are the route and the load of each movable flow; `loads` contain them. `None` if nothing
    /// gains more than a part of the moved load.
    #[must_use]
    pub fn improve(&self, loads: &[u64], flows: &[(usize, u64)]) -> Option<Moves> {
        // One flow of each route and load stands for all of them.
        let mut kinds = BTreeMap::<(usize, u64), usize>::new();
        for (index, flow) in flows.iter().enumerate() {
            kinds.entry(*flow).or_insert(index);
        }
        let mut best = Best(None);
        for ((route, load), index) in &kinds {
            let mut without = loads.to_vec();
            self.change(&mut without, *route, |now| now.saturating_sub(*load));
            let before = self.cost(&without, *route, *load);
            for to in 0..self.routes.len() {
                let gain = before - self.cost(&without, to, *load);
                if gain > self.threshold(&without, to, *load) {
                    best.offer(gain, || vec![(*index, to)]);
                }
            }
        }
        if best.0.is_none() {
            self.exchange(loads, &kinds, &mut best);
        }
        best.0.or_else(|| self.repack(loads, flows))
    }

    /// The moves that lead to where the flows are if the largest is placed first, then the next one, and
    /// so on. A large flow can change places with several small ones in this way.
    fn repack(&self, loads: &[u64], flows: &[(usize, u64)]) -> Option<Moves> {
        let (mut with, mut gain) = (loads.to_vec(), 0.0);
        // The flows of each load that have no new route yet, by the route that they have now.
        let mut waiting = BTreeMap::<(u64, usize), Vec<usize>>::new();
        for (index, (route, load)) in flows.iter().enumerate() {
            self.change(&mut with, *route, |now| now.saturating_sub(*load));
            gain += self.cost(&with, *route, *load);
            waiting.entry((*load, *route)).or_default().push(index);
        }
        let mut sorted: Vec<u64> = flows.iter().map(|(_, load)| *load).collect();
        sorted.sort_unstable();
        let (mut least, mut free) = (0.0, Vec::new());
        for load in sorted.into_iter().rev() {
            let is_empty = |to| waiting.get(&(load, to)).is_none_or(Vec::is_empty);
            // Among equal ones, a route on which such a flow is now.
            let (cost, _, to) = (0..self.routes.len())
                .map(|to| (self.cost(&with, to, load), is_empty(to), to))
                .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))?;
            gain -= cost;
            if waiting.get_mut(&(load, to)).and_then(Vec::pop).is_none() {
                least += self.threshold(&with, to, load);
                free.push((load, to));
            }
            self.change(&mut with, to, |now| now + load);
        }
        // Both are sorted by load, and there are as many of each load.
        free.sort_unstable();
        let left = waiting.into_values().flatten();
        let moves: Vec<_> = left.zip(free).map(|(index, (_, to))| (index, to)).collect();
        (gain > least && !moves.is_empty()).then_some((gain, moves))
    }

    /// Offers two flows that are better off on each other's route or on a third one.
    fn exchange(&self, loads: &[u64], kinds: &BTreeMap<(usize, u64), usize>, best: &mut Best) {
        if kinds.len() * kinds.len() * self.routes.len() > 1 << 18 {
            return;
        }
        for ((from, load), index) in kinds {
            for ((other, second), partner) in kinds {
                if index >= partner {
                    continue;
                }
                let mut without = loads.to_vec();
                self.change(&mut without, *from, |now| now.saturating_sub(*load));
                let before = self.cost(&without, *from, *load);
                self.change(&mut without, *other, |now| now.saturating_sub(*second));
                let before = before + self.cost(&without, *other, *second);
                for to in 0..self.routes.len() {
                    let mut with = without.clone();
                    let one = self.cost(&with, to, *load);
                    self.change(&mut with, to, |now| now + load);
                    for then in [*from, *other] {
                        let gain = before - one - self.cost(&with, then, *second);
                        let least = self.threshold(&without, to, *load)
                            + self.threshold(&with, then, *second);
                        if gain > least {
                            best.offer(gain, || vec![(*index, to), (*partner, then)]);
                        }
                    }
                }
            }
        }
    }

    /// What a move must gain: as much as if the link that it leaves had, without the flow, a quarter
    /// of the flow more than the link where it goes, in one tier.
    fn threshold(&self, loads: &[u64], route: usize, load: u64) -> f64 {
        let of = |link: &usize| {
            let (now, load) = (*loads.get(*link)? as f64, load as f64);
            let gain = added(now + load / 4.0, load) - added(now, load);
            Some(self.weights.get(*link)? * gain)
        };
        self.numbers(route).iter().filter_map(of).fold(f64::INFINITY, f64::min)
    }
}

/// What the power of a link's load grows by with a flow of this load.
fn added(now: f64, load: f64) -> f64 {
    (now + load).powi(POWER) - now.powi(POWER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance;

    /// Every uplink leads to every arrival uplink by a link of its own.
    fn mesh(uplinks: u32, arrivals: u32) -> Vec<Vec<Link>> {
        let route = |up: u32, down: u32| {
            let middle = Link::Router((0x0a00_0000 + up * 256 + down).into());
            vec![Link::Uplink(up.into()), middle, Link::Router((0x0b00_0000 + down).into())]
        };
        (0..uplinks).flat_map(|up| (0..arrivals).map(move |down| route(up, down))).collect()
    }

    fn tier_loads(routes: &Routes, placed: &[usize]) -> Vec<Vec<f64>> {
        let count = |link: Link| {
            placed.iter().filter(|route| routes.route(**route).any(|on| on == link)).count() as f64
        };
        routes.tiers().map(|tier| tier.map(count).collect()).collect()
    }

    #[test]
    fn every_prefix_of_a_plan_is_at_the_integer_floor() {
        for (uplinks, arrivals) in [(2, 2), (4, 2), (4, 4)] {
            let routes = Routes::new(&mesh(uplinks, arrivals), |_| 1);
            for seed in 0..10 {
                let none = vec![0; routes.links().len()];
                let plan = routes.sequence(&none, 8, 64, &mut Random::new(seed));
                for flows in [8, 16, 32, 64] {
                    for loads in tier_loads(&routes, &plan[..flows]) {
                        let floor = balance::floor(flows, loads.len());
                        assert_eq!(
                            balance::mmr(&loads),
                            floor,
                            "{uplinks}×{arrivals}, seed {seed}, {flows} flows: {loads:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn weights_of_next_hops_are_respected() {
        let capacity = |link| if link == Link::Uplink(1) { 3 } else { 1 };
        let routes = Routes::new(&[vec![Link::Uplink(0)], vec![Link::Uplink(1)]], capacity);
        let plan = routes.sequence(&[0, 0], 8, 40, &mut Random::new(1));
        assert_eq!(plan.iter().filter(|route| **route == 1).count(), 30);
    }

    #[test]
    fn moves_end_at_the_floor_and_then_nothing_moves() {
        let routes = Routes::new(&mesh(4, 4), |_| 1);
        for seed in 0..10 {
            let mut random = Random::new(seed);
            let mut flows: Vec<(usize, u64)> = (0..32).map(|_| (random.index(16), 8)).collect();
            let mut moves = 0;
            loop {
                let mut loads = vec![0; routes.links().len()];
                flows
                    .iter()
                    .for_each(|(route, load)| routes.change(&mut loads, *route, |now| now + load));
                let Some((_, next)) = routes.improve(&loads, &flows) else { break };
                moves += next.len();
                assert!(moves < 100, "it does not end");
                next.into_iter().for_each(|(flow, to)| flows[flow].0 = to);
            }
            let placed: Vec<usize> = flows.iter().map(|(route, _)| *route).collect();
            for loads in tier_loads(&routes, &placed) {
                assert_eq!(
                    balance::mmr(&loads),
                    balance::floor(32, loads.len()),
                    "seed {seed}: {loads:?}"
                );
            }
        }
    }
}
