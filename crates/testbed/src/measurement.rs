//! Measures the frames that arrive, and their cost, while a sender sends at the maximum rate.

use std::time::{Duration, Instant};

use crate::cpu::{self, Busy, Pinned};
use crate::sender::Input;
use crate::{Daemon, Datapath, Error, Sender, Testbed, Traffic};

/// Queues count as empty after this time without arrivals, or after the time of the measurement if
/// that is shorter; and the maximum time to wait for that.
const IDLE_TIME: Duration = Duration::from_millis(100);
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// The time until tables have learned a station that has sent a frame.
const LEARNING_TIME: Duration = Duration::from_millis(20);
/// The minimum share of the arrived frames that must have taken the measured path.
const MIN_SHARE: f64 = 0.9;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The traffic.
    pub traffic: Traffic,
    /// The number of cores. With 1, everything shares it. With 2, vtepd has the second one. The
    /// sender and the softirqs that its frames cause have the first.
    pub cores: usize,
    /// Whether another thread keeps the worker's core busy.
    pub busy: bool,
}

/// The result of one measurement.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measurement {
    /// Frames per second that arrived.
    pub rate: f64,
    /// Frames per second that were sent.
    pub offered: f64,
    /// CPU time of vtepd or a reference datapath for each frame that arrived, in nanoseconds.
    pub cpu_per_frame: f64,
    /// Frames in each packet that the link transmitted.
    pub frames_per_packet: f64,
}

impl Measurement {
    /// Measures for `time`, after a warm-up of half of that.
    ///
    /// # Errors
    /// If there is no such core, or the frames did not take the path that was to be measured.
    pub fn take(
        testbed: &Testbed,
        case: Case,
        time: Duration,
        datapath: Datapath,
        daemon: Option<&Daemon>,
    ) -> Result<Self, Error> {
        let _pinned = Pinned::to(0)?;
        if let Some(daemon) = daemon {
            cpu::pin_process(daemon.id(), &[case.cores - 1])?;
        }
        let _busy = case.busy.then(|| Busy::on(case.cores - 1));
        let length = case.traffic.length;
        let passed = || match case.traffic.input {
            Input::Host if matches!(datapath, Datapath::Testpmd { .. } | Datapath::Redirect) => {
                testbed.sent_unchanged()
            }
            Input::Host => testbed.sent_encapsulated(length),
            Input::Singles | Input::SuperFrames => testbed.delivered(length),
        };
        let mut sender = Sender::new(testbed, case.traffic, datapath != Datapath::SenderOnly)?;
        // Tables must learn the sender first: a host that the bridge does not know has no bypass.
        sender.send_some(0);
        std::thread::sleep(LEARNING_TIME);
        let (counted, first) = (ForwardedCount::read(case, datapath, daemon)?, passed()?);
        // Fill the queues first. Then the frames that arrive during the measurement are those
        // forwarded during it.
        sender.send(time / 2);
        let (before, cpu_before) = (passed()?, cpu_of(daemon)?);
        let (sent, elapsed) = sender.send(time);
        let (after, cpu_after) = (passed()?, cpu_of(daemon)?);
        // Wait until the queues are empty, for the next turn.
        let (ended, mut last) = (Instant::now(), after);
        let all = loop {
            std::thread::sleep(IDLE_TIME.min(time));
            let now = passed()?;
            if now.frames == last.frames || ended.elapsed() > DRAIN_LIMIT {
                break (now.frames - first.frames) as f64;
            }
            last = now;
        };
        counted.check(ForwardedCount::read(case, datapath, daemon)?, all, case, datapath)?;
        let packets = last.packets - first.packets;
        if matches!(datapath, Datapath::OpenVswitch { .. }) && all < MIN_SHARE * packets as f64 {
            return Err("what arrived had not the length of an encapsulated frame".into());
        }
        let (frames, seconds) = ((after.frames - before.frames) as f64, elapsed.as_secs_f64());
        Ok(Self {
            rate: frames / seconds,
            offered: sent as f64 / seconds,
            cpu_per_frame: cpu_after.saturating_sub(cpu_before) as f64 / frames,
            frames_per_packet: frames / (after.packets - before.packets).max(1) as f64,
        })
    }
}

fn cpu_of(daemon: Option<&Daemon>) -> Result<u64, Error> {
    daemon.map_or(Ok(0), Daemon::cpu)
}

/// vtepd's counters of the frames.
#[derive(Debug, Clone, Copy, Default)]
struct ForwardedCount {
    forwarded: f64,
    bypassed: f64,
}

impl ForwardedCount {
    fn read(case: Case, datapath: Datapath, daemon: Option<&Daemon>) -> Result<Self, Error> {
        if let (Datapath::ChosenPort { .. }, Some(daemon)) = (datapath, daemon) {
            let forwarded =
                daemon.metric_sum("vtepd_steering_frames_total{decision=\"port_chosen\"}")?;
            return Ok(Self { forwarded, bypassed: 0.0 });
        }
        let (Datapath::Vtepd { .. }, Some(daemon)) = (datapath, daemon) else {
            return Ok(Self::default());
        };
        let direction =
            if case.traffic.input == Input::Host { "encapsulated" } else { "decapsulated" };
        let forwarded = daemon.metric_sum(&format!(
            "vtepd_vni_frames_total{{vni=\"1\",direction=\"{direction}\"}}"
        ))?;
        let bypassed = match datapath {
            Datapath::Vtepd { bypass: true, .. } => {
                daemon.metric_sum("vtepd_port_frames_total{port=\"hp\",way=\"bypass\"}")?
            }
            _ => 0.0,
        };
        Ok(Self { forwarded, bypassed })
    }

    fn check(self, after: Self, arrived: f64, case: Case, datapath: Datapath) -> Result<(), Error> {
        if datapath != Datapath::SenderOnly && arrived < 1.0 {
            return Err("nothing arrived".into());
        }
        let bypass = match datapath {
            Datapath::Vtepd { bypass, .. } => bypass,
            Datapath::ChosenPort { .. } if case.traffic.input == Input::Host => false,
            _ => return Ok(()),
        };
        let percent = |share: f64| (100.0 * share).round();
        let share = (after.forwarded - self.forwarded) / arrived;
        if share < MIN_SHARE {
            return Err(format!(
                "only {} % of the frames that arrived went by vtepd, and the others by the kernel, as they do while vtepd's worker is not run",
                percent(share)
            )
            .into());
        }
        let share = (after.bypassed - self.bypassed) / arrived;
        if bypass && case.traffic.input == Input::Host && share < MIN_SHARE {
            return Err(format!(
                "only {} % of the frames that arrived had skipped the bridge, as they all should",
                percent(share)
            )
            .into());
        }
        Ok(())
    }
}
