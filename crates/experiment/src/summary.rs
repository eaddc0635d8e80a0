//! The runs of each point and dataplane together.

mod dropped;
mod failure;
mod workload;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::balance::{
    self, RandomPlacement, chance_of, chi_squared, entropy, expected_mmr_of_bins, jain, mmr, range,
};
use crate::file::{BINS, Dataplane, Experiment};
use crate::plan::{Point, fabric_name};
use crate::record::{Arrival, Completion, Discarded, Run};
use crate::role::Role;
use crate::statistics::Statistics;
use crate::units::InnerPort;

pub use dropped::DroppedRow;
pub use workload::WorkloadRow;

/// Runs with less than this share of the required rate count as slow.
const SLOW: f64 = 0.95;
/// The share of its rate that a full circuit carries over the time of a run.
const FULL: f64 = 0.7;
/// The smallest expected count of a cell in a χ² test.
const CELL: f64 = 5.0;

/// All runs of an experiment, by point and dataplane.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The rows, by fabric and point, dataplanes in the order of the file.
    pub rows: Vec<Row>,
    /// The share of the runs that were slower than required.
    pub slow: f64,
    /// The share of the runs that filled a circuit.
    pub full: f64,
    /// The mean busy share of all CPUs.
    pub busy: f64,
    /// The number of runs.
    pub runs: usize,
    /// The number of runs that were repeated.
    pub repeated: usize,
    /// The attempts that do not count, and how often.
    pub discarded: Vec<(Discarded, usize)>,
}

/// The runs of one dataplane at one point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The fabric.
    pub fabric: String,
    /// The varied values.
    pub point: Point,
    /// The label of the dataplane.
    pub dataplane: String,
    /// The tiers, in the order of the path.
    pub tiers: Vec<TierRow>,
    /// The index of the widest tier.
    pub widest: usize,
    /// How the numbered frames of all runs arrived; `None` if none were sent.
    pub arrival: Option<Arrival>,
    /// Frames that were sent, of all runs.
    pub sent: u64,
    /// Frames that were dropped in a run, where they were counted.
    pub dropped: DroppedRow,
    /// The expected MMR of the widest tier, if it is known.
    pub expected: Option<f64>,
    /// The smallest possible MMR of the widest tier with whole queue pairs. `None` for workloads,
    /// whose connections are not known here, and for packets that are sprayed.
    pub floor: Option<f64>,
    /// Whether the numbers of flows on the links are those of a random hash, for policies that hash
    /// each queue pair.
    pub random: Option<RandomTest>,
    /// The time without traffic after a failure in milliseconds.
    pub outage: Option<Statistics>,
    /// The same of the queue pair that the failure hit longest.
    pub outage_longest: Option<Statistics>,
    /// The largest interval of the frames of a queue pair, in milliseconds.
    pub outage_resolution: Option<f64>,
    /// The times without traffic of the queue pairs that a failure hit, of all runs, in milliseconds,
    /// from the shortest.
    #[serde(skip)]
    pub outages: Vec<f64>,
    /// The frames that arrived in a second around a failure, the mean of the runs, by time in
    /// milliseconds after the failure.
    #[serde(skip)]
    pub timeline: Vec<(i64, f64)>,
    /// The communication time of the iteration that a failure hit, in milliseconds.
    pub hit: Option<Statistics>,
    /// That of the iterations before it.
    pub hit_usual: Option<Statistics>,
    /// The results of a workload.
    pub workload: Option<WorkloadRow>,
    /// The results of the jobs beside it, by name.
    pub jobs: BTreeMap<String, WorkloadRow>,
}

/// A tier of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierRow {
    /// The place on the path.
    pub role: Role,
    /// The number of links.
    pub links: usize,
    /// The max-mean ratio.
    pub mmr: Statistics,
    /// Jain's index.
    pub jain: Statistics,
    /// The normalised entropy.
    pub entropy: Statistics,
    /// The range over the mean.
    pub range: Statistics,
    /// How much lower the peak load is than with the baseline, as a share of the baseline's peak.
    /// The second number is half the width of its confidence interval.
    pub gain: Option<(f64, f64)>,
}

/// A χ² test against a random hash.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RandomTest {
    /// The number of runs.
    pub runs: usize,
    /// The χ² value of the number of flows on the most loaded link.
    pub fullest: f64,
    /// Its degrees of freedom.
    pub freedom: usize,
    /// The probability of such a value, or a larger one, by chance.
    pub fullest_chance: f64,
    /// The probability by chance of the sum of flows on each link, over all runs.
    pub links_chance: f64,
}

impl RandomTest {
    /// Whether both probabilities are at least 0.1 %.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.fullest_chance >= 0.001 && self.links_chance >= 0.001
    }
}

impl Row {
    /// The value that the stop rule looks at.
    #[must_use]
    pub fn value(&self) -> Option<Statistics> {
        let completion = || Some(self.workload.as_ref()?.completion);
        self.outage.or_else(completion).or_else(|| Some(self.paths()?.mmr))
    }

    /// The times of the row, those of other jobs and of the iteration that a failure hit, too; the MMR
    /// without any.
    pub(crate) fn means(&self) -> Vec<Statistics> {
        let jobs = self.jobs.values().map(|of| of.completion);
        self.value().into_iter().chain(self.hit).chain(jobs).collect()
    }

    /// Shorter times without traffic say nothing: two intervals of a queue pair, in milliseconds.
    #[must_use]
    pub fn shortest_outage(&self) -> f64 {
        2.0 * self.outage_resolution.unwrap_or_default()
    }

    /// The widest tier.
    #[must_use]
    pub fn paths(&self) -> Option<&TierRow> {
        self.tiers.get(self.widest)
    }
}

impl Summary {
    /// Summarises the runs of an experiment.
    #[must_use]
    pub fn new(experiment: &Experiment, runs: &[Run]) -> Self {
        let mut groups: BTreeMap<(usize, Point, usize), Vec<&Run>> = BTreeMap::new();
        let fabrics: Vec<String> =
            experiment.topologies.iter().map(|file| fabric_name(file)).collect();
        let labels: Vec<String> = experiment.dataplanes.iter().map(Dataplane::label).collect();
        for run in runs {
            let fabric = fabrics.iter().position(|name| *name == run.key.fabric);
            let dataplane = labels.iter().position(|label| *label == run.key.dataplane);
            if let (Some(fabric), Some(dataplane)) = (fabric, dataplane) {
                let point = run.key.point.clone();
                groups.entry((fabric, point, dataplane)).or_default().push(run);
            }
        }
        let baseline = labels.iter().position(|label| *label == experiment.baseline());
        let row = |((fabric, point, dataplane), runs): (&(usize, Point, usize), &Vec<&Run>)| {
            let others = baseline.filter(|baseline| baseline != dataplane);
            let others =
                others.and_then(|baseline| groups.get(&(*fabric, point.clone(), baseline)));
            let dataplane = experiment.dataplanes.get(*dataplane)?;
            Some(row(experiment, dataplane, runs, others.map(Vec::as_slice)))
        };
        let rate = f64::from(experiment.traffic.rate.get());
        // Short runs are dominated by their start, and a workload has no required rate.
        let slow = runs.iter().filter(|run| {
            run.workload.is_none()
                && run.seconds > 0.05
                && (run.sent as f64) < SLOW * rate * run.seconds
        });
        let full = runs.iter().filter(|run| run.full.is_some_and(|full| full >= FULL));
        let all = runs.len().max(1) as f64;
        let mut discarded: BTreeMap<Discarded, usize> = BTreeMap::new();
        for attempt in runs.iter().flat_map(|run| &run.discarded) {
            *discarded.entry(attempt.clone()).or_default() += 1;
        }
        Self {
            rows: groups.iter().filter_map(row).collect(),
            slow: slow.count() as f64 / all,
            full: full.count() as f64 / all,
            busy: runs.iter().map(|run| run.busy).sum::<f64>() / all,
            runs: runs.len(),
            repeated: runs.iter().filter(|run| !run.discarded.is_empty()).count(),
            discarded: discarded.into_iter().collect(),
        }
    }

    /// The same with wider intervals: those of all comparisons between rows hold at once.
    #[must_use]
    pub fn among(&self, comparisons: usize) -> Self {
        let wide = |of: Statistics| of.among(comparisons);
        let workload =
            |of: &WorkloadRow| WorkloadRow { completion: wide(of.completion), ..of.clone() };
        let row = |row: &Row| {
            let tiers = row.tiers.iter();
            let jobs = row.jobs.iter();
            Row {
                tiers: tiers.map(|tier| TierRow { mmr: wide(tier.mmr), ..tier.clone() }).collect(),
                outage: row.outage.map(wide),
                workload: row.workload.as_ref().map(workload),
                jobs: jobs.map(|(name, of)| (name.clone(), workload(of))).collect(),
                ..row.clone()
            }
        };
        Self { rows: self.rows.iter().map(row).collect(), ..self.clone() }
    }

    /// Whether the machine was too slow for the traffic, so that times say nothing. If most runs
    /// fill a circuit, the fabric is the limit, even if all CPUs are busy.
    #[must_use]
    pub fn machine_is_the_limit(&self) -> bool {
        let endpoints =
            self.rows.iter().flat_map(|row| row.workload.iter().chain(row.jobs.values()));
        let busy = self.busy > 0.95 || endpoints.map(|row| row.busy.mean).any(|busy| busy > 0.9);
        self.slow > 0.1 || (busy && self.full < 0.5)
    }
}

fn row(
    experiment: &Experiment,
    dataplane: &Dataplane,
    runs: &[&Run],
    baseline: Option<&[&Run]>,
) -> Row {
    let confidence = experiment.repetitions.confidence.get();
    let first = runs.first();
    let key = first.map(|run| run.key.clone());
    let tiers = first.map(|run| run.tiers.as_slice()).unwrap_or_default();
    let tier = |at: usize| {
        let of = |measure: fn(&[u64]) -> f64| {
            let values: Vec<f64> =
                runs.iter().filter_map(|run| Some(measure(&run.tiers.get(at)?.loads()))).collect();
            Statistics::of(&values, confidence)
        };
        Some(TierRow {
            role: tiers.get(at)?.role,
            links: tiers.get(at)?.links.len(),
            mmr: of(mmr)?,
            jain: of(jain)?,
            entropy: of(entropy)?,
            range: of(range)?,
            gain: baseline.and_then(|baseline| gain(runs, baseline, at, confidence)),
        })
    };
    let rows: Vec<TierRow> = (0..tiers.len()).filter_map(tier).collect();
    let widest = (0..rows.len()).rev().max_by_key(|at| rows.get(*at).map(|tier| tier.links));
    let widest = widest.unwrap_or_default();
    let paths = rows.get(widest).map_or(1, |tier| tier.links);
    let point = key.as_ref().map(|key| key.point.clone());
    let flows = point.as_ref().map_or(1, |point| point.queue_pairs.get());
    let of = |read: fn(&Run) -> Option<f64>| {
        let values: Vec<f64> = runs.iter().filter_map(|run| read(run)).collect();
        Statistics::of(&values, confidence)
    };
    let outage = of(|run| run.outage);
    let results: Vec<&Completion> = runs.iter().filter_map(|run| run.workload.as_ref()).collect();
    let workload = WorkloadRow::of(&results, confidence);
    let jobs: BTreeSet<&String> = runs.iter().flat_map(|run| run.jobs.keys()).collect();
    let job = |name: &String| {
        let results: Vec<&Completion> = runs.iter().filter_map(|run| run.jobs.get(name)).collect();
        Some((name.clone(), WorkloadRow::of(&results, confidence)?))
    };
    let is_sprayed = dataplane.policy.as_str().starts_with("spray");
    let (expected, hashes) = expectation(dataplane, point.as_ref(), flows, paths);
    Row {
        fabric: key.as_ref().map(|key| key.fabric.clone()).unwrap_or_default(),
        point: point.unwrap_or(Point {
            queue_pairs: experiment.sweep.queue_pairs.first().copied().unwrap_or_default(),
            inner_port: InnerPort::Constant,
            variant: None,
        }),
        dataplane: dataplane.label(),
        tiers: rows,
        widest,
        arrival: runs.iter().map(|run| run.arrival).sum(),
        sent: runs.iter().map(|run| run.sent).sum(),
        dropped: DroppedRow::of(runs),
        expected: expected.filter(|_| workload.is_none()),
        floor: (workload.is_none() && !is_sprayed).then(|| balance::floor(flows, paths)),
        // A failure moves flows during a run, and the flows of a workload are not equal.
        random: if hashes && outage.is_none() && workload.is_none() {
            random_test(runs, widest, flows, paths)
        } else {
            None
        },
        outage,
        outage_longest: of(|run| run.outage_longest),
        outage_resolution: runs.iter().filter_map(|run| run.outage_resolution).reduce(f64::max),
        outages: failure::outages(runs),
        timeline: failure::timeline(runs),
        hit: of(|run| Some(run.hit?.milliseconds)),
        hit_usual: of(|run| Some(run.hit?.usual)),
        workload,
        jobs: jobs.into_iter().filter_map(job).collect(),
    }
}

/// The expected MMR of a dataplane, and whether it hashes each queue pair on its own. Kernel VXLAN
/// has no expectation with several ports: its uplink depends on the CPU, too.
fn expectation(
    dataplane: &Dataplane,
    point: Option<&Point>,
    flows: usize,
    paths: usize,
) -> (Option<f64>, bool) {
    let one_flow = point.is_none_or(|point| point.inner_port == InnerPort::Constant);
    let random = || Some(RandomPlacement::new(flows, paths).expected_mmr());
    match dataplane.policy.as_str() {
        "qp-hash" => (random(), true),
        "qp-bins" => {
            let bins = usize::from(dataplane.bins.unwrap_or(BINS));
            (Some(expected_mmr_of_bins(flows, bins, paths)), false)
        }
        "five-tuple" if !one_flow => (random(), true),
        "five-tuple" | "kernel" if one_flow => (Some(paths as f64), false),
        _ => (None, false),
    }
}

/// How much lower the peak load of a tier is than with the baseline, as [`Statistics::gain_over`].
fn gain(runs: &[&Run], baseline: &[&Run], tier: usize, confidence: f64) -> Option<(f64, f64)> {
    let peak = |run: &&Run| Some(mmr(&run.tiers.get(tier)?.loads()));
    let of = |runs: &[&Run]| {
        Statistics::of(&runs.iter().filter_map(peak).collect::<Vec<f64>>(), confidence)
    };
    let (own, base) = (of(runs)?, of(baseline)?);
    own.gain_over(&base)
}

/// Tests the numbers of flows on the links against a random hash.
fn random_test(runs: &[&Run], tier: usize, flows: usize, paths: usize) -> Option<RandomTest> {
    // Below five expected flows, χ² says nothing.
    if paths < 2 || ((runs.len() * flows) as f64) < CELL * paths as f64 {
        return None;
    }
    let mut totals = vec![0_u64; paths];
    let mut fullest = vec![0_u64; flows + 1];
    for run in runs {
        let per_flow = run.sent as f64 / flows as f64;
        let loads = run.tiers.get(tier)?.loads();
        let counts = loads.iter().map(|load| (*load as f64 / per_flow).round() as usize);
        let counts: Vec<usize> = counts.collect();
        for (total, count) in totals.iter_mut().zip(&counts) {
            *total += *count as u64;
        }
        let most = counts.iter().max().copied().unwrap_or_default();
        if let Some(seen) = fullest.get_mut(most.min(flows)) {
            *seen += 1;
        }
    }
    let (value, freedom) =
        against(&fullest, &RandomPlacement::new(flows, paths).fullest(), runs.len());
    Some(RandomTest {
        runs: runs.len(),
        fullest: value,
        freedom,
        fullest_chance: chance_of(value, freedom),
        links_chance: chi_squared(&totals).1,
    })
}

/// Pearson's χ² of counts against probabilities, and the degrees of freedom. Neighbouring cells are
/// merged until at least five are expected in each.
fn against(counts: &[u64], probabilities: &[f64], all: usize) -> (f64, usize) {
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut open = (0.0, 0.0);
    for (count, probability) in counts.iter().zip(probabilities) {
        open = (open.0 + *count as f64, open.1 + probability * all as f64);
        if open.1 >= CELL {
            cells.push(std::mem::take(&mut open));
        }
    }
    match cells.last_mut() {
        Some(last) => *last = (last.0 + open.0, last.1 + open.1),
        None => cells.push(open),
    }
    let value = cells
        .iter()
        .filter(|(_, expected)| *expected > 0.0)
        .map(|(count, expected)| (count - expected).powi(2) / expected);
    (value.sum(), cells.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::record::tests::run;

    fn experiment() -> Experiment {
        let policies = ["kernel", "qp-hash", "qp-bins"];
        crate::record::tests::experiment(&policies, "[sweep]\nqueue-pairs = [8]")
    }

    /// A run of eight queue pairs that take random paths, of `paths` of four.
    fn random(repetition: u32, paths: u64) -> Run {
        let mut random = Random::new(u64::from(repetition) + 1);
        let mut loads = [0; 4];
        (0..8).for_each(|_| loads[random.below(paths) as usize] += 100);
        run("qp-hash", 8, repetition, &loads)
    }

    #[test]
    fn a_random_hash_is_told_from_a_bad_one() {
        let test = |paths| {
            let runs: Vec<Run> = (0..400).map(|repetition| random(repetition, paths)).collect();
            let summary = Summary::new(&experiment(), &runs);
            (summary.rows[0].random.unwrap(), summary.rows[0].clone())
        };
        let (fits, row) = test(4);
        assert!(fits.fits() && fits.freedom >= 3, "{fits:?}");
        let mmr = row.paths().unwrap().mmr;
        assert!((mmr.mean - row.expected.unwrap()).abs() < mmr.half_width * 1.5, "{mmr:?}");
        assert!((row.expected.unwrap() - 1.75).abs() < 0.03 && row.floor == Some(1.0));
        let (bad, _) = test(3);
        assert!(!bad.fits(), "{bad:?}");
        // Even on all links, but always two links at a time: only the most loaded link tells.
        let pairs = |repetition: u32| {
            let mut loads = [0, 0, 0, 0];
            (0..2).for_each(|at| loads[(repetition as usize + at) % 4] = 400);
            run("qp-hash", 8, repetition, &loads)
        };
        let runs: Vec<Run> = (0..400).map(pairs).collect();
        let pairs = Summary::new(&experiment(), &runs).rows[0].random.unwrap();
        assert!(pairs.links_chance > 0.99 && pairs.fullest_chance < 1e-9, "{pairs:?}");
        // Sixteen flows on four links are four for each, which tell nothing.
        let few = |number| {
            let runs: Vec<Run> = (0..number).map(|repetition| random(repetition, 4)).collect();
            Summary::new(&experiment(), &runs).rows[0].random.map(|test| test.runs)
        };
        assert_eq!([few(2), few(3)], [None, Some(3)]);
    }

    #[test]
    fn a_gain_is_over_the_baseline_and_at_each_tier() {
        let mut runs = Vec::new();
        for repetition in 0..10 {
            runs.push(run("kernel", 8, repetition, &[800, 0, 0, 0]));
            let one = u64::from(repetition % 2) * 100;
            runs.push(run("qp-bins", 8, repetition, &[400 - one, one, 200, 200]));
        }
        let summary = Summary::new(&experiment(), &runs);
        let [kernel, bins] = summary.rows.as_slice() else { panic!("{summary:?}") };
        assert_eq!((kernel.dataplane.as_str(), kernel.expected), ("kernel", Some(4.0)));
        assert_eq!((kernel.tiers[1].gain, kernel.widest), (None, 1));
        let (gain, half) = bins.tiers[1].gain.unwrap();
        // From 4 to 2 and 1.5.
        assert!((gain - 0.5625).abs() < 1e-9 && half > 0.02 && half < 0.06, "{gain} {half}");
        let (leaf, half) = bins.tiers[0].gain.unwrap();
        assert!((leaf - 0.5).abs() < 1e-9 && half < 1e-9, "{leaf} {half}");
        assert_eq!((bins.sent, bins.random), (8000, None));
        assert_eq!((summary.runs, summary.slow), (20, 1.0), "8,000 frames in a second, not 20,000");
    }
}
