//! The live page of a fabric (`lab web`): each action changes what the kernel reports, the state
//! follows, and a page that is closed costs nothing.
//!
//! ```text
//! host1 ── leaf1 ── spine1 ── circuit a1:b1, 5 ms ── spine2 ── leaf2 ── host2
//! ```

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabric::counters;
use fabric::netns::Namespace;
use fabric::process::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use root_test::root_test;
use serde_json::{Value, json};
use vtepd_tests::daemon::lab_program;

use super::fixture::{TIMEOUT, frr};
use super::lab_command::{NewFabric, ask, lab, said};

const FABRIC: &str = "evpn-web";

/// `lab web`. Drop ends it.
struct Server {
    process: Child,
    /// `127.0.0.1:PORT`, and the path with the secret.
    host: String,
    path: String,
}

impl Server {
    fn start() -> Self {
        let mut command = Command::new(lab_program());
        let mut process = command.args(["web", FABRIC]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (host, path) = line.trim().strip_prefix("http://").unwrap().split_once('/').unwrap();
        Self { process, host: host.to_owned(), path: format!("/{path}") }
    }

    fn connect(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Posts a request, of which the answer may be read.
    fn request(&self, place: &str, body: &Value) -> TcpStream {
        let Self { host, path, .. } = self;
        let body = body.to_string();
        self.connect(&format!(
            "POST {path}{place} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    fn post(&self, place: &str, body: &Value) -> Value {
        let mut answer = String::new();
        self.request(place, body).read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Performs an action that ends by itself.
    fn run(&self, action: &Value) {
        let answer = self.post("run", action);
        assert_eq!(answer["ok"], true, "{action}: {answer}");
    }

    /// Opens a page: each item is a state, or a change of it. What is not read waits in the socket.
    fn page(&self) -> impl Iterator<Item = Value> + use<> {
        let Self { host, path, .. } = self;
        let stream = self.connect(&format!("GET {path}state/1 HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        BufReader::new(stream).lines().map_while(Result::ok).filter_map(|line| {
            let text = line.strip_prefix("data: ")?.to_owned();
            Some(serde_json::from_str(&text).unwrap())
        })
    }

    /// How often it has gone to sleep so far.
    fn sleeps(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

fn namespace(node: &str) -> Namespace {
    Namespace::open(format!("lab-{FABRIC}-{node}")).unwrap()
}

/// Whether the kernel says that an interface has a carrier.
fn has_carrier(node: &str, interface: &str) -> bool {
    let links = namespace(node).rtnl(|rtnl| rtnl.links()).unwrap();
    links.iter().any(|link| link.name == interface && link.up && link.carrier)
}

fn metrics(leaf: &str) -> String {
    fabric::metrics::read(&namespace(leaf)).unwrap_or_default()
}

/// The shortest round trip between the hosts in ms.
fn round_trip() -> f64 {
    let ping = ["ping", "-n", "-c", "5", "-i", "0.05", "-W", "5", "192.168.10.2"];
    let text = said(&lab(&[&["exec", "--name", FABRIC, "host1", "--"][..], &ping].concat()));
    let times = text.lines().filter_map(|line| line.split_once("time=")?.1.split_once(" ms"));
    times.map(|(time, _)| time.parse::<f64>().unwrap()).fold(f64::INFINITY, f64::min)
}

/// Whether a page shows something in time.
fn shows(page: &mut impl Iterator<Item = Value>, what: impl Fn(&Value) -> bool) -> bool {
    let start = Instant::now();
    page.by_ref().take_while(|_| start.elapsed() < TIMEOUT).any(|state| what(&state))
}

/// A vtepd that was started inside the node has process ids of its own, and does not probe paths.
fn kills_a_vtepd_with_other_ids(server: &Server) {
    // A page that was open before has all changes since then to come.
    let mut page = server.page();
    let mut shows =
        |vtepd: bool| shows(&mut page, |state| state["leaves"]["leaf1"]["vtepd"] == vtepd);
    assert!(shows(false), "the page shows the vtepd that was killed");
    let program = lab_program().with_file_name("vtepd");
    let mut vtepd = Command::new(lab_program());
    vtepd.args(["exec", "--name", FABRIC, "leaf1", "--"]).arg(program);
    let mut vtepd = vtepd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(shows(true), "the page does not show it");
    server.run(&json!({"action": "kill", "leaf": "leaf1"}));
    assert!(!vtepd.wait().unwrap().success());
}

#[root_test(needs = frr)]
fn actions_of_the_page_change_the_fabric() {
    let options = ["--sites", "2", "--leaves", "1", "--spines", "1", "--no-bfd"];
    let files = NewFabric::new(FABRIC, &[&options[..], &["--jitter", "0ms"]].concat());
    ask(&["up", &files.topology()]);
    let server = Server::start();
    let rests = || {
        let before = server.sleeps();
        std::thread::sleep(Duration::from_secs(1));
        server.sleeps() == before
    };
    assert!(wait_until(TIMEOUT, rests), "it works although no page is open");

    let mut page = server.page();
    let answers = shows(&mut page, |state| state["leaves"]["leaf1"]["vtepd"] == true);
    assert!(answers, "the state has no vtepd on leaf1");

    // A cut until it is stopped. The page follows.
    let down = json!({"action": "down", "link": "spine1:dci1", "time": "12s"});
    let started = std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.post("run", &down));
        assert!(wait_until(TIMEOUT, || !has_carrier("spine1", "dci1")), "the link is up");
        assert!(shows(&mut page, |state| state["links"]["spine1:dci1"]["up"] == false));
        server.post("stop", &json!({"job": 1}));
        assert!(wait_until(TIMEOUT, || has_carrier("spine1", "dci1")), "the link stays down");
        asked.join().unwrap()
    });
    assert_eq!(started["ok"], true, "{started}");
    let command = started["command"].as_str().unwrap();
    assert!(command.ends_with("link down --name evpn-web --for 12s spine1:dci1"), "{started}");
    server.run(&json!({"action": "up", "link": "spine1:dci1"}));
    assert!(wait_until(TIMEOUT, || round_trip() < 20.0), "the hosts do not reach each other");

    server.run(&json!({
        "action": "impair", "link": "spine1:dci1", "delay": "30ms", "loss": "0", "rate": "500mbit",
    }));
    let slow = round_trip();
    assert!((60.0..100.0).contains(&slow), "{slow} ms");
    server.run(&json!({"action": "policy", "policy": "five-tuple"}));
    for leaf in ["leaf1", "leaf2"] {
        assert!(metrics(leaf).contains("policy=\"five-tuple\""), "{leaf}");
    }
    server
        .run(&json!({"action": "vni-policy", "leaf": "leaf2", "vni": 10010, "policy": "qp-hash"}));
    assert!(metrics("leaf2").contains("policy=\"qp-hash\""));
    assert!(metrics("leaf1").contains("policy=\"five-tuple\""));

    let sent = || counters::read(&namespace("host1")).unwrap()["eth1"].tx_bytes;
    let first = sent();
    server.run(&json!({
        "action": "send", "from": "host1", "to": "host2", "queue_pairs": 4, "rate": 1000, "seconds": 1,
    }));
    assert!(sent() >= first + 900 * 1024, "{} bytes", sent() - first);
    server.run(&json!({"action": "kill", "leaf": "leaf1"}));
    assert!(wait_until(TIMEOUT, || metrics("leaf1").is_empty()), "vtepd answers");
    kills_a_vtepd_with_other_ids(&server);
    server.run(&json!({"action": "policy", "policy": "qp-bins", "leaf": "leaf1"}));
    assert!(metrics("leaf1").contains("policy=\"qp-bins\""), "vtepd was not started");
    assert!(metrics("leaf2").contains("policy=\"qp-hash\""), "another leaf was changed");

    // A change for a time ends with the server.
    let long = json!({"action": "down", "link": "leaf1:up1", "time": "600s"});
    // A request that is closed before the server has read it starts nothing.
    let asked = server.request("run", &long);
    assert!(wait_until(TIMEOUT, || !has_carrier("spine1", "dn1")), "the link is up");
    drop((asked, page));
    drop(server);
    assert!(wait_until(TIMEOUT, || has_carrier("spine1", "dn1")), "the link stays down");
}
