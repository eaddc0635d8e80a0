//! Starts and stops vtepd while numbered frames pass, and counts the frames that each change loses.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use traffic::roce::Report;

use crate::daemon::Vtepd;
use crate::lab::{Lab, VNI};
use crate::stream::{Rate, Stream};

/// Direction of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From a host behind the leaf: vtepd encapsulates.
    Out,
    /// To a host behind the leaf: vtepd decapsulates.
    In,
}

/// How vtepd is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// SIGTERM.
    Detach,
    /// SIGKILL.
    Kill,
}

/// Parameters of a run: one row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// `tcx` or `clsact`.
    pub hook: &'static str,
    /// Number of workers.
    pub workers: u8,
    /// Direction of the stream.
    pub direction: Direction,
    /// How vtepd is stopped.
    pub end: End,
    /// Frames per second.
    pub rate: u32,
    /// Number of times that vtepd starts and stops.
    pub cycles: usize,
}

/// Frames affected by one change.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Frames that never arrived.
    pub lost: u64,
    /// Frames that arrived more than once.
    pub doubled: u64,
    /// Frames that arrived after a later one of their queue pair.
    pub reordered: u64,
}

/// Frames affected by the changes of a run.
#[derive(Debug, Clone)]
pub struct Costs {
    /// The run's parameters.
    pub run: Run,
    /// One element for each attach.
    pub attach: Vec<Cost>,
    /// One element for each end.
    pub end: Vec<Cost>,
    /// Number of frames sent, and the measured frames per second.
    pub sent: (u64, f64),
    /// Frames affected outside all changes.
    pub noise: Cost,
    /// Frames that vtepd counted as dropped while it forwarded, by metric.
    pub dropped: BTreeMap<String, u64>,
}

/// Duration of traffic between two changes, and before the cost of a change is read.
const BETWEEN: Duration = Duration::from_millis(60);

/// Starts and stops vtepd as often as `run` asks while the stream passes.
#[must_use]
pub fn run(lab: &Lab, run: Run) -> Costs {
    let (from, to) = match run.direction {
        Direction::Out => (&lab.host, &lab.far),
        Direction::In => (&lab.far, &lab.host),
    };
    let rate = Rate { frames: run.rate, queue_pairs: 16, payload: 64 };
    let stream = Stream::start(from, to, rate, 0x51 + u64::from(run.rate));
    let started = Instant::now();
    let mut ledger = Ledger::new(&stream, run.rate);
    let (mut attach, mut end) = (Vec::new(), Vec::new());
    let mut noise = Cost::default();
    let mut dropped = BTreeMap::new();
    let direction = match run.direction {
        Direction::Out => "encapsulated",
        Direction::In => "decapsulated",
    };
    for _ in 0..run.cycles {
        noise = noise + ledger.settle();
        let workers = run.workers.to_string();
        let mut vtepd =
            Vtepd::spawn(&lab.leaf, &["--hook", run.hook, "--no-fpm", "--workers", &workers]);
        vtepd.wait_until_ready();
        vtepd.wait_for("frames through vtepd", |metrics| metrics.vni_frames(VNI, direction) > 0);
        attach.push(ledger.settle());
        let metrics = vtepd.metrics();
        for line in metrics.0.lines().filter(|line| line.starts_with("vtepd_dropped_frames_total"))
        {
            if let Some((series, count)) = line.rsplit_once(' ')
                && count != "0"
            {
                *dropped.entry(series.to_owned()).or_default() += count.parse::<u64>().unwrap();
            }
        }
        match run.end {
            End::Kill => vtepd.kill(),
            End::Detach => {
                let (status, log) = vtepd.terminate();
                assert!(status.success(), "{status}: {log}");
            }
        }
        end.push(ledger.settle());
    }
    let seen = ledger.seen;
    let (sent, report) = stream.finish();
    noise = noise + seen.until(&report);
    let rate = sent.frames as f64 / started.elapsed().as_secs_f64();
    Costs { run, attach, end, sent: (sent.frames, rate), noise, dropped }
}

/// What was read from a stream so far.
struct Ledger<'a> {
    stream: &'a Stream,
    seen: Sum,
    frames: u64,
}

impl<'a> Ledger<'a> {
    fn new(stream: &'a Stream, rate: u32) -> Self {
        let frames = u64::from(rate) * u64::try_from(BETWEEN.as_millis()).unwrap() / 1000;
        stream.pass(frames);
        Self { stream, seen: Sum::default(), frames: frames.max(20) }
    }

    /// Waits until frames have passed, and returns the cost since the last call.
    fn settle(&mut self) -> Cost {
        self.stream.pass(self.frames);
        let report = self.stream.report();
        let cost = self.seen.until(&report);
        self.seen = Sum::of(&report);
        cost
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    lost: u64,
    doubled: u64,
    reordered: u64,
}

impl Sum {
    fn of(report: &Report) -> Self {
        Self { lost: report.lost(), doubled: report.duplicated(), reordered: report.reordered() }
    }

    fn until(self, report: &Report) -> Cost {
        let now = Self::of(report);
        Cost {
            lost: now.lost.saturating_sub(self.lost),
            doubled: now.doubled - self.doubled,
            reordered: now.reordered - self.reordered,
        }
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            lost: self.lost + other.lost,
            doubled: self.doubled + other.doubled,
            reordered: self.reordered + other.reordered,
        }
    }
}

impl Costs {
    /// Checks that no frame came twice, and that attach and detach lost none.
    ///
    /// # Errors
    /// The first change that did.
    pub fn check_frames(&self) -> Result<(), String> {
        self.check(0, if self.run.end == End::Kill { u64::MAX } else { 0 })
    }

    /// Checks that SIGKILL lost less than 5 ms of traffic.
    ///
    /// # Errors
    /// If it lost more.
    pub fn check_time(&self) -> Result<(), String> {
        self.check(u64::MAX, u64::from(self.run.rate) * 5 / 1000)
    }

    /// Checks each attach and each end against a maximum of lost frames, and that no frame came
    /// twice.
    fn check(&self, attach: u64, end: u64) -> Result<(), String> {
        for (name, costs, limit) in [("attach", &self.attach, attach), ("end", &self.end, end)] {
            for (cycle, cost) in costs.iter().enumerate() {
                if cost.lost > limit || cost.doubled > 0 {
                    return Err(format!(
                        "{} at {name} of cycle {cycle} (limit {limit} lost): {self}",
                        words(cost)
                    ));
                }
            }
        }
        Ok(())
    }
}

fn words(cost: &Cost) -> String {
    format!("{} lost, {} doubled, {} reordered", cost.lost, cost.doubled, cost.reordered)
}

/// The table's heading.
pub const HEADING: &str = "hook    way  rate/s   real/s  change  cycles |        lost: max median total | doubled: max total | reordered: max total | outside";

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { hook, workers: _, direction, end, rate, cycles } = self.run;
        let way = if direction == Direction::Out { "out" } else { "in" };
        let end = if end == End::Kill { "SIGKILL" } else { "detach" };
        for (change, costs) in [("attach", &self.attach), (end, &self.end)] {
            let sorted = |get: fn(&Cost) -> u64| {
                let mut values: Vec<u64> = costs.iter().map(get).collect();
                values.sort_unstable();
                values
            };
            let (lost, doubled) = (sorted(|c| c.lost), sorted(|c| c.doubled));
            let reordered = sorted(|c| c.reordered);
            let max = |values: &[u64]| values.last().copied().unwrap_or_default();
            let total = |values: &[u64]| values.iter().sum::<u64>();
            writeln!(
                f,
                "{hook:<7} {way:<3} {rate:>7} {:>8.0}  {change:<7} {cycles:>6} | {:>16} {:>6} {:>5} | {:>12} {:>5} | {:>14} {:>5} | {}",
                self.sent.1,
                max(&lost),
                lost.get(lost.len() / 2).copied().unwrap_or_default(),
                total(&lost),
                max(&doubled),
                total(&doubled),
                max(&reordered),
                total(&reordered),
                words(&self.noise),
            )?;
        }
        for (reason, count) in &self.dropped {
            writeln!(f, "        of the lost ones counted by vtepd: {count} {reason}")?;
        }
        Ok(())
    }
}
