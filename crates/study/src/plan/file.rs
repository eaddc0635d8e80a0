//! The job file of `lab plan`.

use std::fmt;
use std::path::Path;

use experiment::FileError;
use experiment::file::Source;
use experiment::units::{Name, Percent, Time};
use planner::check::{self, Invalid};
use planner::machine::{Machine, SHIPPED};
use planner::model::Model;
use planner::network::{self, Balance, Link, Recovery, Sites};
use planner::plan::Plan;
use planner::{Job, Space};
use quantity::Kind;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{PlanError, Point, Searcher, balance};

/// A job file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlanFile {
    /// The name, for files.
    pub name: Name,
    /// The title of the report.
    pub title: String,
    /// The model.
    model: Model,
    /// The name of a kind of machine that is shipped, or its keys.
    machine: MachineChoice,
    /// Sequences of an iteration.
    batch: u32,
    /// Whether gradients are exchanged while others are computed.
    #[serde(default = "yes")]
    overlap: bool,
    /// Where the GPUs are, and what joins them.
    sites: SitesTable,
    /// How evenly technologies load the paths, in place of the default.
    #[serde(default)]
    balance: Vec<Balance>,
    /// The plans that are tried.
    #[serde(default)]
    pub search: Space,
    /// The plan with which the found ones are compared.
    pub baseline: Option<Plan>,
    /// Two quantities that vary.
    pub sweep: Option<Sweep>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone)]
enum MachineChoice {
    Shipped(String),
    Own(Box<Machine>),
}

impl<'de> Deserialize<'de> for MachineChoice {
    /// By hand, so that an error in a table is that of its key.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MachineVisitor)
    }
}

struct MachineVisitor;

impl<'de> Visitor<'de> for MachineVisitor {
    type Value = MachineChoice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a machine, such as \"a100\", or a table [machine]")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(MachineChoice::Shipped(name.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let machine = Machine::deserialize(MapAccessDeserializer::new(map))?;
        Ok(MachineChoice::Own(Box::new(machine)))
    }
}

/// The sites and the link between each two.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SitesTable {
    gpus: Vec<u32>,
    /// Of all paths together, in each direction, on the wire.
    #[serde(default = "unlimited")]
    bandwidth: Rate,
    #[serde(default = "one")]
    oversubscription: f64,
    latency: Option<Time>,
    #[serde(default)]
    loss: Option<Percent>,
    #[serde(default)]
    recovery: Recovery,
    /// Paths between two sites.
    #[serde(default = "four")]
    paths: u16,
    /// Bytes of a packet's payload, and of its headers.
    #[serde(default = "network::packet")]
    packet: u32,
    #[serde(default = "network::headers")]
    headers: u32,
}

fn one() -> f64 {
    1.0
}

fn four() -> u16 {
    4
}

fn unlimited() -> Rate {
    Rate { text: "1000tbit".into(), bytes: 1.25e14 }
}

/// A rate, such as `400gbit`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Rate {
    text: String,
    /// Bytes in a second.
    bytes: f64,
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bits = Kind::RATE.parse(&text).map_err(|error| format!("'{text}': {error}"))?;
        match bits >= 8e3 {
            true => Ok(Self { text, bytes: bits / 8.0 }),
            false => Err(format!("'{text}': expected 8kbit or more, such as 400gbit")),
        }
    }
}

/// Two quantities that vary. Every combination is a point.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[derive(Default)]
pub struct Sweep {
    batch: Vec<u32>,
    bandwidth: Vec<Rate>,
    latency: Vec<Time>,
    loss: Vec<Percent>,
}

/// A value of a sweep.
type Value = (String, fn(&mut Job, f64), f64);

impl Sweep {
    /// The name and the values of each quantity that varies.
    fn axes(&self) -> Vec<(&'static str, Vec<Value>)> {
        let bandwidth = self.bandwidth.iter().map(|rate| {
            let set: fn(&mut Job, f64) = |job, value| job.sites.link.bandwidth = value;
            (rate.text.clone(), set, rate.bytes)
        });
        let latency = self.latency.iter().map(|time| {
            let set: fn(&mut Job, f64) = |job, value| job.sites.link.latency = value;
            (time.as_str().to_owned(), set, time.duration().as_secs_f64())
        });
        let loss = self.loss.iter().map(|percent| {
            let set: fn(&mut Job, f64) = |job, value| job.sites.link.loss = value;
            (format!("{} %", percent.get()), set, percent.get() / 100.0)
        });
        let batch = self.batch.iter().map(|batch| {
            let set: fn(&mut Job, f64) = |job, value| job.batch = value as u32;
            (batch.to_string(), set, f64::from(*batch))
        });
        let all = [
            ("batch", batch.collect::<Vec<_>>()),
            ("bandwidth", bandwidth.collect()),
            ("latency", latency.collect()),
            ("loss", loss.collect()),
        ];
        all.into_iter().filter(|(_, values)| !values.is_empty()).collect()
    }

    /// The names of the two quantities.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.axes().into_iter().map(|(name, _)| name).collect()
    }

    /// What is fastest at each point.
    pub(super) fn points(
        &self,
        searcher: &Searcher<'_>,
        job: &Job,
        space: &Space,
    ) -> Result<Vec<Point>, PlanError> {
        let axes = self.axes();
        let [(_, across), (_, up)] = axes.as_slice() else { return Ok(Vec::new()) };
        let point = |x: &Value, y: &Value| -> Result<Point, PlanError> {
            let mut job = job.clone();
            for (_, set, value) in [x, y] {
                set(&mut job, *value);
            }
            let mut each = Vec::new();
            for boundary in space.boundary.iter().copied() {
                let space = Space { boundary: vec![boundary], ..space.clone() };
                each.extend(searcher.fastest(&job, &space)?.map(|best| (boundary, best)));
            }
            let placements =
                each.iter().map(|(one, best)| (*one, best.iteration.seconds)).collect();
            let best = each
                .into_iter()
                .map(|(_, best)| best)
                .min_by(|a, b| a.iteration.seconds.total_cmp(&b.iteration.seconds));
            Ok(Point { x: x.0.clone(), y: y.0.clone(), best, placements })
        };
        up.iter().flat_map(|y| across.iter().map(move |x| point(x, y))).collect()
    }
}

impl PlanFile {
    /// Reads a job file.
    ///
    /// # Errors
    /// [`FileError`], with the line and the column.
    pub fn load(path: &Path) -> Result<(Self, Job), FileError> {
        let text = experiment::input::read_text(path)
            .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Parses the text of a job file.
    ///
    /// # Errors
    /// [`FileError`], with the line and the column.
    pub fn parse(path: &Path, text: &str) -> Result<(Self, Job), FileError> {
        let source = Source { path, text };
        let file: Self = toml::from_str(text).map_err(|error| source.parse_error(&error))?;
        let job = file.job(file.machine(source)?);
        let wrong =
            |Invalid { key, expected }| source.error_at(&key, format!("expected {expected}"));
        file.check(&job).map_err(wrong)?;
        Ok((file, job))
    }

    fn machine(&self, source: Source<'_>) -> Result<Machine, FileError> {
        let name = match &self.machine {
            MachineChoice::Own(machine) => return Ok(Machine::clone(machine)),
            MachineChoice::Shipped(name) => name,
        };
        let found = SHIPPED.iter().find(|(known, _)| known == name);
        let Some((_, text)) = found else {
            let known = SHIPPED.map(|(name, _)| name).join(", ");
            let message = format!("no machine is called '{name}': write {known}, or [machine]");
            return Err(source.error_at("machine", message));
        };
        toml::from_str(text).map_err(|error| source.error_at("machine", error.message()))
    }

    /// Names the first value that makes no sense.
    fn check(&self, job: &Job) -> Result<(), Invalid> {
        // The balance of the file alone, so that numbers of its list are those of the file.
        check::job(&Job { balance: self.balance.clone(), ..job.clone() })?;
        check::space(job, &self.search)?;
        if let Some(plan) = &self.baseline {
            check::plan("baseline", plan)?;
        }
        let Some(sweep) = &self.sweep else { return Ok(()) };
        let axes = sweep.axes();
        if axes.len() != 2 {
            let expected = "values of two quantities: batch, bandwidth, latency or loss";
            return Err(Invalid::new("sweep", expected));
        }
        for (name, values) in axes {
            for (at, (_, set, value)) in values.iter().enumerate() {
                let mut job = job.clone();
                set(&mut job, *value);
                let of_sweep = |error| Invalid { key: format!("sweep.{name}.{at}"), ..error };
                check::job(&job).map_err(of_sweep)?;
            }
        }
        Ok(())
    }

    fn job(&self, machine: Machine) -> Job {
        let SitesTable { gpus, bandwidth, latency, loss, .. } = &self.sites;
        let SitesTable { oversubscription, recovery, paths, packet, headers, .. } = self.sites;
        let link = Link {
            bandwidth: bandwidth.bytes,
            oversubscription,
            latency: latency.as_ref().map_or(0.0, |time| time.duration().as_secs_f64()),
            loss: loss.map_or(0.0, |loss| loss.get() / 100.0),
            recovery,
            paths: u32::from(paths),
            packet,
            headers,
        };
        let default = balance::expected();
        Job {
            model: self.model.clone(),
            machine,
            sites: Sites { gpus: gpus.clone(), link },
            batch: self.batch,
            overlap: self.overlap,
            balance: balance::with(&default, &self.balance),
        }
    }
}
