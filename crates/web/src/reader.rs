//! Reads the fabric while a page is open.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fabric::counters::{self, Counters};
use fabric::netns::Namespace;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::hub::Hub;
use crate::leaf::{self, Reading};
use crate::model::{Fabric, Link};

/// The time between two readings of the counters.
const INTERVAL: Duration = Duration::from_millis(100);
/// The readings over which a load is computed, so that single packets do not flicker.
const WINDOW: usize = 10;
/// Carriers and circuits are read once in so many readings of the counters.
const SLOW: u64 = 10;
/// Readings of leaves that wait.
const QUEUE: usize = 64;
/// The events that are kept.
const EVENTS: usize = 200;

/// The counters of all interfaces, as `NODE:INTERFACE`.
type Table = BTreeMap<String, Counters>;

/// The state of links that changes seldom.
#[derive(Debug, Default, Clone)]
struct Slow {
    /// Whether each interface is up and has a carrier.
    carriers: BTreeMap<String, bool>,
    circuits: BTreeMap<String, [Value; 2]>,
}

/// Publishes the state of the fabric while a page is open.
pub(crate) async fn run(fabric: Arc<Fabric>, hub: Arc<Hub>) {
    loop {
        hub.opened().await;
        tokio::select! {
            () = hub.closed() => {}
            () = follow(&fabric, &hub) => {}
        }
        hub.forget();
    }
}

async fn follow(fabric: &Arc<Fabric>, hub: &Hub) {
    // Dropping the set ends its tasks.
    let mut tasks = JoinSet::new();
    let (sender, mut readings) = mpsc::channel(QUEUE);
    for (name, node) in fabric.nodes.iter().filter(|(_, node)| node.leaf) {
        tasks.spawn(leaf::follow(name.clone(), node.namespace.clone(), sender.clone()));
    }
    let mut leaves = Leaves::default();
    let mut tables: VecDeque<(Instant, Table)> = VecDeque::new();
    let mut slow = Slow::default();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_u64.. {
        ticks.tick().await;
        let own = Arc::clone(fabric);
        let slowly = number.is_multiple_of(SLOW);
        let read = tokio::task::spawn_blocking(move || {
            (read(&own), Instant::now(), slowly.then(|| read_slowly(&own)))
        });
        let Ok((table, at, new)) = read.await else { return };
        slow = new.unwrap_or(slow);
        tables.push_back((at, table));
        if tables.len() > WINDOW + 1 {
            tables.pop_front();
        }
        hub.publish("links", links(&fabric.links, &tables, &slow));
        hub.publish("hosts", hosts(fabric, &tables));
        let mut changed = false;
        while let Ok(reading) = readings.try_recv() {
            leaves.take(reading);
            changed = true;
        }
        if changed {
            leaves.publish(hub);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        hub.publish("time", json!(u64::try_from(now.as_millis()).unwrap_or_default()));
    }
}

fn read(fabric: &Fabric) -> Table {
    let mut table = Table::new();
    for (name, node) in &fabric.nodes {
        // A node that is gone has no counters: its links are shown as down.
        let of = Namespace::open(&node.namespace).ok().and_then(|of| counters::read(&of).ok());
        let of = of.unwrap_or_default().into_iter();
        table.extend(of.map(|(interface, counters)| (format!("{name}:{interface}"), counters)));
    }
    table
}

fn read_slowly(fabric: &Fabric) -> Slow {
    let mut carriers = BTreeMap::new();
    for (name, node) in &fabric.nodes {
        let links = Namespace::open(&node.namespace);
        let links = links.and_then(|of| of.rtnl(|rtnl| rtnl.links())).unwrap_or_default();
        let of = links.into_iter();
        carriers.extend(of.map(|link| (format!("{name}:{}", link.name), link.up && link.carrier)));
    }
    Slow { carriers, circuits: (fabric.circuits)() }
}

/// The load of each direction over the window, in bits per second.
fn links(all: &[Link], tables: &VecDeque<(Instant, Table)>, slow: &Slow) -> Value {
    let load = |end: &str, count: fn(&Counters) -> u64| {
        let ((start, first), (until, last)) = tables.front().zip(tables.back())?;
        let seconds = until.saturating_duration_since(*start).as_secs_f64();
        let counted = count(last.get(end)?).saturating_sub(count(first.get(end)?));
        (seconds > 0.0).then(|| (counted as f64 / seconds).round() as u64)
    };
    let bits = |end: &str, count| 8 * load(end, count).unwrap_or_default();
    let mut shown = Map::new();
    for link in all {
        let up = link.interfaces.iter().all(|end| slow.carriers.get(end) == Some(&true));
        let direction = |from: &str, to: &str, at: usize| {
            let mut fields = Map::new();
            fields.insert("sent".into(), json!(bits(from, |counters| counters.tx_bytes)));
            fields.insert("received".into(), json!(bits(to, |counters| counters.rx_bytes)));
            let dropped = load(from, |counters| counters.tx_dropped).unwrap_or_default();
            fields.insert("dropped".into(), json!(dropped));
            let circuit = link.circuit.as_ref().and_then(|name| slow.circuits.get(name));
            let circuit = circuit.and_then(|both| both.get(at));
            fields.extend(circuit.map(|circuit| ("circuit".to_owned(), circuit.clone())));
            Value::Object(fields)
        };
        let fields = json!({
            "up": up, "ab": direction(&link.a, &link.b, 0), "ba": direction(&link.b, &link.a, 1),
        });
        shown.insert(link.a.clone(), fields);
    }
    Value::Object(shown)
}

/// What each host has received, in bits per second, between each two readings of the window. Short
/// pauses show here, which the mean of a second hides.
fn hosts(fabric: &Fabric, tables: &VecDeque<(Instant, Table)>) -> Value {
    let is_host = |end: &&String| {
        end.split_once(':').is_some_and(|(node, _)| fabric.hosts.contains_key(node))
    };
    let ends = fabric.links.iter().flat_map(|link| [&link.a, &link.b]).filter(is_host);
    let mut shown = Map::new();
    for end in ends {
        let bytes = |table: &Table| table.get(end).map_or(0, |counters| counters.rx_bytes);
        let steps = tables.iter().zip(tables.iter().skip(1));
        let rates: Vec<u64> = steps
            .map(|((start, first), (until, last))| {
                let seconds = until.saturating_duration_since(*start).as_secs_f64();
                let bits = 8 * bytes(last).saturating_sub(bytes(first));
                if seconds > 0.0 { (bits as f64 / seconds).round() as u64 } else { 0 }
            })
            .collect();
        let host = end.split(':').next().unwrap_or_default();
        shown.insert(host.to_owned(), json!(rates));
    }
    Value::Object(shown)
}

/// What the leaves have answered.
#[derive(Default)]
struct Leaves {
    states: Map<String, Value>,
    pairs: BTreeMap<String, Map<String, Value>>,
    events: VecDeque<(u64, Value)>,
    next: u64,
}

impl Leaves {
    fn take(&mut self, reading: Reading) {
        self.states.insert(reading.leaf.clone(), reading.state);
        self.pairs.insert(reading.leaf, reading.pairs);
        for event in reading.events {
            self.events.push_back((self.next, event));
            self.next += 1;
            if self.events.len() > EVENTS {
                self.events.pop_front();
            }
        }
    }

    fn publish(&self, hub: &Hub) {
        hub.publish("leaves", Value::Object(self.states.clone()));
        let pairs = self.pairs.values().flatten();
        let pairs = pairs.map(|(name, pair)| (name.clone(), pair.clone())).collect();
        hub.publish("pairs", Value::Object(pairs));
        let events = self.events.iter().map(|(at, event)| (at.to_string(), event.clone()));
        hub.publish("events", Value::Object(events.collect()));
    }
}
