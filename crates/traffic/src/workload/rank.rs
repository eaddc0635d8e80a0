//! One rank: follows the schedule on its endpoint.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use roce::{Completion, Handle, Operation, Place, Status, WorkRequest};

use super::gate::Gate;
use super::job::{Dealing, Job};
use super::report::RankResult;
use super::run::WorkloadError;
use super::schedule::{Computation, Schedule, Transfer};
use crate::endpoint::Nic;

/// How often a rank looks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// The queue pairs of a rank to another one, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) pairs: Vec<Handle>,
    next: usize,
}

/// A step from the view of one rank.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// What it sends.
    pub(super) sends: Vec<Transfer>,
    /// How many bytes it receives.
    pub(super) receives: u64,
    /// The step whose bytes must have arrived before it begins.
    after: Option<usize>,
    /// How long it computes before it sends.
    compute: Duration,
}

impl Step {
    /// What `rank` does in all steps.
    pub(super) fn all(rank: usize, schedule: &Schedule) -> Vec<Self> {
        let step = |(number, transfers): (usize, &Vec<Transfer>)| {
            let (after, compute) = match schedule.operations.get(number) {
                None => (number.checked_sub(1), Duration::ZERO),
                Some(Computation { rank: own, after, compute }) if *own == rank => {
                    (*after, *compute)
                }
                Some(_) => (None, Duration::ZERO),
            };
            Self { after, compute, ..Self::of(rank, transfers) }
        };
        schedule.steps.iter().enumerate().map(step).collect()
    }

    fn of(rank: usize, transfers: &[Transfer]) -> Self {
        let received = transfers.iter().filter(|transfer| transfer.to == rank);
        Self {
            sends: transfers.iter().filter(|transfer| transfer.from == rank).cloned().collect(),
            receives: received.map(Transfer::length).sum(),
            ..Self::default()
        }
    }
}

/// One rank of a job.
pub(super) struct Rank<'a> {
    pub(super) rank: usize,
    pub(super) job: &'a Job,
    pub(super) gate: &'a Gate<'a>,
    pub(super) nic: Nic,
    pub(super) peers: HashMap<usize, Peer>,
    pub(super) steps: Vec<Step>,
}

/// The state of an iteration.
struct State {
    iteration: u32,
    /// The step whose messages are posted next.
    step: usize,
    /// Bytes received for each step.
    received: Vec<u64>,
    /// Requests that are not complete.
    pending: u64,
    /// When the rank has computed, as [`Nic::now`].
    computed: u64,
    /// Whether the next step has begun to compute.
    begun: bool,
    posted: Option<u64>,
}

impl Rank<'_> {
    /// Runs all iterations.
    pub(super) fn run(mut self) -> Result<(), WorkloadError> {
        let all = self.job.workload.warm_up + self.job.workload.iterations;
        for iteration in 0..all {
            if !self.wait_for(iteration)? {
                return Ok(());
            }
            let result = self.iterate(iteration)?;
            let Some(result) = result else { return Ok(()) };
            self.gate.arrive(iteration, result);
        }
        // Peers may still need acknowledgements.
        self.wait_for(all).map(drop)
    }

    /// Serves the peers until the iteration may begin. Returns `false` if the job is to stop.
    fn wait_for(&mut self, iteration: u32) -> Result<bool, WorkloadError> {
        while self.gate.opened() <= iteration {
            if self.gate.is_stopped() {
                return Ok(false);
            }
            let wake = self.nic.work()?;
            if self.gate.opened() > iteration {
                break;
            }
            let bell = self.gate.bell(self.rank);
            let others: Vec<_> = bell.iter().map(|bell| bell.as_fd()).collect();
            self.nic.wait(wake, LOOK, &others)?;
            // It may have rung late, for a gate that this rank saw open. The gate opens before it
            // rings, so that no opening is missed.
            self.gate.silence(self.rank);
        }
        Ok(true)
    }

    /// Runs one iteration. `None` if the job is to stop.
    fn iterate(&mut self, iteration: u32) -> Result<Option<RankResult>, WorkloadError> {
        let workload = &self.job.workload;
        let compute = workload.compute.draw(workload.seed, self.rank, iteration);
        // Times in results count from the common start.
        let start = self.nic.now().saturating_sub(nanoseconds(self.gate.since_start()));
        let limit = start.saturating_add((workload.limit * 1e9) as u64);
        let computed = self.nic.now().saturating_add(nanoseconds(compute));
        let mut state = State {
            iteration,
            step: 0,
            received: vec![0; self.steps.len()],
            pending: 0,
            computed,
            begun: false,
            posted: None,
        };
        let before = (self.nic.endpoint.counters(), self.nic.slept(), self.nic.overruns()?);
        let mismatches = self.nic.memory.mismatches;
        self.nic.endpoint.latencies().clear();
        loop {
            let now = self.nic.now();
            if self.progress(&mut state, now)? {
                break;
            }
            if self.gate.is_stopped() {
                return Ok(None);
            }
            if now > limit {
                return Err(self.too_late(&state));
            }
            let wake = self.nic.work()?;
            let computing = (state.computed > now).then_some(state.computed);
            let wake = [wake, computing].into_iter().flatten().min();
            // A completion may allow the next step.
            if !self.nic.endpoint.has_completions() {
                self.nic.wait(wake, LOOK, &[])?;
            }
        }
        let ended = self.nic.now();
        let since = |time: u64| time.saturating_sub(start);
        Ok(Some(RankResult {
            rank: self.rank,
            compute: nanoseconds(
                compute + self.steps.iter().map(|step| step.compute).sum::<Duration>(),
            ),
            posted: since(state.posted.unwrap_or(ended)),
            ended: since(ended),
            received: state.received.iter().sum(),
            mismatches: self.nic.memory.mismatches - mismatches,
            overruns: self.nic.overruns()? - before.2,
            slept: nanoseconds(self.nic.slept().saturating_sub(before.1)),
            counters: self.nic.endpoint.counters() - before.0,
            latencies: std::mem::take(self.nic.endpoint.latencies()),
        }))
    }

    /// Handles completions, and posts the steps whose data have arrived. Returns whether the
    /// iteration is complete.
    fn progress(&mut self, state: &mut State, now: u64) -> Result<bool, WorkloadError> {
        while let Some(completion) = self.nic.endpoint.completion() {
            match completion {
                Completion::Request { status: Status::Success, .. } => state.pending -= 1,
                Completion::Request { queue_pair, status, .. } => {
                    return Err(self.failed(queue_pair, status));
                }
                Completion::Received { length, immediate, .. } => {
                    let step = immediate.and_then(|step| usize::try_from(step).ok());
                    let place = step.and_then(|step| state.received.get_mut(step));
                    if let Some(place) = place {
                        *place += u64::from(length);
                    }
                }
            }
        }
        while let Some(step) = self.steps.get(state.step) {
            if now < state.computed || !step.after.is_none_or(|after| self.arrived(state, after)) {
                return Ok(false);
            }
            if !state.begun && step.compute > Duration::ZERO {
                (state.begun, state.computed) =
                    (true, now.saturating_add(nanoseconds(step.compute)));
                return Ok(false);
            }
            state.posted.get_or_insert(now);
            self.post(state)?;
            (state.begun, state.step) = (false, state.step + 1);
        }
        let all = (0..self.steps.len()).all(|step| self.arrived(state, step));
        Ok(all && state.pending == 0)
    }

    /// Whether everything of a step has arrived.
    fn arrived(&self, state: &State, step: usize) -> bool {
        let (have, want) = (state.received.get(step), self.steps.get(step));
        have.zip(want).is_none_or(|(have, want)| *have >= want.receives)
    }

    /// Posts the messages of a step.
    fn post(&mut self, state: &mut State) -> Result<(), WorkloadError> {
        let Some(step) = self.steps.get(state.step) else { return Ok(()) };
        let Ok(immediate) = u32::try_from(state.step) else { return Ok(()) };
        let workload = &self.job.workload;
        // Each iteration has other addresses, so old bytes are not taken for new ones.
        let base = u64::from(state.iteration) << 40;
        for transfer in &step.sends {
            let Some(peer) = self.peers.get_mut(&transfer.to) else { continue };
            let mut at = transfer.bytes.start;
            while at < transfer.bytes.end {
                let whole = u64::from(workload.message).min(transfer.bytes.end - at);
                let part = match workload.dealing {
                    Dealing::RoundRobin => whole,
                    Dealing::Split => whole.div_ceil(peer.pairs.len().max(1) as u64),
                };
                let end = at + whole;
                while at < end {
                    let length = part.next_multiple_of(8).min(end - at);
                    let place = Place { key: 0, address: base + at };
                    let Some(pair) = peer.pairs.get(peer.next % peer.pairs.len().max(1)) else {
                        return Ok(());
                    };
                    let work = WorkRequest {
                        id: immediate.into(),
                        operation: Operation::Write { remote: place, immediate: Some(immediate) },
                        local: place,
                        length: u32::try_from(length).unwrap_or(u32::MAX),
                    };
                    let now = self.nic.now();
                    self.nic.endpoint.post(*pair, work, now)?;
                    peer.next += 1;
                    state.pending += 1;
                    at += length;
                }
            }
        }
        Ok(())
    }

    fn name(&self, rank: usize) -> String {
        self.job.hosts.get(rank).map(|host| host.name.clone()).unwrap_or_default()
    }

    fn failed(&self, pair: Handle, status: Status) -> WorkloadError {
        let peer = self.peers.iter().find(|(_, peer)| peer.pairs.contains(&pair));
        WorkloadError::Connection {
            job: self.job.name.clone(),
            host: self.name(self.rank),
            peer: peer.map(|(rank, _)| self.name(*rank)).unwrap_or_default(),
            status,
        }
    }

    fn too_late(&self, state: &State) -> WorkloadError {
        WorkloadError::TooLong {
            job: self.job.name.clone(),
            iteration: state.iteration,
            host: self.name(self.rank),
            seconds: self.job.workload.limit,
            received: state.received.iter().sum(),
            expected: self.steps.iter().map(|step| step.receives).sum(),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
