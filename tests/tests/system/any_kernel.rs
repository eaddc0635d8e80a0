//! Tests that must pass on every kernel. They run here with all other tests, and on other kernels
//! in an emulated machine (`tests/linux-vm`). That machine may be many times slower, so rates are
//! low and time limits are long.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use traffic::roce::Report;
use vtepd_tests::daemon::USERSPACE;
use vtepd_tests::lab::{VNI, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Lab, Setup, Vtepd, sockets, wait_for};

const RATE: Rate = Rate { frames: 300, queue_pairs: 4, payload: 64 };

/// A stream in each direction, and the losses counted so far.
struct Streams {
    streams: [(&'static str, Stream); 2],
    lost: [u64; 2],
}

impl Streams {
    fn start(lab: &Lab) -> Self {
        let streams = [
            ("out", Stream::start(&lab.host, &lab.far, RATE, 0x61)),
            ("in", Stream::start(&lab.far, &lab.host, RATE, 0x62)),
        ];
        Self { streams, lost: [0; 2] }
    }

    /// Waits until frames have passed in each direction. Prints the losses since the last call and
    /// checks that they are at most `milliseconds` of traffic. No frame may come twice.
    fn settle(&mut self, step: &str, milliseconds: u64) {
        self.streams.iter().for_each(|(_, stream)| stream.pass(100));
        for ((way, stream), lost) in self.streams.iter().zip(&mut self.lost) {
            let report: Report = stream.report();
            let now = report.lost().saturating_sub(*lost);
            *lost = report.lost();
            println!("{step}, {way}: {now} lost, {} doubled", report.duplicated());
            let limit = u64::from(RATE.frames) * milliseconds / 1000;
            assert!(now <= limit, "{step}, {way}: {now} frames lost, {limit} may be");
            assert_eq!((report.duplicated(), report.corrupted()), (0, 0), "{step}, {way}");
        }
    }
}

/// A vtepd with a long stall limit, because an emulated machine may not run the worker within the
/// default limit.
fn patient(lab: &Lab, arguments: &[&str]) -> Vtepd {
    let arguments = [&["--no-fpm"], arguments].concat();
    Vtepd::start_configured(&lab.leaf, "[takeover]\nstall-limit-ms = 3000\n", &arguments)
}

/// vtepd starts, is killed, restarts, hangs and stops, with a stream in each direction to and from
/// a kernel VXLAN peer.
#[root_test]
fn the_minimal_takeover() {
    let lab = Lab::new("anyk");
    let start = || {
        let vtepd = patient(&lab, &[]);
        vtepd.wait_for("frames through vtepd both ways", |metrics| {
            ["encapsulated", "decapsulated"].iter().all(|way| metrics.vni_frames(VNI, way) > 50)
        });
        vtepd
    };
    let filters = || run(&lab.leaf, "tc filter show dev up1 ingress");
    let mut streams = Streams::start(&lab);
    streams.settle("kernel VXLAN", 0);

    let vtepd = start();
    let hook = vtepd.ask(&["status"])["steering"]["hook"].as_str().unwrap().to_owned();
    println!("steering by {hook}");
    // Adding the clsact qdisc stops each interface for a moment.
    streams.settle("attach", 20);
    assert_eq!(vtepd.metrics().dropped_in_all(), 0);

    vtepd.kill();
    streams.settle("SIGKILL", 500);
    wait_for("the punts to go", || !run(&lab.leaf, "ip -br link").contains("vtepd-"));
    assert_eq!(filters().contains("vtepd_uplink"), hook == "clsact", "what is left: {}", filters());

    let vtepd = start();
    streams.settle("restart", 0);
    assert_eq!(filters().matches("handle 0x1 vtepd_uplink").count(), usize::from(hook == "clsact"));

    let pid = Pid::from_raw(vtepd.pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    streams.settle("SIGSTOP", 8000);
    kill(pid, Signal::SIGCONT).unwrap();
    let before = vtepd.metrics().vni_frames(VNI, "decapsulated");
    vtepd.wait_for("frames through it again", |metrics| {
        metrics.vni_frames(VNI, "decapsulated") > before
    });
    streams.settle("SIGCONT", 8000);

    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
    streams.settle("detach", 0);
    assert!(!filters().contains("vtepd"), "{}", filters());
    sockets::ping(&lab.host, lab.far.ip(), 3, 56, &[]);
}

/// Super-frames of local sockets arrive with every byte. This holds for UDP (`UDP_SEGMENT`) even if
/// AF_PACKET cannot describe them, which vtepd reports.
#[root_test]
fn super_frames_of_local_senders_arrive() {
    const DATAGRAMS: usize = 100;
    let lab =
        Lab::with("anyudp", Setup { overlay_mtu: 1500, underlay_mtu: 1550, ..Setup::default() });
    let vtepd = patient(&lab, &USERSPACE);
    let status = vtepd.ask(&["status"]);
    let lacks: Vec<&str> = status["steering"]["lacks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lack| lack.as_str().unwrap())
        .collect();
    println!("this kernel lacks: {lacks:?}");
    let lacks = |what: &str| lacks.iter().any(|lack| lack.contains(what));
    assert_eq!(lacks("tcx"), status["steering"]["hook"] == "clsact");
    assert_eq!(
        vtepd.log().contains("UDP super-frames"),
        lacks("UDP super-frames"),
        "{}",
        vtepd.log()
    );
    for size in [1472, 600] {
        sockets::udp(&lab.host, &lab.far, DATAGRAMS, size, true);
        sockets::udp(&lab.far, &lab.host, DATAGRAMS, size, true);
    }
    let metrics = vtepd.wait_until_idle();
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
    let cut = metrics.sum("vtepd_received_frames_total") >= 4 * DATAGRAMS as u64;
    assert_eq!(cut, lacks("UDP super-frames"), "{}", metrics.0);
    sockets::tcp_both_ways(&lab.host, &lab.far, 300_000);
    sockets::tcp_both_ways(&lab.far, &lab.host, 300_000);
    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
}
