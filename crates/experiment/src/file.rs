//! The experiment file.

mod check;
mod message;
mod place;
mod sweep;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::circuits::{Circuit, Circuits};
use crate::failure::Failure;
use crate::job::Job;
use crate::random::SEED;
use crate::role::Role;
use crate::units::{InnerPort, Name, QueuePairs, Share};

pub use message::plain;
pub use place::{FileError, Place, Source};
pub use sweep::Sweep;

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
    /// A workload instead of a stream: the keys of a job of `lab workload`, without `queue-pairs`,
    /// `source-port` and `seed`; or `command` and other keys of a program.
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
    /// What only `lab sim` needs to simulate the experiment: keys of the file of a simulation that do
    /// not follow from this one, such as `seeds`, `end` and `fabric.delay`.
    #[schemars(with = "Option<std::collections::BTreeMap<String, serde_json::Value>>")]
    pub simulation: Option<toml::Table>,
}

/// A dataplane of the leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Dataplane {
    /// The name in the report. Default: `kernel`, or policy with bins or scheme, and datapath.
    pub name: Option<Name>,
    /// `kernel` for kernel VXLAN without vtepd, or a policy of vtepd.
    pub policy: Name,
    /// A datapath of vtepd. Default: vtepd's own default.
    pub datapath: Option<Name>,
    /// The number of ports of `qp-bins`. Default: 4.
    pub bins: Option<u16>,
    /// The scheme of `spray`. Default: vtepd's.
    pub scheme: Option<Name>,
}

/// The policy name of kernel VXLAN.
pub const KERNEL: &str = "kernel";
/// The default number of ports of `qp-bins`. It is vtepd's and that of the ScaleAcross paper.
pub const BINS: u16 = 4;

impl Dataplane {
    /// The name in the report.
    #[must_use]
    pub fn label(&self) -> String {
        if let Some(name) = &self.name {
            return name.to_string();
        }
        let bins = self.bins.map(|bins| format!("-{bins}")).unwrap_or_default();
        let scheme = self.scheme.as_ref().map(|scheme| format!("-{scheme}")).unwrap_or_default();
        let datapath = self.datapath.as_ref().map(|datapath| format!(".{datapath}"));
        format!("{}{bins}{scheme}{}", self.policy, datapath.unwrap_or_default())
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
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
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
    /// Keys of the workload that differ. The others stay, also those of `transport`.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub workload: toml::Table,
    /// The hosts of the workload, instead of `sites` in `[traffic]`.
    pub sites: Option<Vec<Vec<Name>>>,
    /// What fails instead of the failures of the experiment.
    #[serde(rename = "failure")]
    #[schemars(with = "Option<Vec<Failure>>")]
    pub failures: Option<Vec<Spanned<Failure>>>,
    /// The variant of the file, if values of the sweep were added to it.
    #[serde(skip)]
    pub of: Option<Name>,
}

impl Variant {
    /// The name in the file.
    #[must_use]
    pub fn base(&self) -> &Name {
        self.of.as_ref().unwrap_or(&self.name)
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
    /// A point is measured until half of the confidence interval of its mean is at most this share
    /// of the mean. The mean is that of the time without traffic (with failures), of the completion
    /// time (with a workload), or else of the MMR of the widest tier.
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
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
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

impl Quantity {
    /// Whether it depends on the speed of the machine.
    pub(crate) const fn is_time(self) -> bool {
        !matches!(self, Self::Mmr | Self::PeakGain)
    }
}

impl Experiment {
    /// Parses the text of an experiment file. Topologies are relative to the file at `path`.
    ///
    /// # Errors
    /// [`FileError::Invalid`], with line and column.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let source = Source { path, text };
        let mut experiment: Self =
            toml::from_str(text).map_err(|error| source.parse_error(&error))?;
        check::check(&experiment, source)?;
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
        let text = crate::input::read_text(path)
            .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Ok((Self::parse(path, &text)?, text))
    }

    /// The experiment as it is run: the full form, or the short one of `--quick`. The values of the
    /// sweep have become variants.
    #[must_use]
    pub fn form(mut self, quick: bool) -> Self {
        let Quick { topologies, sweep, workload, repetitions, variants } = match quick {
            true => std::mem::take(&mut self.quick),
            false => Quick::default(),
        };
        self.topologies = topologies.unwrap_or(self.topologies);
        self.sweep = sweep.unwrap_or(self.sweep);
        self.repetitions = repetitions.unwrap_or(self.repetitions);
        if let Some(all) = &mut self.workload {
            merge(all.get_mut(), &workload);
        }
        if workload.contains_key("bytes") {
            // Times of other messages than those that were published.
            let times = |of: &mut Measured| of.quantity.is_time();
            self.published.iter_mut().for_each(|of| drop(of.measured.take_if(times)));
        }
        if let Some(names) = variants {
            self.variants.retain(|variant| names.contains(&variant.name));
        }
        // The names have been checked.
        self.variants = self.sweep.variants(&self.variants).unwrap_or(self.variants);
        self
    }

    /// The other jobs of a variant.
    pub fn jobs(&self, variant: Option<&Name>) -> impl Iterator<Item = &Job> {
        let variant = self.variants.iter().find(|of| Some(&of.name) == variant).map(Variant::base);
        self.jobs.iter().map(Spanned::get_ref).filter(move |job| job.is_in(variant))
    }

    /// The keys of the workload in a variant, by its index.
    #[must_use]
    pub fn workload(&self, variant: Option<usize>) -> toml::Table {
        let mut table = self.workload.as_ref().map(|table| table.get_ref().clone());
        if let (Some(table), Some(variant)) =
            (&mut table, variant.and_then(|index| self.variants.get(index)))
        {
            merge(table, &variant.workload);
        }
        table.unwrap_or_default()
    }

    /// Whether the workload is a program of the user. Otherwise it is a collective operation.
    #[must_use]
    pub fn is_program(&self) -> bool {
        self.workload.as_ref().is_some_and(|table| table.get_ref().contains_key("command"))
    }

    /// The hosts of the workload by site, in a variant.
    #[must_use]
    pub fn sites(&self, variant: Option<usize>) -> &[Vec<Name>] {
        let variant = variant.and_then(|index| self.variants.get(index));
        variant.and_then(|variant| variant.sites.as_ref()).unwrap_or(&self.traffic.sites)
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

/// Adds the keys of `other`, which win. Tables are merged key by key, except for `compute`, whose keys
/// depend on its distribution.
fn merge(table: &mut toml::Table, other: &toml::Table) {
    for (key, value) in other {
        match (table.get_mut(key), value) {
            (Some(toml::Value::Table(own)), toml::Value::Table(value)) if key != "compute" => {
                merge(own, value);
            }
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
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
