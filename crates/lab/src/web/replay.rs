//! Results that are complete, as a file that the page shows: one sample for each run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use experiment::Run;
use experiment::compare::Results;
use experiment::plan::fabric_name;
use experiment::role::Role;
use fabric::progress::OnProgress;
use fabric::topology::{Topology, TopologyError};
use serde_json::{Map, Value, json};
use web::Link;

use super::results;
use crate::graph::{self, GraphLink, GraphNode};
use study::RunError;
use study::run;
use study::simulation::{self, Recorded, SimulationError};

/// Time between two runs on the axis of the page, in milliseconds: its samples are one a second.
const STEP: usize = 1000;

/// The results cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The results of an experiment cannot be read.
    #[error(transparent)]
    Experiment(#[from] RunError),
    /// A simulation cannot be repeated.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The topology of an experiment cannot be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The directory has no runs.
    #[error("{} has no complete runs: let 'lab run' or 'lab sim' go on with it", .0.display())]
    Empty(PathBuf),
    /// There is no such fabric or case.
    #[error("the results have no '{name}': name one of {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// All names.
        known: Vec<String>,
    },
}

/// A file for the page, and what it leaves out.
#[derive(Debug)]
pub struct Replay {
    /// The file.
    pub file: Value,
    /// The fabrics of an experiment, or cases of a simulation with other fabrics, that it leaves out.
    pub others: Vec<String>,
}

/// The results of `lab run` or `lab sim` in a directory. A page shows one fabric: that of this name,
/// or of the case of a simulation, otherwise the first one.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(path: &Path, name: Option<&str>, report: OnProgress) -> Result<Replay, ReplayError> {
    match simulation::is_directory(path) {
        true => simulated(path, name, report),
        false => measured(path, name),
    }
}

/// One of the names, which must be there, by default the first.
fn chosen(name: Option<&str>, all: Vec<String>, path: &Path) -> Result<String, ReplayError> {
    let first = all.first().ok_or_else(|| ReplayError::Empty(path.to_owned()))?;
    match name {
        None => Ok(first.clone()),
        Some(name) if all.iter().any(|of| of == name) => Ok(name.to_owned()),
        Some(name) => Err(ReplayError::Unknown { name: name.to_owned(), known: all }),
    }
}

/// The file of these runs. `unit`: of the loads of links.
fn file(name: &str, picture: &str, links: &[Link], unit: &str, runs: Vec<Value>) -> Value {
    json!({
        "format": web::FORMAT,
        "fabric": {
            "name": name, "picture": picture, "links": links, "nodes": {}, "hosts": {},
            "runs": true, "unit": unit,
        },
        "changes": runs,
    })
}

/// The loads of all links, by the ends that send.
fn loads(links: &[Link], sent: &BTreeMap<String, u64>) -> Value {
    let load = |end: &String| {
        let load = sent.get(end).copied().unwrap_or_default();
        json!({"sent": load, "received": load, "dropped": 0})
    };
    let link = |link: &Link| {
        (link.a.clone(), json!({"up": true, "ab": load(&link.a), "ba": load(&link.b)}))
    };
    Value::Object(links.iter().map(link).collect::<Map<_, _>>())
}

fn measured(path: &Path, name: Option<&str>) -> Result<Replay, ReplayError> {
    let Results { experiment, runs, .. } = run::load(path)?;
    let mut fabrics: Vec<String> = runs.iter().map(|run| run.key.fabric.clone()).collect();
    fabrics.dedup();
    let fabric = chosen(name, fabrics.clone(), path)?;
    let mut files = experiment.topologies.iter();
    let topology = files.find(|file| fabric_name(file) == fabric);
    let topology = topology.ok_or_else(|| ReplayError::Empty(path.to_owned()))?;
    let topology = Topology::load(topology)?;
    let links = super::links(&topology);
    let shown = runs.iter().filter(|run| run.key.fabric == fabric);
    let mut samples: Vec<Value> = (1..)
        .zip(shown)
        .map(|(number, run)| {
            json!({
                "time": number * STEP, "leaves": {}, "links": loads(&links, &frames(run, &links)),
                "run": of(run),
            })
        })
        .collect();
    if let Some(first) = samples.first_mut().and_then(Value::as_object_mut) {
        let results = results::experiment(&experiment, &runs, None);
        first.insert("experiment".to_owned(), results);
    }
    fabrics.retain(|other| *other != fabric);
    let picture = graph::outline(&fabric, &topology);
    let file = file(&fabric, &picture, &links, "frames/s", samples);
    Ok(Replay { file, others: fabrics })
}

/// The frames a second of a run, by the ends that send.
fn frames(run: &Run, links: &[Link]) -> BTreeMap<String, u64> {
    let other = |end: &String| {
        let found = links.iter().find(|link| link.a == *end || link.b == *end);
        let far = found.map(|link| if link.a == *end { &link.b } else { &link.a });
        far.unwrap_or(end).clone()
    };
    let all =
        run.tiers.iter().flat_map(|tier| tier.links.iter().map(move |link| (tier.role, link)));
    all.map(|(role, (end, frames))| {
        // The receiving leaf counts what its uplinks receive.
        let sender = if role == Role::FarLeaf { other(end) } else { end.clone() };
        let rate = if run.seconds > 0.0 { *frames as f64 / run.seconds } else { 0.0 };
        (sender, rate.round() as u64)
    })
    .collect()
}

/// What the page shows of a run.
fn of(run: &Run) -> Value {
    let mmr: BTreeMap<&str, f64> = run
        .tiers
        .iter()
        .map(|tier| (tier.role.title(), experiment::balance::mmr(&tier.loads())))
        .collect();
    let mut facts = vec![
        ("sent", format!("{} frames in {:.2} s", run.sent, run.seconds)),
        ("CPUs busy", format!("{:.0} %", run.busy * 100.0)),
    ];
    let arrival = run.arrival.unwrap_or_default();
    if run.arrival.is_some() {
        facts.push(("lost", arrival.lost.to_string()));
        facts.push(("reordered", arrival.reordered.to_string()));
    }
    if let Some(outage) = run.outage {
        facts.push(("time without traffic", format!("{outage:.1} ms")));
    }
    if let Some(workload) = &run.workload {
        facts.push(("completion time", format!("{:.2} ms", workload.milliseconds)));
        facts.push(("retransmitted", workload.retransmitted.to_string()));
    }
    json!({
        "name": results::name(&run.key), "series": run.key.dataplane, "value": run.value(),
        "mmr": mmr, "lost": arrival.lost, "facts": facts,
    })
}

fn simulated(path: &Path, name: Option<&str>, report: OnProgress) -> Result<Replay, ReplayError> {
    let cases = simulation::recorded_cases(path)?;
    let case = chosen(name, cases, path)?;
    let Recorded { runs, others, title, rows } = simulation::repeat(path, &case, report)?;
    let first = runs.first().ok_or_else(|| ReplayError::Empty(path.to_owned()))?;
    let ports = &first.outcome.ports;
    let end = |from: &str, to: &str| format!("{from}:{to}");
    let mut seen = BTreeSet::new();
    let mut links = Vec::new();
    for port in ports {
        let (from, to) = (&port.ends.0, &port.ends.1);
        let (a, b) = (end(from, to), end(to, from));
        if seen.insert(a.clone()) && seen.insert(b.clone()) {
            links.push(Link { a, b, circuit: None, interfaces: Vec::new() });
        }
    }
    let tiers: BTreeMap<&String, u8> = ports
        .iter()
        .flat_map(|port| [(&port.ends.0, port.tiers.0), (&port.ends.1, port.tiers.1)])
        .collect();
    let nodes =
        tiers.into_iter().map(|(name, tier)| GraphNode { name: name.clone(), tier: tier.into() });
    let drawn = links.iter().map(|link| GraphLink::outline(&link.a, &link.b, None));
    let picture = graph::picture(&case, nodes.collect(), drawn.collect());
    let samples = (1..).zip(&runs).map(|(number, run)| {
        let seconds = run.line.completion.unwrap_or_default() / 1e6;
        let rate = |bytes: u64| if seconds > 0.0 { 8.0 * bytes as f64 / seconds } else { 0.0 };
        // Parallel links between two nodes are one.
        let mut sent = BTreeMap::new();
        for port in &run.outcome.ports {
            *sent.entry(end(&port.ends.0, &port.ends.1)).or_default() +=
                rate(port.counters.data_bytes).round() as u64;
        }
        let line = &run.line;
        let mut value = json!({
            "time": number * STEP, "leaves": {}, "links": loads(&links, &sent),
            "run": {
                "name": format!("{}, {}, seed {}", line.scheme, line.case, line.seed),
                "series": line.scheme, "value": line.completion, "mmr": line.mmr,
                "lost": run.outcome.lost,
                "facts": [
                    ["flows finished", format!("{} of {}", line.finished, line.expected)],
                    ["packets", line.packets.to_string()],
                    ["sent again", line.retransmitted.to_string()],
                    ["acknowledgements", line.acks.to_string()],
                ],
            },
        });
        if let (1, Some(first)) = (number, value.as_object_mut()) {
            first.insert(
                "experiment".to_owned(),
                json!({
                    "title": title, "measure": "end of the last flow, µs",
                    "complete": runs.len(), "left": 0, "rows": rows,
                }),
            );
        }
        value
    });
    let file = file(&case, &picture, &links, "bit/s", samples.collect());
    Ok(Replay { file, others })
}
