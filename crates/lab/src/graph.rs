//! A picture of a fabric that is up: its nodes in tiers, and the load on each link.
//!
//! - [`measure`] reads the figures; `tiers` computes the tier of each node
//! - `layout` places nodes and links; `labels` places the rates; `draw` writes the SVG

mod draw;
mod labels;
mod layout;
mod tiers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::link::{self, Properties};
use fabric::counters::{self, Counters};
use fabric::deployed::Deployed;
use fabric::progress::Interrupted;
use fabric::topology::{Endpoint, Topology, Wire};
use study::RunError;

/// The interval at which a signal is noticed.
const POLL: Duration = Duration::from_millis(50);
/// A rate with the widest text, `888M`, in bits per second.
const WIDEST: f64 = 888e6;

/// A fabric and the load on its links.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    /// The name of the fabric.
    pub fabric: String,
    /// The time over which the load was measured.
    pub seconds: f64,
    /// The nodes by name, without those that only emulate circuits.
    pub nodes: Vec<GraphNode>,
    /// The links; a circuit is one.
    pub links: Vec<GraphLink>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GraphNode {
    /// The name.
    pub name: String,
    /// The distance from the nearest host in links: 0 for hosts, 1 for leaves, 2 for spines.
    pub tier: usize,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GraphLink {
    /// One end, as `NODE:INTERFACE`.
    pub a: String,
    /// The other end.
    pub b: String,
    /// The circuit in it, as `NODE A:B`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit: Option<String>,
    /// Whether all its interfaces have a carrier.
    pub up: bool,
    /// The load from `a` to `b`.
    pub a_to_b: Load,
    /// The load from `b` to `a`.
    pub b_to_a: Load,
}

/// The load on one direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Load {
    /// What one end sends, in bits per second of Ethernet frames without FCS.
    pub sent_bits_per_second: f64,
    /// What the other end receives, in the same unit.
    pub received_bits_per_second: f64,
    /// The packets that are sent. A super-frame is one.
    pub sent_packets_per_second: f64,
    /// The properties of the circuit in this direction, if `lab wan` answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit: Option<Properties>,
}

/// The counters of a node's interfaces, and when they were read.
struct Reading {
    at: Instant,
    counters: BTreeMap<String, Counters>,
}

/// Measures the load on all links over this time.
///
/// # Errors
/// [`RunError`].
pub fn measure(
    fabric: &str,
    deployed: &Deployed,
    time: Duration,
    interrupt: &AtomicBool,
) -> Result<Graph, RunError> {
    let topology = deployed.topology();
    let wires = topology.wires();
    let start = Instant::now();
    let before = read(deployed, &wires)?;
    while start.elapsed() < time {
        if interrupt.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        std::thread::sleep(POLL.min(time.saturating_sub(start.elapsed())));
    }
    let after = read(deployed, &wires)?;
    let carriers = carriers(deployed, &wires)?;
    let links = wires.iter().map(|wire| {
        let [a, b] = &wire.ends;
        // A circuit whose `lab wan` does not answer is drawn without properties.
        let properties = link::properties(deployed, wire).ok();
        let load = |from, to, at: usize| Load {
            circuit: properties.as_ref().and_then(|both| both.get(at)).copied(),
            ..load(&before, &after, from, to)
        };
        GraphLink {
            a: a.to_string(),
            b: b.to_string(),
            circuit: wire.circuit_name(),
            up: wire.interfaces().all(|end| carriers.get(end) == Some(&true)),
            a_to_b: load(a, b, 0),
            b_to_a: load(b, a, 1),
        }
    });
    let links = links.collect();
    let nodes = tiers::of(topology).into_iter().map(|(name, tier)| GraphNode { name, tier });
    let seconds = time.as_secs_f64();
    Ok(Graph { fabric: fabric.to_owned(), seconds, nodes: nodes.collect(), links })
}

/// A picture of the fabric without figures, in which each label has room for any rate. The title
/// and the legend have the class `frame`.
#[must_use]
pub fn outline(fabric: &str, topology: &Topology) -> String {
    let links = topology.wires().into_iter().map(|wire| {
        let [a, b] = &wire.ends;
        GraphLink::outline(&a.to_string(), &b.to_string(), wire.circuit_name())
    });
    let nodes = tiers::of(topology).into_iter().map(|(name, tier)| GraphNode { name, tier });
    picture(fabric, nodes.collect(), links.collect())
}

/// The same of these nodes and links.
pub(crate) fn picture(fabric: &str, nodes: Vec<GraphNode>, links: Vec<GraphLink>) -> String {
    Graph { fabric: fabric.to_owned(), seconds: 1.0, nodes, links }.svg()
}

impl GraphLink {
    /// A link in a picture without figures.
    pub(crate) fn outline(a: &str, b: &str, circuit: Option<String>) -> Self {
        let load = Load { sent_bits_per_second: WIDEST, ..Load::default() };
        Self { a: a.to_owned(), b: b.to_owned(), circuit, up: true, a_to_b: load, b_to_a: load }
    }
}

/// The nodes at the ends of wires.
fn nodes(wires: &[Wire]) -> impl Iterator<Item = &str> {
    let mut names: Vec<&str> =
        wires.iter().flat_map(|wire| &wire.ends).map(|end| end.node.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

fn read(deployed: &Deployed, wires: &[Wire]) -> Result<BTreeMap<String, Reading>, RunError> {
    let reading = |node: &str| {
        let counters = counters::read(&deployed.namespace(node)?)?;
        Ok((node.to_owned(), Reading { at: Instant::now(), counters }))
    };
    nodes(wires).map(reading).collect()
}

/// Whether each interface has a carrier. Interfaces that do not exist are missing.
fn carriers(deployed: &Deployed, wires: &[Wire]) -> Result<BTreeMap<Endpoint, bool>, RunError> {
    let mut carriers = BTreeMap::new();
    let mut names: Vec<&str> =
        wires.iter().flat_map(Wire::interfaces).map(|end| end.node.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for node in names {
        for link in deployed.namespace(node)?.rtnl(|rtnl| rtnl.links())? {
            let end = Endpoint { node: node.to_owned(), interface: link.name };
            carriers.insert(end, link.up && link.carrier);
        }
    }
    Ok(carriers)
}

/// The load from one end to the other, from two readings.
fn load(
    before: &BTreeMap<String, Reading>,
    after: &BTreeMap<String, Reading>,
    from: &Endpoint,
    to: &Endpoint,
) -> Load {
    let rate = |end: &Endpoint, count: fn(&Counters) -> u64| {
        let one = |all: &BTreeMap<String, Reading>| {
            let reading = all.get(&end.node)?;
            Some((reading.at, count(reading.counters.get(&end.interface)?)))
        };
        let Some(((start, first), (end, last))) = one(before).zip(one(after)) else { return 0.0 };
        let seconds = end.saturating_duration_since(start).as_secs_f64();
        if seconds > 0.0 { last.saturating_sub(first) as f64 / seconds } else { 0.0 }
    };
    Load {
        sent_bits_per_second: (8.0 * rate(from, |counters| counters.tx_bytes)).round(),
        received_bits_per_second: (8.0 * rate(to, |counters| counters.rx_bytes)).round(),
        sent_packets_per_second: rate(from, |counters| counters.tx_packets).round(),
        circuit: None,
    }
}

/// A rate in bits per second, with three digits: `12.3M`.
#[must_use]
pub fn short_rate(bits_per_second: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    // What rounds to 1000 has the next unit.
    let unit = units.into_iter().find(|(scale, _)| bits_per_second >= 0.9995 * scale);
    let Some((scale, unit)) = unit else { return format!("{bits_per_second:.0}") };
    let number = bits_per_second / scale;
    let digits = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    let text = format!("{number:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

impl Graph {
    /// The highest load of a direction, in bits per second.
    #[must_use]
    pub fn highest(&self) -> f64 {
        let loads = self.links.iter().flat_map(|link| [&link.a_to_b, &link.b_to_a]);
        loads.map(|load| load.sent_bits_per_second).fold(0.0, f64::max)
    }

    /// The picture as an SVG file.
    #[must_use]
    pub fn svg(&self) -> String {
        draw::svg(self)
    }
}

#[cfg(test)]
mod tests;
