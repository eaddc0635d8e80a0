//! The CPU time of a frame, a round trip and a TCP segment by purpose, from samples of `perf
//! record`. For frames and round trips, the sender, softirqs and vtepd share one core. TCP uses all
//! cores.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use testbed::echo::Echo;
use testbed::measurement::Case;
use testbed::sender::Input;
use testbed::stream::{Towards, throughput};
use testbed::{Datapath, Measurement, Testbed, Traffic};

use super::{Failure, Options};
use crate::table::{Better, Figure, Row};

const DATAPATHS: [Datapath; 6] = [
    Datapath::SenderOnly,
    Datapath::Kernel,
    Datapath::NO_BYPASS,
    Datapath::NO_GSO,
    Datapath::USERSPACE,
    Datapath::Offload,
];
const INPUTS: [(Input, &str); 3] = [
    (Input::Host, "encapsulate"),
    (Input::Singles, "decapsulate single frames"),
    (Input::SuperFrames, "decapsulate super-frames"),
];
/// Samples per second. A prime number avoids synchronisation with periodic work.
const FREQUENCY: &str = "1999";
/// The TCP payload of a segment in bytes, with an MTU of 1,500.
const SEGMENT: f64 = 1448.0;

/// Purposes of kernel functions, with the prefixes of their names. The first match applies. Other
/// functions are for "anything else".
const PURPOSES: [(&str, &str); 10] = [
    (
        "nothing: idle",
        "pv_native_safe_halt default_idle native_safe_halt intel_idle acpi_safe_halt mwait_idle",
    ),
    ("steering (BPF)", "bpf_ __bpf_ tcx_ tc_run cls_bpf htab_ __htab array_map skb_do_redirect"),
    ("bridge and netfilter", "br_ __br_ nf_ ipt_ ip_sabotage ip6t_ fdb_"),
    (
        "cutting super-frames",
        "skb_segment __udp_gso inet_gso udp4_ufo skb_mac_gso __skb_gso skb_udp_tunnel",
    ),
    ("VXLAN and IP", "vxlan udp __udp ip_ __ip iptunnel fib_ inet_ arp_ neigh dst_ gro_ dev_gro"),
    (
        "copying",
        "_copy_ copy_ memcpy __memcpy skb_copy rep_movs __check_object import_iovec __import_iovec",
    ),
    (
        "AF_PACKET and system calls",
        "packet_ tpacket_ prb_ sock_ __sock __sys_ ___sys_ ____sys_ __x64_sys do_syscall entry_ syscall_ virtio_net _raw_spin",
    ),
    (
        "memory of frames",
        "kmem_ kmalloc __kmalloc kfree __alloc alloc_ skb_release __kfree consume_skb skb_free __build_skb build_skb page_frag __slab ___slab free_ __free get_page __skb_ pskb_ skb_head napi_alloc sk_skb",
    ),
    (
        "links and backlog",
        "veth netif_ __netif enqueue_to process_backlog net_rx handle_softirqs __napi dev_ __dev_ validate_xmit do_softirq __local_bh skb_ eth_ get_rps napi_ rcu_ __rcu ktime_ deliver_",
    ),
    (
        "scheduling",
        "schedule __schedule pick_ update_ enqueue_ dequeue_ try_to_wake ttwu finish_task switch_ __switch do_poll do_sys_poll hrtimer tick_ sched_ io_ __io_ __do_sys_io eventfd",
    ),
];

pub(super) fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let testbed = Testbed::new("")?;
    let time = Duration::from_secs(if options.quick { 1 } else { 4 });
    let samples = Samples::new();
    let mut rows = Vec::new();
    for datapath in DATAPATHS.into_iter().filter(|datapath| options.includes(*datapath)) {
        let daemon = datapath.start(&testbed, &options.vtepd)?;
        for (input, bench) in INPUTS {
            for length in [64, 1082] {
                options.check_interrupt()?;
                let traffic = Traffic { input, length, queue_pairs: 64, bursts: false };
                let case = Case { traffic, cores: 1, busy: false };
                eprintln!("{bench}, {length} B: {datapath}");
                let recording = samples.record(time, 1)?;
                let measured = Measurement::take(&testbed, case, time, datapath, daemon.as_ref());
                let shares = recording.and_read()?;
                let rate = if datapath == Datapath::SenderOnly {
                    measured?.offered
                } else {
                    measured?.rate
                };
                for (purpose, share) in shares {
                    let case = format!("{length} B, 64 queue pairs, 1 core, {datapath}: {purpose}");
                    let figure = Figure::of([share * 1e9 / rate]);
                    rows.push(Row::beside(bench, case, "ns/frame", figure, None, Better::Lower));
                }
            }
        }
        if datapath != Datapath::SenderOnly {
            options.check_interrupt()?;
            eprintln!("round trips: {datapath}");
            let recording = samples.record(time, 1)?;
            let echo = Echo::take(&testbed, time, 1, daemon.as_ref());
            let shares = recording.and_read()?;
            // A round trip takes the whole time. Samples before the first and after the last one
            // count as idle.
            let whole = echo?.p50;
            for (purpose, share) in shares {
                let case = format!("all on 1 core, {datapath}: {purpose}");
                rows.push(Row::beside(
                    "round trip",
                    case,
                    "µs",
                    Figure::of([share * whole]),
                    None,
                    Better::Lower,
                ));
            }
        }
        if let Datapath::Kernel | Datapath::USERSPACE | Datapath::Offload = datapath {
            options.check_interrupt()?;
            eprintln!("TCP between two that forward alike: {datapath}");
            let peer = datapath.start_at_peer(&testbed, &options.vtepd)?;
            let recording = samples.record(time, testbed::cpu::count())?;
            let rate = throughput(&testbed, Towards::Far, time, daemon.as_ref());
            let shares = recording.and_read()?;
            peer.map(testbed::Daemon::stop).transpose()?;
            let segments = rate? * 1e9 / 8.0 / SEGMENT;
            for (purpose, share) in shares {
                let case =
                    format!("between two that forward alike, all cores, {datapath}: {purpose}");
                let figure = Figure::of([share * testbed::cpu::count() as f64 * 1e9 / segments]);
                rows.push(Row::beside(
                    "TCP, MTU 1500",
                    case,
                    "ns/segment",
                    figure,
                    None,
                    Better::Lower,
                ));
            }
        }
        daemon.map(testbed::Daemon::stop).transpose()?;
    }
    rows.sort_by(|a, b| a.bench.cmp(&b.bench));
    Ok(rows)
}

/// The file with the samples. Dropping the value deletes it.
struct Samples(PathBuf);

impl Samples {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("vtepd-profile-{}", std::process::id())))
    }

    /// Starts to record samples of the first `cores` cores for `time`.
    fn record(&self, time: Duration, cores: usize) -> Result<Recording<'_>, Failure> {
        // perf would keep the recording before under another name.
        let _ = std::fs::remove_file(&self.0);
        let child = Command::new("perf")
            .args(["record", "--quiet", "--all-cpus", "--cpu", &format!("0-{}", cores - 1)])
            .args(["--event", "cpu-clock", "--freq", FREQUENCY, "--output"])
            .arg(&self.0)
            .args(["--", "sleep", &time.as_secs().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("perf does not run ({error}): install linux-perf"))?;
        Ok(Recording { child, file: &self.0 })
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A running `perf record`.
struct Recording<'a> {
    child: std::process::Child,
    file: &'a Path,
}

impl Recording<'_> {
    /// Waits for its end. Returns the share of each purpose in the CPU time, 0 to 1, without
    /// negligible ones.
    fn and_read(mut self) -> Result<Vec<(&'static str, f64)>, Failure> {
        self.child.wait()?;
        let output = Command::new("perf")
            .args([
                "report",
                "--stdio",
                "--no-children",
                "--percent-limit",
                "0",
                "--field-separator",
                ";",
            ])
            .args(["--sort", "comm,sym", "--input"])
            .arg(self.file)
            .stderr(Stdio::null())
            .output()?;
        if !output.status.success() {
            return Err("perf report could not read what perf record had written".into());
        }
        Ok(shares(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// Parses perf's report: share in percent, command, and symbol after `[k]` or `[.]`.
fn shares(report: &str) -> Vec<(&'static str, f64)> {
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for line in report.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split(';').map(str::trim);
        let (Some(percent), Some(command), Some(symbol)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let Ok(percent) = percent.trim_end_matches('%').parse::<f64>() else { continue };
        *shares.entry(purpose(command, symbol)).or_default() += percent / 100.0;
    }
    let mut shares: Vec<_> = shares.into_iter().filter(|(_, share)| *share >= 0.005).collect();
    shares.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    shares
}

fn purpose(command: &str, symbol: &str) -> &'static str {
    let Some((kind, name)) = symbol.split_once(' ') else { return "anything else" };
    match (kind, command) {
        ("[.]", "worker") => return "vtepd itself",
        ("[.]", "report") => return "the sender itself",
        _ => {}
    }
    let fits = |names: &str| names.split(' ').any(|begin| name.trim_start().starts_with(begin));
    PURPOSES.iter().find(|(_, names)| fits(names)).map_or("anything else", |(purpose, _)| purpose)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn samples_are_dealt_by_what_functions_are_for() {
        let mut report = String::from("# Samples: 1K of event\n#\n# Overhead;Command;Symbol\n\n");
        for (percent, command, symbol) in [
            ("40.00", "worker", "[.] pipeline::decapsulate"),
            ("20.50", "worker", "[k] veth_xmit"),
            ("9.50", "report", "[k] __netif_receive_skb_core.constprop.0"),
            ("8.00", "report", "[.] sendmmsg"),
            ("7.00", "swapper", "[k] br_handle_frame"),
            ("0.10", "worker", "[k] vxlan_xmit"),
            ("5.00", "kdamond.0", "[k] damon_sleep"),
        ] {
            writeln!(report, "{percent}%;{command};{symbol}").unwrap();
        }
        let expected = [
            ("vtepd itself", 0.4),
            ("links and backlog", 0.3),
            ("the sender itself", 0.08),
            ("bridge and netfilter", 0.07),
            ("anything else", 0.05),
        ];
        let found = shares(&report);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((purpose, share), (other, expected)) in found.into_iter().zip(expected) {
            assert_eq!(purpose, other);
            assert!((share - expected).abs() < 1e-9, "{purpose}: {share}");
        }
    }
}
