//! Flows, and patterns of traffic.
//!
//! The same seed gives the same flows as `matrices.py` of the reference runs.

use std::collections::BTreeSet;

use spray::Random;

use crate::time::Picos;

/// When a flow starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At a time.
    At(Picos),
    /// When a trigger fires.
    On(u32),
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Its number in the matrix.
    pub id: u32,
    /// The sending host.
    pub source: u32,
    /// The receiving host.
    pub target: u32,
    /// Bytes to send, without headers.
    pub bytes: u64,
    /// When it starts.
    pub start: Start,
    /// The trigger that fires when its last acknowledgement arrives.
    pub fires: Option<u32>,
    /// Whether all packets must stay in order, and so take one path.
    pub ordered: bool,
    /// The job to which it belongs, from 0.
    pub job: u32,
}

impl Flow {
    pub(crate) fn new(id: u32, (source, target): (u32, u32), bytes: u64) -> Self {
        let start = Start::At(0);
        Self { id, source, target, bytes, start, fires: None, ordered: false, job: 0 }
    }
}

/// A list in random order.
fn shuffled(random: &mut Random, mut list: Vec<u32>) -> Vec<u32> {
    random.shuffle(&mut list);
    list
}

/// A random permutation in which no number keeps its place.
fn derangement(random: &mut Random, number: u32) -> Vec<u32> {
    loop {
        let to = shuffled(random, (0..number).collect());
        if number < 2 || to.iter().zip(0..).all(|(&to, from)| to != from) {
            return to;
        }
    }
}

/// Each host sends to one other host and receives from one. A share `ordered` of the flows, drawn at
/// random, is ordered.
#[must_use]
pub fn permutation(hosts: u32, seed: u64, bytes: u64, ordered: f64) -> Vec<Flow> {
    let mut random = Random::new(seed);
    let to = derangement(&mut random, hosts);
    let kept = shuffled(&mut random, (0..hosts).collect());
    let number = (ordered * f64::from(hosts)).round() as usize;
    let kept: BTreeSet<u32> = kept.into_iter().take(number).collect();
    let flow = |(from, to): (u32, u32)| Flow {
        ordered: kept.contains(&from),
        ..Flow::new(from + 1, (from, to), bytes)
    };
    (0..hosts).zip(to).map(flow).collect()
}

/// So many hosts send to one. With `background`, all others have a permutation among themselves.
#[must_use]
pub fn incast(hosts: u32, seed: u64, bytes: u64, senders: u32, background: bool) -> Vec<Flow> {
    let mut random = Random::new(seed);
    let order = shuffled(&mut random, (0..hosts).collect());
    let mut order = order.into_iter();
    let Some(target) = order.next() else { return Vec::new() };
    let mut pairs: Vec<(u32, u32)> =
        order.by_ref().take(senders as usize).map(|source| (source, target)).collect();
    let rest: Vec<u32> = order.collect();
    if background {
        let to = derangement(&mut random, rest.len() as u32);
        let host = |at: u32| rest.get(at as usize).copied();
        pairs.extend(rest.iter().zip(to).filter_map(|(&from, to)| Some((from, host(to)?))));
    }
    (1..).zip(pairs).map(|(id, ends)| Flow::new(id, ends, bytes)).collect()
}

/// Groups of so many hosts, in random order.
fn groups(hosts: u32, seed: u64, group: u32) -> Vec<Vec<u32>> {
    let order = shuffled(&mut Random::new(seed), (0..hosts).collect());
    order.chunks_exact(group.max(1) as usize).map(<[u32]>::to_vec).collect()
}

/// AllReduce along rings of `group` hosts in random order: 2 (n − 1) steps, in each of which a rank
/// sends a part of `bytes` to the next one. A rank begins a step when the part that it gets in the
/// step before is acknowledged.
#[must_use]
pub fn ring(hosts: u32, seed: u64, bytes: u64, group: u32) -> Vec<Flow> {
    let part = bytes.div_ceil(group.max(1).into());
    let steps = 2 * group.saturating_sub(1);
    let mut flows = Vec::new();
    for (number, ranks) in (0..).zip(groups(hosts, seed, group)) {
        let first: u32 = number * steps * group + 1;
        let name = |step: u32, rank: u32| first + step * group + rank;
        for step in 0..steps {
            let next = ranks.iter().cycle().skip(1);
            for (rank, (&from, &to)) in (0..).zip(ranks.iter().zip(next)) {
                let start = match step.checked_sub(1) {
                    None => Start::At(0),
                    Some(before) => Start::On(name(before, (rank + group - 1) % group)),
                };
                let fires = (step + 1 < steps).then(|| name(step, rank));
                let id = flows.len() as u32 + 1;
                flows.push(Flow { start, fires, ..Flow::new(id, (from, to), part) });
            }
        }
    }
    flows
}

/// AllToAll within groups of `group` hosts in random order. Each rank sends a part of `bytes` to each
/// other rank, in the order of the ring, at most `window` at a time.
#[must_use]
pub fn all_to_all(hosts: u32, seed: u64, bytes: u64, group: u32, window: u32) -> Vec<Flow> {
    let part = bytes.div_ceil(group.max(1).into());
    // No rank sends to more than the others of its group.
    let window = window.min(group).max(1);
    let (mut flows, mut triggers) = (Vec::new(), 0);
    for ranks in groups(hosts, seed, group) {
        for (rank, &from) in ranks.iter().enumerate() {
            let mut chains = vec![None; window as usize];
            for distance in 1..group {
                let lane = (distance - 1) % window;
                let Some(chain) = chains.get_mut(lane as usize) else { continue };
                let start = chain.map_or(Start::At(0), Start::On);
                let fires = (distance + window < group).then(|| {
                    triggers += 1;
                    triggers
                });
                if fires.is_some() {
                    *chain = fires;
                }
                let Some(&to) = ranks.get((rank + distance as usize) % group as usize) else {
                    continue;
                };
                let id = flows.len() as u32 + 1;
                flows.push(Flow { start, fires, ..Flow::new(id, (from, to), part) });
            }
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_each_host_at_both_ends() {
        let flows = permutation(128, 3, 1000, 0.25);
        let targets: BTreeSet<u32> = flows.iter().map(|flow| flow.target).collect();
        assert_eq!((flows.len(), targets.len()), (128, 128));
        assert!(flows.iter().all(|flow| flow.source != flow.target && flow.id == flow.source + 1));
        assert_eq!(flows.iter().filter(|flow| flow.ordered).count(), 32);
        // A search for each host would take minutes.
        let many = permutation(400_000, 3, 1000, 0.5);
        assert_eq!(many.iter().filter(|flow| flow.ordered).count(), 200_000);
    }

    #[test]
    fn an_incast_with_background() {
        let flows = incast(64, 1, 1000, 8, true);
        let target = flows[0].target;
        assert!(flows[..8].iter().all(|flow| flow.target == target));
        let others: BTreeSet<u32> = flows[8..].iter().map(|flow| flow.target).collect();
        assert_eq!((flows.len(), others.len()), (63, 55));
        assert!(!others.contains(&target));
    }

    #[test]
    fn a_rank_of_a_ring_waits_for_the_one_before() {
        let flows = ring(8, 1, 4096, 4);
        assert_eq!(flows.len(), 2 * 6 * 4);
        let second = &flows[4];
        let Start::On(trigger) = second.start else { panic!("{second:?}") };
        let before = flows.iter().find(|flow| flow.fires == Some(trigger)).unwrap();
        assert_eq!((before.target, before.bytes), (second.source, 1024));
        assert!(flows[20..24].iter().all(|flow| flow.fires.is_none()));
    }

    #[test]
    fn all_to_all_has_each_pair_once_and_a_bound() {
        let flows = all_to_all(8, 1, 800, 8, 2);
        let pairs: BTreeSet<(u32, u32)> =
            flows.iter().map(|flow| (flow.source, flow.target)).collect();
        assert_eq!((flows.len(), pairs.len()), (56, 56));
        let at_once = flows.iter().filter(|flow| flow.start == Start::At(0));
        assert_eq!(at_once.count(), 16);
    }
}
