//! Counters and carriers of the interfaces of links.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fabric::counters::Counters;
use fabric::watch::Watch;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::model::Fabric;

/// The time between two readings.
const INTERVAL: Duration = Duration::from_millis(100);
/// Circuits are read once in so many readings, and carriers also when they change.
const SLOW: u32 = 10;

/// Numbers of the interfaces of all links, by `NODE:INTERFACE`.
#[derive(Debug)]
pub(crate) struct Interfaces(HashMap<String, usize>);

impl Interfaces {
    pub(crate) fn of(fabric: &Fabric) -> Self {
        let mut numbers = HashMap::new();
        for name in fabric.links.iter().flat_map(|link| &link.interfaces) {
            let next = numbers.len();
            numbers.entry(name.clone()).or_insert(next);
        }
        Self(numbers)
    }

    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}

/// What is read at one time.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// By the number of the interface; zero if it is gone.
    pub(crate) counters: Vec<Counters>,
    /// Whether each interface is up and has a carrier, by its number, if that may have changed.
    pub(crate) carriers: Option<Vec<bool>>,
    /// The circuits, once in `SLOW` readings.
    pub(crate) circuits: Option<Circuits>,
}

/// The properties of both directions of each circuit.
pub(crate) type Circuits = BTreeMap<String, [Value; 2]>;

/// Reads all interfaces ten times a second until nobody receives it. It blocks.
pub(crate) fn follow(
    fabric: &Fabric,
    interfaces: &Arc<Interfaces>,
    readings: &mpsc::Sender<(Instant, Reading)>,
) {
    let mut nodes: Vec<Node> = fabric
        .nodes
        .iter()
        .map(|(name, node)| Node::new(name, &node.namespace, interfaces))
        .collect();
    let mut carriers = vec![false; interfaces.0.len()];
    for number in (0..SLOW).cycle() {
        let began = Instant::now();
        let mut reading = Reading {
            counters: vec![Counters::default(); interfaces.0.len()],
            ..Reading::default()
        };
        for node in &mut nodes {
            node.read(&mut reading.counters);
        }
        let at = Instant::now();
        for node in &mut nodes {
            // A node that is gone changes nothing more, and is looked at sometimes.
            if node.watch.changed().unwrap_or_default() || number == 0 {
                node.read_carriers(&mut carriers);
                reading.carriers = Some(carriers.clone());
            }
        }
        if number == 0 {
            reading.circuits = Some((fabric.circuits)());
        }
        if readings.blocking_send((at, reading)).is_err() {
            return;
        }
        thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
    }
}

/// A node, whose namespace may come and go.
struct Node {
    watch: Watch,
    /// The numbers of its interfaces by name.
    numbers: HashMap<String, usize>,
}

impl Node {
    fn new(name: &str, namespace: &str, interfaces: &Interfaces) -> Self {
        let own = interfaces.0.iter().filter_map(|(interface, number)| {
            let (node, interface) = interface.split_once(':')?;
            (node == name).then(|| (interface.to_owned(), *number))
        });
        Self { watch: Watch::new(namespace), numbers: own.collect() }
    }

    fn read(&mut self, counters: &mut [Counters]) {
        // A node that is gone has no counters: its links are shown as down.
        let Ok(read) = self.watch.counters() else { return };
        for (name, of) in read {
            let place = self.numbers.get(name).and_then(|number| counters.get_mut(*number));
            place.into_iter().for_each(|place| *place = of);
        }
    }

    fn read_carriers(&mut self, carriers: &mut [bool]) {
        let links = self.watch.links().unwrap_or_default();
        for (name, number) in &self.numbers {
            let link = links.iter().find(|link| link.name == *name);
            if let Some(place) = carriers.get_mut(*number) {
                *place = link.is_some_and(|link| link.up && link.carrier);
            }
        }
    }
}
