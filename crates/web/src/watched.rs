//! The queue pairs that pages look at: how many packets arrive at the receiving host, and how long
//! they stop. A thread counts every 10 ms. While no page looks at a queue pair, nothing is counted,
//! and the thread sleeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fabric::queue_pair::{QueuePair, QueuePairFilter, QueuePairWatch};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::model::Fabric;

/// The time between two counts. A pause is known to this time.
const INTERVAL: Duration = Duration::from_millis(10);
/// After an error, the next attempt waits so long.
const RETRY: Duration = Duration::from_secs(1);
/// The steps that are published: more than the time between two samples of a page.
const STEPS: usize = 15;

/// A queue pair that a page looks at: the packets of one host to another with this number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Look {
    /// The sending host.
    pub(crate) from: String,
    /// The receiving host.
    pub(crate) to: String,
    pub(crate) queue_pair: u32,
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:#x}", self.from, self.to, self.queue_pair)
    }
}

/// What all pages look at, and what was counted of it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What each open page looks at, by the number that it has chosen.
    pages: BTreeMap<u64, (u64, Option<Look>)>,
    /// The connections of pages so far.
    opened: u64,
    meters: BTreeMap<Look, Meter>,
    /// The number of the thread that counts. One with another number ends.
    counting: u64,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page opens. Dropping the value closes it.
    pub(crate) fn open(self: &Arc<Self>, page: u64) -> Viewer {
        let mut state = self.lock();
        state.opened += 1;
        let connection = state.opened;
        // A page that connects again may do so before its old connection is known to have ended.
        state.pages.insert(page, (connection, None));
        drop(state);
        Viewer { watched: Arc::clone(self), page, connection }
    }

    /// A page looks at a queue pair, or at none. False if no such page is open.
    pub(crate) fn look(&self, page: u64, at: Option<Look>) -> bool {
        let mut state = self.lock();
        let Some((_, now)) = state.pages.get_mut(&page) else { return false };
        *now = at;
        state.tidy();
        self.changed.notify_all();
        true
    }

    /// Counts in a thread of its own, until the value is dropped or somebody else counts.
    pub(crate) fn count(self: &Arc<Self>, fabric: &Arc<Fabric>) -> Counting {
        let mut state = self.lock();
        state.counting += 1;
        state.meters.clear();
        let (number, own) = (state.counting, Arc::clone(self));
        drop(state);
        self.changed.notify_all();
        let fabric = Arc::clone(fabric);
        tokio::task::spawn_blocking(move || own.run(&fabric, number));
        Counting { watched: Arc::clone(self), number }
    }

    /// What arrived since the last call, and the steps before it. `now` is in ms since 1970.
    pub(crate) fn step(&self, now: u64) -> Value {
        let mut state = self.lock();
        let mut shown = Map::new();
        for (look, meter) in &mut state.meters {
            meter.step(now);
            shown.insert(look.to_string(), meter.shown());
        }
        Value::Object(shown)
    }

    fn run(&self, fabric: &Fabric, number: u64) {
        let mut counters: BTreeMap<Look, Counter> = BTreeMap::new();
        while let Some(looks) = self.wanted(number) {
            counters.retain(|look, _| looks.contains(look));
            if looks.is_empty() {
                self.wait(number);
                continue;
            }
            let began = Instant::now();
            for look in looks {
                let new = || Counter::new(watch(fabric, &look));
                let counted = counters.entry(look.clone()).or_insert_with(new).read();
                let mut state = self.lock();
                // Nobody may look at it any more.
                if state.counting == number && state.looks().any(|at| *at == look) {
                    state.meters.entry(look).or_default().read(counted);
                }
            }
            thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
        }
    }

    /// What pages look at; `None` if somebody else counts.
    fn wanted(&self, number: u64) -> Option<BTreeSet<Look>> {
        let state = self.lock();
        (state.counting == number).then(|| state.looks().cloned().collect())
    }

    /// Waits until a page looks at a queue pair, or somebody else counts.
    fn wait(&self, number: u64) {
        let idle = |state: &mut State| state.counting == number && state.looks().next().is_none();
        drop(self.changed.wait_while(self.lock(), idle));
    }
}

impl State {
    /// What pages look at, once for each page.
    fn looks(&self) -> impl Iterator<Item = &Look> {
        self.pages.values().filter_map(|(_, at)| at.as_ref())
    }

    /// Forgets what nobody looks at.
    fn tidy(&mut self) {
        let wanted: BTreeSet<Look> = self.looks().cloned().collect();
        self.meters.retain(|look, _| wanted.contains(look));
    }
}

/// A page that is open.
#[derive(Debug)]
pub(crate) struct Viewer {
    watched: Arc<Watched>,
    page: u64,
    connection: u64,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut state = self.watched.lock();
        if state.pages.get(&self.page).is_some_and(|(connection, _)| *connection == self.connection)
        {
            state.pages.remove(&self.page);
            state.tidy();
        }
    }
}

/// A thread that counts.
#[derive(Debug)]
pub(crate) struct Counting {
    watched: Arc<Watched>,
    number: u64,
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut state = self.watched.lock();
        if state.counting == self.number {
            state.counting += 1;
            state.meters.clear();
        }
        drop(state);
        self.watched.changed.notify_all();
    }
}

/// The counter of a queue pair at the port of its receiver.
fn watch(fabric: &Fabric, look: &Look) -> Result<QueuePairWatch, String> {
    let address = |host: &str| {
        let address: Option<Ipv4Addr> = fabric.hosts.get(host).copied();
        address.ok_or_else(|| format!("the fabric has no host '{host}'"))
    };
    let (source, destination) = (address(&look.from)?, address(&look.to)?);
    let queue_pair = QueuePair::try_from(look.queue_pair).map_err(|error| error.to_string())?;
    let ends = fabric.links.iter().flat_map(|link| [&link.a, &link.b]);
    let mut ports = ends.filter_map(|end| end.split_once(':'));
    let port = ports.find(|(node, _)| *node == look.to);
    let (_, interface) = port.ok_or_else(|| format!("{} has no link", look.to))?;
    let node = fabric.nodes.get(&look.to).ok_or_else(|| format!("{} is no node", look.to))?;
    let filter = QueuePairFilter { source, destination, queue_pair };
    Ok(QueuePairWatch::new(&node.namespace, interface, filter))
}

/// Reads a counter again and again.
struct Counter {
    watch: Result<QueuePairWatch, String>,
    /// When it was read last, without an error.
    last: Option<Instant>,
    failed: Option<(Instant, String)>,
}

/// The packets of some time, or why they cannot be counted.
type Counted = Result<(u64, Duration), String>;

impl Counter {
    const fn new(watch: Result<QueuePairWatch, String>) -> Self {
        Self { watch, last: None, failed: None }
    }

    fn read(&mut self) -> Counted {
        let watch = self.watch.as_mut().map_err(|error| error.clone())?;
        if let Some((_, error)) = self.failed.as_ref().filter(|(at, _)| at.elapsed() < RETRY) {
            return Err(error.clone());
        }
        match watch.count() {
            Ok(packets) => {
                let now = Instant::now();
                let since = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
                self.failed = None;
                Ok((packets, since))
            }
            Err(error) => {
                let error = error.to_string();
                (self.last, self.failed) = (None, Some((Instant::now(), error.clone())));
                Err(error)
            }
        }
    }
}

/// The packets of a queue pair, in steps.
#[derive(Debug, Default)]
struct Meter {
    /// Since the last step.
    packets: u64,
    /// The longest pause that has ended since the last step.
    longest: Duration,
    /// How long none has arrived. `None` before the first one.
    idle: Option<Duration>,
    /// The time that was counted since the last step.
    counted: Duration,
    /// When each step ended, in ms since 1970; packets a second; ms without a packet: the longest
    /// pause that ended in the step or, without packets, the one that goes on.
    steps: VecDeque<[u64; 3]>,
    error: Option<String>,
}

impl Meter {
    fn read(&mut self, counted: Counted) {
        let (packets, since) = match counted {
            Ok(counted) => counted,
            Err(error) => {
                *self = Self { error: Some(error), ..Self::default() };
                return;
            }
        };
        self.error = None;
        self.counted += since;
        if packets == 0 {
            // Only counts without a packet are added up, so a late count makes no pause longer.
            self.idle = self.idle.map(|idle| idle + since);
            return;
        }
        self.packets += packets;
        if let Some(idle) = self.idle.replace(Duration::ZERO).filter(|idle| !idle.is_zero()) {
            // Half of the count before it, and half of the one behind it.
            self.longest = self.longest.max(idle + INTERVAL);
        }
    }

    fn step(&mut self, now: u64) {
        let counted = std::mem::take(&mut self.counted).as_secs_f64();
        // No count was due.
        if counted == 0.0 {
            return;
        }
        let packets = std::mem::take(&mut self.packets);
        let longest = std::mem::take(&mut self.longest);
        let pause = if packets > 0 { longest } else { self.idle.unwrap_or_default() };
        let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.steps.push_back([now, (packets as f64 / counted).round() as u64, pause]);
        if self.steps.len() > STEPS {
            self.steps.pop_front();
        }
    }

    fn shown(&self) -> Value {
        match &self.error {
            Some(error) => json!({"why": error}),
            None => json!({"steps": self.steps}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(queue_pair: u32) -> Look {
        Look { from: "host1".to_owned(), to: "host2".to_owned(), queue_pair }
    }

    fn wanted(watched: &Watched) -> Vec<Look> {
        watched.wanted(0).unwrap().into_iter().collect()
    }

    #[test]
    fn what_no_open_page_looks_at_is_forgotten() {
        let watched = Arc::new(Watched::default());
        assert!(!watched.look(1, Some(look(0x11))), "no page is open");
        let first = watched.open(1);
        let second = watched.open(2);
        assert!(watched.look(1, Some(look(0x11))) && watched.look(2, Some(look(0x12))));
        for at in [0x11, 0x12] {
            watched.lock().meters.entry(look(at)).or_default().read(Ok((1, INTERVAL)));
        }
        assert_eq!(watched.step(1000)["host1 host2 0x12"]["steps"], json!([[1000, 100, 0]]));
        drop(second);
        assert_eq!(wanted(&watched), [look(0x11)]);
        assert!(watched.step(1100).get("host1 host2 0x12").is_none());
        // It connects again before the old connection has ended.
        let again = watched.open(1);
        assert!(watched.look(1, Some(look(0x13))));
        drop(first);
        assert_eq!(wanted(&watched), [look(0x13)]);
        assert!(watched.look(1, None) && wanted(&watched).is_empty());
        drop(again);
        assert!(!watched.look(1, None));
    }

    #[tokio::test]
    async fn a_fabric_that_is_no_longer_shown_is_not_counted() {
        let watched = Arc::new(Watched::default());
        let page = watched.open(1);
        assert!(watched.look(1, Some(look(0x11))));
        let shown = || watched.step(0)["host1 host2 0x11"]["why"].as_str().map(str::to_owned);
        let counting = watched.count(&Arc::default());
        while shown().is_none() {
            tokio::time::sleep(INTERVAL).await;
        }
        assert_eq!(shown().unwrap(), "the fabric has no host 'host1'");
        let number = counting.number;
        drop(counting);
        assert_eq!(shown(), None);
        assert_eq!(watched.wanted(number), None, "the thread ends");
        drop(page);
    }

    #[test]
    fn a_pause_is_the_time_without_a_packet() {
        let mut meter = Meter::default();
        let mut now = 0;
        // Counts of 10 ms make a step of 50 ms.
        let mut step = |packets: [u64; 5], late: u32| {
            for packets in packets {
                meter.read(Ok((packets, INTERVAL * late)));
            }
            now += 50;
            meter.step(now);
            let [at, rate, pause] = *meter.steps.back().unwrap();
            assert_eq!(at, now);
            (rate, pause)
        };
        assert_eq!(step([0; 5], 1), (0, 0), "there is no pause before the first packet");
        assert_eq!(step([2; 5], 1), (200, 0));
        assert_eq!(step([2, 0, 0, 2, 2], 1), (120, 30));
        assert_eq!(step([2, 0, 0, 0, 0], 1), (40, 0), "it goes on");
        assert_eq!(step([0; 5], 1), (0, 90), "so far");
        assert_eq!(step([0, 1, 1, 0, 1], 1), (60, 110), "the longer one");
        assert_eq!(step([1; 5], 30), (3, 0), "counts that are late are no pause");
        meter.read(Err("gone".to_owned()));
        assert_eq!(meter.shown(), json!({"why": "gone"}));
        meter.read(Ok((0, INTERVAL)));
        assert_eq!(meter.shown(), json!({"steps": []}));
    }
}
