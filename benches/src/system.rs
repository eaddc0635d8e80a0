//! vtepd beside kernel VXLAN, over veth links, in turns within one run.
//!
//! ```text
//!  host ── hp ─ br0 ─ vx0 ─ leaf ─ up1 ── down1 ─ wire: everything ends there
//! ```
//!
//! The sender sends all it can, on one core with everything else or beside vtepd with a core of its own. On one core, the time
//! between two frames that arrive, less what the sender alone needs for one, is what forwarding costs (*net*): in the kernel, in
//! softirqs and in vtepd alike.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::Namespace;
use lab::counters;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use pipeline::{Body, Checksum, Destination, Gso, GsoKind, Offload, Transmit};

use crate::leaf::{BATCH, roce};
use crate::rows::{Better, Row};
use crate::state::daemon::Daemon;
use crate::state::ingest::batch;

type Failure = Box<dyn Error>;

/// Inner lengths in bytes.
const LENGTHS: [usize; 2] = [64, 1082];
/// Queue pairs, interleaved.
const QUEUE_PAIRS: [u32; 2] = [1, 64];
/// Cores that all share: everything on one, or the sender (with the kernel's part that its frames cause) and vtepd on one each.
const CORES: [usize; 2] = [1, 2];
/// Frames that the sender hands over as one, for its link to cut: so it costs less than what is measured.
const HANDED_OVER: usize = 32;
/// Bytes that one frame of a super-frame does not repeat.
const SHARED: u64 = 14 + 20 + 8;
/// A host's headers before RoCE's own.
const HEADERS: usize = 14 + 20 + 8;

/// Who forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Nobody: frames end at the leaf's port. What the sender pays in any case.
    Nobody,
    Kernel,
    Vtepd,
    /// vtepd, each frame by itself.
    Single,
}

const WAYS: [Way; 4] = [Way::Nobody, Way::Kernel, Way::Vtepd, Way::Single];

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    length: usize,
    queue_pairs: u32,
    cores: usize,
}

/// One measurement, of a sender that sends all it can.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    /// Frames a second that arrived.
    rate: f64,
    /// Those sent.
    offered: f64,
    /// CPU nanoseconds of vtepd for each frame that arrived.
    daemon: f64,
}

struct Bed {
    host: Namespace,
    leaf: Namespace,
    _wire: Namespace,
}

impl Bed {
    fn new() -> Result<Self, Failure> {
        let name = |node: &str| format!("vty-{node}-{}", std::process::id());
        let [leaf, wire, host] = ["leaf", "wire", "host"].map(|node| Namespace::create(name(node)));
        let (leaf, wire, host) = (leaf?, wire?, host?);
        for namespace in [&leaf, &wire, &host] {
            let quiet = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            // A kernel without IPv6 is as quiet.
            let _ = namespace.enter(quiet)?;
        }
        let links = format!(
            "addr add 10.0.0.1/32 dev lo\n\
             link add br0 type bridge mcast_snooping 0\n\
             link add vx0 type vxlan id 1 local 10.0.0.1 dstport 4789 nolearning\n\
             link set vx0 mtu 9000 master br0 up\n\
             link set br0 up\n\
             link add hp mtu 9000 type veth peer name eth0 mtu 9000 netns {}\n\
             link set hp up\n\
             link add up1 mtu 9500 type veth peer name down1 mtu 9500 netns {}\n\
             addr add 10.255.1.1/31 dev up1\n\
             link set up1 up\n\
             neigh replace 10.255.1.0 lladdr 02:ee:00:00:00:01 dev up1 nud permanent\n",
            host.name(),
            wire.name()
        );
        batch(&leaf, "ip", &links)?;
        batch(&wire, "ip", "link set down1 up\n")?;
        batch(&host, "ip", "link set eth0 up\n")?;
        // The host's link cuts what the sender hands over.
        let cut = || Command::new("ethtool").args(["-K", "eth0", "tx-udp-segmentation", "off"]).output();
        host.enter(cut)?.map_err(|error| format!("ethtool: {error}"))?;
        batch(&leaf, "ip", "route add 10.0.0.2/32 via 10.255.1.0 dev up1\n")?;
        let entries: String = (0..8)
            .map(|n| format!("fdb append 02:00:00:00:01:0{n} dev vx0 dst 10.0.0.2 self static\n"))
            .collect();
        let known: String =
            (0..8).map(|n| format!("fdb replace 02:00:00:00:01:0{n} dev vx0 master static\n")).collect();
        batch(&leaf, "bridge", &(entries + &known))?;
        Ok(Self { host, leaf, _wire: wire })
    }

    /// Frames that have left by the uplink, super-frames by what is in them.
    fn left(&self, length: usize) -> Result<u64, Failure> {
        let counters = counters::read(&self.leaf)?;
        let uplink = counters.get("up1").ok_or("no uplink")?;
        Ok(uplink.tx_bytes.saturating_sub(SHARED * uplink.tx_packets) / (length as u64 + 8))
    }

    fn turn(&self, case: Case, time: Duration, vtepd: Option<u32>) -> Result<Turn, Failure> {
        if let Some(process) = vtepd {
            pin_tasks(process, case.cores - 1)?;
        }
        pin(Pid::from_raw(0), 0)?;
        let mut sender = self.host.enter(|| Sender::new(case).map_err(|error| error.to_string()))??;
        // Queues are as full then as they are later, so what arrives is what is forwarded meanwhile.
        sender.send(time / 2);
        let (before, daemon) = (self.left(case.length)?, cpu(vtepd)?);
        let (sent, elapsed) = sender.send(time);
        let (frames, seconds) = ((self.left(case.length)? - before) as f64, elapsed.as_secs_f64());
        let daemon = cpu(vtepd)?.saturating_sub(daemon) as f64;
        // The next turn finds the queues empty.
        std::thread::sleep(Duration::from_millis(300));
        Ok(Turn { rate: frames / seconds, offered: sent as f64 / seconds, daemon: daemon / frames })
    }
}

/// RoCE packets of several queue pairs, in super-frames that the sender's own link cuts.
struct Sender {
    socket: ports::PacketSocket,
    super_frames: Vec<Transmit>,
    frames: u64,
}

impl Sender {
    fn new(case: Case) -> Result<Self, Failure> {
        let ifindex = nix::net::if_::if_nametoindex("eth0")?;
        let most = (60_000 / case.length).min(HANDED_OVER);
        let mut numbers = 0u32..;
        let super_frame = |_| {
            let mut whole = Vec::new();
            for number in numbers.by_ref().take(most) {
                let frame = roce(case.length, 0x100 + number % case.queue_pairs, number)?;
                let headers = if whole.is_empty() { 0 } else { HEADERS };
                whole.extend_from_slice(frame.get(headers..).unwrap_or_default());
            }
            super_frame(whole, case.length, ifindex)
        };
        let super_frames = (0..BATCH.div_ceil(most)).map(super_frame).collect::<Result<Vec<_>, Failure>>()?;
        let frames = (super_frames.len() * most) as u64;
        Ok(Self { socket: ports::PacketSocket::open_sender(false)?, super_frames, frames })
    }

    /// Sends for so long. Returns how many frames, and how long it took.
    fn send(&mut self, time: Duration) -> (u64, Duration) {
        let (start, mut sent, batch) = (Instant::now(), 0, pipeline::Batch::new(0));
        while start.elapsed() < time {
            self.socket.transmit(&batch, &mut self.super_frames, |_, _| {});
            sent += self.frames;
        }
        (sent, start.elapsed())
    }
}

/// A UDP super-frame of frames of one length.
fn super_frame(mut frame: Vec<u8>, length: usize, ifindex: u32) -> Result<Transmit, Failure> {
    let l3 = u16::try_from(frame.len() - 14)?;
    let mut put = |at: usize, word: u16| {
        if let Some(field) = frame.get_mut(at..at + 2) {
            field.copy_from_slice(&word.to_be_bytes());
        }
    };
    put(16, l3);
    put(24, 0);
    put(38, l3 - 20);
    put(40, 0);
    let sum = wire::checksum::checksum(frame.get(14..34).unwrap_or_default());
    let pseudo =
        wire::checksum::Sum::new().bytes(frame.get(26..34).unwrap_or_default()).word(17).word(l3 - 20);
    let mut put = |at: usize, word: u16| {
        if let Some(field) = frame.get_mut(at..at + 2) {
            field.copy_from_slice(&word.to_be_bytes());
        }
    };
    put(24, sum);
    put(40, pseudo.fold());
    let offload = Offload {
        checksum: Checksum::Partial { start: 34, offset: 6 },
        gso: Some(Gso { kind: GsoKind::Udp, size: u16::try_from(length - HEADERS)?, ecn: false }),
    };
    let to = Destination::Uplink { ifindex, path: 0, by_default: false };
    Ok(Transmit::new(to, 0, Body::Owned(frame.into()), offload))
}

/// Leaves a thread one core.
fn pin(thread: Pid, core: usize) -> Result<(), Failure> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    Ok(sched_setaffinity(thread, &cores)?)
}

fn pin_tasks(process: u32, core: usize) -> Result<(), Failure> {
    for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let number = task.file_name().to_string_lossy().parse()?;
        // A thread may end meanwhile.
        let _ = pin(Pid::from_raw(number), core);
    }
    Ok(())
}

/// CPU nanoseconds of a process so far.
fn cpu(process: Option<u32>) -> Result<u64, Failure> {
    let Some(process) = process else { return Ok(0) };
    let mut all = 0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        all += text.split_ascii_whitespace().next().map_or(Ok(0), str::parse)?;
    }
    Ok(all)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures everything.
///
/// # Errors
/// When namespaces or sockets cannot be had.
pub fn run(quick: bool) -> Result<Vec<Row>, Failure> {
    let (rounds, time) = if quick { (3, 300) } else { (7, 500) };
    let time = Duration::from_millis(time);
    let bed = Bed::new()?;
    let cases: Vec<Case> = CORES
        .into_iter()
        .flat_map(|cores| LENGTHS.map(|length| (cores, length)))
        .flat_map(|(cores, length)| QUEUE_PAIRS.map(|queue_pairs| Case { length, queue_pairs, cores }))
        .collect();
    let mut turns: BTreeMap<(Way, Case), Vec<Turn>> = BTreeMap::new();
    for round in 0..rounds {
        for way in WAYS {
            eprintln!("round {} of {rounds}: {way:?}", round + 1);
            let bridge =
                if way == Way::Nobody { "link set hp nomaster\n" } else { "link set hp master br0\n" };
            batch(&bed.leaf, "ip", bridge)?;
            let mut daemon = match way {
                Way::Nobody | Way::Kernel => None,
                Way::Vtepd => Some(Daemon::start(&bed.leaf, &["--no-fpm", "--gso"])?),
                Way::Single => Some(Daemon::start(&bed.leaf, &["--no-fpm"])?),
            };
            if let Some(daemon) = &mut daemon {
                daemon.until_taken(1)?;
            }
            for &case in &cases {
                let turn = bed.turn(case, time, daemon.as_ref().map(Daemon::id))?;
                turns.entry((way, case)).or_default().push(turn);
            }
            if let Some(daemon) = daemon {
                daemon.stop()?;
            }
        }
    }
    let of = |way: Way, case: Case, what: fn(&Turn) -> f64| {
        median(turns.get(&(way, case)).into_iter().flatten().map(what).collect())
    };
    let mut rows = Vec::new();
    for case in cases {
        let Case { length, queue_pairs, cores } = case;
        for (way, name, wanted) in [(Way::Vtepd, ", --gso", true), (Way::Single, "", false)] {
            let mut row =
                |what: &str, unit: &str, vtepd: f64, kernel: Option<f64>, target: Option<f64>, better| {
                    rows.push(Row {
                        bench: "encapsulate".to_owned(),
                        case: format!("{length} B, {queue_pairs} queue pairs, {cores} cores{name}: {what}"),
                        unit: unit.to_owned(),
                        vtepd,
                        kernel,
                        ratio: kernel.map(|kernel| vtepd / kernel),
                        target: target.filter(|_| wanted),
                        better,
                    });
                };
            let rate = |way| of(way, case, |turn| turn.rate);
            if cores == 1 {
                let net = |way| 1e9 / rate(way) - 1e9 / of(Way::Nobody, case, |turn| turn.offered);
                let target = match (length, queue_pairs) {
                    (64, 1) => 0.28,
                    (64, _) => 0.46,
                    (_, 1) => 0.40,
                    _ => 0.75,
                };
                row("net CPU", "ns/frame", net(way), Some(net(Way::Kernel)), Some(target), Better::Lower);
            }
            let target = if length == 64 { 2.4 } else { 1.7 };
            let target = (cores == 2).then_some(target);
            row("arrived", "frames/s", rate(way), Some(rate(Way::Kernel)), target, Better::Higher);
            let share = |way| 100.0 * rate(way) / of(way, case, |turn| turn.offered);
            row("of those sent", "%", share(way), Some(share(Way::Kernel)), None, Better::Higher);
            row("its own CPU", "ns/frame", of(way, case, |turn| turn.daemon), None, None, Better::Lower);
        }
        rows.push(Row {
            bench: "sender alone".to_owned(),
            case: format!("{length} B, {queue_pairs} queue pairs"),
            unit: "ns/frame".to_owned(),
            vtepd: 1e9 / of(Way::Nobody, case, |turn| turn.offered),
            kernel: None,
            ratio: None,
            target: None,
            better: Better::Lower,
        });
    }
    Ok(rows)
}
