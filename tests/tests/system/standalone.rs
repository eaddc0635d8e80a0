//! Standalone VNIs, without kernel bridge and netdev: access ports, vtepd's own table, and remote
//! leaves with kernel VXLAN.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::fabric::netns::Namespace;
use pipeline::{Batch, Destination, Offload, Payload, TxBatch, TxFrame};
use ports::{AccessPort, Port, TapSettings};
use root_test::root_test;
use serde_json::Value;
use vtepd_tests::capture::Captured;
use vtepd_tests::experiments::{Uplinks, experiments, is_experiment};
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, PEER2, ip, run, sysctl};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Host, Lab, Setup, Vtepd, quiet, sockets, wait_for};
use wire::MacAddr;

/// Both hosts of the leaf in one VNI, with both remote leaves.
const TWO_PORTS: &str = r#"
[[standalone]]
vni = 10
local = "10.0.0.1"
remotes = ["10.0.0.2", "10.0.0.3"]
ports = [{ interface = "hp10" }, { interface = "hq10" }]
"#;

/// A leaf with hosts on two interfaces, without a bridge or a vxlan netdev.
fn lab(case: &str) -> Lab {
    let lab = Lab::with(case, Setup { learning: true, ..Setup::default() });
    ip(&lab.leaf, "link del vx10\nlink del br10\n");
    lab
}

/// Captures of experimental frames on the uplinks and at the leaf's other host.
struct Watch {
    uplinks: Uplinks,
    next: Capture<Vec<Captured>>,
}

impl Watch {
    fn start(lab: &Lab) -> Self {
        Self {
            uplinks: Uplinks::watch(lab),
            next: Capture::start(&lab.next.ns, ETH, is_experiment),
        }
    }

    /// Waits until at least `count` frames have arrived and no more follow. Returns how many each
    /// VTEP got, and the other host (as LEAF).
    fn got(self, count: usize) -> BTreeMap<Ipv4Addr, usize> {
        wait_for("the frames", || self.uplinks.count() + self.next.count() >= count);
        quiet();
        let mut got = self.uplinks.stop();
        let next = self.next.stop().len();
        if next > 0 {
            got.insert(LEAF, next);
        }
        got
    }
}

/// The VTEPs and the port that get ten frames from the first host to this address.
fn ways(lab: &Lab, to: MacAddr, count: usize) -> BTreeMap<Ipv4Addr, usize> {
    let watch = Watch::start(lab);
    inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far).to_mac(to), 10));
    watch.got(count)
}

/// A host sends a broadcast frame.
fn speak(host: &Host) {
    inject(&host.ns, ETH, &experiments(Pair::of(host, host).to_mac(MacAddr::BROADCAST), 1));
}

/// The answer of `vtepctl explain` for a frame from the first host to this address: whether it is
/// flooded, and the VTEPs and ports that get it.
fn explained(lab: &Lab, vtepd: &Vtepd, to: MacAddr) -> (bool, Vec<String>, Vec<String>) {
    let (from, to) = (lab.host.mac().to_string(), to.to_string());
    let answer = vtepd.ask(&["explain", "--vni", "10", "--src-mac", &from, "--dst-mac", &to]);
    assert_eq!(answer["dropped"], Value::Null, "{answer}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let copies =
        answer["copies"].as_array().unwrap().iter().map(|copy| text(&copy["vtep"])).collect();
    let ports = answer["ports"].as_array().unwrap().iter().map(text).collect();
    (answer["flooded"] == true, copies, ports)
}

/// Frames to unknown hosts are flooded to all VTEPs and other ports. Frames to a host that has sent
/// go only there, local or remote, and follow it.
#[root_test]
fn frames_flood_until_their_host_has_spoken() {
    let lab = lab("alone");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    let everywhere = BTreeMap::from([(LEAF, 10), (PEER, 10), (PEER2, 10)]);
    assert_eq!(ways(&lab, lab.far.mac(), 30), everywhere, "nobody knows the host");
    let vteps = [PEER, PEER2].map(|vtep| vtep.to_string()).to_vec();
    assert_eq!(explained(&lab, &vtepd, lab.far.mac()), (true, vteps, vec!["hq10".to_owned()]));

    let at_farther = Capture::start(&lab.farther.ns, ETH, is_experiment);
    speak(&lab.far);
    wait_for("the host to be learned", || vtepd.place(lab.far.mac()) == Some(PEER.to_string()));
    at_farther.wait(1);
    assert_eq!(at_farther.stop().len(), 1, "from its own leaf alone: never from VTEP to VTEP");
    assert_eq!(ways(&lab, lab.far.mac(), 10), BTreeMap::from([(PEER, 10)]));
    assert_eq!(ways(&lab, MacAddr::BROADCAST, 30), everywhere);
    assert_eq!(explained(&lab, &vtepd, lab.far.mac()), (false, vec![PEER.to_string()], vec![]));
    assert_eq!(vtepd.ask(&["vni"])[0]["taken"]["remote_macs"], 1, "what was learned counts");
    let peers = vtepd.ask(&["peer"]);
    assert_eq!([&peers[0]["vnis"][0]["macs"], &peers[1]["vnis"][0]["macs"]], [1, 0], "{peers}");

    // No other leaf gets frames between local hosts.
    speak(&lab.next);
    wait_for("the port to be learned", || vtepd.place(lab.next.mac()).as_deref() == Some("hq10"));
    assert_eq!(ways(&lab, lab.next.mac(), 10), BTreeMap::from([(LEAF, 10)]));
    assert_eq!(vtepd.place(lab.host.mac()).as_deref(), Some("hp10"));
    assert_eq!(vtepd.ask(&["fdb", "--mac", &lab.host.mac().to_string()])[0]["vtep"], Value::Null);
    assert_eq!(explained(&lab, &vtepd, lab.next.mac()), (false, vec![], vec!["hq10".to_owned()]));

    // The remote host appears behind the other leaf, and then here.
    let moved = Pair { from: (lab.far.mac(), lab.far.ip()), ..Pair::of(&lab.farther, &lab.host) };
    inject(&lab.farther.ns, ETH, &experiments(moved.to_mac(MacAddr::BROADCAST), 1));
    wait_for("the move", || vtepd.place(lab.far.mac()) == Some(PEER2.to_string()));
    assert_eq!(ways(&lab, lab.far.mac(), 10), BTreeMap::from([(PEER2, 10)]));
    let local = Pair { from: (lab.far.mac(), lab.far.ip()), ..Pair::of(&lab.next, &lab.host) };
    inject(&lab.next.ns, ETH, &experiments(local.to_mac(MacAddr::BROADCAST), 1));
    wait_for("the move", || vtepd.place(lab.far.mac()).as_deref() == Some("hq10"));
    assert_eq!(ways(&lab, lab.far.mac(), 10), BTreeMap::from([(LEAF, 10)]));

    // A frame whose destination is on its ingress port is dropped.
    inject(&lab.next.ns, ETH, &experiments(Pair::of(&lab.next, &lab.far), 3));
    let metrics = vtepd.wait_for("the frames to be dropped", |m| m.dropped("same_port") == 3);
    assert_eq!(metrics.dropped_in_all(), 3, "{}", metrics.0);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
}

/// A host sends all the time while vtepd starts. Frames that arrive before vtepd has the port's
/// tables wait.
#[root_test]
fn what_comes_while_it_starts_is_forwarded() {
    let lab = lab("alonestart");
    let started = AtomicBool::new(false);
    let vtepd = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !started.load(Ordering::Relaxed) {
                inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far), 1));
            }
        });
        let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
        started.store(true, Ordering::Relaxed);
        vtepd
    });
    let metrics = vtepd.metrics();
    assert_eq!(metrics.dropped("unknown_vni"), 0, "{}", metrics.0);
    wait_for("the port to be learned", || vtepd.place(lab.host.mac()).as_deref() == Some("hp10"));
}

/// A configured VNI that is detached is not forwarded at all, because there is no kernel VXLAN for
/// it. The answer to `detach` reports that.
#[root_test]
fn a_detached_vni_is_nobodys_and_an_attached_one_forwards_again() {
    let lab = lab("alonedet");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    let said = |words: &[&str]| String::from_utf8(vtepd.ctl(words).stdout).unwrap();
    let detached = said(&["detach", "10"]);
    assert!(
        detached.contains("is not forwarded: its frames are dropped until `vtepctl attach 10`"),
        "{detached}"
    );
    let status = said(&["status"]);
    assert!(status.contains("Forwarded by nobody: 1\n  VNI 10: it was detached"), "{status}");
    assert!(status.contains("Source fpm: off (zebra is not expected)"), "{status}");
    let row = &vtepd.ask(&["vni"])[0];
    assert!(row["standalone"] == true && row["left"].is_string(), "{row}");
    let dropped = vtepd.metrics().dropped("unknown_vni");
    inject(&lab.host.ns, ETH, &experiments(Pair::of(&lab.host, &lab.far), 3));
    vtepd.wait_for("the frames to be dropped", |m| m.dropped("unknown_vni") >= dropped + 3);
    assert!(said(&["drops"]).contains("unknown_vni") && !said(&["drops"]).contains("no_route"));
    assert!(said(&["attach", "10"]).contains("VNI 10 is forwarded between"));
    sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
    let events = said(&["events"]);
    assert!(events.contains("VNI 10 (vni10) is not forwarded: it was detached"), "{events}");
}

/// Echoes, TCP and UDP between hosts of the leaf and hosts behind kernel VXLAN.
#[root_test]
fn hosts_talk_to_hosts_here_and_behind_kernel_vxlan() {
    let lab = lab("alonetalk");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    for (from, to) in [(&lab.host, &lab.far), (&lab.farther, &lab.host), (&lab.next, &lab.host)] {
        sockets::ping(from, to.ip(), 5, 1000, &[]);
    }
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    sockets::tcp_both_ways(&lab.host, &lab.next, 3_000_000);
    sockets::udp(&lab.far, &lab.next, 50, 1200, true);
    sockets::udp(&lab.next, &lab.far, 50, 1200, true);
    let metrics = vtepd.wait_until_idle();
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);
    let counted = vtepd.ask(&["counters"]);
    let switched = metrics.get("vtepd_vni_switched_frames_total{vni=\"10\"}");
    assert!(switched > 500 && counted["vnis"][0]["switched_frames"] == switched, "{counted}");
    let ports = vtepd.ask(&["port", "--vni", "10"]);
    assert_eq!([&ports[0]["port"], &ports[1]["port"]], ["hp10", "hq10"]);
    let [received, copies, sent, dropped, held] = metrics.passed();
    assert_eq!(received + copies, sent + dropped + held, "{}", metrics.0);
}

/// A host that is the leaf's own stack with a TAP interface. Its number follows those of the lab's
/// hosts.
fn on_a_tap(lab: &Lab) -> Host {
    let host = Host { ns: Namespace::open(lab.leaf.name()).unwrap(), number: 5 };
    ip(&lab.leaf, &format!("addr add {}/24 dev tap10\n", host.ip()));
    host
}

/// The kernel's description of an interface of the leaf. `None` if it does not exist.
fn described(lab: &Lab, interface: &str) -> Option<String> {
    let output = lab.leaf.output(&["ip", "-d", "link", "show", interface]).unwrap();
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The leaf's own stack on a TAP. TCP streams arrive as super-frames. vtepd splits them for kernel
/// VXLAN and forwards them whole to the other port. The TAP has the configured settings and
/// persists if configured so.
#[root_test]
fn a_stack_on_a_tap_talks_to_everybody() {
    let lab = lab("alonetap");
    let configuration = TWO_PORTS.replace(
        r#"{ interface = "hq10" }"#,
        r#"{ tap = "tap10", owner = "nobody", persistent = true, queues = 2, mtu = 8950 }"#,
    );
    let vtepd = Vtepd::start_configured(&lab.leaf, &configuration, &[]);
    let host = on_a_tap(&lab);
    let tap = described(&lab, "tap10").expect("the TAP");
    for word in
        ["mtu 8950", "tun type tap", "vnet_hdr on", "persist on", "user nobody", "multi_queue"]
    {
        assert!(tap.contains(word), "no {word} in\n{tap}");
    }
    sockets::ping(&host, lab.far.ip(), 5, 8000, &[]);
    sockets::ping(&lab.host, host.ip(), 5, 8000, &[]);
    let before = vtepd.wait_until_idle();
    sockets::tcp_both_ways(&host, &lab.far, 3_000_000);
    let after = vtepd.wait_until_idle();
    let [[_, copies_before, sent_before, ..], [_, copies, sent, ..]] =
        [before.passed(), after.passed()];
    let (cut, sent) = (copies - copies_before, sent - sent_before);
    // Of the 340 segments that are sent from here. In the other direction, frames are single.
    assert!(cut > 170, "most of {sent} frames come in super-frames, of which {cut} more were cut");
    sockets::tcp_both_ways(&lab.host, &host, 3_000_000);
    sockets::udp(&lab.far, &host, 50, 1200, true);
    sockets::udp(&host, &lab.host, 50, 1200, true);
    let metrics = vtepd.wait_until_idle();
    assert_eq!(metrics.dropped_in_all(), 0, "{}", metrics.0);

    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
    assert!(described(&lab, "tap10").is_some(), "it is persistent");
    let vtepd =
        Vtepd::start_configured(&lab.leaf, &configuration.replace("persistent = true, ", ""), &[]);
    sockets::ping(&host, lab.far.ip(), 3, 1000, &[]);
    drop(vtepd);
    wait_for("the TAP to go", || described(&lab, "tap10").is_none());
}

/// A virtual machine that opens a TAP whose interface is the access port. Here the test is the
/// machine.
#[root_test]
fn a_virtual_machines_tap_is_an_interface_like_any_other() {
    let lab = lab("alonevm");
    let settings = TapSettings {
        name: "vm0".to_owned(),
        owner: None,
        persistent: false,
        queues: 1,
        mtu: 1450,
    };
    let mut machine = lab.leaf.enter(|| AccessPort::tap(&settings)).unwrap().unwrap();
    let configuration =
        TWO_PORTS.replace("hq10", "vm0").replace("vni = 10", "vni = 10\nageing = 2");
    let vtepd = Vtepd::start_configured(&lab.leaf, &configuration, &[]);
    let mac = MacAddr([2, 0, 0, 0, 10, 6]);
    let pair = Pair { from: (mac, Ipv4Addr::new(192, 168, 10, 6)), ..Pair::of(&lab.far, &lab.far) };
    let at_far = Capture::start(&lab.far.ns, ETH, is_experiment);
    let say = |machine: &mut AccessPort, frame: Vec<u8>| {
        let body = Payload::Owned(frame.into());
        let transmit = TxFrame::new(Destination::Port(0), 0, body, Offload::default());
        let mut out = TxBatch::of([transmit]);
        machine.transmit(&Batch::none(), &mut out, 0..1);
        out.outcome().unwrap();
    };
    say(&mut machine, experiments(pair, 1).remove(0));
    at_far.wait(1);
    wait_for("the machine to be learned", || vtepd.place(mac).as_deref() == Some("vm0"));
    // A VLAN tag of the machine passes unchanged.
    say(
        &mut machine,
        frames::tagged(&experiments(pair.to_mac(MacAddr::BROADCAST), 1)[0], 0x8100, 5),
    );
    let answer = experiments(Pair::of(&lab.far, &lab.host).to_mac(mac), 1);
    inject(&lab.far.ns, ETH, &answer);
    wait_for("the answer", || {
        let batch = machine.receive().unwrap();
        batch.frames().any(|frame| frame.data == answer[0])
    });
    assert_eq!(vtepd.wait_until_idle().dropped_in_all(), 0);
    let row = &vtepd.ask(&["vni"])[0]["taken"];
    assert!(row["learning"] == true && row["ageing_seconds"] == 2, "{row}");
    wait_for("the silent machine to be forgotten", || vtepd.place(mac).is_none());
}

/// vtepd on both leaves.
#[root_test]
fn vtepd_talks_to_vtepd() {
    let lab = lab("alonetwo");
    ip(&lab.peer, "link del vx10\nlink del br10\n");
    let theirs = r#"
[[standalone]]
vni = 10
local = "10.0.0.2"
remotes = ["10.0.0.1"]
ports = [{ interface = "hp10" }]
"#;
    let vtepds = [(&lab.leaf, TWO_PORTS), (&lab.peer, theirs)]
        .map(|(leaf, text)| Vtepd::start_configured(leaf, text, &[]));
    sockets::ping(&lab.host, lab.far.ip(), 5, 1000, &[]);
    sockets::tcp_both_ways(&lab.host, &lab.far, 3_000_000);
    sockets::udp(&lab.far, &lab.next, 50, 1200, true);
    // A leaf that is not configured as a remote is ignored. The third leaf has the second in its
    // flood list, but not vice versa.
    let said = sockets::try_ping(&lab.farther, lab.far.ip(), 3, 100, &[]);
    assert!(said.contains(" 0 received"), "{said}");
    let metrics = vtepds[0].wait_until_idle();
    assert_eq!(
        metrics.dropped_in_all(),
        metrics.dropped("same_port"),
        "for a host behind another VTEP: {}",
        metrics.0
    );
    let metrics = vtepds[1].wait_for("strangers' frames", |m| m.dropped("unknown_vtep") >= 3);
    assert_eq!(metrics.dropped_in_all(), metrics.dropped("unknown_vtep"), "{}", metrics.0);
}

/// vtepd stops on SIGTERM, even if a station keeps sending.
#[root_test]
fn it_ends_while_a_station_goes_on_talking() {
    let lab = lab("alonends");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    let rate = Rate { frames: 2000, queue_pairs: 4, payload: 64 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x656e_6473);
    stream.pass(200);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
    let _ = stream.finish();
}

/// Errors name what is missing and what to do. vtepd holds the UDP port, so the kernel does not
/// answer there.
#[root_test]
fn what_is_not_there_is_named_and_the_kernel_answers_nobody() {
    let lab = Lab::with("aloneno", Setup { learning: true, ..Setup::default() });
    let file = std::env::temp_dir().join(format!("vtepd-alone-{}.toml", std::process::id()));
    let refused = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let arguments = ["--config", file.to_str().unwrap(), "--dry-run"];
        let dry = Vtepd::output(&lab.leaf, &arguments);
        let told = String::from_utf8_lossy(&dry.stdout);
        assert!(told.contains("it would not start: "), "{told}");
        let output = Vtepd::output(&lab.leaf, &arguments[..2]);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(TWO_PORTS);
    assert!(
        said.contains("UDP port 4789 of 10.0.0.1") && said.contains("vxlan netdev; delete that"),
        "{said}"
    );
    ip(&lab.leaf, "link del vx10\nlink del br10\n");
    let said = refused(&TWO_PORTS.replace("10.0.0.1", "10.0.0.9"));
    assert!(said.contains("ip address add 10.0.0.9/32 dev lo"), "{said}");
    let said = refused(&TWO_PORTS.replace("hq10", "hr10"));
    assert!(said.contains("VNI 10: port hr10: there is no such interface"), "{said}");
    let said = refused(&TWO_PORTS.replace("hq10", "up1"));
    assert!(said.contains("port up1: it has the address 10.1.1.1"), "{said}");
    sysctl(&lab.leaf, "ipv6/conf/hq10/disable_ipv6", "0");
    ip(&lab.leaf, "address add fd00:9::1/64 dev hq10 nodad\n");
    let said = refused(TWO_PORTS);
    assert!(said.contains("port hq10: it has the address fd00:9::1"), "{said}");
    ip(&lab.leaf, "address del fd00:9::1/64 dev hq10\n");
    let addresses = run(&lab.leaf, "ip address show dev hq10");
    assert!(addresses.contains("inet6 fe80:"), "{addresses}");
    let dry = Vtepd::output(&lab.leaf, &["--config", file.to_str().unwrap(), "--dry-run"]);
    let told = String::from_utf8_lossy(&dry.stdout);
    assert!(!told.contains("it would not start"), "a link-local address does not count: {told}");
    sysctl(&lab.leaf, "ipv6/conf/hq10/disable_ipv6", "1");
    std::fs::remove_file(&file).unwrap();

    // The leaf's stack answers ARP for all its addresses on any interface, but on an access port it
    // gets no requests.
    ip(&lab.host.ns, &format!("route add {LEAF} dev {ETH}\n"));
    let answered = || {
        let _ = sockets::try_ping(&lab.host, LEAF, 3, 100, &[]);
        let known =
            run(&lab.host.ns, &format!("ip neigh show {LEAF} dev {ETH}")).contains("lladdr");
        ip(&lab.host.ns, &format!("neigh flush dev {ETH} to {LEAF}\n"));
        known
    };
    assert!(answered(), "so far it is an interface like any other");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    assert!(!answered(), "vtepd has it alone");
    let answer = |port: u16| {
        let socket = lab.peer.enter(|| UdpSocket::bind((PEER, 0))).unwrap().unwrap();
        socket.connect((LEAF, port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket.send(&[0; 16]).unwrap();
        socket.recv(&mut [0; 16]).unwrap_err().kind()
    };
    assert_eq!(answer(4790), ErrorKind::ConnectionRefused, "where nobody listens");
    assert_eq!(answer(4789), ErrorKind::WouldBlock);
    drop(vtepd);
    wait_for("the port to be free", || answer(4789) == ErrorKind::ConnectionRefused);
}

/// The worker sleeps most of the time.
fn assert_worker_sleeps(vtepd: &Vtepd, after: &str) {
    let percent = vtepd.cpu_use("worker");
    assert!(percent < 20, "the worker uses {percent} % of a core {after}");
}

/// A port that is down or deleted must not keep the worker awake.
#[root_test]
fn a_port_that_is_down_or_gone_costs_no_cpu() {
    let lab = lab("alonedown");
    let vtepd = Vtepd::start_configured(&lab.leaf, TWO_PORTS, &[]);
    for change in ["link set hq10 down\n", "link set hq10 up\n", "link del hq10\n"] {
        ip(&lab.leaf, change);
        sockets::ping(&lab.host, lab.far.ip(), 3, 100, &[]);
        assert_worker_sleeps(&vtepd, &format!("after {change}"));
    }
}

/// A deleted TAP affects neither the daemon nor the other ports.
#[root_test]
fn a_tap_that_is_deleted_is_that_ports_end_alone() {
    let lab = lab("alonetapdel");
    let configuration = TWO_PORTS.replace(
        r#"{ interface = "hq10" }"#,
        r#"{ tap = "tap10", queues = 2 }, { tap = "tap11" }"#,
    );
    let vtepd = Vtepd::start_configured(&lab.leaf, &configuration, &[]);
    sockets::ping(&lab.host, lab.far.ip(), 3, 100, &[]);
    ip(&lab.leaf, "link del tap10\n");
    vtepd.wait_for_log("the TAP tap10 cannot be read any more");
    vtepd.wait_for_log("an access port is gone, and the others forward on");
    sockets::ping(&lab.host, lab.far.ip(), 10, 100, &[]);
    assert_worker_sleeps(&vtepd, "after a TAP is gone");
    // Flooded frames go to all other ports.
    inject(
        &lab.host.ns,
        ETH,
        &experiments(Pair::of(&lab.host, &lab.far).to_mac(MacAddr::BROADCAST), 3),
    );
    vtepd.wait_for("the copies for it", |metrics| metrics.dropped("link_down") >= 3);
    assert!(described(&lab, "tap11").is_some());
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
}

/// When an interface is deleted, its port is gone. A new interface with the same name becomes the
/// port again.
#[root_test]
fn a_port_comes_back_when_its_interface_does() {
    let lab = lab("aloneback");
    let configuration = TWO_PORTS.replace(
        r#"{ interface = "hq10" }"#,
        r#"{ interface = "hq10" }, { tap = "tap10", persistent = true }"#,
    );
    let vtepd = Vtepd::start_configured(&lab.leaf, &configuration, &[]);
    sockets::ping(&lab.host, lab.next.ip(), 3, 100, &[]);
    let gone = |name: &str| {
        let ports = vtepd.ask(&["port"]);
        let of_name = |port: &&Value| port["port"] == name;
        let port =
            ports.as_array().unwrap().iter().find(of_name).unwrap_or_else(|| panic!("{ports}"));
        port["reason"].as_str().unwrap().contains("is gone")
    };
    assert!(!gone("hq10") && !gone("tap10"));

    ip(&lab.leaf, "link del hq10\nlink del tap10\n");
    wait_for("both to be gone", || gone("hq10") && gone("tap10"));
    vtepd.wait_for_log("the access port hq10 is gone");

    let (mac, address) = (lab.next.mac(), lab.next.ip());
    ip(
        &lab.leaf,
        &format!(
            "link add hq10 type veth peer name {ETH} address {mac} netns {}",
            lab.next.ns.name()
        ),
    );
    ip(&lab.leaf, "link set hq10 up\n");
    ip(&lab.next.ns, &format!("link set {ETH} up\naddr add {address}/24 dev {ETH}\n"));
    // Who creates a TAP has it open for a while.
    let settings = TapSettings {
        name: "tap10".to_owned(),
        owner: None,
        persistent: true,
        queues: 1,
        mtu: 1500,
    };
    let held = lab.leaf.enter(|| AccessPort::tap(&settings)).unwrap().unwrap();
    vtepd.wait_for_log("another process has this TAP open");
    drop(held);
    wait_for("both to be back", || !gone("hq10") && !gone("tap10"));
    vtepd.wait_for_log("the access port hq10 is back");
    sockets::ping(&lab.host, lab.next.ip(), 3, 100, &[]);
    sockets::ping(&lab.next, lab.far.ip(), 3, 100, &[]);
    assert!(described(&lab, "tap10").is_some());
    assert_worker_sleeps(&vtepd, "after both are back");
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{log}");
}
