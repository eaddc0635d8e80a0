//! `lab wan` between two hosts, tested with ping, TCP and RoCE frames.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use fabric::netns::{Namespace, veth};
use fabric::process::{Process, wait_until};
use nix::sys::signal::Signal;
use root_test::root_test;
use serde_json::Value;
use wan::{Change, change, counts};

use crate::{namespaces, source, stream};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Two hosts, and a namespace between them where the circuit runs.
struct Site {
    hosts: [Namespace; 2],
    between: Namespace,
    wan: Process,
}

impl Site {
    fn new(story: &str, options: &[&str]) -> Self {
        let [a, b, between] = namespaces(&format!("wan-{story}"), ["a", "b", "w"]);
        for end in [&a, &b, &between] {
            // Only frames of the test are on the links.
            end.run(&["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
        }
        // `lab wan` starts before its interfaces exist.
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.args(["-o", "json", "wan", "a1:b1"]).args(options);
        let mut wan = between.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
        let mut said = BufReader::new(wan.child_mut().unwrap().stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "lab: waiting for a1, b1\n");
        veth((&a, "eth1"), (&between, "a1"), 9500).unwrap();
        veth((&b, "eth1"), (&between, "b1"), 9500).unwrap();
        while line != "lab: all circuits are connected\n" {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "lab wan has ended");
        }
        for (index, host) in [&a, &b].into_iter().enumerate() {
            let address = format!("192.0.2.{}/24", index + 1);
            host.run(&["ip", "addr", "add", &address, "dev", "eth1"]).unwrap();
        }
        // Standard error is closed here; `lab wan` must ignore that.
        Self { hosts: [a, b], between, wan }
    }

    /// Round-trip times in ms.
    fn ping(&self, count: u32) -> Vec<f64> {
        self.ping_for(count, "5")
    }

    /// Like [`Self::ping`], but waits for so many seconds only if no answer comes.
    fn ping_for(&self, count: u32, seconds: &str) -> Vec<f64> {
        let count = count.to_string();
        let output = self.hosts[0]
            .output(&["ping", "-n", "-c", &count, "-i", "0.01", "-W", seconds, "192.0.2.2"])
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let times = text.lines().filter_map(|line| line.split_once("time=")?.1.split_once(" ms"));
        times.map(|(time, _)| time.parse().unwrap()).collect()
    }

    /// Ends `lab wan` and returns the counters of each direction.
    fn end(mut self) -> [Value; 2] {
        self.wan.signal(Signal::SIGTERM).unwrap();
        assert!(self.wan.wait(TIMEOUT).unwrap().success());
        let mut text = String::new();
        self.wan.child_mut().unwrap().stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let counts: Vec<Value> = serde_json::from_str(&text).unwrap();
        println!("{text}");
        for count in &counts {
            let number = |key: &str| count[key].as_u64().unwrap();
            let fates =
                ["sent", "lost", "queue_full", "buffer_full", "refused", "waiting"].map(number);
            assert_eq!(number("frames"), fates.iter().sum::<u64>(), "{count}");
            assert_eq!((number("unreadable"), number("overruns")), (0, 0), "{count}");
        }
        counts.try_into().unwrap()
    }
}

/// Sends `bytes` bytes by TCP, which makes super-frames, and checks that they arrive unchanged.
fn transfer(from: &Namespace, to: &Namespace, address: &str, bytes: usize) {
    let listener = to.enter(|| TcpListener::bind((address, 0))).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    // The bytes begin again after 64 KiB.
    let period: Vec<u8> =
        (0..1_usize << 16).map(|index| (index * 7 + (index >> 8)) as u8).collect();
    let mut sent = period.repeat(bytes.div_ceil(period.len()));
    sent.truncate(bytes);
    let received = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let mut received = Vec::new();
            let mut stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let send = || {
            let mut stream = TcpStream::connect((address, port)).unwrap();
            stream.set_write_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(&sent).unwrap();
        };
        from.enter(send).unwrap();
        receiving.join().unwrap()
    });
    assert!(received == sent, "{} of {bytes} bytes arrived, or others", received.len());
}

/// Runs a Perl program in a namespace as `nobody`, until the process is dropped. Returns after it has
/// printed a line, and that line.
pub(crate) fn as_nobody(namespace: &Namespace, program: &str) -> (Process, String) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.args(["perl", "-MSocket", "-e", &format!("$| = 1; alarm 60; {program}")]);
    let mut process = namespace.spawn(command.stdout(Stdio::piped())).unwrap();
    let output = process.child_mut().unwrap().stdout.take().unwrap();
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    (process, line)
}

#[root_test]
fn circuits_do_not_obey_other_users() {
    let site = Site::new("users", &[]);
    let (_, answer) = as_nobody(
        &site.between,
        r#"socket(S, PF_UNIX, SOCK_DGRAM, 0) or die; bind(S, pack("S", 1)) or die;
        send(S, '[{"loss": 1.0}]', 0, pack("Sa*", 1, "\0lab-wan")) or die;
        vec($read = "", fileno(S), 1) = 1;
        print select($read, undef, undef, 1) ? "an answer\n" : "no answer\n""#,
    );
    assert_eq!(answer, "no answer\n");
    assert_eq!(site.ping(3).len(), 3);
    let before = change(&site.between, &[Change { loss: Some(1.0), ..Change::default() }]).unwrap();
    assert_eq!(before.iter().map(|change| change.loss).collect::<Vec<_>>(), [Some(0.0); 2]);
    site.end();
}

#[root_test]
fn the_process_that_has_a_name_of_the_lab_is_told() {
    let [namespace] = namespaces("wan", ["bound"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bound.clab.yml");
    std::fs::write(&file, "name: bound\ntopology: {nodes: {r1: {kind: linux}}}\n").unwrap();
    let (lab, file) = (env!("CARGO_BIN_EXE_lab"), file.to_str().unwrap());
    // The first answers what it is asked, as `lab wan` would.
    for (kind, name, behave, words) in [
        (
            "SOCK_DGRAM",
            "lab-wan",
            "while ($from = recv(S, $question, 999, 0)) { send(S, '[]', 0, $from) }",
            vec![lab, "wan", "a1:b1"],
        ),
        ("SOCK_STREAM", "vtepd-lab/bound", "sleep", vec![lab, "up", file, "--no-wait"]),
    ] {
        let program = format!(
            r#"socket(S, PF_UNIX, {kind}, 0) or die; bind(S, pack("Sa*", 1, "\0{name}")) or die;
            print "bound\n"; {behave}"#
        );
        let (process, line) = as_nobody(&namespace, &program);
        assert_eq!(line, "bound\n");
        let named = format!("process {} of user 65534", process.pid());
        let said = namespace.output(&words).unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(!said.status.success() && text.contains(&format!("@{name} belongs to {named}")));
        if name == "lab-wan" {
            let error = change(&namespace, &[Change::default()]).unwrap_err().to_string();
            assert!(error.contains(&named), "{error}");
        }
    }
}

#[root_test(alone)]
fn frames_are_late_by_the_delay_and_keep_their_order() {
    let site = Site::new("delay", &["--delay", "5ms", "--jitter", "1ms"]);
    let times = site.ping(100);
    assert_eq!(times.len(), 100);
    // The delay is at least 4 ms in each direction. The upper bound is loose, because it depends on
    // the load of the machine.
    let (least, most) =
        times.iter().fold((f64::MAX, 0.0_f64), |(l, m), time| (l.min(*time), m.max(*time)));
    println!("round trips of {least} to {most} ms");
    assert!(least >= 8.0 && times.iter().filter(|time| **time < 30.0).count() > 50, "{times:?}");
    assert!(most - least > 0.5, "no jitter: {times:?}");

    let source = source(8, 1024, 10_000);
    let [a, b] = &site.hosts;
    let (sent, sink) = stream([a, b], &source, 10_000, |_| {});
    let report = sink.report_of(&sent, &source.connections);
    assert_eq!((report.received(), report.reordered(), report.duplicated()), (10_000, 0, 0));
    assert_eq!(report.corrupted(), 0);
    let [there, back] = site.end();
    assert!(there["sent"].as_u64().unwrap() >= 10_100 && back["sent"].as_u64().unwrap() >= 100);
}

#[root_test(alone)]
fn super_frames_pass_whole_and_those_in_vxlan_as_segments() {
    let site = Site::new("gso", &["--delay", "1ms"]);
    let [a, b] = &site.hosts;
    const BYTES: usize = 20_000_000;
    transfer(a, b, "192.0.2.2", BYTES);
    let [there, _] = site.end();
    // Far fewer frames than segments: most were super-frames, and their bytes were counted as
    // segments.
    let number = |key: &str| there[key].as_u64().unwrap();
    assert!(number("frames") < BYTES as u64 / 9000 && number("bytes") > BYTES as u64, "{there}");
    assert_eq!(number("refused"), 0);

    let site = Site::new("vxlan", &["--delay", "1ms"]);
    let [a, b] = &site.hosts;
    for (index, host) in site.hosts.iter().enumerate() {
        let (own, peer) = (format!("192.0.2.{}", index + 1), format!("192.0.2.{}", 2 - index));
        let vxlan =
            format!("ip link add vx type vxlan id 7 local {own} remote {peer} dstport 4789");
        host.run(&vxlan.split_whitespace().collect::<Vec<_>>()).unwrap();
        host.run(&["ip", "addr", "add", &format!("198.51.100.{}/24", index + 1), "dev", "vx"])
            .unwrap();
        host.run(&["ip", "link", "set", "vx", "up"]).unwrap();
    }
    transfer(a, b, "198.51.100.2", BYTES);
    let [there, _] = site.end();
    assert!(
        there["frames"].as_u64().unwrap() >= BYTES as u64 / 9500 && there["refused"] == 0,
        "{there}"
    );
}

#[root_test]
fn frames_are_lost_and_wait_as_asked() {
    // 98 bytes of a ping at 98 kbit/s take 8 ms in each direction.
    let site = Site::new("rate", &["--rate", "98", "--queue", "400"]);
    let times = site.ping(20);
    assert!(times.iter().all(|time| *time >= 16.0), "{times:?}");
    let [there, _] = site.end();
    assert_eq!(there["lost"], 0);

    let site = Site::new("loss", &["--loss", "30"]);
    let [a, b] = &site.hosts;
    // With static neighbour entries there is no ARP.
    for (host, other, address) in [(a, b, "192.0.2.2"), (b, a, "192.0.2.1")] {
        let text = other.run(&["ip", "-o", "link", "show", "eth1"]).unwrap();
        let mac = text.split_once("link/ether ").unwrap().1.split_once(' ').unwrap().0.to_owned();
        host.run(&[
            "ip",
            "neigh",
            "replace",
            address,
            "lladdr",
            &mac,
            "dev",
            "eth1",
            "nud",
            "permanent",
        ])
        .unwrap();
    }
    a.output(&["ping", "-q", "-c", "1000", "-i", "0.002", "-W", "1", "192.0.2.2"]).unwrap();
    let counted = counts(&site.between).unwrap().0[0].counts;
    let [there, _] = site.end();
    assert!(there["lost"] == counted.lost && there["frames"] == counted.frames, "{counted:?}");
    // Within five standard deviations.
    assert!(
        (228..372).contains(&there["lost"].as_u64().unwrap()) && there["frames"] == 1000,
        "{there}"
    );
}

#[root_test]
fn the_far_end_hears_of_a_lost_carrier_only_where_it_should() {
    let has_carrier = |host: &Namespace| {
        host.run(&["ip", "-o", "link", "show", "eth1"]).unwrap().contains(",LOWER_UP")
    };
    let set = |host: &Namespace, state: &str| {
        host.run(&["ip", "link", "set", "eth1", state]).map(drop).unwrap()
    };
    let site = Site::new("signal", &["--carrier"]);
    let [a, b] = &site.hosts;
    for _ in 0..3 {
        for (near, far) in [(a, b), (b, a)] {
            assert!(wait_until(TIMEOUT, || has_carrier(a) && has_carrier(b)));
            set(near, "down");
            assert!(wait_until(TIMEOUT, || !has_carrier(far)));
            set(near, "up");
        }
    }
    assert!(wait_until(TIMEOUT, || has_carrier(a) && has_carrier(b)));
    assert!(!site.ping(3).is_empty());
    // On exit, `lab wan` sets the interface up again.
    set(a, "down");
    assert!(wait_until(TIMEOUT, || !has_carrier(b)));
    let _counts = site.end();

    let site = Site::new("quiet", &[]);
    let [a, b] = &site.hosts;
    set(a, "down");
    assert!(site.ping_for(1, "1").is_empty() && has_carrier(b));
    // The interface is deleted and created again with the same name.
    a.run(&["ip", "link", "del", "eth1"]).unwrap();
    veth((a, "eth1"), (&site.between, "a1"), 9500).unwrap();
    a.run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth1"]).unwrap();
    assert!(wait_until(TIMEOUT, || !site.ping_for(1, "1").is_empty()));

    // The same with the same interface index, while `lab wan` is stopped.
    let text = site.between.run(&["ip", "-o", "link", "show", "a1"]).unwrap();
    let index = text.split_once(':').unwrap().0;
    site.wan.signal(Signal::SIGSTOP).unwrap();
    a.run(&["ip", "link", "del", "eth1"]).unwrap();
    let add =
        ["ip", "link", "add", "a1", "mtu", "9500", "index", index, "type", "veth", "peer", "eth1"];
    site.between.run(&[&add[..], &["mtu", "9500", "netns", a.name()]].concat()).unwrap();
    site.between.run(&["ip", "link", "set", "a1", "up"]).unwrap();
    set(a, "up");
    a.run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth1"]).unwrap();
    site.wan.signal(Signal::SIGCONT).unwrap();
    assert!(wait_until(TIMEOUT, || !site.ping_for(1, "1").is_empty()));
}

/// The properties of a direction change while the circuit runs. The other direction stays.
#[root_test(alone)]
fn a_direction_changes_while_frames_pass() {
    let site = Site::new("live", &["--delay", "5ms"]);
    let round_trip = || {
        let mut times = site.ping(20);
        times.sort_by(f64::total_cmp);
        times[10]
    };
    let near = |expected: f64| {
        let found = round_trip();
        assert!((expected..expected * 1.1 + 1.0).contains(&found), "{found} ms, not {expected}");
    };
    near(10.0);
    let slow = Change { from: Some("a1".into()), delay: Some(30_000_000), ..Change::default() };
    let before = change(&site.between, std::slice::from_ref(&slow)).unwrap();
    assert_eq!(before.len(), 1);
    assert_eq!((before[0].from.as_deref(), before[0].delay), (Some("a1"), Some(5_000_000)));
    near(35.0);
    let lossy = Change { loss: Some(1.0), ..Change::default() };
    let undo = change(&site.between, &[lossy]).unwrap();
    assert_eq!((undo.len(), site.ping_for(3, "1").len()), (2, 0));
    assert_eq!(undo[0].loss, Some(0.0));
    change(&site.between, &undo).unwrap();
    near(35.0);
    let no_such = Change { from: Some("c1".into()), ..slow };
    let error = change(&site.between, &[no_such]).unwrap_err().to_string();
    assert_eq!(error, "lab wan: no circuit at 'c1': expected a1, b1");
    change(&site.between, &before).unwrap();
    near(10.0);
    let [there, _] = site.end();
    assert!(there["lost"].as_u64().unwrap() > 0, "{there}");
}

/// The loss that a receiver of numbered frames sees is that of the circuit, within 3 %.
#[root_test(alone)]
fn as_many_frames_are_lost_as_the_circuit_was_set_to() {
    const FRAMES: u64 = 60_000;
    // With 12,000 lost frames, the standard deviation is 0.8 %.
    let site = Site::new("share", &["--loss", "20"]);
    let [from, to] = &site.hosts;
    let source = source(4, 64, 30_000);
    let (sent, sink) = stream([from, to], &source, FRAMES, |_| {});
    let report = sink.report_of(&sent, &source.connections);
    let share = report.lost() as f64 / FRAMES as f64;
    assert!((0.97 * 0.2..1.03 * 0.2).contains(&share), "{share}");
    assert_eq!((report.reordered(), report.corrupted()), (0, 0));
    site.end();
}
