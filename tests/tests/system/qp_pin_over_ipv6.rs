//! The policy `qp-pin` over an IPv6 underlay.

use std::collections::BTreeSet;

use root_test::root_test;
use vtepd_tests::lab::{VNI, sysctl};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, wait_for};

use crate::both_directions::Routed;
use crate::ipv6_underlay::{behind_one_router, over_ipv6};
use crate::qp_pin::{QUEUE_PAIRS, RATE, all_placed, even_and_back, start, traced, two_paths};
use crate::qp_pin_shown::explained;

/// The VTEP of the far leaf, and the address by which the first router reaches it.
const FAR: (&str, &str) = ("fd00::2", "fd01:2:1::1");

/// The VNI of probes, answers and traces.
const PROBES: u32 = 0xff_ffff;

/// VNIs, and the outer headers that routers may hash.
type Seen = BTreeSet<(u32, Vec<u8>)>;

/// Only the uplinks at both ends of a path are known over IPv6. Probes have the outer headers of
/// data.
#[root_test]
fn p6_queue_pairs_over_ipv6_are_even_and_leave_a_path_that_dies_silently() {
    let lab = over_ipv6("qpsix", "flowlabel 0x12345");
    let watching = watch(&lab);
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let paths = two_paths(&leaf, FAR.0);
    assert_eq!((&paths["complete"], &paths["traced"]), (&false.into(), &false.into()), "{paths}");
    for path in paths["paths"].as_array().unwrap() {
        assert!(path["routers"] == serde_json::json!([]) && path["arrival"].is_u64(), "{path}");
    }
    even_and_back(&lab, &leaf, FAR, "p6");
    for watch in watching {
        let [probes, data] = headers(watch, [PROBES, VNI]);
        assert!(!data.is_empty() && data.is_subset(&probes), "{data:x?} {probes:x?}");
    }
}

/// The routers hash addresses and flow label, and no ports: traces take the paths of data only with
/// its flow labels.
#[root_test]
fn p14_paths_to_kernel_vxlan_are_known_by_icmpv6_errors() {
    let fabric = Routed::over_ipv6("qpsixicmp");
    for router in fabric.lab.routers.iter().chain(&fabric.spines) {
        // As many errors as packets.
        sysctl(router, "ipv6/icmp/ratelimit", "0");
    }
    let watching = watch(&fabric.lab);
    traced(&fabric, FAR.0, "p14");
    for watch in watching {
        let [traces, data] = headers(watch, [PROBES, VNI]);
        assert!(!data.is_empty() && data.is_subset(&traces), "{data:x?} {traces:x?}");
    }
}

/// Probes find what a router does that hashes the flow label and no ports: data with a port has the
/// label of the probe with that port.
#[root_test]
fn p8_queue_pairs_are_even_behind_a_router_that_hashes_the_flow_label() {
    let lab = behind_one_router("qplabel");
    let (leaf, _peer) = (start(&lab.leaf), start(&lab.peer));
    let paths = || leaf.ask(&["path", "--vtep", FAR.0])[0].clone();
    wait_for("both paths to be known", || {
        let known = paths();
        known["ready"] == true && known["paths"].as_array().is_some_and(|paths| paths.len() == 2)
    });
    let rate = Rate { frames: RATE, queue_pairs: QUEUE_PAIRS, payload: 256 };
    let stream = Stream::start(&lab.host, &lab.far, rate, 0x7107);
    stream.pass(2000);
    let all = all_placed(&leaf);
    let is_data = |frame: &[u8]| outer_ipv6(frame).is_some_and(|(vni, _)| vni == VNI);
    let links = ["up1", "up2"].map(|link| Capture::start(&lab.peer, link, is_data));
    stream.pass(2000);
    let on = links.map(|link| {
        let frames = link.stop().into_iter();
        let queue_pair = |inner: &[u8]| wire::dissect(inner)?.roce.map(|roce| roce.destination);
        frames.filter_map(|frame| queue_pair(&frame.bytes[70..])).collect::<BTreeSet<_>>()
    });
    println!("p8: queue pairs by link {:?}", on.each_ref().map(BTreeSet::len));
    assert!(on.iter().all(|on| on.len() == QUEUE_PAIRS / 2) && on[0].is_disjoint(&on[1]), "{on:?}");
    let queue_pair = *all.keys().next().unwrap() as u32;
    let (copy, text) = explained(&leaf, &lab, queue_pair);
    let port = copy["source_port"].as_u64().unwrap();
    assert_eq!(copy["route"]["flow_label"].as_u64(), Some(port), "{copy}");
    assert!(text.contains(&format!("flow label {port:#07x}")), "{text}");
    stream.finish_whole();
}

/// Collects the outer headers of what the leaf sends to each router.
fn watch(lab: &Lab) -> [Capture<Seen>; 2] {
    lab.routers.each_ref().map(|router| {
        Capture::fold(router, "leaf", Seen::new(), |seen, frame| {
            seen.extend(outer_ipv6(frame.data))
        })
    })
}

/// The outer headers of the packets with each of these VNIs.
fn headers(watch: Capture<Seen>, vnis: [u32; 2]) -> [BTreeSet<Vec<u8>>; 2] {
    let seen = watch.stop();
    vnis.map(|vni| seen.iter().filter(|(of, _)| *of == vni).map(|(_, h)| h.clone()).collect())
}

/// The VNI of a VXLAN packet over IPv6 with a UDP checksum, and what routers may hash: flow label,
/// protocol, addresses and ports.
fn outer_ipv6(frame: &[u8]) -> Option<(u32, Vec<u8>)> {
    let is_vxlan = frame.get(12..14)? == [0x86, 0xdd] && frame.get(56..58)? == [0x12, 0xb5];
    let vni = u32::from_be_bytes(*frame.get(66..)?.first_chunk()?) >> 8;
    let fields = [&[frame[15] & 15][..], &frame[16..18], &frame[20..21], &frame[22..58]];
    (is_vxlan && frame.get(60..62)? != [0, 0]).then(|| (vni, fields.concat()))
}
