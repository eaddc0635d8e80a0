//! Runs jobs: opens the endpoints, connects them, and lets all ranks follow their schedules.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use roce::{Connection, End, EndpointError, Place, Receive, Status};
use wire::{Psn, QueuePair};

use super::gate::Gate;
use super::job::{Host, Job, JobError};
use super::rank::{Peer, Rank, Step};
use super::report::Iteration;
use super::schedule::Schedule;
use crate::endpoint::{Nic, NicError};
use crate::numbers::Numbers;
use experiment::random::Random;
use fabric::arp::{ArpError, announce, resolve};
use fabric::netns::{Namespace, NetnsError};

/// How long to wait for the ARP answer of a peer.
const RESOLVE_LIMIT: Duration = Duration::from_secs(10);

/// A workload could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A job is not valid.
    #[error("job '{job}': {error}")]
    Job {
        /// The job.
        job: String,
        /// The error.
        error: JobError,
    },
    /// A namespace is missing.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// An endpoint failed.
    #[error("{host}: {error}")]
    Host {
        /// The host.
        host: String,
        /// The error.
        error: NicError,
    },
    /// An endpoint failed while it ran.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A host cannot reach a peer.
    #[error("{host} cannot reach its peers: {error}")]
    Unreachable {
        /// The host.
        host: String,
        /// The error.
        error: ArpError,
    },
    /// A request could not be posted.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A connection failed.
    #[error(
        "job '{job}': the connection from {host} to {peer} failed: {status}. A longer \
         retransmission timer or more retries bridge longer failures"
    )]
    Connection {
        /// The job.
        job: String,
        /// The host whose request failed.
        host: String,
        /// Its peer.
        peer: String,
        /// The failure.
        status: Status,
    },
    /// An iteration took too long.
    #[error(
        "job '{job}': iteration {iteration} was not complete after {seconds} s: {host} had \
         received {received} of {expected} bytes. Raise the limit, or send less"
    )]
    TooLong {
        /// The job.
        job: String,
        /// The iteration.
        iteration: u32,
        /// The host that noticed.
        host: String,
        /// The limit.
        seconds: f64,
        /// Bytes that had arrived there.
        received: u64,
        /// Bytes that the iteration brings there.
        expected: u64,
    },
    /// A thread or wakeup could not be created.
    #[error("cannot start the ranks")]
    Start(#[source] Errno),
    /// The user interrupted the workload.
    #[error("interrupted")]
    Interrupted,
}

/// Runs jobs at the same time, and calls `on_iteration` with each result. Needs root. Returns when
/// all iterations of all jobs are complete.
///
/// # Errors
/// [`WorkloadError`]. Results so far have been passed to `on_iteration`. If `stop` is set,
/// [`WorkloadError::Interrupted`].
pub fn run(
    jobs: &[Job],
    stop: &AtomicBool,
    on_iteration: &(dyn Fn(&Iteration) + Sync),
) -> Result<(), WorkloadError> {
    let mut numbers = Numbers::default();
    let mut ranks: Vec<Vec<RankParts>> = Vec::new();
    let mut schedules: Vec<Schedule> = Vec::new();
    for job in jobs {
        let (schedule, of_job) = prepare(job, &mut numbers)?;
        schedules.push(schedule);
        ranks.push(of_job);
    }
    let abort = AtomicBool::new(false);
    let error = Mutex::new(None);
    let origin = Instant::now();
    let gates: Vec<Gate<'_>> = jobs
        .iter()
        .zip(&schedules)
        .map(|(job, schedule)| {
            let on_results = move |iteration, started: Instant, results: &[_]| {
                let began = started.saturating_duration_since(origin).as_nanos();
                let began = u64::try_from(began).unwrap_or(u64::MAX);
                on_iteration(&Iteration::new(job, schedule, (iteration, began), results));
            };
            Gate::new(schedule.ranks, (stop, &abort), Box::new(on_results))
        })
        .collect::<Result<_, _>>()
        .map_err(WorkloadError::Start)?;
    std::thread::scope(|scope| {
        for ((job, ranks), gate) in jobs.iter().zip(ranks).zip(&gates) {
            for (rank, (nic, peers, steps)) in ranks.into_iter().enumerate() {
                let (abort, error) = (&abort, &error);
                scope.spawn(move || {
                    let rank = Rank { rank, job, gate, nic, peers, steps };
                    if let Err(found) = rank.run() {
                        abort.store(true, Ordering::Relaxed);
                        let mut first = error.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert(found);
                    }
                });
            }
            gate.open();
        }
    });
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None if stop.load(Ordering::Relaxed) => Err(WorkloadError::Interrupted),
        None => Ok(()),
    }
}

/// What a rank needs to run: its endpoint, its queue pairs to each peer, and its steps.
type RankParts = (Nic, HashMap<usize, Peer>, Vec<Step>);

fn enter<T: Send>(host: &Host, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    match &host.namespace {
        Some(name) => Namespace::open(name.clone())?.enter(f),
        None => Ok(f()),
    }
}

/// Opens and connects the endpoints of a job.
fn prepare(job: &Job, numbers: &mut Numbers) -> Result<(Schedule, Vec<RankParts>), WorkloadError> {
    let schedule =
        job.schedule().map_err(|error| WorkloadError::Job { job: job.name.clone(), error })?;
    let workload = &job.workload;
    let mut ranks: Vec<RankParts> = Vec::new();
    for (rank, host) in job.hosts.iter().enumerate() {
        let open = || Nic::open(&host.interface, workload.transport.clone(), workload.seed);
        let nic = enter(host, open)?
            .map_err(|error| WorkloadError::Host { host: host.name.clone(), error })?;
        ranks.push((nic, HashMap::new(), Step::all(rank, &schedule)));
    }
    let mut links = BTreeSet::new();
    for transfer in schedule.steps.iter().flatten() {
        links.insert((transfer.from.min(transfer.to), transfer.from.max(transfer.to)));
    }
    reach(job, &links, &ranks)?;
    let mut random = Random::new(workload.seed);
    for (low, high) in links {
        for _ in 0..workload.queue_pairs {
            let mut draw = || (numbers.draw(&mut random), Psn::new(random.next() as u32));
            let ends = [(low, draw()), (high, draw())];
            connect(&mut ranks, ends, job)?;
        }
    }
    Ok((schedule, ranks))
}

/// Resolves the addresses of all peers, so that bridges and VTEPs know all hosts before the first
/// iteration.
fn reach(
    job: &Job,
    links: &BTreeSet<(usize, usize)>,
    ranks: &[RankParts],
) -> Result<(), WorkloadError> {
    for host in &job.hosts {
        let error = |error| WorkloadError::Unreachable { host: host.name.clone(), error };
        enter(host, || announce(&host.interface))?.map_err(error)?;
    }
    for (rank, host) in job.hosts.iter().enumerate() {
        let peers = links.iter().filter_map(|(low, high)| match rank {
            _ if rank == *low => Some(*high),
            _ if rank == *high => Some(*low),
            _ => None,
        });
        let addresses: Vec<_> =
            peers.filter_map(|peer| ranks.get(peer).map(|(nic, ..)| nic.address().ip)).collect();
        let all = || addresses.iter().try_for_each(|ip| resolve(*ip, RESOLVE_LIMIT).map(drop));
        let error = |error| WorkloadError::Unreachable { host: host.name.clone(), error };
        enter(host, all)?.map_err(error)?;
    }
    Ok(())
}

/// Connects a queue pair between two ranks.
fn connect(
    ranks: &mut [RankParts],
    ends: [(usize, (QueuePair, Psn)); 2],
    job: &Job,
) -> Result<(), WorkloadError> {
    let end = |(rank, (number, first)): (usize, (QueuePair, Psn))| {
        let address = ranks.get(rank).map(|(nic, ..)| nic.address())?;
        Some((rank, End { number, first, address }))
    };
    let [Some(one), Some(other)] = ends.map(end) else { return Ok(()) };
    for ((rank, local), (peer, remote)) in [(one, other), (other, one)] {
        let Some((nic, peers, _)) = ranks.get_mut(rank) else { continue };
        let source_port = job.workload.source_port;
        let handle = nic.endpoint.connect(&Connection { local, remote, source_port })?;
        let receive = Receive { id: 0, place: Place::default(), length: 0 };
        nic.endpoint.post_endless_receive(handle, receive)?;
        peers.entry(peer).or_default().pairs.push(handle);
    }
    Ok(())
}
