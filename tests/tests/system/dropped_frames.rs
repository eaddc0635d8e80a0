//! `vtepctl drops --frames`: the last dropped frames of each reason, with their headers.

use std::net::Ipv4Addr;

use root_test::root_test;
use serde_json::Value;
use vtepd_tests::experiments::experiments;
use vtepd_tests::frames::{Pair, Tunnelled, inject};
use vtepd_tests::lab::{LEAF, PEER, mac_of};
use vtepd_tests::{Lab, Setup, Vtepd};
use wire::MacAddr;

const FRAMES: u8 = 40;
const REMEMBERED: usize = 32;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[root_test]
fn the_last_dropped_frames_of_each_reason_are_shown() {
    let lab = Lab::with("dropped-frames", Setup::default());
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    assert_eq!(vtepd.ask(&["drops", "--frames"]), serde_json::json!([]));
    let pair = Pair::of(&lab.far, &lab.host);
    // A multicast source, and an outer source that no other host can have.
    let multicast = Pair { from: (MacAddr([3, 0, 0, 0, 10, 9]), pair.from.1), ..pair };
    let martian = Ipv4Addr::new(127, 9, 9, 9);
    let cases = [("invalid_source", PEER, multicast), ("martian_source", martian, pair)];
    let sent: Vec<Vec<Vec<u8>>> = cases
        .iter()
        .map(|(_, source, inner)| {
            let tunnel = || Tunnelled {
                to: mac_of(&lab.leaf, "up1"),
                source: *source,
                destination: LEAF,
                port: 4789,
                vni: 10,
                tos: 0,
                flip: 0,
            };
            experiments(*inner, FRAMES).iter().map(|frame| tunnel().frame(frame)).collect()
        })
        .collect();
    for ((reason, ..), frames) in cases.iter().zip(&sent) {
        inject(&lab.routers[0], "leaf", frames);
        vtepd.wait_for(reason, |metrics| metrics.dropped(reason) == u64::from(FRAMES));
    }
    for ((reason, source, inner), frames) in cases.iter().zip(&sent) {
        let shown = vtepd.ask(&["drops", "--frames", "--reason", reason]);
        let shown = shown.as_array().unwrap();
        // The last ones, in their order.
        let last = frames.iter().skip(usize::from(FRAMES) - REMEMBERED);
        let expected: Vec<String> =
            last.map(|frame| hexadecimal(&frame[..frame.len().min(128)])).collect();
        let headers: Vec<&str> =
            shown.iter().map(|frame| frame["headers"].as_str().unwrap()).collect();
        assert_eq!(headers, expected, "{reason}");
        let first = &shown[0];
        assert_eq!(first["reason"], *reason);
        assert_eq!(first["from"], "underlay");
        assert_eq!(first["length"], frames[0].len());
        let decoded = first["decoded"].as_str().unwrap();
        for word in [format!("{source} > {LEAF}"), "VNI 10: ".into(), inner.from.0.to_string()] {
            assert!(decoded.contains(&word), "{word}: {decoded}");
        }
    }
    let vni =
        |reason: &str| vtepd.ask(&["drops", "--frames", "--reason", reason])[0]["vni"].clone();
    assert_eq!(vni("invalid_source"), Value::from(10));

    let all = vtepd.ctl(&["drops", "--frames"]);
    let text = String::from_utf8(all.stdout).unwrap();
    assert_eq!(text.lines().count(), 1 + 2 * REMEMBERED, "{text}");
    let refused = vtepd.ctl(&["drops", "--frames", "--reason", "bad luck"]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("vtepctl drops --all"), "{said}");
}
