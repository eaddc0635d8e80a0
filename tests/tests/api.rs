//! What vtepctl says is what the kernel has and what the wire shows, and what it changes changes under traffic.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;

use lab::Namespace;
use serde_json::Value;
use vtepd_tests::guard::can_run;
use vtepd_tests::lab::{VNI, bridge, ip, run};
use vtepd_tests::{Lab, Vtepd, wait_for};

/// MAC addresses and VTEPs that the kernel has for a vxlan netdev; the flood list with MAC address zero.
fn kernel_fdb(leaf: &Namespace, netdev: &str) -> BTreeSet<(String, String)> {
    let entries: Value =
        serde_json::from_str(&run(leaf, &format!("bridge -j fdb show dev {netdev}"))).unwrap();
    let with_vtep = entries.as_array().unwrap().iter().filter(|entry| entry["dst"].is_string());
    with_vtep.map(|entry| (text(&entry["mac"]), text(&entry["dst"]))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// The same as vtepd has it.
fn vtepd_fdb(vtepd: &Vtepd, vni: &str) -> BTreeSet<(String, String)> {
    let rows = |answer: Value, mac: fn(&Value) -> String| {
        let rows = answer.as_array().unwrap().clone();
        rows.into_iter().map(move |row| (mac(&row), text(&row["vtep"])))
    };
    let fdb = rows(vtepd.ask(&["fdb", "--vni", vni]), |row| text(&row["mac"]));
    let flood = rows(vtepd.ask(&["flood", "--vni", vni]), |_| "00:00:00:00:00:00".to_owned());
    fdb.chain(flood).collect()
}

#[test]
fn the_fdb_is_the_kernels_and_the_status_says_who_is_taken_and_who_is_left() {
    if !can_run("the_fdb_is_the_kernels_and_the_status_says_who_is_taken_and_who_is_left") {
        return;
    }
    let lab = Lab::new("ctl");
    lab.overlay(20, "learning", "nolearning", "");
    let mut lines = String::new();
    for number in 0..2000 {
        let [high, low] = u16::to_be_bytes(number);
        lines += &format!(
            "fdb add 02:aa:00:00:{high:02x}:{low:02x} dev vx10 dst 10.0.0.{} self\n",
            2 + number % 2
        );
    }
    bridge(&lab.leaf, &lines);
    let vtepd = Vtepd::start(&lab.leaf, &[]);

    let status = vtepd.ask(&["status"]);
    assert_eq!(status["pid"], vtepd.pid());
    assert_eq!(status["ready"], true);
    assert_eq!(status["steering"]["uplinks"], serde_json::json!(["up1", "up2"]));
    assert_eq!(status["sources"][0]["state"], "live");
    assert_eq!(
        (&status["taken"][0]["netdev"], status["taken"].as_array().unwrap().len()),
        (&"vx10".into(), 1)
    );
    assert_eq!(status["left"][0]["vni"], 20);
    assert!(text(&status["left"][0]["left"]).contains("'learning' is on"), "{status}");

    let kernel = kernel_fdb(&lab.leaf, "vx10");
    assert!(kernel.len() > 2000, "{}", kernel.len());
    assert_eq!(vtepd_fdb(&vtepd, "10"), kernel);
    bridge(
        &lab.leaf,
        "fdb del 02:aa:00:00:00:00 dev vx10 dst 10.0.0.2 self\nfdb replace 02:aa:00:00:00:01 dev vx10 dst 10.0.0.2 self",
    );
    let kernel = kernel_fdb(&lab.leaf, "vx10");
    wait_for("the changes", || vtepd_fdb(&vtepd, "10") == kernel);
    let one = vtepd.ask(&["fdb", "--mac", "02:aa:00:00:00:01"]);
    assert_eq!((one[0]["vtep"].as_str(), one.as_array().unwrap().len()), (Some("10.0.0.2"), 1));

    // VNIs that are not there, or not taken over.
    for (vni, says) in
        [("20", "'learning' is on"), ("30", "no vxlan netdev of this network namespace has VNI 30")]
    {
        let output = vtepd.ctl(&["fdb", "--vni", vni]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
    // A reader that goes away: a pipe holds 64 kB.
    let vtepctl = vtepd_tests::daemon::ctl_program();
    let line = format!("{} fdb | head -n 1; echo ${{PIPESTATUS[0]}}", vtepctl.display());
    let said = lab.leaf.run(&["bash", "-c", &line]).unwrap();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["vni", "netdev", "mac", "vtep", "0"], "{said}");

    // The next hops, with one of them gone.
    let route =
        |m: &Value| m.as_array().unwrap().iter().find(|route| route["vtep"] == "10.0.0.2").unwrap().clone();
    let hops = |vtepd: &Vtepd| {
        let found = route(&vtepd.ask(&["route"]));
        let hops = found["next_hops"].as_array().unwrap().clone();
        (text(&found["state"]), hops.iter().map(|hop| text(&hop["uplink"])).collect::<Vec<_>>())
    };
    wait_for("both next hops", || hops(&vtepd) == ("reachable".to_owned(), vec!["up1".into(), "up2".into()]));
    ip(&lab.leaf, "link set up1 down");
    wait_for("one next hop", || hops(&vtepd) == ("reachable".to_owned(), vec!["up2".into()]));
    ip(&lab.leaf, "route del 10.0.0.2/32");
    wait_for("no next hop", || hops(&vtepd) == ("unreachable".to_owned(), vec![]));
    let peers = vtepd.ask(&["peer"]);
    assert_eq!((&peers[0]["vtep"], &peers[0]["state"]), (&"10.0.0.2".into(), &"unreachable".into()));
    assert_eq!((&peers[0]["vnis"][0]["vni"], &peers[0]["vnis"][0]["flood"]), (&VNI.into(), &true.into()));

    // Who is not there is named with what to do.
    let (_, _) = vtepd.terminate();
    let output =
        lab.leaf.enter(|| std::process::Command::new(&vtepctl).arg("status").output().unwrap()).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("nobody listens on @vtepd-api in this network namespace: start vtepd here"),
        "{said}"
    );
}
