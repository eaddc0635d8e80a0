//! Every host reaches every other host, with vtepd or kernel VXLAN on any leaf.

use super::fixture::{LEAVES, ScaleAcross, frr};
use super::hosts::{Transfer, all_reach_each_other, host};
use super::stream::Stream;
use root_test::root_test;

const RATE: u32 = 5000;

/// Ping, TCP and UDP between all hosts, with vtepd on no leaf, on one and on all. vtepd starts and
/// stops during TCP transfers and a stream of numbered UDP frames. No frame of the stream is lost.
#[root_test(needs = frr)]
fn o1_all_hosts_reach_each_other_with_vtepd_on_one_leaf_on_all_and_none() {
    let fabric = ScaleAcross::up("evpn-reach");
    all_reach_each_other(&fabric);

    let (near, far) = (host(&fabric, "host1"), host(&fabric, "host4"));
    let there = Transfer::start(&near, &far);
    let back = Transfer::start(&far, &near);
    let stream = Stream::start(&near.namespace, (&far.namespace, far.address), RATE);
    let goes_on = || {
        there.goes_on();
        back.goes_on();
        stream.goes_on(u64::from(RATE) / 10);
    };
    let first = fabric.vtepd("leaf1");
    goes_on();
    let others: Vec<_> = LEAVES[1..].iter().map(|leaf| fabric.vtepd(leaf)).collect();
    goes_on();
    for vtepd in others {
        let metrics = vtepd.metrics();
        vtepd.stop();
        assert_eq!(metrics.dropped(), 0, "{}", metrics.0);
    }
    goes_on();
    let forwarded = first.metrics().sum("vtepd_vni_frames_total{vni=\"10010\"");
    assert!(forwarded > u64::from(RATE) / 5, "vtepd on leaf1 forwarded {forwarded} frames only");
    first.stop();
    goes_on();
    stream.finish_whole("vtepd came and went on every leaf");
    there.finish();
    back.finish();

    let first = fabric.vtepd("leaf1");
    all_reach_each_other(&fabric);
    let others: Vec<_> = LEAVES[1..].iter().map(|leaf| fabric.vtepd(leaf)).collect();
    all_reach_each_other(&fabric);
    for vtepd in others.iter().chain([&first]) {
        let metrics = vtepd.metrics();
        for direction in ["encapsulated", "decapsulated"] {
            let series =
                format!("vtepd_vni_frames_total{{vni=\"10010\",direction=\"{direction}\"}}");
            // Five peers, each with far more than a hundred frames.
            assert!(metrics.find(&series) > Some(500), "{}", metrics.0);
        }
        assert_eq!(metrics.dropped(), 0, "{}", metrics.0);
    }
}
