//! RoCE endpoints of `lab` with Linux Soft-RoCE (`rdma_rxe`) and perftest on the other side. They
//! run in the guest of `tests/linux-vm`: Soft-RoCE receives in the first network namespace only.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fabric::netns::{Namespace, run};
use fabric::process::wait_until;
use fabric::super_frames::cut_super_frames;
use root_test::root_test;
use traffic::endpoint::{Kind, PORT, Requests, Session, Side, connect, serve};

mod sprayed;

/// Soft-RoCE's address, and that of the endpoint.
const RXE: &str = "192.0.2.1";
const ENDPOINT: &str = "192.0.2.2";
const COUNT: u64 = 100;
const MESSAGE: u32 = 20_000;
const PAIRS: u32 = 2;

/// Whether there are Soft-RoCE and perftest.
fn perftest() -> Result<(), String> {
    let found = |command: &[&str]| run(command).map(drop).map_err(|error| error.to_string());
    found(&["modprobe", "rdma_rxe"])?;
    found(&["rdma", "link"])?;
    // perftest's status for --version is not 0.
    Command::new("ib_write_bw").arg("--version").output().map(drop).map_err(|e| e.to_string())
}

/// A Soft-RoCE device in this namespace, and a namespace with the endpoint.
struct Site {
    peer: Namespace,
    gid: String,
}

impl Site {
    fn new() -> Self {
        let peer = Namespace::create(format!("soft-roce-{}", std::process::id())).unwrap();
        let ip = |command: &str| {
            let words: Vec<&str> = ["ip"].into_iter().chain(command.split(' ')).collect();
            run(&words).unwrap();
        };
        ip(&format!(
            "link add rxeth0 mtu 5000 type veth peer name eth1 mtu 5000 netns {}",
            peer.name()
        ));
        ip("address add 192.0.2.1/24 dev rxeth0");
        ip("link set rxeth0 up");
        // The endpoint sends super-frames if the kernel takes them, as on the hosts of a fabric.
        peer.enter(|| cut_super_frames("eth1").unwrap()).unwrap();
        peer.run(&["ip", "link", "set", "eth1", "up"]).unwrap();
        peer.run(&["ip", "address", "add", "192.0.2.2/24", "dev", "eth1"]).unwrap();
        run(&["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "rxeth0"]).unwrap();
        Self { peer, gid: gid_of("c000:0201") }
    }

    /// Starts perftest at Soft-RoCE.
    fn perftest(&self, kind: Kind, server: Option<&str>) -> Perftest {
        start_perftest(kind, (&self.gid, &[]), PAIRS, server)
    }
}

/// The number of Soft-RoCE's GID with this IPv4 address, in hexadecimal digits.
fn gid_of(address: &str) -> String {
    let mut gid = None;
    wait_until(Duration::from_secs(20), || {
        gid = (0..16).map(|number| number.to_string()).find(|number| {
            let path = format!("/sys/class/infiniband/rxe0/ports/1/gids/{number}");
            std::fs::read_to_string(path)
                .is_ok_and(|text| text.trim().ends_with(&format!("ffff:{address}")))
        });
        gid.is_some()
    });
    gid.expect("Soft-RoCE has a GID of its address")
}

/// Starts perftest at Soft-RoCE, with options and so many queue pairs.
fn start_perftest(
    kind: Kind,
    (gid, options): (&str, &[String]),
    pairs: u32,
    server: Option<&str>,
) -> Perftest {
    let program = match kind {
        Kind::Write => "ib_write_bw",
        Kind::Send => "ib_send_bw",
        Kind::Read => "ib_read_bw",
    };
    let numbers = [COUNT.to_string(), MESSAGE.to_string(), pairs.to_string()];
    let [count, message, pairs] = numbers.each_ref().map(String::as_str);
    let mut command = Command::new(program);
    command.args(["-d", "rxe0", "-F", "-x", gid, "-n", count, "-s", message]);
    command.args(["-q", pairs]).args(options).args(server);
    Perftest(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
}

/// A running perftest. While it runs, its device cannot be deleted.
struct Perftest(Option<Child>);

impl Perftest {
    fn is_running(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }
}

impl Drop for Perftest {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether perftest listens in this namespace.
fn listens() -> bool {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let sockets = read("/proc/net/tcp6") + &read("/proc/net/tcp");
    let is_ours = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The local address, the remote one, and TCP_LISTEN.
        matches!(fields[..], [_, local, _, "0A", ..] if local.ends_with(&format!(":{PORT:04X}")))
    };
    sockets.lines().any(is_ours)
}

impl Drop for Site {
    fn drop(&mut self) {
        // The device goes with its interface.
        let _ = run(&["ip", "link", "delete", "rxeth0"]);
    }
}

fn side() -> Side {
    Side {
        interface: "eth1".into(),
        // An emulated machine is slow.
        settings: roce::Settings {
            mtu: 4096,
            window: 64 << 10,
            timeout: roce::timeout(18),
            ..roce::Settings::default()
        },
        source_port: roce::SourcePort::SoftRoce,
        seed: 1,
    }
}

/// perftest reports its result, and nothing else went wrong.
fn succeeded(mut perftest: Perftest) {
    let child = perftest.0.take().unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let [out, err] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{status}: {out}{err}");
    assert!(out.contains(&format!("\n {MESSAGE} ")), "{out}{err}");
}

fn without_errors(session: &Session, kind: Kind) {
    let counters = session.counters;
    assert_eq!((session.mtu, session.queue_pairs), (4096, PAIRS), "{kind:?}");
    assert_eq!(
        (counters.rx_icrc_errors, counters.req_remote_access_errors, counters.out_of_sequence),
        (0, 0, 0),
        "{kind:?}"
    );
}

const ALL: [Kind; 3] = [Kind::Write, Kind::Send, Kind::Read];
/// Packets of all messages.
const PACKETS: u64 = COUNT * PAIRS as u64 * (MESSAGE as u64).div_ceil(4096);

#[root_test(needs = perftest)]
#[ignore = "needs rdma_rxe and perftest: tests/linux-vm 6.1 soft_roce"]
fn perftest_is_the_client() {
    let site = Site::new();
    for kind in ALL {
        let listener = site.peer.enter(|| TcpListener::bind((ENDPOINT, PORT)).unwrap()).unwrap();
        let client = site.perftest(kind, Some(ENDPOINT));
        let stop = AtomicBool::new(false);
        let session = site.peer.enter(|| serve(&listener, &side(), &stop).unwrap()).unwrap();
        succeeded(client);
        let session = session.unwrap();
        without_errors(&session, kind);
        let sent = if kind == Kind::Send { COUNT * u64::from(PAIRS) } else { 0 };
        assert_eq!(session.messages, sent, "{kind:?}");
        let counters = session.counters;
        let data = if kind == Kind::Read { counters.tx_packets } else { counters.rx_packets };
        assert!(data >= PACKETS, "{kind:?}: {counters:?}");
    }
}

#[root_test(needs = perftest)]
#[ignore = "needs rdma_rxe and perftest: tests/linux-vm 6.1 soft_roce"]
fn perftest_is_the_server() {
    let site = Site::new();
    for kind in ALL {
        let mut server = site.perftest(kind, None);
        let up = wait_until(Duration::from_secs(30), || listens() || !server.is_running());
        assert!(up, "perftest does not listen");
        let requests =
            Requests { kind, message: MESSAGE, count: COUNT, depth: 16, queue_pairs: PAIRS };
        let stop = AtomicBool::new(false);
        let to = (RXE.parse().unwrap(), PORT);
        let session = site.peer.enter(|| connect(to, &side(), requests, &stop)).unwrap();
        let session = session.unwrap();
        succeeded(server);
        without_errors(&session, kind);
        assert_eq!(session.latencies.count, COUNT * u64::from(PAIRS), "{kind:?}");
    }
}
