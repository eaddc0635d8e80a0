//! Runs an experiment: brings its fabrics up, lets the dataplanes take turns, and writes the results
//! into a directory. A second call continues where the first was interrupted.

mod bench;
mod check;
mod directory;
mod event;
mod inputs;
mod merge;
mod outcome;
mod program;
mod schema;
mod settings;
mod stop;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use experiment::file::Source;
use experiment::plan::{Key, Turn, fabric_name};
use experiment::record::Manifest;
use experiment::{Experiment, Plan};

use crate::error::RunError;
use crate::machine;
use bench::Bench;
use directory::Directory;
use fabric::Fabric;
use fabric::progress::OnProgress;
use inputs::Inputs;
use stop::is_precise;

pub use check::{read, read_to_run};
pub use directory::load;
pub use event::{Event, OnEvent};
pub use merge::merge;
pub use outcome::Outcome;
pub use program::ProgramError;
pub use schema::schema;
pub use settings::Settings;

/// Runs an experiment and writes its results. If it fails or is interrupted, the results of the
/// complete runs are written, too.
///
/// # Errors
/// [`RunError`]. The fabric has been taken down then.
pub fn run(
    settings: &Settings,
    report: OnProgress,
    on_event: OnEvent,
    interrupted: &AtomicBool,
) -> Result<Outcome, RunError> {
    let (whole, text) = check::whole(&settings.file)?;
    let experiment = whole.clone().form(settings.quick);
    program::find(&experiment, &settings.file)?;
    if let Some(shard) = settings.shard {
        let repetitions = experiment.repetitions.max.get();
        if shard.count() > u64::from(repetitions) {
            return Err(RunError::Shards { shard, repetitions });
        }
    }
    let inputs = Inputs::read(&whole, Source { path: &settings.file, text: &text })?;
    let manifest = manifest(settings, &experiment, &inputs)?;
    let mut directory = Directory::open(&settings.out, &manifest, &inputs)?;
    let mut session = Session { settings, experiment: &experiment, report, on_event, interrupted };
    let result = session.run(&mut directory);
    let runs = directory.runs();
    if runs.is_empty() {
        // There is nothing to report.
        result?;
        return Err(RunError::Nothing);
    }
    let written =
        directory.write_results(&experiment, &manifest, &settings.command, result.is_ok());
    // The first error is the cause of the others.
    result?;
    written
}

/// What must be the same for all runs of a directory.
fn manifest(
    settings: &Settings,
    experiment: &Experiment,
    inputs: &Inputs,
) -> Result<Manifest, RunError> {
    let own = std::env::current_exe().unwrap_or_default();
    let sum = |program: &PathBuf| {
        let bytes = std::fs::read(program)
            .map_err(|source| RunError::File { path: program.clone(), source })?;
        Ok::<_, RunError>(machine::checksum(&bytes))
    };
    let programs = [("lab", sum(&own)?), ("vtepd", sum(&settings.vtepd)?)];
    Ok(Manifest {
        experiment: experiment.name.to_string(),
        quick: settings.quick,
        deployed: settings.deployed,
        file: machine::checksum(inputs.text.as_bytes()),
        files: inputs.checksums(),
        commit: machine::commit(&settings.vtepd),
        programs: programs.map(|(name, sum)| (name.to_owned(), sum)).into(),
        machine: experiment::record::Machine {
            kernel: machine::kernel(),
            cpu_model: machine::cpu_model(),
            cpus: machine::cpus(),
            memory_mib: machine::memory_mib(),
            governor: machine::governor(),
            command_line: machine::command_line(),
            sysctls: machine::sysctls(),
            id: machine::id(),
        },
        frr: match settings.deployed {
            true => bench::deployed_frr(settings, experiment)?,
            false => machine::frr(),
        },
        vtepd: machine::version(&settings.vtepd),
        shard: settings.shard,
        others: Vec::new(),
    })
}

/// The execution of a plan.
struct Session<'a> {
    settings: &'a Settings,
    experiment: &'a Experiment,
    report: OnProgress<'a>,
    on_event: OnEvent<'a>,
    interrupted: &'a AtomicBool,
}

impl Session<'_> {
    fn run(&mut self, directory: &mut Directory) -> Result<(), RunError> {
        let plan = Plan::new(self.experiment);
        for (at, topology) in self.experiment.topologies.iter().enumerate() {
            let turns: Vec<&Turn> = plan.turns.iter().filter(|turn| turn.fabric == at).collect();
            let missing = |turn: &&&Turn| !self.missing(turn, directory).is_empty();
            if !turns.iter().any(|turn| missing(&turn)) {
                continue;
            }
            let name = self.settings.fabric.clone();
            let name = name.unwrap_or_else(|| self.experiment.name.clone());
            if !self.settings.deployed && Fabric::is_kept(&name) {
                return Err(RunError::FabricIsUp(name.to_string()));
            }
            let verb = if self.settings.deployed { "using" } else { "starting" };
            (self.report)(&format!("{verb} the fabric {}", fabric_name(topology)))?;
            let mut bench =
                Bench::up(self.settings, self.experiment, topology, &name, self.report)?;
            (self.on_event)(Event::Fabric(bench.fabric()));
            let later = plan.turns.iter().filter(|turn| turn.fabric > at).collect();
            let result = self.turns((&turns, later), &mut bench, directory);
            let down = bench.down();
            result.and(down)?;
        }
        Ok(())
    }

    /// The runs of all turns with one fabric. `later`: the turns with the fabrics after it.
    fn turns(
        &self,
        (turns, later): (&[&Turn], Vec<&Turn>),
        bench: &mut Bench<'_>,
        directory: &mut Directory,
    ) -> Result<(), RunError> {
        let start = Instant::now();
        let mut done = 0_usize;
        for (at, turn) in turns.iter().enumerate() {
            let keys = self.missing(turn, directory);
            let (Some(dataplane), false) =
                (self.experiment.dataplanes.get(turn.dataplane), keys.is_empty())
            else {
                continue;
            };
            let left = turns.iter().skip(at).chain(&later);
            let left = left.map(|turn| self.missing(turn, directory).len()).sum::<usize>();
            (self.report)(&format!(
                "{}: at most {left} runs{} to go, now {} of {}",
                self.experiment.name,
                time_left(start.elapsed(), done, left),
                keys.len(),
                dataplane.label()
            ))?;
            for (key, left) in keys.into_iter().zip((1..=left).rev()) {
                let (experiment, runs) = (self.experiment, directory.runs());
                (self.on_event)(Event::Run { experiment, runs, left, key: &key });
                let run = bench.measure(dataplane, &key, self.report, self.interrupted)?;
                directory.append(run)?;
                done += 1;
            }
        }
        Ok(())
    }

    /// The runs of a turn that are not complete and that the stop rule still wants.
    fn missing(&self, turn: &Turn, directory: &Directory) -> Vec<Key> {
        let rule = &self.experiment.repetitions;
        let is_own = |key: &Key| self.settings.shard.is_none_or(|shard| shard.has_run(key));
        let wanted = |key: &&Key| {
            is_own(key) && !directory.has(key) && !is_precise(rule, key, directory.runs())
        };
        turn.runs.iter().filter(wanted).cloned().collect()
    }
}

/// The time left in words, from the mean duration of the runs so far.
fn time_left(elapsed: Duration, done: usize, left: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() / done as f64 * left as f64;
    if seconds < 90.0 {
        format!(" (about {seconds:.0} s)")
    } else {
        format!(" (about {:.0} min)", seconds / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use experiment::Run;

    use super::*;

    /// A run of 4 queue pairs on two links, with this load on the first link and 2 on the second.
    pub(super) fn run(repetition: u32, load: u64) -> Run {
        serde_json::from_value(serde_json::json!({
            "fabric": "f", "dataplane": "d", "queue_pairs": 4, "inner_port": "constant",
            "repetition": repetition, "seed": 1, "unix_time": 2, "sent": load + 2, "lost": 0,
            "reordered": 0, "duplicated": 0, "seconds": 0.1, "busy": 0.4,
            "tiers": [{ "role": "spine", "links": { "a": load, "b": 2 } }],
        }))
        .unwrap()
    }

    #[test]
    fn the_time_left_in_words() {
        let elapsed = Duration::from_secs(10);
        assert_eq!(time_left(elapsed, 0, 10), "");
        assert_eq!(time_left(elapsed, 10, 60), " (about 60 s)");
        assert_eq!(time_left(elapsed, 10, 600), " (about 10 min)");
    }
}
