//! A run during which something fails: numbered frames, and a workload beside them if the experiment
//! has one.

mod action;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use experiment::Run;
use experiment::failure::{Failure, FailureKind};
use experiment::plan::Key;
use experiment::record::{Discarded, Hit};
use experiment::statistics::Statistics;

use super::{Attempt, Bench, RunError, drops, pairs, run_before_others, workload};
use crate::leaves;
use action::{Action, Effect};
use fabric::progress::{Interrupted, OnProgress};
use fabric::topology::Endpoint;
use traffic::roce::{Limit, Report, Sent};
use traffic::stream::Streamed;
use traffic::workload::{Iteration, Job, WorkloadError, run};

/// How often the progress of the traffic is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Traffic flows again if it flowed for the second of these times, and so long after the last
/// failure.
const QUIET: Duration = Duration::from_secs(2);
const FLOWS: Duration = Duration::from_secs(1);
/// The interval of the samples, and the share of the frames that arrive if traffic flows.
const SAMPLE: Duration = Duration::from_millis(100);
const ARRIVES: f64 = 0.98;
/// The maximum duration of a run.
const RUN_LIMIT: Duration = Duration::from_secs(3600);
/// How long the first iteration of a workload may take.
const FIRST_LIMIT: Duration = Duration::from_secs(60);
/// Queue pairs with at least this share of the longest outage count as hit.
const HIT: f64 = 0.2;

/// Measures a run during which something fails.
pub(super) fn attempt(
    bench: &mut Bench<'_>,
    key: &Key,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<Attempt, RunError> {
    let failures = bench.experiment.failures(key.point.index());
    recover(bench, key, report)?;
    let mut run = bench.send(key, interrupted)?;
    let fullest = fullest(bench, &run)?;
    let mut actions = Vec::new();
    for failure in &failures {
        actions.push(Action::new(bench, failure, &fullest)?);
    }
    let traffic = Traffic { bench, key, job: job(bench, key)?, interrupted };
    let drops = drops::read(&bench.deployed)?;
    let trace = bench.trace(key)?;
    let result = pairs::traced(trace, || traffic.run(&failures, &mut actions));
    // Before circuits are started again.
    run.dropped = drops::read(&bench.deployed)?.since(&drops);
    for action in &mut actions {
        action.end(bench)?;
        match action.effect() {
            Effect::None => {}
            Effect::Variant => bench.variant = None,
            Effect::Dataplane => bench.current = None,
        }
        if let Some(subjects) = &mut bench.subjects {
            subjects.forget(|node, program| action.restarts(node, program));
        }
    }
    let (Outcome { streamed, first, hit }, traced) = result?;
    let outage =
        Outage::of(&streamed.sent, &streamed.arrived, share(bench, &run, &failures, &fullest));
    // BFD may have taken the link down before, on a busy machine.
    let is_silent = |failure: &&Failure| failure.kind == FailureKind::Silent;
    if outage.longest == 0.0 && failures.iter().any(is_silent) {
        let reason = "the failure hit no traffic, because routes had changed".to_owned();
        return Ok(Err(Discarded { reason, failed: false }));
    }
    pairs::fill(&mut run, &streamed, traced.as_ref(), first);
    (run.outage, run.outage_longest) = (Some(outage.mean), Some(outage.longest));
    (run.outage_resolution, run.hit) = (Some(outage.resolution), hit);
    Ok(Ok(run))
}

/// The workload of a run, without end. `None` if the experiment has none.
fn job(bench: &Bench<'_>, key: &Key) -> Result<Option<Job>, RunError> {
    if bench.experiment.workload.is_none() {
        return Ok(None);
    }
    let mut job = workload::job(bench, key)?;
    (job.workload.iterations, job.workload.warm_up) = (workload::ENDLESS, 0);
    Ok(Some(job))
}

/// Waits until nothing of the run before is left.
fn recover(bench: &Bench<'_>, key: &Key, report: OnProgress) -> Result<(), RunError> {
    run_before_others(&bench.fabric)?;
    bench.fabric.converge(super::CONVERGENCE_LIMIT, report)?;
    if let Some(policy) = bench.probes(key) {
        leaves::await_paths(&bench.fabric, policy, report)?;
    }
    Ok(())
}

/// The sending end of the link with the highest load, of the tier with the most links.
fn fullest(bench: &Bench<'_>, run: &Run) -> Result<Endpoint, RunError> {
    let tier = bench.paths.widest();
    let links = run.tiers.iter().flat_map(|tier| &tier.links);
    let loads = links.filter(|(name, _)| tier.contains(name));
    let fullest = loads.max_by_key(|(_, load)| **load);
    let near = fullest.and_then(|(name, _)| bench.paths.near(name));
    near.cloned().ok_or(RunError::NoCircuit)
}

/// Times without traffic in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Outage {
    /// The mean of all queue pairs of the failed link.
    mean: f64,
    /// That of the queue pair that waited longest.
    longest: f64,
    /// The interval of the frames of a queue pair: its time without traffic is a multiple of it.
    resolution: f64,
}

impl Outage {
    /// Of a run of which this share of the queue pairs used the failed link.
    fn of(sent: &Sent, arrived: &Report, share: f64) -> Self {
        let queue_pairs = sent.queue_pairs.max(1) as f64;
        let resolution = pairs::interval(sent);
        let rows: Vec<f64> =
            arrived.queue_pairs.iter().map(|of| of.lost_in_a_row as f64 * resolution).collect();
        let longest = rows.iter().copied().fold(0.0, f64::max);
        // The frames of others were lost by chance.
        let hit: Vec<f64> =
            rows.into_iter().filter(|row| *row > 0.0 && *row >= HIT * longest).collect();
        let all = (share * queue_pairs).max(hit.len() as f64).max(1.0);
        // The sum of equal times is rounded: their mean is not to be longer than each of them.
        let mean = (hit.iter().sum::<f64>() / all).min(longest);
        Self { mean, longest, resolution }
    }
}

/// The share of the queue pairs whose path leads over what fails, from the load that the links have
/// before.
fn share(bench: &Bench<'_>, run: &Run, failures: &[&Failure], fullest: &Endpoint) -> f64 {
    let loads = run.tiers.iter().flat_map(|tier| tier.links.clone()).collect();
    let topology = bench.deployed.topology();
    let of = |failure: &&Failure| {
        let named = failure.link.as_ref().map(ToString::to_string);
        let node = failure.node.as_ref().map_or(fullest.node.as_str(), |name| name.as_str());
        match failure.kind {
            FailureKind::Vtepd => 1.0,
            FailureKind::Circuits if named.is_none() => 1.0,
            FailureKind::Router | FailureKind::Frr => {
                bench.paths.share(&loads, |near| near.node == node)
            }
            FailureKind::Silent | FailureKind::Carrier | FailureKind::Circuits => {
                let name = named.unwrap_or_else(|| fullest.to_string());
                let wire = topology.wire_named(&name);
                let is_on = |near: &Endpoint| {
                    wire.as_ref().is_some_and(|wire| wire.interfaces().any(|end| end == near))
                };
                bench.paths.share(&loads, is_on)
            }
        }
    };
    failures.iter().map(of).fold(0.0, f64::max)
}

/// What the traffic of a run gives.
struct Outcome {
    streamed: Streamed,
    /// When the first failure began.
    first: Option<Instant>,
    hit: Option<Hit>,
}

/// The traffic of a run.
struct Traffic<'a, 'b> {
    bench: &'a Bench<'b>,
    key: &'a Key,
    job: Option<Job>,
    interrupted: &'a AtomicBool,
}

/// What the threads of a run tell each other.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    /// The iterations of the workload, each with its end.
    iterations: Mutex<Vec<(Instant, Iteration)>>,
}

impl Shared {
    fn iterations(&self) -> Vec<(Instant, Iteration)> {
        self.iterations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether an iteration is complete that began after this time. Then the one that a failure at
    /// this time hit is complete, too.
    fn is_complete(&self, at: Instant) -> bool {
        let began = |(end, iteration): &(Instant, Iteration)| {
            end.checked_sub(Duration::from_nanos(iteration.nanoseconds))
        };
        self.iterations().iter().filter_map(began).any(|began| began >= at)
    }

    /// The longest iteration that ended after this time, and those before.
    fn hit(&self, at: Instant) -> Option<Hit> {
        let iterations = self.iterations();
        let milliseconds = |iteration: &Iteration| iteration.communication as f64 / 1e6;
        let (before, after): (Vec<_>, Vec<_>) = iterations.iter().partition(|(end, _)| *end < at);
        let (_, hit) = after.iter().max_by_key(|(_, iteration)| iteration.communication)?;
        let before: Vec<f64> =
            before.iter().map(|(_, iteration)| milliseconds(iteration)).collect();
        Some(Hit {
            milliseconds: milliseconds(hit),
            usual: Statistics::of(&before, 0.95)?.median,
            retransmitted: hit.counters.retransmitted_packets,
        })
    }
}

impl Traffic<'_, '_> {
    fn run(&self, failures: &[&Failure], actions: &mut [Action]) -> Result<Outcome, RunError> {
        let limit = failures.iter().map(|failure| failure.limit).max().unwrap_or_default();
        let limit = Duration::from_secs(limit.into());
        let shared = Shared::default();
        let load_stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = self.job.as_ref().map(|job| {
                let keep = |iteration: &Iteration| {
                    self.bench.told(self.key, iteration);
                    let all = shared.iterations.lock();
                    let mut all = all.unwrap_or_else(PoisonError::into_inner);
                    all.push((Instant::now(), iteration.clone()));
                };
                let load_stop = &load_stop;
                scope.spawn(move || run(std::slice::from_ref(job), load_stop, &keep))
            });
            let loading = || load.as_ref().is_some_and(|load| !load.is_finished());
            let measured = self.send(failures, actions, limit, (&shared, &loading));
            load_stop.store(true, Ordering::Relaxed);
            let load = load
                .map(|load| load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            if let Some(Err(error)) = load
                && !matches!(error, WorkloadError::Interrupted)
            {
                return Err(error.into());
            }
            let (streamed, first) = measured?;
            Ok(Outcome { streamed, first, hit: first.and_then(|at| shared.hit(at)) })
        })
    }

    /// Sends the frames and lets the failures happen. Returns also when the first one began.
    fn send(
        &self,
        failures: &[&Failure],
        actions: &mut [Action],
        limit: Duration,
        (shared, loading): (&Shared, &dyn Fn() -> bool),
    ) -> Result<(Streamed, Option<Instant>), RunError> {
        if self.job.is_some() {
            self.wait(FIRST_LIMIT, || !loading() || !shared.iterations().is_empty())?;
        }
        let stream = self.bench.stream(self.key, Limit::Time(RUN_LIMIT))?;
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                stream.run(&shared.stop, |progress| {
                    shared.sent.store(progress.sent, Ordering::Relaxed);
                    shared.received.store(progress.received, Ordering::Relaxed);
                    Ok::<_, RunError>(())
                })
            });
            let goes_on = || !sending.is_finished() && (self.job.is_none() || loading());
            let first = Timeline::new(failures, limit).run(self, actions, shared, &goes_on);
            shared.stop.store(true, Ordering::Relaxed);
            let sent = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok((sent?, first?))
        })
    }

    /// Waits until `done`, an interruption, or the limit.
    fn wait(&self, limit: Duration, done: impl Fn() -> bool) -> Result<(), RunError> {
        let start = Instant::now();
        while !done() && start.elapsed() < limit {
            self.check()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), RunError> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// When failures begin and end.
struct Timeline {
    /// The time, the index of the failure, and whether it begins; in the order of the times.
    events: VecDeque<(Duration, usize, bool)>,
    limit: Duration,
    samples: VecDeque<(Instant, u64, u64)>,
}

impl Timeline {
    fn new(failures: &[&Failure], limit: Duration) -> Self {
        let mut events = Vec::new();
        for (index, failure) in failures.iter().enumerate() {
            events.push((failure.at(), index, true));
            events.extend(failure.until().map(|until| (until, index, false)));
        }
        events.sort_by_key(|(at, _, begins)| (*at, !begins));
        Self { events: events.into(), limit, samples: VecDeque::new() }
    }

    /// Lets everything happen at its time, until traffic flows again. Returns when the first failure
    /// began.
    fn run(
        &mut self,
        traffic: &Traffic<'_, '_>,
        actions: &mut [Action],
        shared: &Shared,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Option<Instant>, RunError> {
        let (mut origin, mut first) = (None, None);
        let mut last = Instant::now();
        while goes_on() {
            traffic.check()?;
            std::thread::sleep(LOOK);
            let sent = shared.sent.load(Ordering::Relaxed);
            if sent == 0 {
                continue;
            }
            let origin = *origin.get_or_insert_with(Instant::now);
            self.sample(sent, shared.received.load(Ordering::Relaxed));
            if let Some((at, index, begins)) = self.events.front().copied() {
                if origin.elapsed() >= at {
                    self.events.pop_front();
                    first = first.or(Some(Instant::now()));
                    if let Some(action) = actions.get_mut(index) {
                        match begins {
                            true => action.begin(traffic.bench)?,
                            false => action.end(traffic.bench)?,
                        }
                    }
                    last = Instant::now();
                }
                continue;
            }
            let is_over = first.is_none_or(|at| traffic.job.is_none() || shared.is_complete(at));
            if is_over && last.elapsed() >= QUIET && self.flows() {
                break;
            }
            if last.elapsed() >= self.limit {
                let missing = match is_over {
                    true => "frames were still lost",
                    false => "the iteration that it hit was not complete",
                };
                return Err(RunError::NoRecovery { seconds: self.limit.as_secs(), missing });
            }
        }
        Ok(first)
    }

    fn sample(&mut self, sent: u64, received: u64) {
        if self.samples.back().is_none_or(|(at, ..)| at.elapsed() >= SAMPLE) {
            self.samples.push_back((Instant::now(), sent, received));
        }
        while self.samples.get(1).is_some_and(|(at, ..)| at.elapsed() >= FLOWS) {
            self.samples.pop_front();
        }
    }

    /// Whether almost all frames of the last second arrived.
    fn flows(&self) -> bool {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return false;
        };
        let (sent, received) = (last.1.saturating_sub(first.1), last.2.saturating_sub(first.2));
        sent > 0 && received as f64 >= ARRIVES * sent as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use traffic::roce::QueuePairReport;

    #[test]
    fn an_outage_is_that_of_all_queue_pairs_of_the_failed_link() {
        let sent = Sent { frames: 40_000, queue_pairs: 4, nanoseconds: 10_000_000_000 };
        let row = |lost_in_a_row| QueuePairReport {
            queue_pair: 1,
            received: 0,
            lost: lost_in_a_row,
            lost_in_a_row,
            reordered: 0,
            duplicated: 0,
            corrupted: 0,
        };
        let of = |rows: &[u64], share| {
            let queue_pairs = rows.iter().map(|lost| row(*lost)).collect();
            let outage = Outage::of(&sent, &Report { queue_pairs, foreign: 0 }, share);
            assert_eq!(outage.resolution, 1.0, "a queue pair sends a frame each millisecond");
            (outage.mean, outage.longest)
        };
        // Half of them are on the failed link. One frame of another is lost by chance.
        assert_eq!(of(&[300, 0, 1, 100], 0.5), (200.0, 300.0));
        // The failure is shorter than the interval: three of the four lost no frame.
        assert_eq!(of(&[0, 1, 0, 0], 1.0), (0.25, 1.0));
        assert_eq!(of(&[0, 2, 0, 1], 1.0), (0.75, 2.0));
        assert_eq!(of(&[300, 0, 0, 100], 0.25), (200.0, 300.0), "two were hit in fact");
        assert_eq!(of(&[0; 4], 0.25), (0.0, 0.0));
        // Rounding makes no mean longer than the longest.
        let sent = Sent { frames: 49_948, queue_pairs: 8, nanoseconds: 2_520_000_000 };
        for lost in 1..2000 {
            let queue_pairs = (0..6).map(|_| row(lost)).collect();
            let outage = Outage::of(&sent, &Report { queue_pairs, foreign: 0 }, 0.75);
            assert!(outage.mean <= outage.longest, "{outage:?}");
        }
    }

    #[test]
    fn events_have_the_order_of_their_times() {
        let failure = |text: &str| toml::from_str::<Failure>(text).unwrap();
        let one = failure("kind = 'silent'\nat = '2s'\nfor = '3s'");
        let other = failure("kind = 'frr'\nnode = 'spine1'");
        let last = failure("kind = 'carrier'\nat = '5s'");
        let timeline = Timeline::new(&[&one, &other, &last], Duration::from_secs(1));
        let events: Vec<(u64, usize, bool)> = timeline
            .events
            .iter()
            .map(|(at, index, begins)| (at.as_secs(), *index, *begins))
            .collect();
        let expected = [(1, 1, true), (1, 1, false), (2, 0, true), (5, 2, true), (5, 0, false)];
        assert_eq!(events, expected);
    }
}
