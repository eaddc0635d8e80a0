//! The queue pairs that pages look at: how many packets their host sends, how many arrive at the
//! receiving host, and how long they stop. A thread counts every 10 ms. While no page looks at a
//! queue pair, nothing is counted, and the thread sleeps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fabric::queue_pair::{QueuePair, QueuePairFilter, QueuePairWatch, Way};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::model::Fabric;

/// The time between two counts. A pause is known to this time.
const INTERVAL: Duration = Duration::from_millis(10);
/// After an error, the next attempt waits so long.
const RETRY: Duration = Duration::from_secs(1);
/// A shorter step is counted with the next one: what a page draws is then never zero where packets
/// only come in bursts.
const LEAST: Duration = Duration::from_millis(50);
/// A host that sends nothing for longer has nothing to send: this is no part of a pause.
const QUIET: Duration = Duration::from_secs(1);
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
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = u64::try_from(now.as_millis()).unwrap_or_default();
                let mut state = self.lock();
                // Nobody may look at it any more.
                if state.counting == number && state.looks().any(|at| *at == look) {
                    state.meters.entry(look).or_default().read(counted, now);
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

/// The counters of a queue pair: at the port of its receiver, and at that of its sender.
fn watch(fabric: &Fabric, look: &Look) -> Result<[QueuePairWatch; 2], String> {
    let address = |host: &str| {
        let address: Option<Ipv4Addr> = fabric.hosts.get(host).copied();
        address.ok_or_else(|| format!("the fabric has no host '{host}'"))
    };
    let (source, destination) = (address(&look.from)?, address(&look.to)?);
    let queue_pair = QueuePair::try_from(look.queue_pair).map_err(|error| error.to_string())?;
    let filter = QueuePairFilter { source, destination, queue_pair };
    let at = |host: &str, way| {
        let ends = fabric.links.iter().flat_map(|link| [&link.a, &link.b]);
        let port = ends.filter_map(|end| end.split_once(':')).find(|(node, _)| *node == host);
        let (_, interface) = port.ok_or_else(|| format!("{host} has no link"))?;
        let node = fabric.nodes.get(host).ok_or_else(|| format!("{host} is no node"))?;
        Ok::<_, String>(QueuePairWatch::new(&node.namespace, interface, filter, way))
    };
    Ok([at(&look.to, Way::Received)?, at(&look.from, Way::Sent)?])
}

/// Reads the counters of a queue pair again and again.
struct Counter {
    watch: Result<[QueuePairWatch; 2], String>,
    /// When they were read last, without an error.
    last: Option<Instant>,
    failed: Option<(Instant, String)>,
}

/// The packets of some time.
#[derive(Debug, Clone, Copy)]
struct Count {
    arrived: u64,
    sent: u64,
    time: Duration,
}

/// The packets of some time, or why they cannot be counted.
type Counted = Result<Count, String>;

impl Counter {
    const fn new(watch: Result<[QueuePairWatch; 2], String>) -> Self {
        Self { watch, last: None, failed: None }
    }

    fn read(&mut self) -> Counted {
        let [to, from] = self.watch.as_mut().map_err(|error| error.clone())?;
        if let Some((_, error)) = self.failed.as_ref().filter(|(at, _)| at.elapsed() < RETRY) {
            return Err(error.clone());
        }
        match to.count().and_then(|arrived| Ok((arrived, from.count()?))) {
            Ok((arrived, sent)) => {
                let now = Instant::now();
                let time = self.last.replace(now).map_or(Duration::ZERO, |last| now - last);
                self.failed = None;
                Ok(Count { arrived, sent, time })
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
    /// Packets that arrived and were sent since the last step, and the time that was counted.
    packets: [u64; 2],
    counted: Duration,
    /// The same of all the time.
    all: [u64; 2],
    /// The longest pause that has ended since the last step, and when.
    longest: (Duration, u64),
    idle: Idle,
    steps: VecDeque<Step>,
    error: Option<String>,
}

/// When a step ended, in ms since 1970; packets a second that arrived; ms of a pause: the longest one
/// that ended in the step or, without packets, the one that goes on; when it ended, or 0; packets a
/// second that were sent.
type Step = [u64; 5];

/// How long no packet has arrived.
#[derive(Debug, Default)]
struct Idle {
    /// Whether one has arrived before.
    begun: bool,
    /// Whether one was sent since the last one arrived.
    sent: bool,
    /// From that one to the last one that was sent.
    waited: Duration,
    /// Since the last one that was sent.
    quiet: Duration,
}

impl Idle {
    fn add(&mut self, sent: u64, time: Duration) {
        self.sent |= sent > 0;
        if !self.begun || !self.sent {
            return;
        }
        self.quiet += time;
        if sent > 0 {
            // Whoever has waited for an answer in between has nothing else to send.
            self.waited += if self.quiet > QUIET + time { time } else { self.quiet };
            self.quiet = Duration::ZERO;
        }
    }

    fn pause(&self) -> Duration {
        self.waited + if self.quiet > QUIET { Duration::ZERO } else { self.quiet }
    }
}

impl Meter {
    fn read(&mut self, counted: Counted, now: u64) {
        let Count { arrived, sent, time } = match counted {
            Ok(counted) => counted,
            Err(error) => {
                *self = Self { error: Some(error), ..Self::default() };
                return;
            }
        };
        self.error = None;
        self.counted += time;
        for counts in [&mut self.packets, &mut self.all] {
            counts[0] += arrived;
            counts[1] += sent;
        }
        if arrived == 0 {
            // Only counts without a packet are added up, so a late count makes no pause longer.
            self.idle.add(sent, time);
            return;
        }
        // What was sent in this interval and has not arrived may be lost.
        let next = Idle { begun: true, sent: sent > arrived, ..Idle::default() };
        let pause = std::mem::replace(&mut self.idle, next);
        let pause = pause.pause();
        if !pause.is_zero() {
            // Half of the count before it, and half of the one behind it.
            self.longest = self.longest.max((pause + INTERVAL, now));
        }
    }

    fn step(&mut self, now: u64) {
        if self.counted < LEAST {
            return;
        }
        let counted = std::mem::take(&mut self.counted).as_secs_f64();
        let [arrived, sent] = std::mem::take(&mut self.packets);
        let (longest, ended) = std::mem::take(&mut self.longest);
        let (pause, ended) = if arrived > 0 { (longest, ended) } else { (self.idle.pause(), 0) };
        let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        let [arrived, sent] = [arrived, sent].map(|count| (count as f64 / counted).round() as u64);
        self.steps.push_back([now, arrived, pause, ended, sent]);
        if self.steps.len() > STEPS {
            self.steps.pop_front();
        }
    }

    fn shown(&self) -> Value {
        match &self.error {
            Some(error) => json!({"why": error}),
            None => json!({"steps": self.steps, "all": self.all}),
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
            watched
                .lock()
                .meters
                .entry(look(at))
                .or_default()
                .read(Ok(Count { arrived: 1, sent: 1, time: LEAST }), 990);
        }
        assert_eq!(watched.step(1000)["host1 host2 0x12"]["steps"], json!([[1000, 20, 0, 0, 20]]));
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
    fn a_window_that_is_lost_with_the_last_packet_is_a_pause() {
        let mut steps = Steps(Meter::default(), 0);
        steps.step([1; 5], [1; 5], 1);
        steps.step([1; 5], [1, 1, 1, 1, 9], 1);
        assert_eq!(steps.step([0; 5], [0; 5], 1), (0, 50));
        assert_eq!(steps.step([0, 1, 1, 1, 1], [0, 1, 1, 1, 1], 1).1, 70);
    }

    /// Counts of 10 ms, five of which make a step: what arrives, and what is sent.
    struct Steps(Meter, u64);

    impl Steps {
        /// Packets a second, and the pause of the step.
        fn step(&mut self, arrived: [u64; 5], sent: [u64; 5], late: u32) -> (u64, u64) {
            let Self(meter, now) = self;
            for (arrived, sent) in arrived.into_iter().zip(sent) {
                *now += 10;
                meter.read(Ok(Count { arrived, sent, time: INTERVAL * late }), *now);
            }
            meter.step(*now);
            let [at, rate, pause, ..] = *meter.steps.back().unwrap();
            assert_eq!(at, *now);
            (rate, pause)
        }
    }

    #[test]
    fn a_pause_is_the_time_without_a_packet() {
        let mut steps = Steps(Meter::default(), 0);
        let mut step = |packets, late| steps.step(packets, [2; 5], late);
        assert_eq!(step([0; 5], 1), (0, 0), "there is no pause before the first packet");
        assert_eq!(step([2; 5], 1), (200, 0));
        assert_eq!(step([2, 0, 0, 2, 2], 1), (120, 30));
        assert_eq!(step([2, 0, 0, 0, 0], 1), (40, 0), "it goes on");
        assert_eq!(step([0; 5], 1), (0, 90), "so far");
        assert_eq!(step([0, 1, 1, 0, 1], 1), (60, 110), "the longer one");
        assert_eq!(step([1; 5], 30), (3, 0), "counts that are late are no pause");
        let Steps(mut meter, _) = steps;
        assert_eq!(meter.steps[5][2..], [110, 270, 200], "when it ended, and what was sent");
        meter.read(Ok(Count { arrived: 0, sent: 0, time: INTERVAL }), 1000);
        meter.step(1000);
        assert_eq!(meter.steps.len(), 7, "a short step is counted with the next one");
        meter.read(Err("gone".to_owned()), 0);
        assert_eq!(meter.shown(), json!({"why": "gone"}));
        meter.read(Ok(Count { arrived: 0, sent: 0, time: INTERVAL }), 0);
        assert_eq!(meter.shown(), json!({"steps": [], "all": [0, 0]}));
    }

    #[test]
    fn a_host_that_sends_nothing_makes_no_pause() {
        let mut steps = Steps(Meter::default(), 0);
        let (some, none) = ([1; 5], [0; 5]);
        assert_eq!(steps.step(some, some, 1), (100, 0));
        assert_eq!(steps.step(none, none, 1000), (0, 0), "its stream has ended");
        // The next one takes 20 ms to arrive.
        assert_eq!(steps.step([0, 0, 1, 1, 1], some, 1), (60, 30));
        // What is lost, and then nothing for a minute.
        assert_eq!(steps.step(none, [1, 1, 1, 0, 0], 1), (0, 50), "it may wait for an answer");
        assert_eq!(steps.step(none, none, 1200), (0, 30), "it has not");
        assert_eq!(steps.step(some, some, 1), (100, 40));
        assert_eq!(steps.0.shown()["all"], json!([13, 18]), "five were lost or are on their way");
    }
}
