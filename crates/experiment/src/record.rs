//! What is known about a run, and about the machine and the programs of all runs.

mod dropped;
mod manifest;

use std::collections::BTreeMap;
use std::iter::Sum;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::plan::Key;
use crate::role::Role;

pub use dropped::{CircuitDrops, Dropped};
pub use manifest::{Machine, Manifest};

/// A tier: the parallel links between two groups of nodes that the traffic passes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// `leaf`: the uplinks of the sending leaf. `far-leaf`: those of the receiving leaf. `spine`:
    /// between them.
    pub role: Role,
    /// The frames that each link carried in the direction of the traffic.
    pub links: BTreeMap<String, u64>,
}

impl Tier {
    /// The loads of the links in frames.
    #[must_use]
    pub fn loads(&self) -> Vec<u64> {
        self.links.values().copied().collect()
    }
}

/// A run that is complete. A line of `runs.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was run.
    #[serde(flatten)]
    pub key: Key,
    /// The start in seconds since 1970 (UTC).
    pub unix_time: u64,
    /// The loads of the links by tier, in the order of the path.
    pub tiers: Vec<Tier>,
    /// Frames that were sent.
    pub sent: u64,
    /// How numbered frames arrived; absent if none were sent, as in a workload without a failure.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub arrival: Option<Arrival>,
    /// Each queue pair of the numbered frames; empty if none were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<QueuePair>,
    /// The first 1,000 moves of these queue pairs between links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<Moved>,
    /// The numbered frames over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// The duration of sending in seconds.
    pub seconds: f64,
    /// The busy share of all CPUs during the run, 0 to 1.
    pub busy: f64,
    /// The largest share of its rate that a circuit on the path carried, 0 to 1; absent without
    /// circuits that have a rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<f64>,
    /// Where frames were dropped; absent if it could not be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Dropped>,
    /// The earlier attempts of the run, which do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discarded: Vec<Discarded>,
    /// The time without traffic after a failure in milliseconds: the mean of all queue pairs of the
    /// failed link, also of those that lost no frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<f64>,
    /// The same of the queue pair that the failure hit longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_longest: Option<f64>,
    /// The interval of the frames of a queue pair in milliseconds. A time without traffic is a
    /// multiple of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_resolution: Option<f64>,
    /// The iteration of a workload that a failure hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit: Option<Hit>,
    /// The result of a workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Completion>,
    /// The results of the jobs beside it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub jobs: BTreeMap<String, Completion>,
}

/// An attempt of a run that does not count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Discarded {
    /// What happened meanwhile.
    pub reason: String,
    /// Whether a program under test ended, or did something else than before. Otherwise the fabric
    /// did: BGP changed a path.
    pub failed: bool,
}

/// How numbered frames arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Frames that did not arrive, or arrived damaged.
    pub lost: u64,
    /// Frames that arrived after a later frame of their queue pair.
    pub reordered: u64,
    /// Frames that arrived twice.
    pub duplicated: u64,
}

impl Sum for Arrival {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, of| Self {
            lost: sum.lost + of.lost,
            reordered: sum.reordered + of.reordered,
            duplicated: sum.duplicated + of.duplicated,
        })
    }
}

/// The numbered frames of a queue pair in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueuePair {
    /// The destination queue pair.
    pub number: u32,
    /// Where its last frame went: the sending ends of the links between leaves, in order; absent if
    /// packets of a queue pair take all paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that did not arrive, or arrived damaged.
    pub lost: u64,
    /// Frames that arrived after a later one.
    pub reordered: u64,
    /// The longest time without traffic in milliseconds: the frames in a row that did not arrive,
    /// times the interval of the frames.
    pub outage: f64,
    /// Bytes of the frames that arrived, without those of the tunnel.
    pub bytes: u64,
    /// How often its next frame took another link than the one before, in the tier of links where
    /// that happened most; absent as `path`, or if not every frame was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves: Option<u32>,
}

/// A queue pair takes another link than before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// The destination queue pair.
    pub queue_pair: u32,
    /// When the first frame took it, in milliseconds since the beginning of the first bin of the
    /// [timeline](Run::timeline).
    pub at: f64,
    /// The sending end of the link before.
    pub from: String,
    /// That of the new one.
    pub to: String,
}

/// Frames over time, in bins of [`Timeline::BIN`] milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Frames that were sent in each bin.
    pub sent: Vec<u64>,
    /// Frames that arrived in each bin. It may be longer: the last frames arrive later.
    pub arrived: Vec<u64>,
    /// When the first failure began, in milliseconds since the beginning of the first bin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<f64>,
}

impl Timeline {
    /// The width of a bin in milliseconds.
    pub const BIN: u32 = 10;

    /// The beginning of each bin in milliseconds, with the frames that were sent and that arrived in
    /// it. Bin 0 is that of the first failure, or else the first one.
    pub fn bins(&self) -> impl Iterator<Item = (i64, u64, u64)> {
        let at = |of: &[u64], bin: usize| of.get(bin).copied().unwrap_or_default();
        let failure = (self.failure.unwrap_or_default() / f64::from(Self::BIN)).floor() as i64;
        (0..self.sent.len().max(self.arrived.len())).zip(-failure..).map(move |(bin, number)| {
            (number * i64::from(Self::BIN), at(&self.sent, bin), at(&self.arrived, bin))
        })
    }
}

/// The iteration of a workload during which something failed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// Its communication time in milliseconds.
    pub milliseconds: f64,
    /// The median communication time of the iterations before it in milliseconds.
    pub usual: f64,
    /// Packets that were sent again in it.
    pub retransmitted: u64,
}

/// The result of a workload: of its iterations without warm-up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The number of iterations.
    pub iterations: u32,
    /// The mean communication time of an iteration in milliseconds.
    pub milliseconds: f64,
    /// The longest communication time in milliseconds.
    pub worst: f64,
    /// The mean bus bandwidth in Mbit/s, as nccl-tests define it.
    pub bus_bandwidth: f64,
    /// The 99th percentile of the completion times of messages in milliseconds, of the worst
    /// iteration.
    pub message_p99: f64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// The largest busy share of an endpoint's thread, 0 to 1. Near 1, the machine is the limit.
    pub busy: f64,
    /// The mean of the time at the rate of the roofline divided by the communication time; absent
    /// without a roofline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roofline_ratio: Option<f64>,
    /// The mean time that the last host ended after the median host, in milliseconds.
    #[serde(default)]
    pub straggler: f64,
    /// The counters of all hosts, with the names that NICs have. Those that are 0 are absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
    /// Each iteration; empty for a job beside the workload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<Iteration>,
}

/// One iteration of a workload. Times are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// The communication time.
    pub milliseconds: f64,
    /// The host that ended last.
    pub straggler: String,
    /// How long after the median host it ended.
    pub behind: f64,
    /// The number of messages.
    pub messages: u64,
    /// The median of the completion times of messages.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// The counters of all hosts. Those that are 0 are absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<String, u64>,
}

impl Completion {
    /// The timeouts of the local ACK timer.
    pub const TIMEOUTS: &str = "local_ack_timeout_err";
    /// The negative acknowledgements for packets out of sequence.
    pub const NAKS: &str = "packet_seq_err";

    /// A counter of all hosts; `None` if nothing was counted, as for a program of the user.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        (!self.counters.is_empty()).then(|| self.counters.get(name).copied().unwrap_or_default())
    }
}

impl Run {
    /// The first of the tiers with the most links: the paths.
    #[must_use]
    pub fn widest(&self) -> Option<&Tier> {
        self.tiers.iter().rev().max_by_key(|tier| tier.links.len())
    }

    /// The max-mean ratio of the widest tier; 0 without a tier.
    #[must_use]
    pub fn mmr(&self) -> f64 {
        self.widest().map_or(0.0, |tier| crate::balance::mmr(&tier.loads()))
    }

    /// The value that the stop rule looks at: the outage, the completion time, or the MMR.
    #[must_use]
    pub fn value(&self) -> f64 {
        let completion = self.workload.as_ref().map(|workload| workload.milliseconds);
        self.outage.or(completion).unwrap_or_else(|| self.mmr())
    }
}

/// Parses the lines of a file of results, such as `runs.jsonl`. A last line without an end is left
/// out: the program was ended while it wrote. Returns the results and the number of bytes that they
/// take.
///
/// # Errors
/// The number of a line that is not a result, from 1, and what is wrong.
pub fn parse_lines<T: DeserializeOwned>(
    text: &str,
) -> Result<(Vec<T>, usize), (usize, serde_json::Error)> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let lines = text.get(..whole).unwrap_or_default().lines().zip(1..);
    let parse = |(line, number)| serde_json::from_str(line).map_err(|error| (number, error));
    Ok((lines.map(parse).collect::<Result<_, _>>()?, whole))
}

/// The date (UTC) of a time in seconds since 1970, such as `2026-01-31`. Counts days from March of
/// year 0, so that the leap day is the last of a year.
#[must_use]
pub fn date(unix_time: u64) -> String {
    let days = unix_time / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + next)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::file::Experiment;
    use crate::plan::Point;
    use crate::units::InnerPort;

    /// An experiment on `scaleacross.clab.yml` with these policies and what else its file says.
    pub(crate) fn experiment(policies: &[&str], rest: &str) -> Experiment {
        let policies: Vec<String> =
            policies.iter().map(|policy| format!("{{policy = '{policy}'}}")).collect();
        let text = format!(
            "name = 'x'\ntitle = 't'\nquestion = 'Why?'\ntopologies = ['scaleacross.clab.yml']\n\
             dataplane = [{}]\n{rest}",
            policies.join(", ")
        );
        Experiment::parse("x.toml".as_ref(), &text).unwrap()
    }

    /// A run with these loads on the widest tier.
    pub(crate) fn run(dataplane: &str, queue_pairs: u64, repetition: u32, loads: &[u64]) -> Run {
        let links = |name: &str, loads: &[u64]| {
            let links = loads.iter().enumerate();
            links.map(|(at, load)| (format!("{name}:{at}"), *load)).collect()
        };
        let halves: Vec<u64> = loads.chunks(2).map(|pair| pair.iter().sum()).collect();
        Run {
            key: Key {
                fabric: "scaleacross".into(),
                dataplane: dataplane.into(),
                point: Point {
                    queue_pairs: queue_pairs.try_into().unwrap(),
                    inner_port: InnerPort::Constant,
                    variant: None,
                },
                repetition,
                seed: u64::from(repetition),
            },
            unix_time: 1_800_000_000,
            tiers: vec![
                Tier { role: Role::Leaf, links: links("leaf1", &halves) },
                Tier { role: Role::Spine, links: links("spine", loads) },
            ],
            sent: loads.iter().sum(),
            arrival: Some(Arrival::default()),
            seconds: 0.1,
            busy: 0.4,
            ..Run::default()
        }
    }

    pub(crate) fn manifest() -> Manifest {
        Manifest {
            experiment: "sample".into(),
            quick: false,
            deployed: false,
            file: "1".into(),
            files: BTreeMap::from([
                ("a.clab.yml".into(), "4".into()),
                ("b.conf".into(), "5".into()),
            ]),
            commit: "abc".into(),
            programs: BTreeMap::from([("vtepd".into(), "2".into())]),
            machine: Machine {
                kernel: "6.18.0".into(),
                cpu_model: "A <CPU>".into(),
                cpus: 2,
                memory_mib: 4096,
                governor: String::new(),
                command_line: String::new(),
                sysctls: std::collections::BTreeMap::new(),
                id: "3".into(),
            },
            frr: "8.4.4".into(),
            vtepd: "0.1.0".into(),
            shard: None,
            others: Vec::new(),
        }
    }

    #[test]
    fn lines_come_back_and_a_cut_line_is_left_out() {
        let runs = [run("a", 4, 0, &[1, 2, 3, 4]), run("b", 4, 1, &[4, 4, 4, 4])];
        let line = |run: &Run| serde_json::to_string(run).unwrap() + "\n";
        let text: String = runs.iter().map(line).collect();
        assert_eq!(parse_lines::<Run>(&text).unwrap(), (runs.to_vec(), text.len()));
        let (found, whole) = parse_lines::<Run>(&text[..text.len() - 5]).unwrap();
        assert_eq!((found.as_slice(), whole), (&runs[..1], line(&runs[0]).len()));
        let exact = Key { seed: 13_849_476_782_667_956_992, ..runs[0].key.clone() };
        let text = serde_json::to_string(&exact).unwrap();
        assert!(
            text.contains("\"seed\":\"13849476782667956992\""),
            "doubles would round it: {text}"
        );
        assert_eq!(serde_json::from_str::<Key>(&text).unwrap(), exact);
        assert_eq!(parse_lines::<Run>("").unwrap(), (Vec::new(), 0));
        assert_eq!(parse_lines::<Run>("{}\n").unwrap_err().0, 1);
        assert!((runs[0].mmr() - 1.6).abs() < 1e-9);
    }

    #[test]
    fn dates_with_leap_days() {
        let dates = [0, 951_782_399, 951_782_400, 951_868_800, 1_800_000_000, 4_107_542_400];
        let expected =
            ["1970-01-01", "2000-02-28", "2000-02-29", "2000-03-01", "2027-01-15", "2100-03-01"];
        assert_eq!(dates.map(date), expected);
    }
}
