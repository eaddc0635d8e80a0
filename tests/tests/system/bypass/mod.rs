//! The bypass: known unicast of hosts bypasses the bridge, all other frames pass through it, and
//! the bridge's entries stay correct.

mod bridge;
mod cost;
mod delivery;
mod filters;
mod order;
mod ways;

use vtepd_tests::daemon::Metrics;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, VNI, run};
use vtepd_tests::stream::Rate;
use vtepd_tests::{Host, Lab, Vtepd};
use wire::MacAddr;

const HOOKS: [&str; 2] = ["tcx", "clsact"];
const RATE: Rate = Rate { frames: 4000, queue_pairs: 64, payload: 64 };

fn steering(metrics: &Metrics, decision: &str) -> u64 {
    metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"))
}

/// Whether a port of the leaf has the bypass, or the reason why not.
fn port(metrics: &Metrics, name: &str) -> Option<Result<(), String>> {
    let start = format!("vtepd_port_bypass{{port=\"{name}\",vni=\"{VNI}\",reason=\"");
    let line = metrics.0.lines().find_map(|line| line.strip_prefix(start.as_str()))?;
    let (reason, value) = line.split_once("\"} ")?;
    assert_eq!(value == "1", reason.is_empty(), "{line}");
    Some(if reason.is_empty() { Ok(()) } else { Err(reason.to_owned()) })
}

/// Starts vtepd with the bypass, and waits until the bridge knows both hosts of the leaf.
fn start(lab: &Lab, hook: &str) -> Vtepd {
    start_with(lab, hook, &[])
}

/// As [`start`], with further arguments.
fn start_with(lab: &Lab, hook: &str, arguments: &[&str]) -> Vtepd {
    let bypass = ["--bridge-bypass", "--hook", hook, "--no-fpm"];
    let vtepd = Vtepd::start(&lab.leaf, &[&bypass, arguments].concat());
    for host in [&lab.host, &lab.next] {
        speak(host);
    }
    vtepd.wait_for("the bypass", |m| {
        ["hp10", "hq10"].iter().all(|name| port(m, name) == Some(Ok(())))
            && m.find("vtepd_bypass_addresses{state=\"known\"}") == Some(4)
    });
    vtepd
}

fn speak(host: &Host) {
    let frame = frames::ethernet(Pair::of(host, host).to_mac(MacAddr::BROADCAST), 0x88b5, &[0; 50]);
    inject(&host.ns, ETH, &[frame]);
}

fn in_fdb(lab: &Lab, port: &str, mac: MacAddr) -> bool {
    run(&lab.leaf, &format!("bridge fdb show dev {port}")).contains(&mac.to_string())
}
