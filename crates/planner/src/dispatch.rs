//! Orders that a simulation of the stages finds.
//!
//! The stage that can start an operation first chooses one by a rule, as long as the activations
//! that it holds allow it. Gradients of weights fill the time in which nothing else is ready. The
//! idea is that of CrossPipe's greedy algorithm (arXiv 2507.00217, section 4.2), without blocks cut
//! into smaller ones; the rules are ours.

use std::collections::VecDeque;

use crate::order::{self, Kind, Operation, Order, Shape};
use crate::plan::Schedule;

/// Delays between sites for which orders are made: the transfer time and the latency of a message,
/// each in units of a stage's forward time.
const DELAYS: [f64; 3] = [2.0, 0.5, 0.0];

/// How a stage chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Forward until as many micro-batches as possible are under way, then in turns with backward.
    Alternate,
    /// Backward as soon as possible.
    BackwardFirst,
    /// Forward and backward as they are planned.
    Fixed,
}

#[derive(Debug)]
struct Stage {
    time: f64,
    /// Activations held, in chunks.
    held: usize,
    forwards: usize,
    last_was_backward: bool,
    /// Gradients of weights that are still to be computed.
    weights: VecDeque<(usize, usize)>,
    planned: VecDeque<Operation>,
    operations: Vec<Operation>,
}

#[derive(Debug, Default)]
struct Chunk {
    /// Arrivals of the inputs that are known, of the next micro-batches.
    forward: VecDeque<f64>,
    backward: VecDeque<f64>,
    forwards: usize,
    backwards: usize,
}

/// An operation that a stage could run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    time: f64,
    kind: Kind,
    chunk: usize,
    /// The first chunk of its stage. The others are preferred: they free what is held.
    is_first: bool,
}

/// Operations that a stage could run: two for each of its chunks, which are two at most.
#[derive(Debug, Default)]
struct Candidates {
    found: [Option<Candidate>; 4],
    count: usize,
}

impl Candidates {
    fn add(&mut self, candidate: Option<Candidate>) {
        if let Some(free) = self.found.get_mut(self.count).filter(|_| candidate.is_some()) {
            *free = candidate;
            self.count += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.found.iter().flatten()
    }
}

/// Nominal times of an operation of a stage: forward, backward, gradient of weights.
pub type Nominal = [f64; 3];

struct Dispatcher<'a> {
    shape: Shape,
    nominal: Nominal,
    /// The site of each stage.
    sites: &'a [usize],
    delay: f64,
    limit: usize,
    rule: Rule,
    stages: Vec<Stage>,
    chunks: Vec<Chunk>,
    /// When each direction between two sites is free.
    links: Vec<((usize, usize), f64)>,
}

/// Times that differ by less are equal.
const EQUAL: f64 = 1e-9;

impl<'a> Dispatcher<'a> {
    fn new(
        shape: Shape,
        nominal: Nominal,
        sites: &'a [usize],
        delay: f64,
        limit: usize,
        rule: Rule,
    ) -> Self {
        let stage = |_| Stage {
            time: 0.0,
            held: 0,
            forwards: 0,
            last_was_backward: false,
            weights: VecDeque::new(),
            planned: VecDeque::new(),
            operations: Vec::new(),
        };
        let mut chunks: Vec<Chunk> = (0..shape.total()).map(|_| Chunk::default()).collect();
        if let Some(first) = chunks.first_mut() {
            first.forward = std::iter::repeat_n(0.0, shape.micro_batches).collect();
        }
        let parts = shape.chunks as f64;
        let nominal = nominal.map(|time| time / parts);
        let stages = (0..shape.stages).map(stage).collect();
        Self { shape, nominal, sites, delay, limit, rule, stages, chunks, links: Vec::new() }
    }

    fn duration(&self, kind: Kind) -> f64 {
        self.nominal.get(kind as usize).copied().unwrap_or_default()
    }

    /// The next operation of a kind in a chunk, if its input is known and its stage may hold it.
    fn candidate(&self, stage: &Stage, kind: Kind, chunk: usize) -> Option<Candidate> {
        let is_first = chunk < self.shape.stages;
        let state = self.chunks.get(chunk)?;
        let arrival = match kind {
            Kind::Forward => {
                // The first chunk leaves room for the others, without which nothing is freed.
                let room = if is_first { self.limit + 1 - self.shape.chunks } else { self.limit };
                (self.rule == Rule::Fixed || stage.held < room).then_some(())?;
                state.forward.front()?
            }
            Kind::Backward => state.backward.front()?,
            Kind::Weight => return None,
        };
        Some(Candidate { time: stage.time.max(*arrival), kind, chunk, is_first })
    }

    /// The operations that a stage could run next.
    fn candidates(&self, at: usize, stage: &Stage) -> Candidates {
        let mut found = Candidates::default();
        if self.rule == Rule::Fixed {
            let next = stage.planned.front();
            found.add(next.and_then(|next| self.candidate(stage, next.kind, next.chunk.into())));
            return found;
        }
        for row in 0..self.shape.chunks {
            let chunk = self.shape.chunk(at, row);
            for kind in [Kind::Forward, Kind::Backward] {
                found.add(self.candidate(stage, kind, chunk));
            }
        }
        found
    }

    /// How much later a candidate should run than others that are ready.
    fn rank(&self, stage: &Stage, candidate: &Candidate) -> (u8, bool) {
        let warms_up = stage.forwards < self.limit;
        let all = self.shape.micro_batches * self.shape.chunks;
        let forward_first = match self.rule {
            Rule::Fixed | Rule::BackwardFirst => false,
            Rule::Alternate => stage.forwards < all && (warms_up || stage.last_was_backward),
        };
        let first = if forward_first { Kind::Forward } else { Kind::Backward };
        (u8::from(candidate.kind != first), candidate.is_first)
    }

    /// What a stage would run next, and when.
    fn choose(&self, at: usize) -> Option<(f64, Candidate)> {
        let stage = self.stages.get(at)?;
        let candidates = self.candidates(at, stage);
        let times = candidates.iter().map(|candidate| candidate.time);
        let earliest = times.fold(f64::INFINITY, f64::min);
        // A gradient of weights runs if nothing else would be ready before it ends.
        let patience = stage.time + self.duration(Kind::Weight) - EQUAL;
        if let Some((chunk, _)) = stage.weights.front()
            && (earliest >= patience || stage.held >= self.limit && earliest > stage.time + EQUAL)
        {
            let weight = Candidate {
                time: stage.time,
                kind: Kind::Weight,
                chunk: *chunk,
                is_first: *chunk < self.shape.stages,
            };
            return Some((stage.time, weight));
        }
        let ready = candidates.iter().filter(|candidate| candidate.time <= earliest + EQUAL);
        let best = ready.min_by_key(|candidate| self.rank(stage, candidate))?;
        Some((best.time, *best))
    }

    /// When a message between two stages arrives.
    fn send(&mut self, from: usize, to: usize, now: f64) -> f64 {
        let site = |stage: usize| self.sites.get(stage).copied().unwrap_or_default();
        let link = (site(from), site(to));
        if link.0 == link.1 {
            return now;
        }
        let at = self.links.iter().position(|(known, _)| *known == link).unwrap_or_else(|| {
            self.links.push((link, 0.0));
            self.links.len() - 1
        });
        let Some((_, free)) = self.links.get_mut(at) else { return now };
        *free = free.max(now) + self.delay;
        *free + self.delay
    }

    /// Runs an operation of a stage. Returns the stage that gets its result.
    fn start(&mut self, at: usize, candidate: Candidate) -> Option<usize> {
        let Candidate { time, kind, chunk, .. } = candidate;
        let end = time + self.duration(kind);
        let state = self.chunks.get_mut(chunk)?;
        let stage = self.stages.get_mut(at)?;
        stage.time = end;
        let (micro_batch, to) = match kind {
            Kind::Forward => {
                state.forward.pop_front();
                state.forwards += 1;
                stage.held += 1;
                stage.forwards += 1;
                stage.last_was_backward = false;
                (state.forwards - 1, Some(chunk + 1))
            }
            Kind::Backward => {
                state.backward.pop_front();
                state.backwards += 1;
                stage.last_was_backward = true;
                stage.weights.push_back((chunk, state.backwards - 1));
                (state.backwards - 1, chunk.checked_sub(1))
            }
            Kind::Weight => {
                let (_, micro_batch) = stage.weights.pop_front()?;
                stage.held = stage.held.saturating_sub(1);
                (micro_batch, None)
            }
        };
        if kind != Kind::Weight {
            stage.planned.pop_front();
        }
        stage.operations.push(Operation::new(kind, chunk, micro_batch));
        let to = to?;
        if to == self.shape.total() {
            self.chunks.get_mut(chunk)?.backward.push_back(end);
            return None;
        }
        let receiver = self.shape.stage(to);
        let arrival = self.send(at, receiver, end);
        let state = self.chunks.get_mut(to)?;
        if kind == Kind::Forward { &mut state.forward } else { &mut state.backward }
            .push_back(arrival);
        Some(receiver)
    }

    fn order(mut self) -> Order {
        // What each stage runs next, and when; never, if it waits.
        let mut next = vec![None; self.shape.stages];
        let mut times = vec![f64::INFINITY; self.shape.stages];
        let mut changed = Vec::from_iter(0..self.shape.stages);
        loop {
            for at in changed.drain(..) {
                let choice = self.choose(at);
                if let (Some(next), Some(time)) = (next.get_mut(at), times.get_mut(at)) {
                    *time = choice.map_or(f64::INFINITY, |(time, _)| time);
                    *next = choice.map(|(_, candidate)| candidate);
                }
            }
            let mut first = (0, f64::INFINITY);
            for (at, time) in times.iter().enumerate() {
                if *time < first.1 {
                    first = (at, *time);
                }
            }
            let Some(candidate) = next.get(first.0).copied().flatten() else { break };
            changed.push(first.0);
            changed.extend(self.start(first.0, candidate));
        }
        let stages = self.stages.into_iter().map(|stage| stage.operations).collect();
        Order { shape: self.shape, stages }
    }
}

/// The order of one greedy rule, backward first, for one delay: the transfer time and the latency of
/// a message between sites, in units of a stage's forward time. Up-down and wave only: `None` for
/// other schedules. It may be slower on a better network, so no plan takes it.
#[must_use]
pub fn greedy(
    schedule: Schedule,
    stages: usize,
    micro_batches: usize,
    sites: &[usize],
    nominal: Nominal,
    delay: f64,
) -> Option<Order> {
    let (Schedule::UpDown(memory) | Schedule::Wave(memory)) = schedule else { return None };
    let shape = Shape::new(schedule, stages, micro_batches);
    let limit = memory as usize * stages * shape.chunks;
    Some(Dispatcher::new(shape, nominal, sites, delay, limit, Rule::BackwardFirst).order())
}

/// The orders among which a schedule takes the fastest. They do not depend on the network, so that
/// a better network never leads to a slower choice. `sites` is the site of each stage.
pub fn orders(
    schedule: Schedule,
    stages: usize,
    micro_batches: usize,
    sites: &[usize],
    nominal: Nominal,
) -> Vec<Order> {
    let fixed = order::of(schedule, stages, micro_batches);
    match schedule {
        Schedule::VHalf => {
            let mut dispatcher =
                Dispatcher::new(fixed.shape, nominal, sites, 0.0, usize::MAX / 2, Rule::Fixed);
            for (stage, planned) in dispatcher.stages.iter_mut().zip(fixed.stages) {
                stage.planned = planned.into();
            }
            vec![dispatcher.order()]
        }
        Schedule::UpDown(memory) | Schedule::Wave(memory) => {
            let limit = memory as usize * stages * fixed.shape.chunks;
            let rules = [Rule::Alternate, Rule::BackwardFirst];
            // At one site, no message is late.
            let at_one_site = sites.iter().all(|site| Some(site) == sites.first());
            let delays = if at_one_site { &[0.0][..] } else { &DELAYS };
            let made = delays.iter().flat_map(|delay| {
                rules.map(|rule| {
                    Dispatcher::new(fixed.shape, nominal, sites, *delay, limit, rule).order()
                })
            });
            let known = matches!(schedule, Schedule::Wave(_)).then_some(fixed.clone());
            // Those that are the fastest most often first: the others are given up early.
            known.into_iter().chain(made).collect()
        }
        _ => vec![fixed],
    }
}
