//! Reads the fabric while a page is open.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fabric::counters::Counters;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::completions::Completions;
use crate::hub::Hub;
use crate::interfaces::{self, Interfaces};
use crate::leaf::{self, Reading};
use crate::model::Fabric;
use crate::slow::Slow;
use crate::stage::Shown;
use crate::watched::Watched;

/// The readings over which a load is computed, so that single packets do not flicker.
const WINDOW: usize = 10;
/// The steps of what hosts receive that a page is told, each between two readings. They last for
/// longer than a busy browser stands still.
const STEPS: usize = 30;
/// Readings of leaves that wait.
const QUEUE: usize = 64;
/// More moves of a leaf in a reading are told as one.
const MOVES: usize = 8;
/// The events that are kept.
const EVENTS: usize = 200;

/// One reading of all interfaces.
struct Counted {
    at: Instant,
    /// The same in milliseconds since 1970.
    time: u64,
    /// By the numbers of interfaces.
    counters: Vec<Counters>,
}

/// The last readings, at most one more than [`STEPS`].
type Window = VecDeque<Counted>;

/// Publishes the state of the fabric that is shown while a page is open.
pub(crate) async fn run(mut shown: watch::Receiver<Shown>, hub: Arc<Hub>, watched: Arc<Watched>) {
    loop {
        hub.opened().await;
        let (number, fabric) = shown.borrow_and_update().clone();
        hub.show(number);
        tokio::select! {
            () = hub.closed() => {}
            _ = shown.changed() => {}
            () = follow(&fabric, &hub, &watched) => {}
        }
        hub.forget();
    }
}

async fn follow(fabric: &Arc<Fabric>, hub: &Hub, watched: &Arc<Watched>) {
    // Dropping the set ends its tasks.
    let mut tasks = JoinSet::new();
    let (sender, mut readings) = mpsc::channel(QUEUE);
    for (name, node) in fabric.nodes.iter().filter(|(_, node)| node.leaf) {
        tasks.spawn(leaf::follow(name.clone(), node.namespace.clone(), sender.clone()));
    }
    let completions = Arc::new(Completions::default());
    tasks.spawn(Arc::clone(&completions).listen(fabric.name.clone()));
    let mut leaves = Leaves::default();
    let numbers = Arc::new(Interfaces::of(fabric));
    let ends = Ends::of(fabric, &numbers);
    let (own, counted) = (Arc::clone(fabric), Arc::clone(&numbers));
    // One waits while one is published.
    let (counts, mut counters) = mpsc::channel(1);
    // It ends when nobody receives.
    tokio::task::spawn_blocking(move || interfaces::follow(&own, &counted, &counts));
    let _counting = watched.count(fabric);
    let mut window = Window::new();
    let mut slow = Slow::default();
    while let Some((at, reading)) = counters.recv().await {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or_default();
        let (now, time) = (milliseconds(clock), milliseconds(clock.saturating_sub(at.elapsed())));
        window.push_back(Counted { at, time, counters: reading.counters });
        if window.len() > STEPS + 1 {
            window.pop_front();
        }
        let interfaces = ends.links.iter().map(|link| link.all.as_slice());
        let told = slow.take(fabric, interfaces, reading.carriers, reading.circuits);
        let mut changed = Changed { events: !told.is_empty(), ..Changed::default() };
        told.into_iter().for_each(|(node, text)| leaves.tell(&node, "link", &text, time));
        let mut parts = vec![
            ("links", links(fabric, &ends, &window, &slow)),
            ("hosts", hosts(&ends, &window)),
            ("missing", missing(&ends, &window)),
            ("steps", json!(window.iter().map(|one| one.time).collect::<Vec<_>>())),
            ("watched", watched.step(now)),
            ("completions", completions.step()),
            ("time", json!(now)),
        ];
        while let Ok(reading) = readings.try_recv() {
            leaves.take(reading, now, &mut changed);
        }
        parts.extend(leaves.parts(changed));
        hub.publish(parts);
        hub.keep(now);
    }
}

/// The interfaces that are shown, by number.
struct Ends {
    links: Vec<LinkEnds>,
    /// The interfaces of each host.
    hosts: BTreeMap<String, Vec<usize>>,
}

struct LinkEnds {
    a: usize,
    b: usize,
    all: Vec<usize>,
}

impl Ends {
    fn of(fabric: &Fabric, numbers: &Interfaces) -> Self {
        // No interface has the number of one that is missing.
        let number = |end: &String| numbers.number(end).unwrap_or(usize::MAX);
        let links = fabric.links.iter().map(|link| LinkEnds {
            a: number(&link.a),
            b: number(&link.b),
            all: link.interfaces.iter().map(number).collect(),
        });
        let ends = fabric.links.iter().flat_map(|link| [&link.a, &link.b]);
        let mut hosts = BTreeMap::<String, Vec<usize>>::new();
        for end in ends {
            if let Some((node, _)) = end.split_once(':')
                && fabric.hosts.contains_key(node)
            {
                hosts.entry(node.to_owned()).or_default().push(number(end));
            }
        }
        Self { links: links.collect(), hosts }
    }
}

/// The load of each direction over the last [`WINDOW`] steps, in bits per second.
fn links(fabric: &Fabric, ends: &Ends, window: &Window, slow: &Slow) -> Value {
    let load = |end: usize, count: fn(&Counters) -> u64| {
        let first = window.get(window.len().saturating_sub(WINDOW + 1))?;
        let last = window.back()?;
        let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
        let counted = count(last.counters.get(end)?);
        let counted = counted.saturating_sub(count(first.counters.get(end)?));
        (seconds > 0.0).then(|| (counted as f64 / seconds).round() as u64)
    };
    let bits = |end, count| 8 * load(end, count).unwrap_or_default();
    let mut shown = Map::new();
    for (link, numbers) in fabric.links.iter().zip(&ends.links) {
        let up = slow.is_up(&numbers.all);
        let direction = |from, to, at: usize| {
            let mut fields = Map::new();
            fields.insert("sent".into(), json!(bits(from, |counters| counters.tx_bytes)));
            fields.insert("received".into(), json!(bits(to, |counters| counters.rx_bytes)));
            let mut dropped = load(from, |counters| counters.tx_dropped).unwrap_or_default();
            let circuit = link.circuit.as_ref().and_then(|name| slow.circuits.get(name));
            let lost = link.circuit.as_ref().and_then(|name| slow.lost.get(name));
            dropped += lost.and_then(|both| both.get(at)).copied().unwrap_or_default();
            fields.insert("dropped".into(), json!(dropped));
            let circuit = circuit.and_then(|both| both.get(at));
            fields.extend(circuit.map(|circuit| ("circuit".to_owned(), circuit.clone())));
            Value::Object(fields)
        };
        let mut fields = Map::new();
        fields.insert("up".into(), json!(up));
        fields.insert("ab".into(), direction(numbers.a, numbers.b, 0));
        fields.insert("ba".into(), direction(numbers.b, numbers.a, 1));
        shown.insert(link.a.clone(), Value::Object(fields));
    }
    Value::Object(shown)
}

/// What each host has received, in bits per second, between each two readings. Short pauses show here,
/// which the mean of a second hides.
fn hosts(ends: &Ends, window: &Window) -> Value {
    let mut shown = Map::new();
    for (host, own) in &ends.hosts {
        let bytes = |of: &Counted| -> u64 {
            let counters = own.iter().filter_map(|end| of.counters.get(*end));
            counters.map(|counters| counters.rx_bytes).sum()
        };
        let steps = window.iter().zip(window.iter().skip(1));
        let rates: Vec<u64> = steps
            .map(|(first, last)| {
                let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
                let bits = 8 * bytes(last).saturating_sub(bytes(first));
                if seconds > 0.0 { (bits as f64 / seconds).round() as u64 } else { 0 }
            })
            .collect();
        shown.insert(host.clone(), json!(rates));
    }
    Value::Object(shown)
}

/// What the hosts have sent and no host has received, in bits per second, between each two readings.
/// It is negative while more arrives than is sent.
fn missing(ends: &Ends, window: &Window) -> Value {
    let all = |of: &Counted| -> i64 {
        let counters = ends.hosts.values().flatten().filter_map(|end| of.counters.get(*end));
        let bytes = counters.map(|of| of.tx_bytes.wrapping_sub(of.rx_bytes).cast_signed());
        bytes.fold(0, i64::wrapping_add)
    };
    let steps = window.iter().zip(window.iter().skip(1));
    let rates = steps.map(|(first, last)| {
        let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
        let bits = all(last).wrapping_sub(all(first)).saturating_mul(8);
        if seconds > 0.0 { (bits as f64 / seconds).round() as i64 } else { 0 }
    });
    json!(rates.collect::<Vec<_>>())
}

/// The parts of the state that readings of leaves have changed.
#[derive(Default)]
struct Changed {
    states: bool,
    pairs: bool,
    events: bool,
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
    /// `now` is in ms since 1970.
    fn take(&mut self, reading: Reading, now: u64, changed: &mut Changed) {
        for text in self.moves(&reading) {
            changed.events = true;
            self.tell(&reading.leaf, "move", &text, now);
        }
        changed.pairs |= self.pairs.get(&reading.leaf) != Some(&reading.pairs);
        changed.states |= self.states.get(&reading.leaf) != Some(&reading.state);
        changed.events |= !reading.events.is_empty();
        self.states.insert(reading.leaf.clone(), reading.state);
        self.pairs.insert(reading.leaf, reading.pairs);
        reading.events.into_iter().for_each(|event| self.push(event));
    }

    fn push(&mut self, event: Value) {
        self.events.push_back((self.next, event));
        self.next += 1;
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Adds an event that no vtepd tells.
    fn tell(&mut self, node: &str, kind: &str, text: &str, time: u64) {
        self.push(json!({"leaf": node, "time": time, "kind": kind, "text": text}));
    }

    /// The queue pairs of a leaf that have moved since it answered last: a few each, many as one.
    fn moves(&self, reading: &Reading) -> Vec<String> {
        let before = self.pairs.get(&reading.leaf);
        let moves = |pair: &Value| pair.get("moves").and_then(Value::as_u64);
        let moved = reading.pairs.iter().filter_map(|(name, pair)| {
            let old = before?.get(name)?;
            (moves(pair) > moves(old)).then(|| {
                let of = |name| pair.get(name).and_then(Value::as_str).unwrap_or_default();
                let number = pair.get("qp").and_then(Value::as_u64).unwrap_or_default();
                let (source, to, uplink) = (of("source"), of("destination"), of("uplink"));
                let from = old.get("uplink").and_then(Value::as_str).unwrap_or_default();
                let way = if from == uplink {
                    format!("stays on {uplink}, by another path")
                } else {
                    format!("moved from {from} to {uplink}")
                };
                format!("queue pair {number:#x}, {source} to {to}, {way}")
            })
        });
        let moved: Vec<String> = moved.collect();
        if moved.len() > MOVES { vec![format!("{} queue pairs moved", moved.len())] } else { moved }
    }

    fn parts(&self, changed: Changed) -> impl Iterator<Item = (&'static str, Value)> {
        let Changed { states, pairs, events } = changed;
        let states = states.then(|| ("leaves", Value::Object(self.states.clone())));
        let pairs = pairs.then(|| {
            let pairs = self.pairs.values().flatten();
            let pairs = pairs.map(|(name, pair)| (name.clone(), pair.clone())).collect();
            ("pairs", Value::Object(pairs))
        });
        let events = events.then(|| {
            let events = self.events.iter().map(|(at, event)| (at.to_string(), event.clone()));
            ("events", Value::Object(events.collect()))
        });
        states.into_iter().chain(pairs).chain(events)
    }
}
