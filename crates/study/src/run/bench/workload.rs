//! A run of a workload of distributed training.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use experiment::plan::Key;
use experiment::record::{self, Completion};
use experiment::units::{InnerPort, Name};
use experiment::{Experiment, Run};
use serde::de::DeserializeOwned;

use super::{Bench, RunError, source_port};
use crate::run::program::{self, Program};
use traffic::completions::Kind;
use traffic::workload::{Host, Iteration, Job, Latencies, Workload, WorkloadError, run};

/// Iterations of a job that runs until it is stopped.
pub(super) const ENDLESS: u32 = 1_000_000;
/// How long the first iteration of another job may take.
const FIRST_LIMIT: Duration = Duration::from_secs(60);
/// The distance of the jobs' seeds.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// How often the other jobs are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What a run measures.
enum Work {
    /// A collective operation.
    Collective(Box<Job>),
    /// A program of the user, and its hosts.
    Program(Program, Vec<program::Host>),
}

/// The result of a run's work.
struct Done {
    /// Of the iterations that count.
    completion: Completion,
    /// Packets of all iterations.
    sent: u64,
    /// Seconds of the iterations that count.
    seconds: f64,
    /// Seconds of all iterations.
    all: f64,
}

/// Runs the iterations of a workload, and reads the load of each link. Other jobs have begun before,
/// and end after it.
pub(super) fn measure(
    bench: &Bench<'_>,
    key: &Key,
    interrupted: &AtomicBool,
) -> Result<Run, RunError> {
    let work = work(bench, key)?;
    let others = others(bench, key)?;
    bench.observe(key, |record| {
        let (beside, began) = (Results::default(), Instant::now());
        let stop = AtomicBool::new(others.is_empty());
        let done = std::thread::scope(|scope| {
            let running = scope.spawn(|| match others.is_empty() {
                true => Ok(()),
                false => run(&others, &stop, &|iteration| {
                    bench.told(key, iteration);
                    beside.keep(iteration);
                }),
            });
            let start = Instant::now();
            while !running.is_finished()
                && !others.iter().all(|job| beside.has(&job.name))
                && start.elapsed() < FIRST_LIMIT
                && !interrupted.load(Ordering::Relaxed)
            {
                std::thread::sleep(LOOK);
            }
            let result = work.run(bench, key, interrupted);
            stop.store(true, Ordering::Relaxed);
            let other = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match other {
                Err(error) if !matches!(error, WorkloadError::Interrupted) => Err(error.into()),
                _ => result,
            }
        })?;
        (record.seconds, record.sent) = (done.seconds, done.sent);
        record.workload = Some(done.completion);
        let beside = beside.all();
        let of = |job: &Job| {
            let own = beside.iter().filter(|iteration| iteration.job == job.name);
            let own: Vec<_> = own.collect();
            // One that completed no iteration has no time.
            (!own.is_empty()).then(|| (job.name.clone(), completion(&own)))
        };
        record.jobs = others.iter().filter_map(of).collect();
        // Alone, nothing is sent between iterations.
        Ok(match others.is_empty() {
            true => Duration::try_from_secs_f64(done.all).unwrap_or_default(),
            false => began.elapsed(),
        })
    })
}

impl Bench<'_> {
    /// Tells live pages of an iteration of a run.
    pub(super) fn told(&self, key: &Key, iteration: &Iteration) {
        self.tell(Kind::Iteration, (key, &iteration.job), iteration.nanoseconds as f64);
    }
}

impl Work {
    fn run(&self, bench: &Bench<'_>, key: &Key, stop: &AtomicBool) -> Result<Done, RunError> {
        match self {
            Self::Collective(job) => {
                let own = Results::default();
                run(std::slice::from_ref(&**job), stop, &|iteration| {
                    bench.told(key, iteration);
                    own.keep(iteration);
                })?;
                Ok(Done::new(&own.all()))
            }
            Self::Program(program, hosts) => {
                let queue_pairs = key.point.queue_pairs.get();
                let source_port = match key.point.inner_port {
                    InnerPort::Constant => "constant",
                    InnerPort::PerQueuePair => "queue-pair",
                    InnerPort::SoftRoce => "soft-roce",
                };
                let given = program::Given { queue_pairs, source_port, seed: key.seed };
                let name = bench.experiment.name.as_str();
                let tell = |seconds| bench.tell(Kind::Iteration, (key, name), seconds * 1e9);
                let file = &bench.settings.file;
                let (completion, all) = program.run(file, hosts, given, (stop, &tell))?;
                let seconds = completion.each.iter().map(|each| each.milliseconds).sum::<f64>();
                Ok(Done { completion, sent: 0, seconds: seconds / 1e3, all })
            }
        }
    }
}

impl Done {
    fn new(all: &[Iteration]) -> Self {
        let counted: Vec<&Iteration> = all.iter().filter(|iteration| !iteration.warm_up).collect();
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        let each = counted.iter().map(|iteration| of_iteration(iteration)).collect();
        Self {
            completion: Completion { each, ..completion(&counted) },
            sent: all.iter().map(|iteration| iteration.counters.tx_packets).sum(),
            seconds: seconds(counted.iter().map(|iteration| iteration.nanoseconds).sum()),
            all: seconds(all.iter().map(|iteration| iteration.nanoseconds).sum()),
        }
    }
}

/// The iterations so far.
#[derive(Default)]
struct Results(Mutex<Vec<Iteration>>);

impl Results {
    fn keep(&self, iteration: &Iteration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(iteration.clone());
    }

    fn has(&self, job: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|iteration| iteration.job == job)
    }

    fn all(self) -> Vec<Iteration> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of the iterations that count.
fn completion(counted: &[&Iteration]) -> Completion {
    let nanoseconds =
        |of: fn(&Iteration) -> u64| counted.iter().map(move |iteration| of(iteration) as f64);
    let mean =
        |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / counted.len().max(1) as f64;
    Completion {
        iterations: u32::try_from(counted.len()).unwrap_or(u32::MAX),
        milliseconds: mean(&mut nanoseconds(|iteration| iteration.communication)) / 1e6,
        worst: nanoseconds(|iteration| iteration.communication).fold(0.0, f64::max) / 1e6,
        bus_bandwidth: mean(&mut counted.iter().map(|i| i.bus_bandwidth)) / 1e6,
        message_p99: nanoseconds(|i| i.messages.p99).fold(0.0, f64::max) / 1e6,
        retransmitted: counted.iter().map(|i| i.counters.retransmitted_packets).sum(),
        busy: counted.iter().map(|i| i.busy).fold(0.0, f64::max),
        roofline_ratio: counted
            .iter()
            .map(|i| i.roofline_ratio)
            .sum::<Option<f64>>()
            .map(|sum| sum / counted.len().max(1) as f64),
        straggler: mean(&mut nanoseconds(|i| i.straggler_behind)) / 1e6,
        counters: counters(counted.iter().map(|i| i.counters)),
        each: Vec::new(),
    }
}

/// One iteration, in the units of the record.
fn of_iteration(iteration: &Iteration) -> record::Iteration {
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let Latencies { count, p50, p99, p999, max } = iteration.messages;
    record::Iteration {
        milliseconds: milliseconds(iteration.communication),
        straggler: iteration.straggler.clone(),
        behind: milliseconds(iteration.straggler_behind),
        messages: count,
        p50: milliseconds(p50),
        p99: milliseconds(p99),
        p999: milliseconds(p999),
        max: milliseconds(max),
        counters: counters(std::iter::once(iteration.counters)),
    }
}

/// The sums of counters that are not 0, by name.
fn counters(all: impl Iterator<Item = roce::Counters>) -> BTreeMap<String, u64> {
    let mut sum = roce::Counters::default();
    all.for_each(|counters| sum += counters);
    let serde_json::Value::Object(map) = serde_json::to_value(sum).unwrap_or_default() else {
        return BTreeMap::new();
    };
    let value = |(name, value): (String, serde_json::Value)| Some((name, value.as_u64()?));
    map.into_iter().filter_map(value).filter(|(_, value)| *value > 0).collect()
}

/// The settings of a run's workload: the keys of the file, and those of the variant.
fn settings(experiment: &Experiment, file: &Path, key: &Key) -> Result<Workload, RunError> {
    let mut workload: Workload = parse(experiment.workload(key.point.index()), "[workload]", file)?;
    of_run(&mut workload, key);
    Ok(workload)
}

/// The file has been checked, so that this finds nothing new.
fn parse<W: DeserializeOwned>(table: toml::Table, place: &str, file: &Path) -> Result<W, RunError> {
    W::deserialize(table).map_err(|error| RunError::Workload {
        file: file.to_owned(),
        place: place.to_owned(),
        message: error.message().to_owned(),
    })
}

/// What a run decides.
fn of_run(workload: &mut Workload, key: &Key) {
    workload.queue_pairs = u32::try_from(key.point.queue_pairs.get()).unwrap_or(u32::MAX);
    workload.seed = key.numbers_seed();
    workload.source_port = source_port(key);
}

/// What a run measures.
fn work(bench: &Bench<'_>, key: &Key) -> Result<Work, RunError> {
    let experiment = bench.experiment;
    if !experiment.is_program() {
        return Ok(Work::Collective(Box::new(job(bench, key)?)));
    }
    let index = key.point.index();
    let program = parse(experiment.workload(index), "[workload]", &bench.settings.file)?;
    let mut hosts = Vec::new();
    for (site, names) in experiment.sites(index).iter().enumerate() {
        for name in names {
            let host = bench.host(name)?;
            hosts.push(program::Host {
                name: name.to_string(),
                site,
                namespace: bench.deployed.namespace(name.as_str())?,
                interface: host.end.interface.clone(),
                address: host.address.to_string(),
            });
        }
    }
    Ok(Work::Program(program, hosts))
}

/// The job of a run.
pub(super) fn job(bench: &Bench<'_>, key: &Key) -> Result<Job, RunError> {
    let experiment = bench.experiment;
    let workload = settings(experiment, &bench.settings.file, key)?;
    let hosts = hosts(bench, experiment.sites(key.point.index()))?;
    Ok(Job { name: experiment.name.to_string(), hosts, workload })
}

/// The other jobs of a run, without end.
fn others(bench: &Bench<'_>, key: &Key) -> Result<Vec<Job>, RunError> {
    let variant = key.point.variant.as_ref().map(|(_, name)| name);
    // Queue pair numbers of the jobs must differ.
    let seeds = (1..).map(|at: u64| key.numbers_seed().wrapping_add(at.wrapping_mul(SEED_STEP)));
    let mut jobs = Vec::new();
    for (job, seed) in bench.experiment.jobs(variant).zip(seeds) {
        let (name, mut table) = (job.name.to_string(), job.workload.clone());
        let queue_pairs = table.remove("queue-pairs");
        let place = format!("the workload of the [[job]] '{name}'");
        let mut workload: Workload = parse(table, &place, &bench.settings.file)?;
        of_run(&mut workload, key);
        if let Some(number) = queue_pairs {
            let number = toml::Table::from_iter([("queue-pairs".to_owned(), number)]);
            let own: Workload = parse(number, &place, &bench.settings.file)?;
            workload.queue_pairs = own.queue_pairs;
        }
        (workload.seed, workload.iterations, workload.warm_up) = (seed, ENDLESS, 0);
        jobs.push(Job { name, hosts: hosts(bench, &job.sites)?, workload });
    }
    Ok(jobs)
}

/// The hosts of these sites.
fn hosts(bench: &Bench<'_>, sites: &[Vec<Name>]) -> Result<Vec<Host>, RunError> {
    let mut hosts = Vec::new();
    for (site, names) in (0..).zip(sites) {
        for name in names {
            let namespace = bench.deployed.namespace(name.as_str())?.name().to_owned();
            hosts.push(Host {
                name: name.to_string(),
                namespace: Some(namespace),
                interface: bench.host(name)?.end.interface.clone(),
                site,
            });
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::Plan;
    use fabric::topology::Topology;

    /// The experiments that are shipped, each in both forms.
    fn shipped() -> Vec<Experiment> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/experiments");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
        files
            .flat_map(|path| {
                let (full, text) =
                    Experiment::load(&path).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(path.file_stem().unwrap().to_str(), Some(full.name.as_str()));
                let quick = Experiment::parse(&path, &text).unwrap().form(true);
                [full, quick]
            })
            .collect()
    }

    #[test]
    fn every_shipped_experiment_can_be_run() {
        let all = shipped();
        assert!(all.len() >= 12, "{}", all.len());
        for experiment in all {
            for file in &experiment.topologies {
                Topology::load(file).unwrap_or_else(|error| panic!("{error}"));
            }
            let plan = Plan::new(&experiment);
            let keys: Vec<&Key> = plan.turns.iter().flat_map(|turn| &turn.runs).collect();
            assert!(!keys.is_empty() && !experiment.limits.is_empty(), "{}", experiment.name);
            let is_job = experiment.workload.is_some() && !experiment.is_program();
            for key in keys.iter().filter(|_| is_job) {
                let workload = settings(&experiment, Path::new("x.toml"), key)
                    .unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
                let hosts = experiment.sites(key.point.index()).iter().zip(0..).flat_map(
                    |(names, site)| {
                        names.iter().map(move |name| Host {
                            name: name.to_string(),
                            namespace: None,
                            interface: "eth1".into(),
                            site,
                        })
                    },
                );
                let job = Job { name: "x".into(), hosts: hosts.collect(), workload };
                let schedule = job.schedule();
                let schedule =
                    schedule.unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
                // The report compares with a roofline where circuits have a rate.
                let limited = |file: &std::path::PathBuf| {
                    std::fs::read_to_string(file).unwrap().contains("--rate")
                };
                let has_rate =
                    experiment.circuits.rate.is_some() || experiment.topologies.iter().all(limited);
                let fails = experiment.has_failures();
                assert_eq!(job.ideal(&schedule).is_some(), has_rate || fails, "{}", job.name);
            }
        }
    }

    #[test]
    fn a_run_decides_queue_pairs_and_seed() {
        let experiment =
            shipped().into_iter().find(|experiment| experiment.name.as_str() == "wan").unwrap();
        let key = Plan::new(&experiment).turns[0].runs[0].clone();
        let workload = settings(&experiment, Path::new("x.toml"), &key).unwrap();
        assert_eq!(
            (workload.seed, workload.queue_pairs as usize),
            (key.numbers_seed(), key.point.queue_pairs.get())
        );
    }
}
