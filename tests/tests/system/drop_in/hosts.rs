//! Hosts' links are removed and added while vtepd runs, under the same name or another, on the same
//! leaf or another.

use fabric::Namespace;
use root_test::root_test;
use vtepd_tests::lab::{ETH, VNI, ip, run};
use vtepd_tests::{Host, Lab, Setup, Vtepd, sockets, wait_for};

/// Connects the host to a leaf with a new link, as ContainerLab or a hypervisor would.
fn plug(lab: &Lab, host: &Host, leaf: &Namespace, port: &str) {
    let (mtu, mac) = (lab.setup.overlay_mtu, host.mac());
    let netns = host.ns.name();
    ip(
        leaf,
        &format!(
            "link add {port} mtu {mtu} type veth peer name {ETH} mtu {mtu} address {mac} netns {netns}\n\
             link set {port} master br{VNI} up"
        ),
    );
    ip(&host.ns, &format!("addr add {}/24 dev {ETH}\nlink set {ETH} up", host.ip()));
    // The bridge sees the new carrier up to a second later (`linkwatch`).
    wait_for("the port to forward", || {
        run(leaf, &format!("bridge link show dev {port}")).contains("state forwarding")
    });
}

/// Pings in both directions. Addresses are resolved by ARP where necessary.
fn reaches(from: &Host, to: &Host) {
    sockets::ping(from, to.ip(), 3, 1000, &[]);
    sockets::ping(to, from.ip(), 3, 1000, &[]);
}

#[root_test]
fn a_hosts_link_goes_and_comes_again_here_or_on_another_leaf() {
    let lab = Lab::with("plug", Setup { learning: true, ..Setup::default() });
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let host = &lab.host;
    let ports = || {
        let rows = vtepd.ask(&["port"]);
        let mut names: Vec<String> = rows
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["port"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let is_remote = || {
        let mac = host.mac().to_string();
        vtepd.ask(&["fdb"]).as_array().unwrap().iter().any(|row| row["mac"] == mac.as_str())
    };
    reaches(host, &lab.far);
    let mut port = "hp10";
    for next in ["hp10", "gpu7"] {
        ip(&lab.leaf, &format!("link del {port}"));
        wait_for("the port to go", || ports() == ["hq10"]);
        plug(&lab, host, &lab.leaf, next);
        wait_for("the port", || ports().contains(&next.to_owned()));
        [&lab.far, &lab.next].into_iter().for_each(|other| reaches(host, other));
        assert!(!is_remote());
        port = next;
    }
    // To the peer's leaf and back, twice. The leaf's other host and the third leaf's host keep
    // reaching it.
    for _ in 0..2 {
        ip(&lab.leaf, &format!("link del {port}"));
        plug(&lab, host, &lab.peer, "gpu7");
        [&lab.next, &lab.farther].into_iter().for_each(|other| reaches(host, other));
        wait_for("the host to be remote", is_remote);
        ip(&lab.peer, "link del gpu7");
        plug(&lab, host, &lab.leaf, port);
        [&lab.next, &lab.far, &lab.farther].into_iter().for_each(|other| reaches(host, other));
        wait_for("the host to be local", || !is_remote());
    }
    let metrics = vtepd.metrics();
    // Except frames for a host whose link had just been removed.
    assert_eq!(metrics.dropped_in_all(), metrics.dropped("link_down"), "{}", metrics.0);
}
