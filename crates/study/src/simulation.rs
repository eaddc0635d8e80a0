//! Simulations: runs the cases, schemes and seeds of a file on all CPUs, and writes the results into
//! a directory. The file may be an experiment's, too. A second call continues where the first was interrupted. A sweep can be split into
//! shards, which several machines run; [`merge`] joins them.

mod agreement;
mod compare;
mod directory;
mod error;
mod repeat;
mod report;
mod summary;
mod translate;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use experiment::input;
use experiment::verdict::Verdict;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use sim::Scenario;
use sim::file::{Case, Fabric, Hosts, Traffic, Variant, cases};
use sim::result::Line;

use directory::{Directory, name};
use fabric::progress::{Interrupted, OnProgress};
use fabric::topology::{Topology, Wire};

pub use agreement::{Agreement, Balance, agreement};
pub use compare::{Change, compare};
pub use error::SimulationError;
pub use experiment::shard::Shard;
pub(crate) use repeat::recorded_matrices;
pub use repeat::{Recorded, Repeated, is_directory, recorded_cases, repeat};
pub use summary::Row;

/// A run: a case, a scheme and a seed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    case: String,
    scheme: String,
    seed: u64,
}

impl Key {
    fn of(line: &Line) -> Self {
        Self { case: line.case.clone(), scheme: line.scheme.clone(), seed: line.seed }
    }

    /// Whether a shard has this run (FNV-1a, so that shards are equal on all machines).
    fn is_in(&self, shard: Shard) -> bool {
        let text = format!("{}\n{}\n{}", self.case, self.scheme, self.seed);
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        shard.has(hash)
    }
}

/// The settings of a simulation.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The file.
    pub file: PathBuf,
    /// The directory for the results.
    pub out: PathBuf,
    /// Threads. Results do not depend on them.
    pub threads: usize,
    /// The part of the runs, by their hash. `None`: all.
    pub shard: Option<Shard>,
    /// The command that repeats the simulation, for the report.
    pub command: String,
}

/// The results of a simulation.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Outcome {
    /// The runs, summarised.
    pub summary: Vec<Row>,
    /// What follows.
    pub verdicts: Vec<Verdict>,
    /// What flows wait for that did not finish, by run.
    pub unfinished: Vec<String>,
    /// The page with the results. A shard has none.
    pub report: Option<PathBuf>,
}

/// The runs of a file, in their order.
struct Plan {
    text: String,
    cases: Vec<Case>,
    directory: PathBuf,
}

impl Plan {
    fn read(path: &Path) -> Result<Self, SimulationError> {
        Self::read_while(path, &|| true)
    }

    /// Reads and checks a file, as long as `goes_on` says so.
    fn read_while(path: &Path, goes_on: &dyn Fn() -> bool) -> Result<Self, SimulationError> {
        let text = input::read_text(path)
            .map_err(|source| SimulationError::File { path: path.to_owned(), source })?;
        let own = path.parent().unwrap_or(Path::new("")).to_owned();
        let (text, directory) = match translate::describe(path, &text)? {
            Some(described) => (described.text, described.directory),
            None => (text, own),
        };
        let cases = cases(path, &text)?;
        let plan = Self { text, cases, directory };
        // What is wrong with a case is said before the first run.
        for case in &plan.cases {
            for variant in &case.file.variants {
                if !goes_on() {
                    return Err(Interrupted.into());
                }
                plan.scenario(case, variant, 1)?;
            }
        }
        Ok(plan)
    }

    fn runs(&self) -> impl Iterator<Item = (&Case, &Variant, Key)> {
        self.cases.iter().flat_map(|case| {
            case.file.variants.iter().flat_map(move |variant| {
                (1..=case.file.seeds).map(move |seed| {
                    let (case_name, scheme) = (case.name.clone(), variant.label());
                    (case, variant, Key { case: case_name, scheme, seed })
                })
            })
        })
    }

    fn scenario(
        &self,
        case: &Case,
        variant: &Variant,
        seed: u64,
    ) -> Result<Scenario, SimulationError> {
        let read = |file: &Path| {
            let path = self.directory.join(file);
            match file.extension().is_some_and(|kind| kind == "yml" || kind == "yaml") {
                true => links(&path),
                false => input::read_text(&path).map_err(|error| error.to_string()),
            }
        };
        case.file
            .scenario(variant, seed, &read)
            .map_err(|problem| SimulationError::Case { case: case.name.clone(), problem })
    }

    /// The traffic matrices and topologies that cases name.
    fn files(&self) -> BTreeSet<&Path> {
        let jobs = self.cases.iter().flat_map(|case| &case.file.traffic);
        let matrices = jobs.filter_map(|job| match job {
            Traffic::Matrix { file } => Some(file.as_path()),
            _ => None,
        });
        let topologies = self.cases.iter().filter_map(|case| match &case.file.fabric {
            Fabric::Topology { file, .. } => Some(file.as_path()),
            _ => None,
        });
        matrices.chain(topologies).collect()
    }
}

/// The links of a topology file: the names of two nodes on each line, and whether it is a circuit.
fn links(path: &Path) -> Result<String, String> {
    let topology = Topology::load(path).map_err(|error| error.to_string())?;
    // A node without a namespace of its own has its links in that of another one.
    let line = |wire: Wire| {
        let [a, b] = wire.ends.map(|end| topology.owner(&end.node).to_owned());
        format!("{a} {b}{}\n", if wire.circuit.is_some() { " circuit" } else { "" })
    };
    Ok(topology.wires().into_iter().map(line).collect())
}

/// Runs a simulation and writes its results. If it is interrupted, the results of complete runs are
/// kept.
///
/// # Errors
/// [`SimulationError`].
pub fn run(
    settings: &Settings,
    report: OnProgress<'_>,
    interrupted: &AtomicBool,
) -> Result<Outcome, SimulationError> {
    let plan = Plan::read_while(&settings.file, &|| !interrupted.load(Ordering::Relaxed))?;
    let mut directory = Directory::open(&settings.out, &plan, settings.shard)?;
    let wanted = |key: &Key| settings.shard.is_none_or(|shard| key.is_in(shard));
    let done: BTreeSet<Key> = directory.lines().iter().map(Key::of).collect();
    let left: Vec<_> =
        plan.runs().filter(|(_, _, key)| wanted(key) && !done.contains(key)).collect();
    Pool { plan: &plan, left: &left, next: AtomicUsize::new(0), interrupted }.run(
        settings.threads,
        report,
        &mut directory,
    )?;
    match settings.shard {
        Some(_) => Ok(Outcome {
            summary: Vec::new(),
            verdicts: Vec::new(),
            unfinished: unfinished(directory.lines()),
            report: None,
        }),
        None => finish(&plan, directory, &settings.command),
    }
}

/// Joins the results of all shards in a directory.
///
/// # Errors
/// [`SimulationError`], also if runs are missing or contradict each other.
pub fn merge(out: &Path, command: &str) -> Result<Outcome, SimulationError> {
    let plan = Plan::read(&out.join(directory::FILE))?;
    let directory = Directory::merge(out)?;
    finish(&plan, directory, command)
}

/// Puts the lines into their order, and writes what follows from them.
fn finish(
    plan: &Plan,
    mut directory: Directory,
    command: &str,
) -> Result<Outcome, SimulationError> {
    let order: Vec<Key> = plan.runs().map(|(_, _, key)| key).collect();
    directory.sort(&order)?;
    let lines = directory.lines();
    let summary = summary::rows(lines);
    let verdicts = summary::verdicts(&summary, lines);
    let page = report::Report { plan, summary: &summary, verdicts: &verdicts, command }.page();
    let report = directory.write_results(&summary, &page)?;
    let unfinished = unfinished(directory.lines());
    Ok(Outcome { summary, verdicts, unfinished, report: Some(report) })
}

fn unfinished(lines: &[Line]) -> Vec<String> {
    let texts = lines.iter().flat_map(|line| {
        let run = format!("{} {} seed {}", line.case, line.scheme, line.seed);
        line.waiting.iter().map(move |waiting| format!("{run}: {waiting}"))
    });
    texts.collect()
}

/// Threads that run what is left.
struct Pool<'a> {
    plan: &'a Plan,
    left: &'a [(&'a Case, &'a Variant, Key)],
    next: AtomicUsize,
    interrupted: &'a AtomicBool,
}

impl Pool<'_> {
    fn run(
        &self,
        threads: usize,
        report: OnProgress<'_>,
        directory: &mut Directory,
    ) -> Result<(), SimulationError> {
        let (start, all) = (Instant::now(), self.left.len());
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for _ in 0..threads.min(all) {
                let sender = sender.clone();
                scope.spawn(move || {
                    while let Some(line) = self.one() {
                        if sender.send(line).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let (mut done, mut result) = (0, Ok(()));
            for line in receiver {
                let kept = line.and_then(|line| {
                    done += 1;
                    let text = format!(
                        "{} {} seed {}: {done} of {all} runs{}",
                        line.case,
                        line.scheme,
                        line.seed,
                        time_left(start.elapsed(), done, all - done)
                    );
                    directory.append(line)?;
                    Ok(report(&text)?)
                });
                // Runs that have begun are kept after an error. A signal ends them.
                if kept.is_err() {
                    self.next.store(all, Ordering::Relaxed);
                }
                result = result.and(kept);
            }
            result
        })
    }

    /// The line of the next run. `None` at the end.
    fn one(&self) -> Option<Result<Line, SimulationError>> {
        let (case, variant, key) = self.left.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        if self.interrupted.load(Ordering::Relaxed) {
            return Some(Err(Interrupted.into()));
        }
        let (start, cpu) = (Instant::now(), thread_time());
        let scenario = match self.plan.scenario(case, variant, key.seed) {
            Ok(scenario) => scenario,
            Err(error) => return Some(Err(error)),
        };
        let goes_on = || !self.interrupted.load(Ordering::Relaxed);
        let outcome = match outcome(case, &scenario, key.seed, &goes_on) {
            Ok(outcome) => outcome,
            Err(error) => return Some(Err(error)),
        };
        let mut line = Line::new(&key.case, &key.scheme, key.seed, &scenario, &outcome);
        line.user_s = milliseconds(thread_time().saturating_sub(cpu));
        line.wall_s = milliseconds(start.elapsed());
        line.peak_kib =
            getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss().unsigned_abs());
        Some(Ok(line))
    }
}

/// Runs a scenario with the hosts of its file, as long as `goes_on` says so.
fn outcome(
    case: &Case,
    scenario: &Scenario,
    seed: u64,
    goes_on: &dyn Fn() -> bool,
) -> Result<sim::Outcome, SimulationError> {
    let outcome = match case.file.hosts {
        Hosts::Abstract => sim::run_watched(scenario, seed, None, goes_on),
        Hosts::Real => vteps::run_watched(scenario, seed, goes_on).map_err(|unfit| {
            SimulationError::Case { case: case.name.clone(), problem: unfit.to_string() }
        })?,
    };
    outcome.ok_or_else(|| Interrupted.into())
}

/// The CPU time of this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// The time left in words, from the runs so far.
fn time_left(elapsed: Duration, done: usize, left: usize) -> String {
    let seconds = elapsed.as_secs_f64() / done as f64 * left as f64;
    match seconds {
        0.0 => String::new(),
        ..90.0 => format!(", about {seconds:.0} s left"),
        _ => format!(", about {:.0} min left", seconds / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_in_one_shard() {
        let keys: Vec<Key> = (1..=300)
            .map(|seed| Key { case: "a".into(), scheme: "reps-64".into(), seed })
            .collect();
        let shards: Vec<Shard> = "0/4".parse::<Shard>().unwrap().all().collect();
        for key in &keys {
            assert_eq!(shards.iter().filter(|shard| key.is_in(**shard)).count(), 1);
        }
        for shard in shards {
            assert!(keys.iter().filter(|key| key.is_in(shard)).count() > 40);
        }
    }

    #[test]
    fn the_links_of_a_topology_file_are_a_fabric() {
        let file = "../../deploy/containerlab/scaleacross.clab.yml";
        let text = links(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let lines = sim::topology::Lines { rate: sim::time::Rate::new(1e9), delay: 1 };
        let circuits = sim::topology::Lines { delay: 5, ..lines };
        let fabric = sim::topology::Topology::of_links(&text, lines, circuits).unwrap();
        // Each leaf has two uplinks, and each spine two circuits.
        assert_eq!((fabric.hosts, &fabric.uplinks[..]), (8, &[2, 2][..]));
        assert_eq!(fabric.links.iter().filter(|link| link.delay == 5).count(), 4);
        assert!(fabric.find_port("spine1", "spine4").is_some());
        assert_eq!(fabric.name(0), "host1");
    }
}
