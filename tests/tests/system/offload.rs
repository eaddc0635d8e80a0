//! The `offload` datapath: BPF programs forward decided flows.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use vtepd_tests::daemon::Metrics;
use vtepd_tests::lab::VNI;
use vtepd_tests::sockets;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Setup, Vtepd};

const OFFLOAD: [&str; 3] = ["--no-fpm", "--datapath", "offload"];
const RATE: Rate = Rate { frames: 20_000, queue_pairs: 16, payload: 64 };
/// Frames before and after each change.
const BETWEEN: u64 = 4_000;

pub(crate) fn steered(metrics: &Metrics, decision: &str) -> u64 {
    metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"))
}

fn streams(lab: &Lab, mark: u64) -> [Stream; 2] {
    [
        Stream::start(&lab.host, &lab.far, RATE, mark),
        Stream::start(&lab.far, &lab.host, RATE, mark + 1),
    ]
}

/// Nothing is lost, doubled or damaged. Almost nothing is reordered: see `moving.rs`.
fn whole(streams: [Stream; 2], when: &str) {
    for stream in streams {
        let (sent, report) = stream.finish();
        let fate = (report.lost(), report.duplicated(), report.corrupted());
        println!("{when}: {} frames, {fate:?}, {} reordered", sent.frames, report.reordered());
        assert_eq!(fate, (0, 0, 0), "{when}: lost, doubled and damaged of {}", sent.frames);
        assert!(report.reordered() <= sent.frames / 10_000, "{when}: {}", report.reordered());
    }
}

#[root_test]
fn decided_flows_do_not_reach_the_worker() {
    let lab = Lab::new("offload");
    let vtepd = Vtepd::start(&lab.leaf, &OFFLOAD);
    let row = &vtepd.ask(&["vni"])[0];
    assert_eq!(row["datapath"], "offload");
    assert_eq!(row["datapath_reason"], "the fastest that forwards as the kernel would");
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    let before = vtepd.wait_until_idle();
    let streams = streams(&lab, 0xa0);
    streams.iter().for_each(|stream| stream.pass(5 * BETWEEN));
    whole(streams, "forwarded");
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    let after = vtepd.wait_until_idle();
    for (offloaded, redirected, way) in [
        ("offload_encapsulated", "vxlan_redirected", "encapsulated"),
        ("offload_decapsulated", "uplink_redirected", "decapsulated"),
    ] {
        let moved = |decision| steered(&after, decision) - steered(&before, decision);
        assert!(moved(offloaded) > 5 * BETWEEN, "{way}: {}", after.0);
        assert!(moved(redirected) < moved(offloaded) / 100, "{way}: {}", after.0);
        assert!(after.vni_frames(VNI, way) - before.vni_frames(VNI, way) >= moved(offloaded));
    }
    let [received, copied, sent, dropped, held] = after.passed();
    assert_eq!(received + copied, sent + dropped + held, "{}", after.0);
}

/// The netdevs learn, and nothing else tells the leaves where hosts are. Programs decapsulate once a
/// source address is known.
#[root_test]
fn programs_decapsulate_for_a_vni_that_learns() {
    let lab = Lab::with("offlearn", Setup { learning: true, ..Setup::default() });
    let vtepd = Vtepd::start(&lab.leaf, &OFFLOAD);
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
    vtepd.wait_for("the learned address", |metrics| {
        metrics.get("vtepd_learned_addresses_total{change=\"new\"}") > 0
    });
    let before = vtepd.wait_until_idle();
    let streams = streams(&lab, 0xc0);
    streams.iter().for_each(|stream| stream.pass(5 * BETWEEN));
    whole(streams, "forwarded");
    let after = vtepd.wait_until_idle();
    let moved = |decision| steered(&after, decision) - steered(&before, decision);
    assert!(moved("offload_decapsulated") > 5 * BETWEEN, "{}", after.0);
    assert!(moved("uplink_redirected") < moved("offload_decapsulated") / 20, "{}", after.0);
    let [received, copied, sent, dropped, held] = after.passed();
    assert_eq!(received + copied, sent + dropped + held, "{}", after.0);
}

/// A start, an end, another datapath and SIGKILL under traffic. SIGKILL loses nothing either,
/// because no frame is in userspace.
#[root_test]
fn nothing_is_lost_doubled_or_reordered_when_it_comes_and_goes() {
    let lab = Lab::new("offgo");
    let pass = |streams: &[Stream; 2]| streams.iter().for_each(|stream| stream.pass(BETWEEN));
    for round in 0..3 {
        let streams = streams(&lab, 0xb0 + 4 * round);
        pass(&streams);
        let vtepd = Vtepd::start(&lab.leaf, &OFFLOAD);
        pass(&streams);
        assert!(steered(&vtepd.metrics(), "offload_encapsulated") > 0);
        assert!(steered(&vtepd.metrics(), "offload_decapsulated") > 0);
        if round % 2 == 0 {
            assert!(vtepd.terminate().0.success());
        } else {
            kill(Pid::from_raw(vtepd.pid()), Signal::SIGKILL).unwrap();
            let _ = vtepd.wait();
        }
        pass(&streams);
        whole(streams, if round % 2 == 0 { "SIGTERM" } else { "SIGKILL" });
    }
}

/// A stopped process sends no heartbeat, so the kernel forwards. Nothing waits for the process.
#[root_test]
fn a_stopped_process_leaves_everything_to_the_kernel() {
    let lab = Lab::new("offhung");
    let vtepd = Vtepd::start(&lab.leaf, &OFFLOAD);
    let pid = Pid::from_raw(vtepd.pid());
    let streams = streams(&lab, 0xc0);
    streams.iter().for_each(|stream| stream.pass(BETWEEN));
    kill(pid, Signal::SIGSTOP).unwrap();
    streams.iter().for_each(|stream| stream.pass(5 * BETWEEN));
    kill(pid, Signal::SIGCONT).unwrap();
    let before = vtepd.metrics();
    // Four fifths of a second went by while the process stood still.
    vtepd.wait_for("offloaded frames again", |metrics| {
        steered(metrics, "offload_encapsulated") > steered(&before, "offload_encapsulated") + 1000
    });
    let metrics = vtepd.metrics();
    let sent: u64 = streams.iter().map(Stream::sent).sum();
    let offloaded =
        steered(&metrics, "offload_encapsulated") + steered(&metrics, "offload_decapsulated");
    assert!(offloaded + BETWEEN < sent, "{offloaded} of {sent}: the kernel forwarded the rest");
    for stream in streams {
        let (sent, report) = stream.finish();
        assert_eq!((report.duplicated(), report.corrupted()), (0, 0), "of {}", sent.frames);
        assert_eq!(report.lost(), 0, "of {}", sent.frames);
    }
}
