//! An experiment as a simulation: the same fabric, hosts, queue pairs and dataplanes.

use std::path::{Path, PathBuf};

use experiment::Experiment;
use experiment::file::Dataplane;
use toml::{Table, Value};
use traffic::stream::PAYLOAD;

use super::SimulationError;
use crate::daemon::{Policy, SCHEME};

/// The key of the varied number of queue pairs.
pub(super) const QUEUE_PAIRS: &str = "traffic.0.flows";
/// The header of a simulated packet in bytes.
const HEADER: usize = 64;
/// Numbers that switches hash beside the number of the flow.
const VALUES: i64 = 64;

/// The text of the simulation that an experiment describes, and the folder of its topology.
pub(super) struct Described {
    pub(super) text: String,
    pub(super) directory: PathBuf,
}

/// Translates the text of an experiment. `None`: it is a simulation.
pub(super) fn describe(path: &Path, text: &str) -> Result<Option<Described>, SimulationError> {
    let table: Table = toml::from_str(text).unwrap_or_default();
    if !table.contains_key("dataplane") {
        return Ok(None);
    }
    let (experiment, _) = crate::run::read(path, false).map_err(Box::new)?;
    let refused = |problem: String| SimulationError::Described { path: path.to_owned(), problem };
    let directory = experiment.topologies.first().and_then(|file| file.parent());
    let directory = directory.unwrap_or(Path::new("")).to_owned();
    let simulation = translate(&experiment, &table).map_err(refused)?;
    let text = toml::to_string(&simulation).map_err(|error| refused(error.to_string()))?;
    Ok(Some(Described { text, directory }))
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

/// The simulation. What the experiment does not say is in its `[simulation]`.
fn translate(experiment: &Experiment, file: &Table) -> Result<Table, String> {
    let Some(mut simulation) = experiment.simulation.clone() else {
        return Err("it has no [simulation], which 'lab sim' needs: see the guide".to_owned());
    };
    let varied = experiment.workload.is_some() || !experiment.variants.is_empty();
    if varied || experiment.has_failures() || !experiment.single_circuits.is_empty() {
        let message = "'lab sim' simulates the stream of an experiment: remove [workload], \
                       [[variant]], [[failure]] and [[circuit]]";
        return Err(message.to_owned());
    }
    let text = |key: &str| file.get(key).cloned().unwrap_or_else(|| Value::Array(Vec::new()));
    let queue_pairs = experiment.sweep.queue_pairs.iter().map(|number| number.get() as i64);
    let queue_pairs: Vec<Value> = queue_pairs.map(Value::from).collect();
    let variants = experiment.dataplanes.iter().map(variant).collect::<Result<Vec<_>, _>>()?;
    for (key, value) in [
        ("name", text("name")),
        ("title", text("title")),
        ("question", text("question")),
        ("traffic", Value::Array(vec![stream(experiment)?.into()])),
        ("variant", variants.into()),
        ("sweep", table([(QUEUE_PAIRS, queue_pairs.into())]).into()),
    ] {
        if simulation.insert(key.to_owned(), value).is_some() {
            return Err(format!("'{key}' of [simulation] follows from the experiment: remove it"));
        }
    }
    simulation.entry("limits").or_insert_with(|| text("limits"));
    merge(&mut simulation, "fabric", fabric(experiment)?);
    let packet = (PAYLOAD + HEADER) as i64;
    merge(&mut simulation, "transport", table([("packet", packet.into())]));
    Ok(simulation)
}

/// Adds what a table of the file does not have.
fn merge(simulation: &mut Table, key: &str, derived: Table) {
    let own = simulation.entry(key).or_insert_with(|| Table::new().into());
    if let Value::Table(own) = own {
        derived.into_iter().for_each(|(key, value)| _ = own.entry(key).or_insert(value));
    }
}

/// The fabric. The host sends at the rate of the stream, so all links but circuits have that one.
fn fabric(experiment: &Experiment) -> Result<Table, String> {
    let [topology] = experiment.topologies.as_slice() else {
        return Err("'lab sim' simulates one topology: leave one of 'topologies'".to_owned());
    };
    let file = topology.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bits = u64::from(experiment.traffic.rate.get()) * (PAYLOAD + HEADER) as u64 * 8;
    let rate = format!("{}kbit/s", bits / 1000);
    let mut fabric =
        table([("kind", "topology".into()), ("file", file.into()), ("rate", rate.into())]);
    let circuits = &experiment.circuits;
    if let Some(rate) = circuits.rate.filter(|rate| *rate > 0) {
        fabric.insert("circuit-rate".to_owned(), format!("{rate}kbit/s").into());
    }
    if let Some(delay) = &circuits.delay {
        fabric.insert("circuit-delay".to_owned(), delay.as_str().into());
    }
    Ok(fabric)
}

fn stream(experiment: &Experiment) -> Result<Table, String> {
    let traffic = &experiment.traffic;
    let (Some(from), Some(to)) = (&traffic.from, &traffic.to) else {
        return Err("'lab sim' needs both hosts: set 'from' and 'to' in [traffic]".to_owned());
    };
    let bytes = i64::from(traffic.frames.get()) * PAYLOAD as i64;
    let (from, to) = (from.to_string(), to.to_string());
    Ok(table([
        ("kind", "stream".into()),
        ("from", from.into()),
        ("to", to.into()),
        ("flows", 1.into()),
        ("bytes", bytes.into()),
    ]))
}

/// What does in the simulator what a dataplane does.
fn variant(dataplane: &Dataplane) -> Result<Value, String> {
    let scheme = dataplane.scheme.as_ref().map_or(SCHEME.to_string(), ToString::to_string);
    let mut variant = match dataplane.policy.as_str().parse() {
        Ok(Policy::QpHash) => table([("scheme", "ecmp".into()), ("values", VALUES.into())]),
        Ok(Policy::QpPin) => table([("scheme", "ecmp".into()), ("placed", true.into())]),
        Ok(Policy::Spray) => table([("scheme", scheme.into())]),
        _ => {
            let policy = &dataplane.policy;
            return Err(format!(
                "'lab sim' has the policies qp-hash, qp-pin and spray, not {policy}: remove it"
            ));
        }
    };
    variant.insert("name".to_owned(), dataplane.label().into());
    Ok(variant.into())
}
