//! The experiment file.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::circuits::{Circuit, Circuits};
use crate::failure::Failure;
use crate::job::{self, Job};
use crate::random::SEED;
use crate::record::Role;
use crate::units::{InnerPort, Name, QueuePairs, Share};

/// The default number of frames of each queue pair.
const FRAMES: u32 = 100;
/// The default rate of all queue pairs together, in frames per second.
const RATE: u32 = 20_000;

/// An experiment: a fabric, the dataplanes to compare on it, and the traffic.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// The name, for the fabric and the files.
    pub name: Name,
    /// The title of the report.
    pub title: String,
    /// What the experiment answers, in a few sentences.
    pub question: String,
    /// What the experiment does not show, a sentence each.
    #[serde(default)]
    pub limits: Vec<String>,
    /// ContainerLab topology files, relative to this file. Each is brought up in turn.
    #[serde(deserialize_with = "some")]
    pub topologies: Vec<PathBuf>,
    /// The seed of queue pair numbers and of the order of the runs.
    #[serde(default = "seed")]
    pub seed: u64,
    /// The dataplane that the others are compared with. Default: the first.
    #[schemars(with = "Option<Name>")]
    pub baseline: Option<Spanned<Name>>,
    /// The dataplanes to compare.
    #[serde(rename = "dataplane", deserialize_with = "some")]
    pub dataplanes: Vec<Dataplane>,
    /// The traffic of a run.
    #[serde(default)]
    pub traffic: Traffic,
    /// What fails during a run. Without it, the balance of the loads is measured.
    #[serde(default, rename = "failure")]
    #[schemars(with = "Vec<Failure>")]
    pub failures: Vec<Spanned<Failure>>,
    /// A workload of distributed training instead of a stream: the keys of a job of `lab workload`,
    /// without `queue-pairs`, `source-port` and `seed`.
    #[schemars(with = "Option<std::collections::BTreeMap<String, serde_json::Value>>")]
    pub workload: Option<Spanned<toml::Table>>,
    /// Other jobs, which run beside the workload.
    #[serde(default, rename = "job")]
    #[schemars(with = "Vec<Job>")]
    pub jobs: Vec<Spanned<Job>>,
    /// The circuits of `lab wan`, instead of the settings in the topology.
    #[serde(default)]
    pub circuits: Circuits,
    /// Circuits, or one direction of them, that differ from the others.
    #[serde(default, rename = "circuit")]
    pub single_circuits: Vec<Circuit>,
    /// Settings to compare, such as timers of the routers.
    #[serde(default, rename = "variant")]
    pub variants: Vec<Variant>,
    /// The values that are varied. Every combination is a point of the experiment.
    #[serde(default)]
    pub sweep: Sweep,
    /// How often each point is measured.
    #[serde(default)]
    pub repetitions: Repetitions,
    /// What `--quick` replaces.
    #[serde(default)]
    pub quick: Quick,
    /// What others published, for the report.
    #[serde(default, rename = "published")]
    pub published: Vec<Published>,
}

/// A dataplane of the leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Dataplane {
    /// The name in the report. Default: `kernel`, or policy and datapath.
    pub name: Option<Name>,
    /// `kernel` for kernel VXLAN without vtepd, or a policy of vtepd.
    pub policy: Name,
    /// A datapath of vtepd. Default: vtepd's own default.
    pub datapath: Option<Name>,
    /// The number of ports of `qp-bins`. Default: 4.
    pub bins: Option<u16>,
}

/// The policy name of kernel VXLAN.
pub const KERNEL: &str = "kernel";
/// The policy that probes paths. Its first run begins when it knows them.
const PROBING: &str = "qp-pin";
/// The default number of ports of `qp-bins`. It is vtepd's and that of the ScaleAcross paper.
pub const BINS: u16 = 4;

impl Dataplane {
    /// The name in the report.
    #[must_use]
    pub fn label(&self) -> String {
        let datapath = self.datapath.as_ref().map(|datapath| format!(".{datapath}"));
        match (&self.name, &self.bins) {
            (Some(name), _) => name.to_string(),
            (None, Some(bins)) => {
                format!("{}-{bins}{}", self.policy, datapath.unwrap_or_default())
            }
            (None, None) => format!("{}{}", self.policy, datapath.unwrap_or_default()),
        }
    }

    /// Whether the policy first finds the paths.
    #[must_use]
    pub fn probes(&self) -> bool {
        self.policy.as_str() == PROBING
    }

    /// Whether kernel VXLAN forwards, without vtepd.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        self.policy.as_str() == KERNEL
    }
}

/// The traffic of a run: frames of several queue pairs from one host to another.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Traffic {
    /// The sending host. Default: the first of the topology.
    pub from: Option<Name>,
    /// The receiving host. Default: the most distant from the sender.
    pub to: Option<Name>,
    /// The hosts of a workload, by site. The links between the first host and the first of the last
    /// site are counted.
    pub sites: Vec<Vec<Name>>,
    /// Frames of each queue pair.
    #[schemars(range(min = 1))]
    pub frames: std::num::NonZeroU32,
    /// Frames per second of all queue pairs together.
    #[schemars(range(min = 1))]
    pub rate: std::num::NonZeroU32,
}

impl Default for Traffic {
    fn default() -> Self {
        let number =
            |number| std::num::NonZeroU32::new(number).unwrap_or(std::num::NonZeroU32::MIN);
        Self { from: None, to: None, sites: Vec::new(), frames: number(FRAMES), rate: number(RATE) }
    }
}

/// Settings to compare.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Variant {
    /// The name in the report.
    pub name: Name,
    /// What the name stands for, for the report.
    #[serde(default)]
    pub title: String,
    /// Commands of `vtysh`, which run before a run of the variant that follows another variant.
    /// They must undo what other variants set.
    #[serde(default)]
    pub commands: Vec<String>,
    /// The routers. Default: all.
    #[serde(default)]
    pub routers: Vec<Name>,
    /// The circuits.
    #[serde(default)]
    pub circuits: Circuits,
    /// Keys of the workload that differ.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub workload: toml::Table,
    /// What fails instead of the failures of the experiment.
    #[serde(rename = "failure")]
    #[schemars(with = "Option<Vec<Failure>>")]
    pub failures: Option<Vec<Spanned<Failure>>>,
}

/// The values that are varied.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Sweep {
    /// Numbers of queue pairs.
    #[serde(deserialize_with = "some")]
    pub queue_pairs: Vec<QueuePairs>,
    /// How the inner UDP source port is chosen.
    #[serde(deserialize_with = "some")]
    pub inner_port: Vec<InnerPort>,
}

impl Default for Sweep {
    fn default() -> Self {
        let thirty_two = QueuePairs::try_from(32_u64);
        Self {
            queue_pairs: thirty_two.into_iter().collect(),
            inner_port: vec![InnerPort::Constant],
        }
    }
}

/// How often each point is measured. Every repetition draws other queue pair numbers and another
/// seed of vtepd's hashes.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Repetitions {
    /// Repetitions of each point, at least.
    #[schemars(range(min = 1))]
    pub min: std::num::NonZeroU32,
    /// Repetitions of each point, at most.
    #[schemars(range(min = 1))]
    pub max: std::num::NonZeroU32,
    /// Repetitions of each point before the next dataplane has its turn.
    #[schemars(range(min = 1))]
    pub turn: std::num::NonZeroU32,
    /// A point is measured until the confidence interval of the mean MMR is not wider than this
    /// share of the mean, to each side.
    pub precision: Share,
    /// The confidence of the intervals.
    pub confidence: Share,
}

impl Default for Repetitions {
    fn default() -> Self {
        let number =
            |number| std::num::NonZeroU32::new(number).unwrap_or(std::num::NonZeroU32::MIN);
        Self {
            min: number(10),
            max: number(100),
            turn: number(10),
            precision: Share::FIVE_PERCENT,
            confidence: Share::NINETY_FIVE_PERCENT,
        }
    }
}

/// What `--quick` replaces. Keys that are missing stay.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Quick {
    /// Replaces `topologies`.
    pub topologies: Option<Vec<PathBuf>>,
    /// Replaces `sweep`.
    pub sweep: Option<Sweep>,
    /// Keys of the workload that differ.
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub workload: toml::Table,
    /// Replaces `repetitions`.
    pub repetitions: Option<Repetitions>,
    /// The names of the variants that stay.
    pub variants: Option<Vec<Name>>,
}

/// A figure that others published.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Published {
    /// What was measured.
    pub what: String,
    /// The value with its unit.
    pub value: String,
    /// Where it was published.
    pub source: String,
    /// What the figures here measure instead, if it is not the same.
    #[serde(default)]
    pub difference: String,
    /// The figures of this experiment that are shown beside it.
    pub measured: Option<Measured>,
}

/// Figures of this experiment: the smallest and the largest value over its points.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Measured {
    /// The label of the dataplane.
    pub dataplane: Name,
    /// The links.
    pub tier: Role,
    /// Only points with this choice of inner ports.
    pub inner_port: Option<InnerPort>,
    /// Only points with this variant.
    pub variant: Option<Name>,
    /// Only points with this number of queue pairs.
    pub queue_pairs: Option<QueuePairs>,
    /// What is shown.
    pub quantity: Quantity,
}

/// A quantity of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// The mean MMR.
    Mmr,
    /// The time without traffic after a failure.
    Outage,
    /// The time of the iteration that a failure hit.
    HitCompletion,
    /// The time of an iteration of the workload.
    Completion,
    /// The bus bandwidth of the workload.
    BusBandwidth,
    /// How much lower the peak load is than with the baseline.
    PeakGain,
}

/// The experiment file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file does not describe an experiment.
    #[error("{place}: {message}")]
    Invalid {
        /// The file, with line and column if they are known.
        place: Place,
        /// What is wrong, and what is expected.
        message: String,
    },
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The line and the column, from 1.
    pub position: Option<(usize, usize)>,
}

impl Place {
    fn new(path: &Path, text: &str, offset: Option<usize>) -> Self {
        let before = offset.and_then(|offset| text.get(..offset));
        let position = before.map(|before| {
            let line = before.rsplit('\n').next().unwrap_or_default();
            (before.matches('\n').count() + 1, line.chars().count() + 1)
        });
        Self { path: path.to_owned(), position }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.position.map_or(Ok(()), |(line, column)| write!(f, ", line {line}, column {column}"))
    }
}

impl Experiment {
    /// Parses the text of an experiment file. Topologies are relative to the file at `path`.
    ///
    /// # Errors
    /// [`FileError::Invalid`], with line and column.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let invalid = |offset, message: String| FileError::Invalid {
            place: Place::new(path, text, offset),
            message,
        };
        let mut experiment: Self = toml::from_str(text).map_err(|error| {
            invalid(error.span().map(|span| span.start), error.message().trim().to_owned())
        })?;
        if let Some(baseline) = &experiment.baseline {
            let labels: Vec<String> = experiment.dataplanes.iter().map(Dataplane::label).collect();
            if !labels.contains(&baseline.get_ref().to_string()) {
                let message = format!(
                    "baseline '{}' is no dataplane: expected {}",
                    baseline.get_ref(),
                    labels.join(", ")
                );
                return Err(invalid(Some(baseline.span().start), message));
            }
        }
        for (at, dataplane) in experiment.dataplanes.iter().enumerate() {
            let label = dataplane.label();
            if experiment.dataplanes.iter().take(at).any(|other| other.label() == label) {
                let message = format!("two dataplanes are called '{label}': give one a name");
                return Err(invalid(None, message));
            }
        }
        if experiment.workload.is_some() && experiment.traffic.sites.iter().flatten().count() < 2 {
            let message =
                "a workload needs hosts: set sites = [[\"host1\"], [\"host2\"]] in [traffic]";
            return Err(invalid(None, message.to_owned()));
        }
        let of_variants = experiment.variants.iter().flat_map(|variant| &variant.failures);
        for failure in experiment.failures.iter().chain(of_variants.flatten()) {
            failure
                .get_ref()
                .check()
                .map_err(|message| invalid(Some(failure.span().start), message.to_owned()))?;
        }
        let can_run = experiment.workload.is_some() && !experiment.has_failures();
        let variants: Vec<&Name> =
            experiment.variants.iter().map(|variant| &variant.name).collect();
        job::check(&experiment.jobs, can_run, &variants)
            .map_err(|(offset, message)| invalid(Some(offset), message))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let quick = experiment.quick.topologies.iter_mut().flatten();
        for topology in experiment.topologies.iter_mut().chain(quick) {
            *topology = folder.join(&*topology);
        }
        Ok(experiment)
    }

    /// Reads an experiment file.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn load(path: &Path) -> Result<(Self, String), FileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Ok((Self::parse(path, &text)?, text))
    }

    /// The short form of the experiment, `--quick`.
    #[must_use]
    pub fn quick(mut self) -> Self {
        let Quick { topologies, sweep, workload, repetitions, variants } =
            std::mem::take(&mut self.quick);
        self.topologies = topologies.unwrap_or(self.topologies);
        self.sweep = sweep.unwrap_or(self.sweep);
        self.repetitions = repetitions.unwrap_or(self.repetitions);
        if let Some(all) = &mut self.workload {
            all.get_mut().extend(workload);
        }
        if let Some(names) = variants {
            self.variants.retain(|variant| names.contains(&variant.name));
        }
        self
    }

    /// The other jobs of a variant.
    pub fn jobs(&self, variant: Option<&Name>) -> impl Iterator<Item = &Job> {
        self.jobs.iter().map(Spanned::get_ref).filter(move |job| job.is_in(variant))
    }

    /// Whether something fails during the runs.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        let mut variants = self.variants.iter().flat_map(|variant| &variant.failures);
        !self.failures.is_empty() || variants.any(|failures| !failures.is_empty())
    }

    /// What fails during the runs of a variant, by its index.
    #[must_use]
    pub fn failures(&self, variant: Option<usize>) -> Vec<&Failure> {
        let variant = variant.and_then(|index| self.variants.get(index));
        let own = variant.and_then(|variant| variant.failures.as_ref());
        own.unwrap_or(&self.failures).iter().map(Spanned::get_ref).collect()
    }

    /// The label of the dataplane that the others are compared with.
    #[must_use]
    pub fn baseline(&self) -> String {
        let first = || self.dataplanes.first().map(Dataplane::label);
        let named = self.baseline.as_ref().map(|name| name.get_ref().to_string());
        named.or_else(first).unwrap_or_default()
    }
}

/// The JSON Schema of the experiment file.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Experiment).to_value()
}

fn seed() -> u64 {
    SEED
}

/// A list with at least one element.
fn some<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(serde::de::Error::custom("the list is empty: expected at least one"));
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
