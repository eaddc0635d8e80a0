//! List scheduling: when each operation of an order starts and ends.
//!
//! An operation starts when the one before it on its stage has ended and its input has arrived. A
//! message occupies its link for the transfer time, one message after another in each direction,
//! and arrives after the latency. With a blocking exchange, the sender waits for the arrival.
//!
//! The order in which messages take a link depends on the order of operations alone. So a faster
//! operation or message never makes any other end later.

use crate::order::{Kind, Operation};
use crate::plan::Exchange;
use crate::sequence::{Sequence, Steady};

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

/// An order ends later than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late;

/// When an operation runs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    start: f64,
    end: f64,
    /// When its result is where it is needed. The end, if nothing is sent.
    arrival: f64,
}

/// What the operations of a kind in a chunk need, take and leave.
#[derive(Debug, Clone, Copy)]
struct Step {
    seconds: f64,
    hop: Hop,
    stage: usize,
    /// Where the arrival of the input is among those of a micro-batch, and that of the result.
    input: usize,
    output: usize,
}

/// A stage while its operations run.
#[derive(Debug, Clone, Copy, Default)]
struct Stage {
    /// When it can go on.
    free: f64,
    /// What it has still to compute.
    left: f64,
    /// What it computes for a micro-batch.
    once: f64,
}

/// The state of a list scheduling.
struct Scheduler {
    blocks: bool,
    chunks: usize,
    /// Of each kind and chunk.
    steps: Vec<Step>,
    stages: Vec<Stage>,
    /// When inputs arrive: of forward passes of each chunk, of gradients, then 0 for operations
    /// that need none, and a place for what nobody needs. So for each micro-batch of the window.
    arrivals: Vec<f64>,
    width: usize,
    window: usize,
    /// When each link is free.
    links: Vec<f64>,
    /// Micro-batches that are skipped, and how long they take.
    skipped: u32,
    delay: f64,
    limit: f64,
}

impl Scheduler {
    fn new(sequence: &Sequence, times: &Times, limit: f64) -> Self {
        let shape = sequence.shape;
        let chunks = shape.total();
        let hops = times.chunks.iter().flat_map(|chunk| [chunk.to_next, chunk.to_previous]);
        let links = hops.filter_map(|hop| hop.link).max().map_or(0, |link| link + 1);
        let mut stages = vec![Stage::default(); shape.stages];
        let mut steps = Vec::with_capacity(3 * chunks);
        let (none, nobody) = (2 * chunks, 2 * chunks + 1);
        for kind in [Kind::Forward, Kind::Backward, Kind::Weight] {
            for (chunk, times) in times.chunks.iter().enumerate() {
                let last = chunk + 1 == chunks;
                let (seconds, hop, input, output) = match kind {
                    Kind::Forward if last => (times.forward, Hop::default(), chunk, 2 * chunks - 1),
                    Kind::Forward => (times.forward, times.to_next, chunk, chunk + 1),
                    Kind::Backward if chunk == 0 => {
                        (times.backward, Hop::default(), chunks, nobody)
                    }
                    Kind::Backward => {
                        (times.backward, times.to_previous, chunks + chunk, chunks + chunk - 1)
                    }
                    Kind::Weight => (times.weight, Hop::default(), none, nobody),
                };
                let at = shape.stage(chunk);
                if let Some(stage) = stages.get_mut(at) {
                    stage.once += seconds;
                }
                steps.push(Step { seconds, hop, stage: at, input, output });
            }
        }
        for stage in &mut stages {
            stage.left = shape.micro_batches as f64 * stage.once;
        }
        let (width, window) = (2 * chunks + 2, sequence.window);
        Self {
            blocks: times.exchange == Exchange::Blocking,
            chunks,
            steps,
            stages,
            arrivals: vec![0.0; width * window],
            width,
            window,
            links: vec![0.0; links],
            skipped: 0,
            delay: 0.0,
            // Sums that differ by rounding are not late.
            limit: limit * (1.0 + 1e-9),
        }
    }

    /// When a message that is ready now arrives.
    #[inline]
    fn send(&mut self, hop: Hop, now: f64) -> f64 {
        let free = hop.link.and_then(|link| self.links.get_mut(link));
        let Some(free) = free else { return now + hop.transfer + hop.latency };
        *free = free.max(now) + hop.transfer;
        *free + hop.latency
    }

    /// Runs an operation, behind those it depends on. `None` if its stage cannot end in time.
    #[inline]
    fn run(&mut self, operation: Operation) -> Option<Run> {
        let Operation { kind, chunk, micro_batch } = operation;
        let at = kind as usize * self.chunks + usize::from(chunk);
        let Step { seconds, hop, stage, input, output } = *self.steps.get(at)?;
        let row = (micro_batch - self.skipped) as usize & (self.window - 1);
        let row = row * self.width;
        let start = self.stages.get(stage)?.free.max(*self.arrivals.get(row + input)?);
        let end = start + seconds;
        let arrival = self.send(hop, end);
        *self.arrivals.get_mut(row + output)? = arrival;
        let next = if self.blocks { arrival } else { end };
        let stage = self.stages.get_mut(stage)?;
        stage.left -= seconds;
        stage.free = next;
        (next + self.delay + stage.left <= self.limit).then_some(Run { start, end, arrival })
    }

    fn run_all(&mut self, operations: &[Operation]) -> Result<(), Late> {
        for operation in operations {
            self.run(*operation).ok_or(Late)?;
        }
        Ok(())
    }

    /// Skips as many periods, each of which takes so many seconds.
    fn skip(&mut self, periods: usize, steady: Steady, seconds: f64) {
        let micro_batches = periods * steady.micro_batches;
        self.skipped = micro_batches as u32;
        self.delay = periods as f64 * seconds;
        for stage in &mut self.stages {
            stage.left -= micro_batches as f64 * stage.once;
        }
    }

    fn ends(self) -> Vec<f64> {
        self.stages.iter().map(|stage| stage.free + self.delay).collect()
    }
}

/// Runs all operations of a sequence. `visit` is called with each stage, operation, start and end.
/// Returns when each stage ends.
///
/// # Errors
///
/// [`Late`], as soon as some stage cannot end by the limit.
pub fn run(
    sequence: &Sequence,
    times: &Times,
    limit: f64,
    mut visit: impl FnMut(usize, Operation, f64, f64),
) -> Result<Vec<f64>, Late> {
    let mut scheduler = Scheduler::new(sequence, times, limit);
    for operation in &sequence.operations {
        let Run { start, end, .. } = scheduler.run(*operation).ok_or(Late)?;
        let stage = sequence.shape.stage(usize::from(operation.chunk));
        visit(stage, *operation, start, end);
    }
    Ok(scheduler.ends())
}

/// Two differences of times are the same if they differ by less than this share of the time: what
/// rounding leaves.
const ROUNDING: f64 = 16.0 * f64::EPSILON;

/// The seconds of a period, if all times of as many operations as one can depend on are those of a
/// period before and the same constant. `runs` are those operations, behind those of a period.
fn period(runs: &[Run], steady: Steady) -> Option<f64> {
    let (before, now) = (runs, runs.get(steady.length..)?);
    let last = now.last()?;
    let seconds = last.end - before.get(now.len() - 1)?.end;
    let tolerance = ROUNDING * last.arrival.max(last.end);
    let is_same = |now: f64, before: f64| (now - before - seconds).abs() <= tolerance;
    let mut each = now.iter().zip(before);
    let all = each
        .all(|(now, before)| is_same(now.end, before.end) && is_same(now.arrival, before.arrival));
    all.then_some(seconds)
}

/// When each stage ends, as [`run`] finds it. Of periods that only repeat, one is run.
///
/// # Errors
///
/// [`Late`], as soon as some stage cannot end by the limit.
pub fn ends(sequence: &Sequence, times: &Times, limit: f64) -> Result<Vec<f64>, Late> {
    Ok(run_once(sequence, times, limit)?.ends())
}

fn run_once(sequence: &Sequence, times: &Times, limit: f64) -> Result<Scheduler, Late> {
    let mut scheduler = Scheduler::new(sequence, times, limit);
    let operations = sequence.operations.as_slice();
    let mut done = 0;
    if let Some(steady) = sequence.steady {
        // What is compared: as many operations as one can depend on, and a period before them.
        let compared = steady.length + steady.reach;
        let mut runs = Vec::with_capacity(compared);
        let mut next = steady.start;
        while next + compared + steady.length <= steady.end {
            scheduler.run_all(operations.get(done..next).unwrap_or_default())?;
            runs.clear();
            for operation in operations.get(next..next + compared).unwrap_or_default() {
                runs.push(scheduler.run(*operation).ok_or(Late)?);
            }
            done = next + compared;
            if let Some(seconds) = period(&runs, steady) {
                let periods = (steady.end - done) / steady.length;
                scheduler.skip(periods, steady, seconds);
                done += periods * steady.length;
                break;
            }
            // The next try is behind half as many again.
            next = done + (done - steady.start) / 2;
        }
    }
    scheduler.run_all(operations.get(done..).unwrap_or_default())?;
    Ok(scheduler)
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
        let ends = ends(&Sequence::new(&order)?, times, f64::INFINITY).ok()?;
        Some(ends.into_iter().fold(0.0, f64::max))
    }

    const SCHEDULES: [Schedule; 9] = [
        Schedule::OneForwardOneBackward,
        Schedule::ZbH1,
        Schedule::Zbv,
        Schedule::VHalf,
        Schedule::UpDown(1),
        Schedule::UpDown(2),
        Schedule::Wave(1),
        Schedule::Interleaved(2),
        Schedule::Interleaved(3),
    ];

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
        let hop = Hop { transfer: 5.0, latency: 0.0, link: Some(1) };
        let times = times(2, hop, Exchange::Background);
        let order = order::of(Schedule::OneForwardOneBackward, 2, 2);
        let sequence = Sequence::new(&order).unwrap();
        let mut scheduler = Scheduler::new(&sequence, &times, f64::INFINITY);
        let hop = Hop { transfer: 5.0, latency: 1.0, link: Some(1) };
        assert_eq!(scheduler.send(hop, 2.0), 8.0);
        assert_eq!(scheduler.send(hop, 2.0), 13.0);
        assert_eq!(scheduler.send(Hop { link: Some(0), ..hop }, 2.0), 8.0);
        assert_eq!(scheduler.send(Hop { link: None, ..hop }, 2.0), 8.0);
    }

    #[test]
    fn a_circle_is_no_timeline() {
        let mut order = order::of(Schedule::OneForwardOneBackward, 2, 2);
        for stage in &mut order.stages {
            stage.reverse();
        }
        assert_eq!(Sequence::new(&order), None);
    }

    /// Whatever stages compute and links carry, skipped periods take as long as if they were run.
    #[test]
    fn periods_are_skipped_and_take_as_long() {
        let stages = 4;
        for schedule in SCHEDULES {
            let (mut skipped, mut all) = (0, 0);
            let sites: Vec<usize> = (0..stages).map(|stage| stage / 2).collect();
            for order in crate::dispatch::orders(schedule, stages, 128, &sites, [1.0; 3]) {
                let sequence = Sequence::new(&order).unwrap();
                for case in 0..60 {
                    let exchange = [Exchange::Blocking, Exchange::Background][case % 2];
                    let [transfer, latency] = [case / 2 % 5, case / 10].map(|n| 0.37 * n as f64);
                    let hop = Hop { transfer, latency, link: None };
                    let mut times = times(order.shape.total(), hop, exchange);
                    let mut before = None;
                    for (at, chunk) in times.chunks.iter_mut().enumerate() {
                        let stage = order.shape.stage(at);
                        let part = 0.7 + 0.1 * ((7 * at + case) % 5) as f64;
                        (chunk.forward, chunk.backward) = (part, 1.3 * part);
                        chunk.weight = if schedule.splits_backward() { 0.8 * part } else { 0.0 };
                        chunk.to_previous.link = before.map(|before| sites[stage] * 2 + before);
                        before = Some(sites[stage]);
                        let next = order.shape.stage((at + 1) % order.shape.total());
                        chunk.to_next.link = Some(sites[stage] * 2 + sites[next]);
                    }
                    let found = run_once(&sequence, &times, f64::INFINITY).unwrap();
                    (skipped, all) = (skipped + found.skipped, all + 128);
                    let every = run(&sequence, &times, f64::INFINITY, |_, _, _, _| ()).unwrap();
                    for (one, other) in found.ends().iter().zip(&every) {
                        let difference = (one / other - 1.0).abs();
                        assert!(difference < 1e-12, "{schedule} {case}: {one} {other}");
                    }
                }
            }
            assert!(2 * skipped > all, "{schedule}: {skipped} of {all}");
        }
    }

    /// A link that is a little slower than stages compute delays messages more and more, until the
    /// activations that are there do not hide it any more.
    #[test]
    fn messages_that_are_later_and_later_are_no_period() {
        for order in crate::dispatch::orders(Schedule::UpDown(2), 2, 128, &[0, 1], [1.0; 3]) {
            let sequence = Sequence::new(&order).unwrap();
            for step in 1..40 {
                let transfer = 1.0 + 0.002 * f64::from(step);
                let hop = |link| Hop { transfer, latency: 0.0, link: Some(link) };
                let chunk = |link| ChunkTimes {
                    forward: 0.4,
                    backward: 0.35,
                    weight: 0.25,
                    to_next: hop(link),
                    to_previous: Hop { transfer: 0.01, ..hop(link) },
                };
                let chunks = vec![chunk(0), chunk(1)];
                let times = Times { chunks, exchange: Exchange::Background };
                let found = ends(&sequence, &times, f64::INFINITY).unwrap();
                let every = run(&sequence, &times, f64::INFINITY, |_, _, _, _| ()).unwrap();
                for (one, other) in found.iter().zip(&every) {
                    assert!((one / other - 1.0).abs() < 1e-12, "{transfer}: {one} {other}");
                }
            }
        }
    }

    /// Every operation is there once, whatever the numbers of stages and micro-batches.
    #[test]
    fn orders_are_complete_and_can_be_run() {
        for schedule in SCHEDULES {
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
                    let sequence = Sequence::new(order).unwrap_or_else(|| panic!("{name}"));
                    let ends = |limit| run(&sequence, &times, limit, |_, _, _, _| ());
                    let found =
                        ends(f64::INFINITY).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                    // It is given up if it ends later, and only then.
                    let last = found.iter().copied().fold(0.0, f64::max);
                    assert_eq!(ends(last), Ok(found), "{name}");
                    assert_eq!(ends(0.99 * last), Err(Late), "{name}");
                }
            }
        }
    }
}
