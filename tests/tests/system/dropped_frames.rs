//! `vtepctl drops --frames`: the last dropped frames of each reason, with their headers.

use std::net::Ipv4Addr;

use root_test::root_test;
use serde_json::Value;
use vtepd_tests::experiments::experiments;
use vtepd_tests::frames::{Pair, Tunnelled, inject, inject_here};
use vtepd_tests::lab::{LEAF, PEER, mac_of};
use vtepd_tests::{Lab, Setup, Vtepd, wait_for};
use wire::MacAddr;

use crate::capture::Running;
use crate::wireshark::need_tshark;

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

/// Runs a closure in the private namespace of vtepd, which holds it open.
fn in_private<T: Send>(vtepd: &Vtepd, act: impl FnOnce() -> T + Send) -> T {
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let own_of_vtepd = std::fs::read_link(format!("/proc/{}/ns/net", vtepd.pid())).unwrap();
    let files = std::fs::read_dir(format!("/proc/{}/fd", vtepd.pid())).unwrap();
    let private = files.map(|file| file.unwrap().path()).find(|file| {
        std::fs::read_link(file).is_ok_and(|to| {
            to.to_string_lossy().starts_with("net:[") && to != own && to != own_of_vtepd
        })
    });
    let private = std::fs::File::open(private.unwrap()).unwrap();
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            nix::sched::setns(&private, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            act()
        });
        entered.join().unwrap()
    })
}

/// A worker sends frames for a VNI that is gone, and the program at the punt pair drops them. However
/// many there are, they are counted, and the last ones are shown and captured.
#[root_test]
fn frames_that_programs_drop_are_shown_and_captured() {
    const FLOOD: u64 = 5000;
    need_tshark();
    let lab = Lab::with("dropped-programs", Setup::default());
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let sent = experiments(Pair::of(&lab.far, &lab.host), FRAMES);
    let mut capture = Running::start(&lab.leaf, &[]);
    let send = |frames: &[Vec<u8>]| {
        in_private(&vtepd, || inject_here("vtepd-bridge", frames));
    };
    send(&sent);
    let counted = || vtepd.ask(&["counters"])["steering"]["punt_unknown_slot"].as_u64().unwrap();
    wait_for("the drops", || counted() == u64::from(FRAMES));
    let shown = || vtepd.ask(&["drops", "--frames"]).as_array().unwrap().clone();
    let last = sent.iter().skip(usize::from(FRAMES) - REMEMBERED);
    let expected: Vec<_> = last.map(|frame| hexadecimal(&frame[..frame.len().min(128)])).collect();
    wait_for("the last frames", || {
        shown().iter().map(|frame| frame["headers"].as_str().unwrap()).eq(&expected)
    });
    let first = &shown()[0];
    assert_eq!((&first["reason"], &first["from"]), (&"unknown_slot".into(), &"worker".into()));
    assert_eq!(first["length"], sent[0].len());

    // A flood of them.
    let flood: Vec<_> = sent.iter().cycle().take(FLOOD as usize).cloned().collect();
    send(&flood);
    wait_for("the flood", || counted() == FLOOD + u64::from(FRAMES));
    let dropped = "frame.interface_name == \"dropped\" && frame.comment contains \"unknown_slot\"";
    wait_for("the captured ones", || capture.count(dropped) >= REMEMBERED);
    let [captured, lost] = capture.end();
    assert_eq!(captured + lost, FLOOD + u64::from(FRAMES), "{captured} captured, {lost} lost");
    assert_eq!(capture.count(dropped) as u64, captured);
}
