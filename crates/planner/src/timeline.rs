//! List scheduling: when each operation of an order starts and ends.
//!
//! An operation starts when the one before it on its stage has ended and its input has arrived. A
//! message occupies its link for the transfer time, one message after another in each direction,
//! and arrives after the latency. With a blocking exchange, the sender waits for the arrival.
//!
//! The order in which messages take a link depends on the order of operations alone. So a faster
//! operation or message never makes any other end later.

use crate::order::{Kind, Operation, Order};
use crate::plan::Exchange;

/// The way of a message to another chunk.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Hop {
    /// Seconds that the message occupies the link.
    pub transfer: f64,
    /// Seconds from then to its arrival.
    pub latency: f64,
    /// The link that it shares with other messages. `None`: a link of its own.
    pub link: Option<usize>,
}

/// What the operations of a chunk take, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ChunkTimes {
    /// Its output.
    pub forward: f64,
    /// The gradient of its input, and of its weights if the schedule does not split them.
    pub backward: f64,
    /// The gradient of its weights, if the schedule splits them.
    pub weight: f64,
    /// The output on its way to the next chunk.
    pub to_next: Hop,
    /// The gradient on its way to the chunk before.
    pub to_previous: Hop,
}

/// What all operations and messages take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Times {
    /// Of each chunk, in the order of the layers.
    pub chunks: Vec<ChunkTimes>,
    /// What a stage does while it sends.
    pub exchange: Exchange,
}

impl Times {
    /// Adds what transfers beside computation take from it, at both ends of each shared link.
    pub fn interfere(&mut self, share: f64) {
        let shared = |hop: Hop| if hop.link.is_some() { share * hop.transfer } else { 0.0 };
        let before = self.chunks.clone();
        for (at, chunk) in self.chunks.iter_mut().enumerate() {
            let previous = at.checked_sub(1).and_then(|at| before.get(at));
            let received = previous.map_or(0.0, |chunk| shared(chunk.to_next));
            let returned = before.get(at + 1).map_or(0.0, |chunk| shared(chunk.to_previous));
            chunk.forward += received + shared(chunk.to_next);
            chunk.backward += returned + shared(chunk.to_previous);
        }
    }
}

/// The inputs of the operations of one kind: when they arrive. Infinity before that is known.
struct Arrivals {
    micro_batches: usize,
    times: Vec<f64>,
}

impl Arrivals {
    fn new(chunks: usize, micro_batches: usize) -> Self {
        Self { micro_batches, times: vec![f64::INFINITY; chunks * micro_batches] }
    }

    fn get(&self, operation: Operation) -> f64 {
        let at = usize::from(operation.chunk) * self.micro_batches + operation.micro_batch as usize;
        self.times.get(at).copied().unwrap_or(f64::INFINITY)
    }

    fn set(&mut self, chunk: usize, micro_batch: usize, time: f64) {
        if let Some(arrival) = self.times.get_mut(chunk * self.micro_batches + micro_batch) {
            *arrival = time;
        }
    }
}

/// The state of a list scheduling.
struct Scheduler<'a> {
    times: &'a Times,
    forward: Arrivals,
    backward: Arrivals,
    /// When each link is free.
    links: Vec<f64>,
}

impl Scheduler<'_> {
    fn arrival(&self, operation: Operation) -> f64 {
        match operation.kind {
            Kind::Forward if operation.chunk == 0 => 0.0,
            Kind::Forward => self.forward.get(operation),
            Kind::Backward => self.backward.get(operation),
            Kind::Weight => 0.0,
        }
    }

    /// When a message that is ready now arrives.
    fn send(&mut self, hop: Hop, now: f64) -> f64 {
        let free = hop.link.and_then(|link| self.links.get_mut(link));
        let Some(free) = free else { return now + hop.transfer + hop.latency };
        *free = free.max(now) + hop.transfer;
        *free + hop.latency
    }

    /// Runs an operation. Returns when it ends, and when its stage may go on.
    fn run(&mut self, operation: Operation, start: f64) -> (f64, f64) {
        let Operation { kind, chunk, micro_batch } = operation;
        let (chunk, micro_batch) = (usize::from(chunk), micro_batch as usize);
        let costs = self.times.chunks.get(chunk).copied().unwrap_or_default();
        let (end, to, hop) = match kind {
            Kind::Forward => (start + costs.forward, chunk.checked_add(1), costs.to_next),
            Kind::Backward => (start + costs.backward, chunk.checked_sub(1), costs.to_previous),
            Kind::Weight => return (start + costs.weight, start + costs.weight),
        };
        let last = self.times.chunks.len();
        let arrival = match to {
            Some(to) if to == last => {
                self.backward.set(chunk, micro_batch, end);
                return (end, end);
            }
            Some(to) => {
                let arrival = self.send(hop, end);
                let arrivals =
                    if kind == Kind::Forward { &mut self.forward } else { &mut self.backward };
                arrivals.set(to, micro_batch, arrival);
                arrival
            }
            None => return (end, end),
        };
        (end, if self.times.exchange == Exchange::Blocking { arrival } else { end })
    }
}

/// Why an order has no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Operations wait for each other in a circle, so that the order cannot be run.
    Circle,
    /// It ends later than it may.
    Late,
}

/// A stage while its operations run.
struct Stage<'a> {
    rest: &'a [Operation],
    /// When it can go on.
    free: f64,
    /// What it has still to compute.
    left: f64,
}

/// When each stage ends. `visit` is called with each stage, operation, start and end.
///
/// # Errors
///
/// [`Unfinished`]. With a `limit`, it is given up as soon as some stage cannot end by then.
pub fn run(
    order: &Order,
    times: &Times,
    limit: f64,
    mut visit: impl FnMut(usize, Operation, f64, f64),
) -> Result<Vec<f64>, Unfinished> {
    let (chunks, micro_batches) = (order.shape.total(), order.shape.micro_batches);
    let hops = times.chunks.iter().flat_map(|chunk| [chunk.to_next, chunk.to_previous]);
    let links = hops.filter_map(|hop| hop.link).max().map_or(0, |link| link + 1);
    let mut scheduler = Scheduler {
        times,
        forward: Arrivals::new(chunks, micro_batches),
        backward: Arrivals::new(chunks, micro_batches),
        links: vec![0.0; links],
    };
    let operations = order.stages.iter();
    let mut stages: Vec<Stage<'_>> =
        operations.map(|rest| Stage { rest, free: 0.0, left: 0.0 }).collect();
    for (at, chunk) in times.chunks.iter().enumerate() {
        if let Some(stage) = stages.get_mut(order.shape.stage(at)) {
            let once = chunk.forward + chunk.backward + chunk.weight;
            stage.left += micro_batches as f64 * once;
        }
    }
    // Sums that differ by rounding are not late.
    let limit = limit * (1.0 + 1e-9);
    loop {
        let (mut waits, mut moved) = (false, false);
        for (at, stage) in stages.iter_mut().enumerate() {
            let Some((operation, tail)) = stage.rest.split_first() else { continue };
            waits = true;
            let arrival = scheduler.arrival(*operation);
            if arrival.is_finite() {
                let start = stage.free.max(arrival);
                let (end, next) = scheduler.run(*operation, start);
                visit(at, *operation, start, end);
                stage.left -= end - start;
                if next + stage.left > limit {
                    return Err(Unfinished::Late);
                }
                (stage.rest, stage.free, moved) = (tail, next, true);
            }
        }
        if !waits {
            return Ok(stages.into_iter().map(|stage| stage.free).collect());
        }
        if !moved {
            return Err(Unfinished::Circle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order;
    use crate::plan::Schedule;

    fn times(stages: usize, hop: Hop, exchange: Exchange) -> Times {
        let chunk =
            ChunkTimes { forward: 1.0, backward: 2.0, weight: 0.0, to_next: hop, to_previous: hop };
        Times { chunks: vec![chunk; stages], exchange }
    }

    fn end(schedule: Schedule, times: &Times, micro_batches: usize) -> Option<f64> {
        let order = order::of(schedule, times.chunks.len(), micro_batches);
        let ends = run(&order, times, f64::INFINITY, |_, _, _, _| ()).ok()?;
        Some(ends.into_iter().fold(0.0, f64::max))
    }

    #[test]
    fn micro_batches_follow_each_other() {
        let times = times(4, Hop::default(), Exchange::Blocking);
        assert_eq!(end(Schedule::OneForwardOneBackward, &times, 8), Some(11.0 * 3.0));
    }

    /// One micro-batch and two stages: forward, message, forward, backward, message, backward.
    #[test]
    fn messages_take_their_time_and_latency() {
        let hop = Hop { transfer: 0.5, latency: 0.25, link: Some(0) };
        for exchange in [Exchange::Blocking, Exchange::Background] {
            let times = times(2, hop, exchange);
            assert_eq!(end(Schedule::OneForwardOneBackward, &times, 1), Some(6.0 + 2.0 * 0.75));
        }
    }

    /// Two messages in one direction, ready at once.
    #[test]
    fn messages_wait_for_their_link() {
        let times =
            times(2, Hop { transfer: 5.0, latency: 0.0, link: Some(1) }, Exchange::Background);
        let mut scheduler = Scheduler {
            times: &times,
            forward: Arrivals::new(2, 2),
            backward: Arrivals::new(2, 2),
            links: vec![0.0; 2],
        };
        let hop = Hop { transfer: 5.0, latency: 1.0, link: Some(1) };
        assert_eq!(scheduler.send(hop, 2.0), 8.0);
        assert_eq!(scheduler.send(hop, 2.0), 13.0);
        assert_eq!(scheduler.send(Hop { link: Some(0), ..hop }, 2.0), 8.0);
        assert_eq!(scheduler.send(Hop { link: None, ..hop }, 2.0), 8.0);
    }

    #[test]
    fn a_circle_is_no_timeline() {
        let times = times(2, Hop::default(), Exchange::Blocking);
        let mut order = order::of(Schedule::OneForwardOneBackward, 2, 2);
        for stage in &mut order.stages {
            stage.reverse();
        }
        let ends = run(&order, &times, f64::INFINITY, |_, _, _, _| ());
        assert_eq!(ends, Err(Unfinished::Circle));
    }

    /// Every operation is there once, whatever the numbers of stages and micro-batches.
    #[test]
    fn orders_are_complete_and_can_be_run() {
        let schedules = [
            Schedule::OneForwardOneBackward,
            Schedule::ZbH1,
            Schedule::Zbv,
            Schedule::VHalf,
            Schedule::UpDown(1),
            Schedule::UpDown(2),
            Schedule::Wave(1),
            Schedule::Interleaved(3),
        ];
        for schedule in schedules {
            for (stages, micro_batches) in [(2, 1), (2, 2), (3, 7), (4, 4), (8, 3), (4, 32)] {
                let sites: Vec<usize> = (0..stages).map(|stage| stage * 2 / stages).collect();
                let orders =
                    crate::dispatch::orders(schedule, stages, micro_batches, &sites, [1.0; 3]);
                for order in &orders {
                    let name = format!("{schedule} {stages} {micro_batches}");
                    let mut all: Vec<Operation> = order.stages.concat();
                    let kinds = if schedule.splits_backward() { 3 } else { 2 };
                    let count = kinds * order.shape.total() * micro_batches;
                    all.sort_unstable();
                    all.dedup();
                    assert_eq!(all.len(), count, "{name}");
                    let times = times(order.shape.total(), Hop::default(), Exchange::Background);
                    let ends = |limit| run(order, &times, limit, |_, _, _, _| ());
                    let found =
                        ends(f64::INFINITY).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                    // It is given up if it ends later, and only then.
                    let last = found.iter().copied().fold(0.0, f64::max);
                    assert_eq!(ends(last), Ok(found), "{name}");
                    assert_eq!(ends(0.99 * last), Err(Unfinished::Late), "{name}");
                }
            }
        }
    }
}
