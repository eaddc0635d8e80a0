//! `lab capture`: two leaves and a link in one file.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fabric::{Namespace, Process};
use nix::sys::signal::Signal;
use root_test::root_test;
use vtepd_tests::daemon::lab_program;
use vtepd_tests::{Vtepd, wait_for};

use crate::capture::rows;
use crate::wireshark::need_tshark;

const PINGS: usize = 20;
/// Where a request is seen, in its order.
const PLACES: [&str; 5] =
    ["leaf1:inner", "leaf1:up1", "link leaf2:up1", "leaf2:up1", "leaf2:inner"];

/// Two leaves without FRR, each with a host.
fn topology() -> String {
    let leaf = |number: u8, other: u8| {
        format!(
            "
    leaf{number}:
      exec:
        - ip addr add 10.0.0.{number}/32 dev lo
        - ip addr add 192.0.2.{number}/24 dev up1
        - ip route add 10.0.0.{other}/32 via 192.0.2.{other}
        - ip link add br10 type bridge
        - ip link add vx10 mtu 1400 type vxlan id 10 local 10.0.0.{number} dstport 4789
        - ip link set vx10 master br10
        - ip link set hp1 master br10
        - ip link set br10 up
        - ip link set vx10 up
        - bridge fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.{other}
    h{number}: {{exec: [ip addr add 172.16.0.{number}/24 dev eth1]}}"
        )
    };
    format!(
        "
name: captured
topology:
  defaults: {{kind: linux}}
  nodes:{}{}
  links:
    - {{endpoints: ['leaf1:up1', 'leaf2:up1']}}
    - {{endpoints: ['leaf1:hp1', 'h1:eth1'], mtu: 1400}}
    - {{endpoints: ['leaf2:hp1', 'h2:eth1'], mtu: 1400}}
",
        leaf(1, 2),
        leaf(2, 1)
    )
}

/// A fabric of `lab up`. Drop stops it and deletes the folder.
struct Up {
    name: String,
    folder: PathBuf,
}

impl Up {
    fn new() -> Self {
        let name = format!("captured{}", std::process::id());
        let up = Self { folder: std::env::temp_dir().join(&name), name };
        std::fs::create_dir_all(&up.folder).unwrap();
        let file = up.folder.join("captured.clab.yml");
        std::fs::write(&file, topology()).unwrap();
        let arguments = ["up", file.to_str().unwrap(), "--name", &up.name, "--no-wait"];
        let started = Command::new(lab_program()).args(arguments).output().unwrap();
        assert!(started.status.success(), "{started:?}");
        up
    }

    fn namespace(&self, node: &str) -> Namespace {
        Namespace::open(format!("lab-{}-{node}", self.name)).unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = Command::new(lab_program()).args(["down", &self.name]).output();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Each packet is there at each place, and the file has the order of the times.
#[root_test]
fn lab_capture_merges_leaves_and_links_by_time() {
    need_tshark();
    let up = Up::new();
    let leaves = ["leaf1", "leaf2"].map(|leaf| Vtepd::start(&up.namespace(leaf), &["--no-fpm"]));
    let (file, said) = (up.folder.join("all.pcapng"), up.folder.join("said"));
    let mut command = Command::new(lab_program());
    command.args(["capture", "--name", &up.name, "--leaf", "leaf1", "--leaf", "leaf2"]);
    command.args(["--link", "leaf2:up1", "-w"]).arg(&file).stdout(Stdio::null());
    command.stderr(std::fs::File::create(&said).unwrap());
    let mut process = Process::spawn(&mut command).unwrap();
    let read = || std::fs::read_to_string(&said).unwrap();
    wait_for("the capture", || read().contains("capturing"));
    let count = PINGS.to_string();
    let ping = ["ping", "-q", "-i", "0.01", "-c", &count, "172.16.0.2"];
    let pinged = up.namespace("h1").run(&ping).unwrap();
    assert!(pinged.contains(" 0% packet loss"), "{pinged}");
    let found = |place: &str| {
        let filter = format!("icmp && frame.interface_name == \"{place}\"");
        rows(&file, &filter, &["icmp.seq"]).map_or(0, |rows| rows.len())
    };
    wait_for("all of them", || PLACES.iter().all(|place| found(place) == 2 * PINGS));
    process.signal(Signal::SIGINT).unwrap();
    let status = process.wait(Duration::from_secs(60)).unwrap();
    assert!(status.success() && read().contains(" 0 lost"), "{status}: {}", read());

    for place in PLACES {
        assert_eq!(found(place), 2 * PINGS, "{place}");
    }
    let all =
        rows(&file, "icmp.type == 8", &["frame.time_epoch", "frame.interface_name", "icmp.seq"]);
    let all = all.unwrap();
    assert!(all.is_sorted_by_key(|row| row[0].clone()), "{all:?}");
    for request in all.chunk_by(|a, b| a[2] == b[2]) {
        let order: Vec<&str> = request.iter().map(|row| row[1].as_str()).collect();
        // The two sockets of one interface see a packet at one time, so either may come first.
        let at = |place| order.iter().position(|found| *found == place).unwrap();
        let [inner, sent, link, received, arrived] = PLACES.map(at);
        assert_eq!((inner, sent), (0, 1), "{request:?}");
        assert!(received < arrived && link > sent, "{request:?}");
    }
    let unknown = Command::new(lab_program())
        .args(["capture", "--name", &up.name, "--leaf", "leaf1", "--link", "leaf1:none"])
        .args(["-w", "/dev/null"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && said.contains("leaf1:none cannot be captured"), "{said}");
    drop(leaves);
}
