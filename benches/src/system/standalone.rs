//! vtepd without a kernel bridge, with an interface and with a TAP, and traffic in both directions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fabric::counters;
use testbed::cpu::{Pinned, pin_process};
use testbed::sender::Input;
use testbed::topology::{JUMBO, STATIONS, UPLINK, remote_station};
use testbed::{Daemon, Datapath, Sender, Testbed, Traffic};

use super::{Failure, Options};
use crate::table::{Better, Figure, Row};

const LENGTHS: [usize; 2] = [256, 4154];
const QUEUE_PAIRS: [u32; 2] = [8, 1024];
/// How long to wait until the queues are empty.
const DRAIN_TIME: Duration = Duration::from_millis(200);
const TAP: &str = "tap0";

/// The kind of access port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AccessPort {
    /// Kernel VXLAN and its bridge with `bridge-nf-call-iptables` off.
    Kernel,
    /// The interface of the host.
    Interface,
    /// A TAP device, used by the leaf's own network stack.
    Tap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    length: usize,
    queue_pairs: u32,
    bursts: bool,
}

/// The result of a measurement. `out` and `back` are frames per second that arrived in the underlay
/// and from it. `cpu_per_frame` is vtepd's CPU time for each of them in nanoseconds. `share` is the
/// percentage of the sent frames that arrived.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    out: f64,
    back: f64,
    cpu_per_frame: f64,
    share: f64,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let (kernel, alone) = (Testbed::new("k")?, Testbed::new("s")?);
    for testbed in [&kernel, &alone] {
        testbed.set_mtu(JUMBO)?;
    }
    testbed::ovs_dpdk::remove_overlay(&alone.leaf)?;
    let configuration = Configuration::new();
    let mut cases = Vec::new();
    for length in LENGTHS {
        for queue_pairs in QUEUE_PAIRS {
            cases.extend([false, true].map(|bursts| Case { length, queue_pairs, bursts }));
        }
    }
    let mut measurements: BTreeMap<(Case, AccessPort), Vec<Measurement>> = BTreeMap::new();
    for round in 1..=options.rounds {
        for port in [AccessPort::Kernel, AccessPort::Interface, AccessPort::Tap] {
            eprintln!(
                "round {round} of {}: both directions, {port:?}, {} cases",
                options.rounds,
                cases.len()
            );
            let (testbed, daemon) = match port {
                AccessPort::Kernel => {
                    (&kernel, Datapath::KernelWithoutNf.start(&kernel, &options.vtepd)?)
                }
                AccessPort::Interface | AccessPort::Tap => {
                    configuration.write(port)?;
                    let file = configuration.path.to_string_lossy();
                    let mut daemon =
                        Daemon::start(&options.vtepd, &alone.leaf, &["--config", &file])?;
                    daemon.await_offloaded(1)?;
                    if port == AccessPort::Tap {
                        alone.leaf.rtnl(|rtnl| rtnl.set_up(TAP, true))?;
                    }
                    (&alone, Some(daemon))
                }
            };
            for &case in &cases {
                options.check_interrupt()?;
                measurements.entry((case, port)).or_default().push(measure_case(
                    testbed,
                    port,
                    case,
                    daemon.as_ref(),
                )?);
            }
            daemon.map(Daemon::stop).transpose()?;
        }
    }
    let of = |case: Case, port: AccessPort, what: fn(&Measurement) -> f64| {
        Figure::of(measurements.get(&(case, port)).into_iter().flatten().map(what))
    };
    let mut rows = Vec::new();
    for case in cases {
        let Case { length, queue_pairs, bursts } = case;
        let bursts = if bursts { "in bursts" } else { "interleaved" };
        for (port, name) in [(AccessPort::Interface, "AF_PACKET"), (AccessPort::Tap, "TAP")] {
            let case_name = |what: &str| {
                format!("{length} B, {queue_pairs} queue pairs {bursts}, 2 cores, {name}: {what}")
            };
            let mut both = |what: &str, unit: &str, figure: fn(&Measurement) -> f64| {
                let (vtepd, kernel) =
                    (of(case, port, figure), of(case, AccessPort::Kernel, figure));
                rows.push(Row::beside(
                    "standalone",
                    case_name(what),
                    unit,
                    vtepd,
                    Some(kernel),
                    Better::Higher,
                ));
            };
            both("to the underlay", "frames/s", |measured| measured.out);
            both("from the underlay", "frames/s", |measured| measured.back);
            both("of those sent", "%", |measured| measured.share);
            let own = of(case, port, |measured| measured.cpu_per_frame);
            let name = case_name("vtepd's own CPU");
            rows.push(Row::beside("standalone", name, "ns/frame", own, None, Better::Lower));
        }
    }
    Ok(rows)
}

/// The number of frames that have arrived in each direction.
fn passed(testbed: &Testbed, port: AccessPort, length: usize) -> Result<[u64; 2], Failure> {
    let back = if port == AccessPort::Tap {
        // Frames that vtepd writes to the TAP are received by the leaf's stack.
        let all = counters::read(&testbed.leaf)?;
        all.get(TAP).ok_or("there is no TAP")?.rx_bytes / length as u64
    } else {
        testbed.delivered(length)?.frames
    };
    Ok([testbed.sent_encapsulated(length)?.frames, back])
}

/// Measures one case. Both senders alternate on one core, vtepd has the other.
fn measure_case(
    testbed: &Testbed,
    port: AccessPort,
    case: Case,
    daemon: Option<&Daemon>,
) -> Result<Measurement, Failure> {
    let _pinned = Pinned::to(0)?;
    if let Some(daemon) = daemon {
        pin_process(daemon.id(), &[1])?;
    }
    let Case { length, queue_pairs, bursts } = case;
    let traffic = |input| Traffic { input, length, queue_pairs, bursts };
    let mut out = match port {
        AccessPort::Tap => Sender::at(&testbed.leaf, TAP, traffic(Input::Host), UPLINK)?,
        AccessPort::Kernel | AccessPort::Interface => {
            Sender::new(testbed, traffic(Input::Host), true)?
        }
    };
    let mut back = Sender::new(testbed, traffic(Input::Singles), true)?;
    let mut both = |time: Duration| {
        let (start, mut index, mut sent) = (Instant::now(), [0, 0], [0_u64, 0]);
        while start.elapsed() < time {
            // Sends the same number of frames in both directions.
            let ([next_out, next_back], [sent_out, sent_back]) = (&mut index, &mut sent);
            let (sender, next, sent) = if sent_out <= sent_back {
                (&mut out, next_out, sent_out)
            } else {
                (&mut back, next_back, sent_back)
            };
            *sent += sender.send_some(*next);
            *next += testbed::sender::SUPER_FRAMES_PER_CALL;
        }
        (sent, start.elapsed().as_secs_f64())
    };
    let cpu = || daemon.map_or(Ok(0), Daemon::cpu);
    both(Duration::from_millis(150));
    let (before, cpu_before) = (passed(testbed, port, length)?, cpu()?);
    let (sent, seconds) = both(Duration::from_millis(400));
    let (after, cpu_after) = (passed(testbed, port, length)?, cpu()?);
    std::thread::sleep(DRAIN_TIME);
    let [out, back] = [0, 1].map(|direction| {
        let at = |all: [u64; 2]| all.get(direction).copied().unwrap_or(0);
        (at(after) - at(before)) as f64
    });
    if out < 1.0 || back < 1.0 {
        return Err(format!(
            "{port:?}, {case:?}: {out} frames arrived to the underlay, {back} from it"
        )
        .into());
    }
    let cpu_per_frame = cpu_after.saturating_sub(cpu_before) as f64 / (out + back);
    let share = 100.0 * (out + back) / sent.iter().sum::<u64>() as f64;
    Ok(Measurement { out: out / seconds, back: back / seconds, cpu_per_frame, share })
}

/// The configuration file of a standalone vtepd. Dropping the value deletes it.
struct Configuration {
    path: PathBuf,
}

impl Configuration {
    fn new() -> Self {
        Self { path: std::env::temp_dir().join(format!("vtepd-bench-{}.toml", std::process::id())) }
    }

    fn write(&self, port: AccessPort) -> Result<(), Failure> {
        let port = if port == AccessPort::Tap {
            "tap = \"tap0\", mtu = 9000"
        } else {
            "interface = \"hp\""
        };
        let stations: Vec<String> =
            (0..STATIONS).map(|n| format!("\"{}\" = \"10.0.0.3\"", remote_station(n))).collect();
        let text = format!(
            "[[standalone]]\nvni = 1\nlocal = \"10.0.0.1\"\nremotes = [\"10.0.0.2\", \"10.0.0.3\"]\nmacs = {{ {} }}\nports = [{{ {port} }}]\n",
            stations.join(", ")
        );
        Ok(std::fs::write(&self.path, text)?)
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = std::fs::remove_file(&self.path);
    }
}
