//! The kernel forwards while vtepd hangs. An idle vtepd has no timers for that.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use vtepd_tests::daemon::USERSPACE;
use vtepd_tests::lab::VNI;
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Vtepd};

const RATE: Rate = Rate { frames: 2000, queue_pairs: 8, payload: 64 };
/// Maximum time that frames wait for a hanging worker, and an allowance for a busy machine.
const LIMIT: Duration = Duration::from_millis(200);
const SLACK: Duration = Duration::from_millis(300);

/// vtepd is stopped with SIGSTOP, with a stream in each direction. After the limit the kernel
/// forwards. Frames that waited are dropped and counted when vtepd continues. No frame comes twice.
#[root_test]
fn a_stopped_vtepd_leaves_everything_to_the_kernel() {
    let lab = Lab::new("hung");
    let one = [&["--no-fpm"][..], &USERSPACE].concat();
    let two = [&one[..], &["--workers", "2"]].concat();
    for arguments in [&one, &two] {
        stopped(&lab, arguments);
    }
}

fn stopped(lab: &Lab, arguments: &[&str]) {
    let vtepd = Vtepd::start(&lab.leaf, arguments);
    let pid = Pid::from_raw(vtepd.pid());
    let streams = [
        Stream::start(&lab.host, &lab.far, RATE, 0x71),
        Stream::start(&lab.far, &lab.host, RATE, 0x72),
    ];
    streams.iter().for_each(|stream| stream.pass(200));
    assert_eq!(vtepd.metrics().get("vtepd_worker_stalls_total"), 0);

    kill(pid, Signal::SIGSTOP).unwrap();
    // Four seconds of traffic: far more than the punt pairs can hold.
    streams.iter().for_each(|stream| stream.pass(8000));
    let limit = u64::from(RATE.frames) * u64::try_from((LIMIT + SLACK).as_millis()).unwrap() / 1000;
    for stream in &streams {
        let lost = stream.report().lost();
        assert!(
            lost > 0 && lost < limit,
            "{lost} frames lost while vtepd stood still, {limit} are allowed"
        );
    }

    kill(pid, Signal::SIGCONT).unwrap();
    let before = vtepd.metrics();
    let metrics = vtepd.wait_for("frames through vtepd again", |metrics| {
        ["encapsulated", "decapsulated"]
            .iter()
            .all(|way| metrics.vni_frames(VNI, way) > before.vni_frames(VNI, way) + 100)
    });
    assert!(metrics.get("vtepd_worker_stalls_total") >= 1, "{}", metrics.0);
    for decision in ["uplink_stalled", "vxlan_stalled"] {
        let passed =
            metrics.get(&format!("vtepd_steering_frames_total{{decision=\"{decision}\"}}"));
        assert!(passed > 6000, "{decision}: {passed}");
    }
    vtepd.wait_for_log("the worker was not run for longer than frames may wait");
    let event = vtepd.events().wait_for_kind("worker-stalled");
    let said = event["text"].as_str().unwrap();
    assert!(said.starts_with("the worker hung, and the kernel forwarded meanwhile: "), "{said}");

    let mut lost = 0;
    for stream in streams {
        let (sent, report) = stream.finish();
        assert_eq!((report.duplicated(), report.corrupted()), (0, 0), "of {}", sent.frames);
        lost += report.lost();
    }
    let metrics = vtepd.metrics();
    assert_eq!(metrics.dropped("waited_too_long"), lost, "what is lost is counted: {}", metrics.0);
}

/// Voluntary context switches of a thread.
fn wake_ups(vtepd: &Vtepd, thread: &str) -> u64 {
    let status = fs::read_to_string(vtepd.thread(thread).join("status")).unwrap();
    let count =
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

#[root_test]
fn an_idle_worker_sleeps() {
    let lab = Lab::new("idle");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let received =
        |metrics: &vtepd_tests::daemon::Metrics| metrics.sum("vtepd_steering_frames_total");
    let mut undisturbed = false;
    // Frames that the hosts send by themselves wake the worker, so the test waits for a second
    // without any.
    for _ in 0..20 {
        let (frames, before) = (received(&vtepd.metrics()), wake_ups(&vtepd, "worker"));
        std::thread::sleep(Duration::from_secs(1));
        let (frames_after, after) = (received(&vtepd.metrics()), wake_ups(&vtepd, "worker"));
        if frames == frames_after {
            assert_eq!(after, before, "wake-ups of an idle worker within a second");
            undisturbed = true;
            break;
        }
    }
    assert!(undisturbed, "the lab is never quiet");
}

/// The other threads do not wake up without a reason either. Once a second vtepd polls settings for
/// which the kernel sends no notifications: default TTL, port range and path MTUs, and the rules of
/// legacy iptables. With the bypass it polls further settings.
#[root_test]
fn an_idle_daemon_sleeps() {
    const IDLE: Duration = Duration::from_secs(2);
    /// In each second: two polls, of settings and of legacy iptables, each with the answer of a
    /// thread that reads; the question of the guard; and one for chance.
    const LOOKS: u64 = 12;
    let lab = Lab::new("idled");
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm", "--no-bridge-bypass"]);
    // Packets that hosts and neighbours send by themselves wake vtepd, so the test waits for two
    // seconds without any.
    let mut counted = Vec::new();
    while counted.len() < 20 && counted.last().is_none_or(|count| *count > LOOKS) {
        let before = wake_ups(&vtepd, "vtepd");
        std::thread::sleep(IDLE);
        counted.push(wake_ups(&vtepd, "vtepd") - before);
    }
    let sleeps = counted.last().is_some_and(|count| *count <= LOOKS);
    assert!(sleeps, "its wake-ups in each {IDLE:?}: {counted:?}");
}
