//! The flows that workers remember, as `vtepctl flow` and the metrics show them.

use std::collections::BTreeSet;

use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::ETH;
use vtepd_tests::{Capture, Lab, Vtepd, wait_for};
use wire::roce::{Bth, opcode};
use wire::{QueuePair, number};

fn roce(pair: Pair, queue_pair: u32) -> Vec<u8> {
    let bth = Bth::new(opcode::RC_SEND_ONLY, QueuePair::try_from(queue_pair).unwrap(), 0);
    frames::udp(pair, (50_000, number::PORT_ROCE), &[&bth.as_bytes()[..], &[0; 68]].concat())
}

#[root_test]
fn remembered_flows_are_those_that_were_sent() {
    let lab = Lab::new("flowcache");
    let vtepd = Vtepd::start(&lab.leaf, &["--datapath", "userspace", "--workers", "2"]);
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
    let pair = Pair::of(&lab.host, &lab.far);
    for sent in [2, 4] {
        inject(&lab.host.ns, ETH, &[roce(pair, 0x11), roce(pair, 0x12)]);
        wait_for("the frames", || up[0].count() + up[1].count() >= sent);
    }
    let idle = vtepd.wait_until_idle();
    let sent: BTreeSet<(String, u64)> = (1..)
        .zip(up)
        .flat_map(|(uplink, capture)| {
            let port = |frame: Captured| frame.outer(4789).unwrap().source_port.into();
            capture.stop().into_iter().map(move |frame| (format!("up{uplink}"), port(frame)))
        })
        .collect();

    let answer = vtepd.ask(&["flow", "--vni", "10"]);
    let rows = answer.as_array().unwrap();
    let text = |row: usize, name: &str| rows[row][name].as_str().unwrap().to_owned();
    let number = |row: usize, name: &str| rows[row][name].as_u64().unwrap();
    let shown: BTreeSet<(String, u64)> =
        (0..rows.len()).map(|row| (text(row, "uplink"), number(row, "source_port"))).collect();
    assert_eq!(shown, sent, "{answer}");
    let pairs: BTreeSet<u64> = (0..rows.len()).map(|row| number(row, "queue_pair")).collect();
    assert_eq!((rows.len(), pairs), (2, BTreeSet::from([0x11, 0x12])), "{answer}");
    let hosts = [lab.host.ip(), lab.far.ip()].map(|address| address.to_string());
    for (row, of) in rows.iter().enumerate() {
        assert_eq!((text(row, "vtep"), &of["current"]), ("10.0.0.2".into(), &true.into()));
        assert_eq!([text(row, "source"), text(row, "destination")], hosts);
    }

    let cache = |result: &str| {
        let of = |worker: u8| {
            let labels = format!("worker=\"{worker}\",result=\"{result}\"");
            idle.get(&format!("vtepd_worker_flow_cache_total{{{labels}}}"))
        };
        of(0) + of(1)
    };
    assert_eq!(["hit", "miss", "eviction"].map(cache), [2, 2, 0]);
    let table = String::from_utf8(vtepd.ctl(&["flow"]).stdout).unwrap();
    assert!(table.lines().any(|line| line.contains("0x11")), "{table}");
    let unknown = vtepd.ctl(&["flow", "--vni", "11"]);
    assert!(!unknown.status.success(), "{unknown:?}");
}
