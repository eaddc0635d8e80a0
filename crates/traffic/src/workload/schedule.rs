//! Schedules of collective operations: who sends which bytes to whom in which step.
//!
//! A rank starts a step when everything that it receives in the step before has arrived; the stages of
//! a pipeline start each operation when its own input has arrived. The algorithms are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective
//! Communication Operations in MPICH" (2005).

use core::ops::Range;
use core::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pipeline::{self, Pipeline};
use experiment::random::Random;

/// A collective operation.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Sum of all ranks' buffers at every rank, along a ring.
    AllReduceRing,
    /// The same by recursive halving and doubling. The number of ranks is a power of two.
    AllReduceHalvingDoubling,
    /// The same in rings within each site, and rings between the sites. All sites have the same
    /// number of ranks.
    AllReduceHierarchical,
    /// Each rank gets its part of the sum, along a ring.
    ReduceScatter,
    /// Each rank gets the parts of all others, along a ring.
    AllGather,
    /// Each rank sends a part of its buffer to each other, with skew as mixture-of-experts training
    /// has.
    AllToAll,
    /// Each worker sends its gradients to rank 0, and gets the parameters back.
    ParameterServer,
    /// Each rank sends its buffer to one other rank, and receives from one.
    Permutation,
    /// Each rank is a stage of a model, which computes micro-batches and sends activations to the
    /// next rank, and gradients back. `bytes`: those of one activation.
    Pipeline,
}

/// Bytes that a rank sends in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The sending rank.
    pub from: usize,
    /// The receiving rank.
    pub to: usize,
    /// The bytes of the sender's buffer.
    pub bytes: Range<u64>,
    /// Whether the receiver adds them to its own instead of storing them.
    pub reduce: bool,
}

/// All transfers of one iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The number of ranks.
    pub ranks: usize,
    /// The transfers of each step.
    pub steps: Vec<Vec<Transfer>>,
    /// For a pipeline, the operation before each step's transfers. Otherwise empty.
    pub operations: Vec<Computation>,
    /// Bus bandwidth divided by algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).
    pub bus_factor: f64,
}

/// What a stage of a pipeline does before it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Computation {
    /// Who does it.
    pub rank: usize,
    /// The step whose bytes must have arrived.
    pub after: Option<usize>,
    /// How long it computes.
    pub compute: Duration,
}

/// A collective cannot run on these ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// There are too few ranks.
    #[error("a workload needs at least 2 hosts, not {0}")]
    TooFew(usize),
    /// The number of ranks is not a power of two.
    #[error(
        "recursive halving and doubling needs 2, 4, 8, 16 or more hosts, a power of two, not {0}: \
         use all-reduce-ring"
    )]
    PowerOfTwo(usize),
    /// The sites are missing or have different sizes.
    #[error(
        "a hierarchical AllReduce needs the site of each of the {ranks} hosts, and as many hosts \
         in each of at least two sites: found sites {sites:?}"
    )]
    Sites {
        /// The number of ranks.
        ranks: usize,
        /// The sites that were given.
        sites: Vec<u32>,
    },
}

impl Collective {
    /// The schedule for buffers of `bytes` bytes. `sites` is the site of each rank. `skew` and
    /// `seed` choose the shares of an AllToAll (destination ranks have weights 1, 1/2^skew, 1/3^skew
    /// and so on, in an order that the seed draws) and the pairs of a permutation. `stages`: what the
    /// stages of a pipeline compute.
    ///
    /// # Errors
    /// [`ScheduleError`] if the ranks do not fit the algorithm.
    pub fn schedule(
        self,
        ranks: usize,
        bytes: u64,
        sites: &[u32],
        (skew, seed): (f64, u64),
        stages: Pipeline,
    ) -> Result<Schedule, ScheduleError> {
        if ranks < 2 {
            return Err(ScheduleError::TooFew(ranks));
        }
        let all: Vec<usize> = (0..ranks).collect();
        let n = ranks as f64;
        let whole = 0..bytes;
        let (steps, bus_factor) = match self {
            Self::AllReduceRing => {
                let mut steps = ring(std::slice::from_ref(&all), &whole, true);
                steps.extend(ring(&[all], &whole, false));
                (steps, 2.0 * (n - 1.0) / n)
            }
            Self::AllReduceHalvingDoubling => {
                if !ranks.is_power_of_two() {
                    return Err(ScheduleError::PowerOfTwo(ranks));
                }
                (halving_doubling(ranks, bytes), 2.0 * (n - 1.0) / n)
            }
            Self::AllReduceHierarchical => {
                (hierarchical(ranks, bytes, sites)?, 2.0 * (n - 1.0) / n)
            }
            Self::ReduceScatter => (ring(&[all], &whole, true), (n - 1.0) / n),
            Self::AllGather => (ring(&[all], &whole, false), (n - 1.0) / n),
            Self::AllToAll => (all_to_all(ranks, bytes, skew, seed), (n - 1.0) / n),
            Self::ParameterServer => (parameter_server(ranks, bytes), 2.0 * (n - 1.0)),
            Self::Permutation => (permutation(ranks, bytes, seed), 1.0),
            Self::Pipeline => return Ok(pipeline::schedule(ranks, bytes, stages)),
        };
        Ok(Schedule { ranks, steps, operations: Vec::new(), bus_factor })
    }
}

impl Schedule {
    /// The bytes that the busiest rank sends or receives, summed over the steps. A fabric without
    /// bottleneck needs the time of these bytes at the rate of a host's link.
    #[must_use]
    pub fn critical_bytes(&self) -> u64 {
        let busiest = |step: &Vec<Transfer>| {
            let sum = |of: fn(&Transfer) -> usize, rank| {
                step.iter().filter(|transfer| of(transfer) == rank).map(Transfer::length).sum()
            };
            let of_rank = |rank| u64::max(sum(|t| t.from, rank), sum(|t| t.to, rank));
            (0..self.ranks).map(of_rank).max().unwrap_or_default()
        };
        match self.operations.is_empty() {
            true => self.steps.iter().map(busiest).sum(),
            // Stages do not wait for each other's steps.
            false => busiest(&self.steps.concat()),
        }
    }

    /// All bytes that are sent.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.steps.iter().flatten().map(Transfer::length).sum()
    }
}

impl Transfer {
    /// The number of bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// Part `index` of `count` almost equal parts of a range. Boundaries are multiples of eight.
fn part(whole: &Range<u64>, index: usize, count: usize) -> Range<u64> {
    let length = whole.end - whole.start;
    let boundary = |index: usize| {
        let at = u128::from(length) * index as u128 / count.max(1) as u128;
        let at = u64::try_from(at).unwrap_or(length);
        whole.start + if index == count { length } else { at & !7 }
    };
    boundary(index)..boundary(index + 1)
}

/// The steps of several rings at once: each reduces and scatters a range, or gathers it. Afterwards
/// the member at place p has part p.
fn ring(rings: &[Vec<usize>], whole: &Range<u64>, reduce: bool) -> Vec<Vec<Transfer>> {
    let ranges = vec![whole.clone(); rings.len()];
    ring_ranges(rings, &ranges, reduce)
}

fn ring_ranges(rings: &[Vec<usize>], ranges: &[Range<u64>], reduce: bool) -> Vec<Vec<Transfer>> {
    let count = rings.first().map_or(0, Vec::len);
    let step = |step: usize| {
        let of_ring = |(ring, whole): (&Vec<usize>, &Range<u64>)| {
            let successors = ring.iter().cycle().skip(1);
            let send = |(place, (from, to)): (usize, (&usize, &usize))| {
                // A part travels to its owner, or away from it.
                let first = if reduce { place + count - 1 } else { place + count };
                let bytes = part(whole, (first + count - step) % count, count);
                Transfer { from: *from, to: *to, bytes, reduce }
            };
            ring.iter().zip(successors).enumerate().map(send).collect::<Vec<_>>()
        };
        let transfers = rings.iter().zip(ranges).flat_map(of_ring);
        transfers.filter(|transfer| transfer.length() > 0).collect()
    };
    (0..count.saturating_sub(1)).map(step).collect()
}

fn halving_doubling(ranks: usize, bytes: u64) -> Vec<Vec<Transfer>> {
    // The range that each rank still reduces.
    let mut ranges = vec![0..bytes; ranks];
    let mut halving = Vec::new();
    let mut distance = ranks / 2;
    while distance > 0 {
        let mut step = Vec::new();
        for (from, own) in ranges.iter_mut().enumerate() {
            let (low, high) = (part(own, 0, 2), part(own, 1, 2));
            let (keep, give) = if from & distance == 0 { (low, high) } else { (high, low) };
            step.push(Transfer { from, to: from ^ distance, bytes: give, reduce: true });
            *own = keep;
        }
        halving.push(step);
        distance /= 2;
    }
    // Doubling returns what was given, in reverse: the partner's bytes are known by then.
    let back = |step: &Vec<Transfer>| {
        let turn = |transfer: &Transfer| {
            let Transfer { from, to, bytes, .. } = transfer.clone();
            Transfer { from: to, to: from, bytes, reduce: false }
        };
        step.iter().map(turn).collect::<Vec<_>>()
    };
    let doubling: Vec<_> = halving.iter().rev().map(back).collect();
    let mut steps = halving;
    steps.extend(doubling);
    steps.iter_mut().for_each(|step| step.retain(|transfer| transfer.length() > 0));
    steps
}

fn hierarchical(
    ranks: usize,
    bytes: u64,
    sites: &[u32],
) -> Result<Vec<Vec<Transfer>>, ScheduleError> {
    let error = || ScheduleError::Sites { ranks, sites: sites.to_vec() };
    let mut names = sites.to_vec();
    names.sort_unstable();
    names.dedup();
    let members = |site: &u32| -> Vec<usize> {
        (0..ranks).zip(sites).filter(|(_, own)| *own == site).map(|(rank, _)| rank).collect()
    };
    let groups: Vec<Vec<usize>> = names.iter().map(members).collect();
    let size = groups.first().map_or(0, Vec::len);
    let even = groups.iter().all(|group| group.len() == size);
    if sites.len() != ranks || groups.len() < 2 || !even {
        return Err(error());
    }
    let whole = 0..bytes;
    let mut steps = ring(&groups, &whole, true);
    // The ranks at the same place of all sites have the same part.
    let across: Vec<Vec<usize>> = (0..size)
        .map(|place| groups.iter().filter_map(|group| group.get(place).copied()).collect())
        .collect();
    let parts: Vec<Range<u64>> = (0..size).map(|place| part(&whole, place, size)).collect();
    steps.extend(ring_ranges(&across, &parts, true));
    steps.extend(ring_ranges(&across, &parts, false));
    steps.extend(ring(&groups, &whole, false));
    Ok(steps)
}

fn all_to_all(ranks: usize, bytes: u64, skew: f64, seed: u64) -> Vec<Vec<Transfer>> {
    let popularity = shuffled(ranks, seed);
    let weight = |rank: usize| {
        let place = popularity.iter().position(|other| *other == rank).unwrap_or_default();
        ((place + 1) as f64).powf(-skew)
    };
    let total: f64 = (0..ranks).map(weight).sum();
    let mut step = Vec::new();
    for distance in 1..ranks {
        for from in 0..ranks {
            // The buffer is divided by weight; each rank keeps its own part.
            let to = (from + distance) % ranks;
            let before: f64 = (0..to).map(weight).sum();
            let boundary = |sum: f64| ((bytes as f64 * sum / total) as u64).min(bytes) & !7;
            let end = if to + 1 == ranks { bytes } else { boundary(before + weight(to)) };
            let bytes = boundary(before)..end;
            step.push(Transfer { from, to, bytes, reduce: false });
        }
    }
    step.retain(|transfer| transfer.length() > 0);
    vec![step]
}

fn parameter_server(ranks: usize, bytes: u64) -> Vec<Vec<Transfer>> {
    let up = (1..ranks).map(|from| Transfer { from, to: 0, bytes: 0..bytes, reduce: true });
    let down = (1..ranks).map(|to| Transfer { from: 0, to, bytes: 0..bytes, reduce: false });
    vec![up.collect(), down.collect()]
}

fn permutation(ranks: usize, bytes: u64, seed: u64) -> Vec<Vec<Transfer>> {
    // One cycle through all ranks in random order: nobody sends to itself.
    let order = shuffled(ranks, seed);
    let pairs = order.iter().zip(order.iter().cycle().skip(1));
    let send = |(from, to): (&usize, &usize)| Transfer {
        from: *from,
        to: *to,
        bytes: 0..bytes,
        reduce: false,
    };
    vec![pairs.map(send).collect()]
}

/// The numbers below `count` in an order that the seed draws.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    Random::new(seed).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests;
