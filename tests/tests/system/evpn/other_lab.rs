//! A lab that was not built for vtepd: see `other_lab/other_lab.clab.yml`.

use std::net::Ipv4Addr;
use std::path::Path;

use fabric::Namespace;
use root_test::root_test;
use serde_json::json;

use super::fixture::{ScaleAcross, Vtepd, frr};
use super::hosts::{Host, Transfer, ping, tcp_both_ways};
use super::stream::Stream;

const HOSTS: [(&str, [u8; 4]); 4] = [
    ("host1", [10, 100, 0, 1]),
    ("host2", [10, 100, 0, 2]),
    ("store1", [10, 200, 0, 1]),
    ("store2", [10, 200, 0, 2]),
];
const RATE: u32 = 2000;

fn host(fabric: &ScaleAcross, index: usize) -> Host {
    let (name, address) = HOSTS[index];
    Host { namespace: fabric.namespace(name), address: Ipv4Addr::from(address) }
}

/// Checks that all hosts reach each other, within each VNI and routed between VNIs by the leaves'
/// SVIs, also with the largest packets.
fn all_reach_each_other(fabric: &ScaleAcross) {
    std::thread::scope(|scope| {
        for a in 0..HOSTS.len() {
            for b in a + 1..HOSTS.len() {
                scope.spawn(move || {
                    let (a, b) = (host(fabric, a), host(fabric, b));
                    ["56", "9422"].iter().for_each(|size| ping(&a, &b, size));
                    tcp_both_ways(&a, &b, 100_000);
                });
            }
        }
    });
}

fn is_taken_over(vtepd: &Vtepd) {
    let status = vtepd.ask(&["status"]);
    let taken: Vec<_> =
        status["taken"].as_array().unwrap().iter().map(|row| row["netdev"].clone()).collect();
    assert_eq!(
        (json!(taken), &status["left"]),
        (json!(["vni100", "vni200"]), &json!([])),
        "{status}"
    );
    // The fabric's links, without the management interface.
    assert_eq!(status["steering"]["uplinks"], json!(["eth1", "eth2"]));
}

/// vtepd starts on one leaf, then on both, and stops, while numbered frames and TCP routed between
/// VNIs pass. No frame is lost or duplicated.
#[root_test(needs = frr)]
#[ignore = "takes almost a minute: tests/run --all"]
fn another_lab_works_with_and_without_vtepd() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/system/evpn/other_lab/other_lab.clab.yml");
    let fabric = ScaleAcross::other("evpn-other", &file);
    all_reach_each_other(&fabric);
    let [near, far, store] = [0, 1, 2].map(|index| host(&fabric, index));
    let stream = Stream::start(&near.namespace, (&far.namespace, far.address), RATE);
    let routed = Transfer::start(&store, &far);
    let goes_on = || {
        stream.goes_on(u64::from(RATE) / 10);
        routed.goes_on();
    };
    goes_on();
    let first = fabric.vtepd("leaf1");
    is_taken_over(&first);
    goes_on();
    all_reach_each_other(&fabric);
    let second = fabric.vtepd("leaf2");
    is_taken_over(&second);
    goes_on();
    all_reach_each_other(&fabric);
    for (leaf, vtepd) in [("leaf1", first), ("leaf2", second)] {
        let metrics = vtepd.metrics();
        assert_eq!(
            (metrics.dropped(), metrics.find("vtepd_default_route_vteps")),
            (0, Some(0)),
            "{}",
            metrics.0
        );
        for vni in [100, 200] {
            for way in ["encapsulated", "decapsulated"] {
                let series = format!("vtepd_vni_frames_total{{vni=\"{vni}\",direction=\"{way}\"}}");
                assert!(metrics.find(&series) > Some(20), "{}", metrics.0);
            }
        }
        fabric.run(leaf, "ping -n -c 1 -w 10 172.20.20.1");
        vtepd.stop();
        goes_on();
    }
    stream.finish_whole("vtepd came and went in another lab");
    routed.finish();
    an_uplink_is_made_again(&fabric);
}

/// An uplink is deleted and created again as another interface while vtepd runs. vtepd uses it if
/// FRR installs it in the kernel, which 8.4.4 may not do.
fn an_uplink_is_made_again(fabric: &ScaleAcross) {
    let vtepd = fabric.vtepd("leaf2");
    let ways =
        || vtepd.ask(&["route", "--vtep", "10.0.0.1"])[0]["next_hops"].as_array().unwrap().len();
    let in_kernel = || fabric.run("leaf2", "ip route show 10.0.0.1").matches("dev eth").count();
    assert_eq!((ways(), in_kernel()), (2, 2));
    let (leaf, spine) = (fabric.namespace("leaf2"), fabric.namespace("spine1"));
    let run = |node: &Namespace, command: &str| {
        node.run(&command.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
    };
    run(&leaf, "ip link del eth1");
    vtepd.wait_for("one way less", |_| ways() == 1);
    all_reach_each_other(fabric);
    let peer = format!("peer name eth3 mtu 9500 netns {}", spine.name());
    run(&leaf, &format!("ip link add eth1 mtu 9500 type veth {peer}"));
    for (node, interface, address) in
        [(&leaf, "eth1", "10.2.1.1/31"), (&spine, "eth3", "10.2.1.0/31")]
    {
        run(node, &format!("ip addr add {address} dev {interface}"));
        run(node, &format!("ip link set {interface} up"));
    }
    fabric.converge();
    vtepd.wait_for("the ways that the kernel has", |_| ways() == in_kernel());
    println!("after an uplink was made again: {} ways of 2", ways());
    all_reach_each_other(fabric);
}
