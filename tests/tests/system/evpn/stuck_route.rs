//! zebra loses the route to a VTEP, because FPM connects while the kernel's answer for this route is
//! on its way. `fabric::deployed` explains it. `lab` notices, says what is missing, and mends it.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::time::Duration;

use fabric::process::wait_until;
use root_test::root_test;
use vtepd_tests::stopped::Stopped;

use super::fixture::{ScaleAcross, TIMEOUT, frr, quiet};

const LEAF: &str = "leaf1";
/// The VTEP of leaf4.
const VTEP: [u8; 4] = [10, 0, 0, 14];
/// Where the topology lets zebra look for FPM.
const FPM: &str = "127.0.0.1:2620";

/// The thread in which zebra writes to the kernel.
fn dataplane_thread(zebra: i32) -> i32 {
    let named = |tid: &i32| {
        let name = fs::read_to_string(format!("/proc/{zebra}/task/{tid}/comm"));
        name.is_ok_and(|name| name.trim() == "zebra_dplane")
    };
    let threads = fs::read_dir(format!("/proc/{zebra}/task")).unwrap();
    let mut threads =
        threads.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    threads.find(named).unwrap()
}

/// Reads what zebra sends over FPM until it has sent the route to [`VTEP`].
fn replay(listener: &TcpListener) -> std::net::TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut sent, mut buffer) = (Vec::new(), [0; 4096]);
    while !sent.windows(VTEP.len()).any(|octets| octets == VTEP) {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "zebra closed the connection");
        sent.extend_from_slice(&buffer[..length]);
    }
    stream
}

#[root_test(needs = frr)]
fn a_route_that_zebra_has_lost_is_installed_again() {
    // Without vtepd, nothing listens on FPM's port.
    let fabric = ScaleAcross::up("evpn-stuck");
    let shown = ["vtysh", "-c", "show ip route 10.0.0.14/32 json"];
    let route = || fabric.node(LEAF).run(&shown).unwrap();
    let is_queued = || route().contains("\"queued\":true");
    let entries = || fabric.run(LEAF, "bridge fdb show").matches("dst 10.0.0.14").count();
    assert!(!is_queued(), "{}", route());

    let zebra = fabric.fabric.processes().unwrap();
    let zebra = zebra.iter().find(|own| own.node == LEAF && own.name == "zebra").unwrap();
    let stopped = Stopped::thread(dataplane_thread(zebra.identity.pid));
    fabric.run(LEAF, "ip route del 10.0.0.14");
    assert!(wait_until(TIMEOUT, is_queued), "zebra wants to install it again: {}", route());
    let listen = || TcpListener::bind(FPM).unwrap();
    let _connection = replay(&fabric.namespace(LEAF).enter(listen).unwrap());
    stopped.resume();

    // The kernel has the route, but bgpd does not use it.
    assert!(wait_until(TIMEOUT, || entries() == 0), "{}", route());
    assert!(is_queued() && fabric.run(LEAF, "ip route show 10.0.0.14").contains("up1"));
    let error = fabric.fabric.converge(Duration::from_secs(1), &quiet).unwrap_err().to_string();
    assert!(error.contains("leaf1 lacks VTEP 10.0.0.14 in the flood list"), "{error}");

    fabric.converge();
    assert!(!is_queued() && entries() > 0, "{}", route());
}
