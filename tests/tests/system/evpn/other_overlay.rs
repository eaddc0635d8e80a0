//! An overlay that is not that of `lab new`: VTEPs with IPv6 addresses, another UDP port, and hosts
//! behind further bridges. Everything that shows paths, policies and states works with it.

use root_test::root_test;
use serde_json::{Value, json};

use super::lab_command::{ask, lab, said};

const FABRIC: &str = "other-overlay";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/evpn/other_overlay.clab.yml");

/// Takes the fabric down.
struct Up;

impl Drop for Up {
    fn drop(&mut self) {
        let _ = lab(&["down", FABRIC]);
    }
}

#[root_test]
fn nothing_assumes_a_port_an_address_family_or_hosts_at_leaves() {
    let _up = Up;
    ask(&["up", FILE, "--timeout", "60"]);
    let leaves = ask(&["status", "--name", FABRIC]);
    let forwards = |leaf: &Value| leaf["vnis"][0]["policy"] == "qp-hash";
    let leaves = leaves.as_array().unwrap();
    assert!(leaves.len() == 2 && leaves.iter().all(forwards), "{leaves:?}");
    assert!(leaves.iter().all(|leaf| leaf["balance"]["sent"].as_object().unwrap().len() == 2));

    // The path is that of the routers, in both directions.
    for (from, to, ends) in [
        ("host1", "host2", ["leaf1", "leaf2", "fd00:1::1", "fd00:1::2"]),
        ("host2", "host1", ["leaf2", "leaf1", "fd00:1::2", "fd00:1::1"]),
    ] {
        let path = ask(&["path", "--name", FABRIC, "--from", from, "--to", to, "--qp", "0x11"]);
        let hops = path["hops"].as_array().unwrap();
        assert_eq!((hops.len(), &path["udp_port"]), (3, &json!(8472)), "{path}");
        let seen = [&hops[0]["node"], &hops[2]["node"], &path["local"], &path["vtep"]];
        assert_eq!(seen, ends.map(|end| json!(end)).each_ref(), "{path}");
        assert_eq!([&hops[0]["arrives"], &hops[2]["leaves"]], [&json!("hp1"); 2], "{path}");
        assert_eq!(hops[1]["node"], if hops[0]["leaves"] == "up1" { "spine1" } else { "spine2" });
    }

    ask(&["policy", "qp-pin", "--name", FABRIC]);
    let path = ask(&["path", "--name", FABRIC, "--from", "host1", "--to", "host2", "--qp", "0x11"]);
    assert_eq!((&path["placed"], path["paths"].as_array().unwrap().len()), (&json!(false), 2));
    let verified = ask(&["verify", FILE, "--no-failover"]);
    assert_eq!(verified["faults"], json!([]), "{verified}");

    let down = lab(&["down", FABRIC]);
    assert!(down.status.success(), "{}", said(&down));
}
