//! The order of the runs.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::file::{Dataplane, Experiment, Repetitions};
use crate::random::Random;
use crate::units::{InnerPort, Name, QueuePairs};

/// The varied values of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Point {
    /// The number of queue pairs.
    pub queue_pairs: QueuePairs,
    /// How the inner UDP source port is chosen.
    pub inner_port: InnerPort,
    /// The index of the variant in the file, so that points have its order, and its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<(usize, Name)>,
}

impl Point {
    /// The index of the variant in [`Experiment::variants`].
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        self.variant.as_ref().map(|(index, _)| *index)
    }

    /// The name of the variant, or nothing.
    #[must_use]
    pub fn variant(&self) -> &str {
        self.variant.as_ref().map_or("", |(_, name)| name.as_str())
    }
}

/// What identifies a run: a fabric, a dataplane, a point and a repetition.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The name of the fabric ([`fabric_name`]).
    pub fabric: String,
    /// The label of the dataplane.
    pub dataplane: String,
    /// The varied values.
    #[serde(flatten)]
    pub point: Point,
    /// The repetition, from 0.
    pub repetition: u32,
    /// The seed of the queue pair numbers and of the hashes of vtepd. It is the same for all
    /// dataplanes and points of a repetition.
    #[serde(with = "text")]
    pub seed: u64,
}

/// A number of 64 bits as text: JSON readers that know only doubles would round it.
mod text {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Results of earlier versions have numbers.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }

    pub(super) fn serialize<S: Serializer>(seed: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(seed)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Either::deserialize(from)? {
            Either::Number(seed) => Ok(seed),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Key {
    /// The seed of the queue pair numbers. Each number of queue pairs and each variant has other
    /// ones, so that a policy with a memory does not know them from the run before.
    #[must_use]
    pub fn numbers_seed(&self) -> u64 {
        let variant = self.point.index().map_or(0, |index| index as u64 + 1);
        self.seed.wrapping_add(self.point.queue_pairs.get() as u64).wrapping_add(variant << 16)
    }
}

/// The most repetitions of a point.
const REPETITIONS: u32 = 10_000;
/// The most runs of a plan, which are some hundred megabytes, and days.
const RUNS: u128 = 1_000_000;

/// Checks that a plan of so many points and sets of a fabric and a dataplane has no more runs than
/// fit into memory. An error is a sentence.
pub(crate) fn check(points: usize, sets: usize, repetitions: &Repetitions) -> Result<(), String> {
    let max = repetitions.max.get();
    if max > REPETITIONS {
        return Err(format!("{max} repetitions are too many: use at most {REPETITIONS}"));
    }
    match points as u128 * sets as u128 * u128::from(max) {
        ..=RUNS => Ok(()),
        runs => Err(format!(
            "{runs} runs, of all points, dataplanes and topologies, are too many: use fewer \
             repetitions or values, for at most {RUNS}"
        )),
    }
}

/// Runs with one dataplane, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The index of the fabric in [`Experiment::topologies`].
    pub fabric: usize,
    /// The index of the dataplane in [`Experiment::dataplanes`].
    pub dataplane: usize,
    /// The runs.
    pub runs: Vec<Key>,
}

/// All turns in their order. Dataplanes have their turns in rounds, so that a change of the machine
/// during the experiment meets all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The turns.
    pub turns: Vec<Turn>,
}

impl Plan {
    /// The plan of an experiment. It depends on the file only.
    #[must_use]
    pub fn new(experiment: &Experiment) -> Self {
        let repetitions = &experiment.repetitions;
        let (max, turn) = (repetitions.max.get(), repetitions.turn.get());
        let mut seeds = Random::new(experiment.seed);
        let seeds: Vec<u64> = (0..max).map(|_| seeds.next()).collect();
        let mut order = Random::new(!experiment.seed);
        let mut turns = Vec::new();
        for (fabric, topology) in experiment.topologies.iter().enumerate() {
            for first in (0..max).step_by(turn.try_into().unwrap_or(usize::MAX)) {
                let mut dataplanes: Vec<usize> = (0..experiment.dataplanes.len()).collect();
                order.shuffle(&mut dataplanes);
                for dataplane in dataplanes {
                    let Some(label) = experiment.dataplanes.get(dataplane) else { continue };
                    let last = first.saturating_add(turn).min(max);
                    let seeds = (0..).zip(&seeds).take(last as usize).skip(first as usize);
                    let key = |point, (repetition, seed): (u32, &u64)| Key {
                        fabric: fabric_name(topology),
                        dataplane: label.label(),
                        point,
                        repetition,
                        seed: *seed,
                    };
                    // Another variant costs the time until the routers are ready, so each has its
                    // runs of the turn together.
                    let points = points(experiment);
                    let mut variants: Vec<_> = points.iter().map(|point| &point.variant).collect();
                    variants.dedup();
                    order.shuffle(&mut variants);
                    let seeds: Vec<_> = seeds.collect();
                    let mut runs = Vec::new();
                    for variant in variants {
                        let of_variant = points.iter().filter(|point| point.variant == *variant);
                        let mut points: Vec<&Point> = of_variant.collect();
                        for seed in &seeds {
                            order.shuffle(&mut points);
                            runs.extend(points.iter().map(|point| key((*point).clone(), *seed)));
                        }
                    }
                    turns.push(Turn { fabric, dataplane, runs });
                }
            }
        }
        Self { turns }
    }

    /// The number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.turns.iter().map(|turn| turn.runs.len()).sum()
    }
}

/// How many runs an experiment has, and how long they take.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The smallest and the largest number of runs.
    pub runs: [usize; 2],
    /// The same in seconds, from the rates and times of the file.
    pub seconds: [f64; 2],
    /// Whether the time of a workload is a guess: the file does not tell how fast it is.
    pub guessed: bool,
}

/// Seconds until a fabric forwards, and until its routers follow a variant.
const START: f64 = 15.0;
const VARY: f64 = 3.0;
/// Seconds of a run beside its traffic: counters are read, and vtepd gets another seed.
const AROUND: f64 = 0.3;
/// Seconds until a vtepd that begins anew knows its paths.
const ANEW: f64 = 3.0;
/// Seconds of traffic before a failure, and after traffic has returned.
const FAILURE: f64 = 6.0;
/// Seconds of a run of a workload, of which nothing is known.
const WORKLOAD: f64 = 3.0;

impl Estimate {
    /// The estimate of an experiment.
    #[must_use]
    pub fn of(experiment: &Experiment) -> Self {
        let traffic = &experiment.traffic;
        let run = |point: &Point| {
            let failures = experiment.failures(point.index());
            let last = failures.iter().map(|of| of.until().unwrap_or_else(|| of.at()));
            let last = last.max().map(|time| time.as_secs_f64() + FAILURE);
            let frames = traffic.frames.get() as f64 * point.queue_pairs.get() as f64;
            let stream = frames / f64::from(traffic.rate.get());
            let workload = experiment.workload.as_ref().map(|_| WORKLOAD);
            AROUND + last.or(workload).unwrap_or(stream)
        };
        let points = points(experiment);
        let round = points.iter().map(run).sum::<f64>();
        let sets = experiment.topologies.len() * experiment.dataplanes.len();
        // A policy that places queue pairs begins anew with each repetition of a workload.
        let places = |of: &&Dataplane| ["qp-pin", "spray"].contains(&of.policy.as_str());
        let placing = experiment.dataplanes.iter().filter(places).count();
        let placing = placing * usize::from(experiment.workload.is_some());
        let anew = ANEW * (placing * experiment.topologies.len()) as f64;
        let [min, max] = [experiment.repetitions.min, experiment.repetitions.max];
        let repetitions = [min.min(max), max];
        let turn = experiment.repetitions.turn.get();
        let with = |repetitions: u32| {
            let turns = f64::from(repetitions.div_ceil(turn)) * sets as f64;
            let varied = experiment.variants.len() as f64 * VARY * turns;
            let fabrics = experiment.topologies.len() as f64 * START;
            let vtepd = anew * f64::from(repetitions) * experiment.variants.len().max(1) as f64;
            fabrics + varied + vtepd + round * f64::from(repetitions) * sets as f64
        };
        let repetitions = repetitions.map(std::num::NonZeroU32::get);
        Self {
            runs: repetitions.map(|number| number as usize * points.len() * sets),
            seconds: repetitions.map(with),
            guessed: experiment.workload.is_some(),
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |seconds: f64| match seconds {
            seconds if seconds < 90.0 => format!("{seconds:.0} s"),
            seconds if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
            seconds => format!("{:.1} h", seconds / 3600.0),
        };
        let [[least, most], [short, long]] = [self.runs.map(|runs| runs as f64), self.seconds];
        match least == most {
            true => write!(f, "{most} runs, about {}", time(long))?,
            false => write!(
                f,
                "{least} to {most} runs, about {} to {}, until the figures are precise",
                time(short),
                time(long)
            )?,
        }
        match self.guessed {
            true => write!(f, "; a run of the workload is taken for {WORKLOAD} s"),
            false => Ok(()),
        }
    }
}

/// All combinations of the varied values.
#[must_use]
pub fn points(experiment: &Experiment) -> Vec<Point> {
    let names = experiment.variants.iter().map(|variant| variant.name.clone()).enumerate();
    let mut variants: Vec<Option<(usize, Name)>> = names.map(Some).collect();
    if variants.is_empty() {
        variants.push(None);
    }
    let mut points = Vec::new();
    for variant in &variants {
        for inner_port in &experiment.sweep.inner_port {
            points.extend(experiment.sweep.queue_pairs.iter().map(|queue_pairs| Point {
                queue_pairs: *queue_pairs,
                inner_port: *inner_port,
                variant: variant.clone(),
            }));
        }
    }
    points
}

/// The name of a fabric: the topology file without folder and `.clab.yml`. That of a checked
/// experiment is a [`Name`].
#[must_use]
pub fn fabric_name(topology: &Path) -> String {
    let name = topology.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let stem = name.strip_suffix(".clab.yml").or_else(|| name.strip_suffix(".yml"));
    stem.unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(seed: u64) -> Plan {
        let text = format!(
            "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['a/b.clab.yml', 'c.yml']
             seed = {seed}\ndataplane = [{{policy = 'kernel'}}, {{policy = 'qp-hash'}}]
             [sweep]\nqueue-pairs = [4, 8]\ninner-port = ['constant', 'per-queue-pair']
             [repetitions]\nmax = 7\nturn = 3"
        );
        Plan::new(&Experiment::parse("x.toml".as_ref(), &text).unwrap())
    }

    #[test]
    fn a_seed_decides_order_and_queue_pairs() {
        assert_eq!(plan(5), plan(5));
        assert_ne!(plan(5), plan(6));
        let seeds = |plan: &Plan| plan.turns[0].runs.iter().map(|run| run.seed).collect::<Vec<_>>();
        assert_ne!(seeds(&plan(5)), seeds(&plan(6)));
    }

    #[test]
    fn what_makes_too_many_runs_is_refused_at_its_place() {
        let list = |key: &str, number: u32| {
            let values: Vec<String> = (1..=number).map(|value| value.to_string()).collect();
            format!("{key} = [{}]\n", values.join(", "))
        };
        let losses = format!("[sweep]\n{}{}", list("rate", 200), list("loss", 100));
        let points = format!("[repetitions]\nmax = 10000\n[sweep]\n{}", list("queue-pairs", 1000));
        let quick = format!("[quick.repetitions]\nmax = 9000\n[sweep]\n{}", list("rate", 1000));
        for (rest, line, says) in [
            ("[repetitions]\nmax = 4000000000", 7, "4000000000 repetitions are too many"),
            ("[quick.repetitions]\nmax = 10001", 7, "10001 repetitions are too many"),
            (&losses, 6, "20000 variants are too many"),
            (&points, 7, "10000000 runs, of all points"),
            (&quick, 7, "9000000 runs, of all points"),
        ] {
            let text = format!(
                "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['a.clab.yml']\n\
                 dataplane = [{{policy = 'kernel'}}]\n{rest}"
            );
            let error = Experiment::parse("x.toml".as_ref(), &text).unwrap_err().to_string();
            let at = format!("x.toml, line {line}, column ");
            assert!(error.starts_with(&at) && error.contains(says), "{error}");
        }
    }

    #[test]
    fn failures_and_order_are_those_of_the_file_again() {
        let text = "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['b.clab.yml']
            dataplane = [{policy = 'kernel'}, {policy = 'qp-hash'}]
            failure = [{kind = 'silent', at = '2s'}, {kind = 'frr', node = 'spine1'}]
            [[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\nfailure = [{kind = 'carrier'}]
            [repetitions]\nmax = 7\nturn = 3";
        let runs = |text: &str| -> Vec<(Key, Vec<crate::failure::Failure>)> {
            let experiment = Experiment::parse("x.toml".as_ref(), text).unwrap().form(false);
            let runs = Plan::new(&experiment).turns.into_iter().flat_map(|turn| turn.runs);
            let failures = |key: &Key| experiment.failures(key.point.index());
            runs.map(|key| (key.clone(), failures(&key).into_iter().cloned().collect())).collect()
        };
        let once = runs(text);
        assert_eq!(once, runs(text));
        let order = |runs: &[(Key, Vec<_>)]| {
            let key =
                |(key, _): &(Key, _)| (key.dataplane.clone(), key.point.clone(), key.repetition);
            runs.iter().map(key).collect::<Vec<_>>()
        };
        let other = runs(&format!("seed = 7\n{text}"));
        assert_ne!(order(&once), order(&other), "the seed decides the order");
        assert!(once.iter().any(|(_, failures)| failures.len() == 2));
    }

    #[test]
    fn no_other_point_of_a_repetition_has_the_same_queue_pairs() {
        let text = "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['a.clab.yml']
            dataplane = [{policy = 'kernel'}]\nvariant = [{name = 'a'}, {name = 'b'}]
            [sweep]\nqueue-pairs = [1, 2, 1000]\n[repetitions]\nmax = 2\nmin = 1\nturn = 2";
        let experiment = Experiment::parse("x.toml".as_ref(), text).unwrap();
        let turns = Plan::new(&experiment).turns;
        let seeds: BTreeSet<u64> =
            turns.iter().flat_map(|turn| &turn.runs).map(Key::numbers_seed).collect();
        assert_eq!(seeds.len(), 2 * 3 * 2);
    }

    #[test]
    fn an_estimate_of_runs_and_time() {
        let text = |rest: &str| {
            let text = format!(
                "name = 'x'\ntitle = ''\nquestion = ''\ntopologies = ['a.clab.yml']
                 dataplane = [{{policy = 'kernel'}}, {{policy = 'qp-hash'}}]
                 traffic = {{ frames = 100, rate = 1000 }}
                 sweep = {{ queue-pairs = [10, 20] }}\n{rest}"
            );
            Estimate::of(&Experiment::parse("x.toml".as_ref(), &text).unwrap())
        };
        let stream = text("repetitions = { min = 10, max = 1000, turn = 10 }");
        assert_eq!(stream.runs, [40, 4000]);
        // A second, or two, and 0.3 s for each run; and the start of the fabric.
        assert!((stream.seconds[0] - (15.0 + 20.0 * (1.3 + 2.3))).abs() < 1e-6, "{stream:?}");
        assert_eq!(
            stream.to_string(),
            "40 to 4000 runs, about 87 s to 2.0 h, until the figures are precise"
        );
        let one = "repetitions = { min = 5, max = 5, turn = 5 }\n[[failure]]\nkind = 'carrier'
            at = '2s'\nfor = '10s'";
        assert_eq!(text(one).to_string(), "20 runs, about 6 min");
    }

    #[test]
    fn every_combination_is_there_once_and_dataplanes_alternate() {
        let plan = plan(5);
        assert_eq!(plan.runs(), 2 * 2 * 2 * 2 * 7);
        let keys: BTreeSet<&Key> = plan.turns.iter().flat_map(|turn| &turn.runs).collect();
        assert_eq!(keys.len(), plan.runs());
        assert_eq!(plan.turns.len(), 2 * 3 * 2);
        for round in plan.turns.chunks(2) {
            let dataplanes: BTreeSet<usize> = round.iter().map(|turn| turn.dataplane).collect();
            assert_eq!((dataplanes.len(), round[0].fabric), (2, round[1].fabric));
        }
        assert_eq!(plan.turns[0].runs[0].fabric, "b");
        assert_eq!(plan.turns[11].runs[0].fabric, "c");
        // A repetition has the same queue pairs with every dataplane and at every point.
        let seeds: BTreeSet<(u32, u64)> =
            keys.iter().map(|key| (key.repetition, key.seed)).collect();
        assert_eq!(seeds.len(), 7);
    }
}
