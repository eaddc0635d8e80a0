//! A VTEP that is reachable only over the management network's default route. vtepd uses the route
//! as kernel VXLAN does, counts the frames and warns.

use root_test::root_test;
use serde_json::Value;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, ip, run};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, Vtepd, quiet, sockets, wait_for};

use super::management::{GATEWAY, Management, TO_LEAF};

const RATE: Rate = Rate { frames: 2000, queue_pairs: 8, payload: 64 };
const ROUTE: &str = "10.0.0.2/32 src 10.0.0.1 nexthop via 10.1.1.0 nexthop via 10.1.2.0";

/// The row of a VTEP in a list.
fn row(rows: &Value, vtep: &str) -> Value {
    rows.as_array().unwrap().iter().find(|row| row["vtep"] == vtep).cloned().unwrap_or_default()
}

/// Number of warnings about the default route in a log or a status.
fn warnings(text: &str) -> usize {
    text.matches("only the default route leads to VTEP 10.0.0.2").count()
}

fn by_default(vtepd: &Vtepd) -> (u64, u64) {
    let metrics = vtepd.metrics();
    (metrics.get("vtepd_default_route_vteps"), metrics.get("vtepd_default_route_frames_total"))
}

/// vtepd starts under traffic with only the default route, follows the VTEP's own route when that
/// appears and disappears, and stops under traffic. No frame is lost. The default route is not used
/// while the VTEP has a route without a carrier.
#[root_test]
fn a_vtep_behind_the_default_route_is_reached_counted_and_warned_of() {
    let lab = Lab::new("default");
    let management = Management::of(&lab, "default");
    ip(&lab.leaf, "route del 10.0.0.2/32");
    ip(&lab.peer, "route del 10.0.0.1/32");
    sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
    let streams = [
        Stream::start(&lab.host, &lab.far, RATE, 0xd1),
        Stream::start(&lab.far, &lab.host, RATE, 0xd2),
    ];
    let pass = || streams.iter().for_each(|stream| stream.pass(200));
    pass();

    let dry = Vtepd::output(&lab.leaf, &["--dry-run", "--no-fpm"]);
    assert_eq!(warnings(&String::from_utf8_lossy(&dry.stdout)), 1);
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    let mut events = vtepd.events();
    pass();
    assert_eq!(warnings(&vtepd.log()), 1, "{}", vtepd.log());
    assert_eq!(events.wait_for_kind("default-route")["vtep"], "10.0.0.2");
    let (vteps, frames) = by_default(&vtepd);
    assert!(vteps == 1 && frames >= 200, "{vteps} VTEPs, {frames} frames");
    let status = vtepd.ask(&["status"]);
    assert_eq!(warnings(&status["warnings"].to_string()), 1, "{status}");
    assert_eq!(status["steering"]["uplinks"], serde_json::json!(["up1", "up2", "eth0"]));
    let peers = vtepd.ask(&["peer"]);
    let (near, fabric) = (row(&peers, "10.0.0.2"), row(&peers, "10.0.0.3"));
    assert_eq!((&near["default_route"], &fabric["default_route"]), (&true.into(), &false.into()));
    assert!(near["traffic"]["default_route_frames"].as_u64() >= Some(200), "{near}");
    assert_eq!(fabric["traffic"]["default_route_frames"], 0);
    assert_eq!(row(&vtepd.ask(&["route"]), "10.0.0.2")["next_hops"][0]["gateway"], GATEWAY);
    let mac = lab.far.mac().to_string();
    let explain = ["explain", "--vni", "10", "--dst-mac", &mac];
    assert_eq!(vtepd.ask(&explain)["copies"][0]["route"]["default_route"], true);
    let said = String::from_utf8(vtepd.ctl(&explain).stdout).unwrap();
    assert!(said.contains("leaves by eth0, gateway 172.20.20.1 ("), "{said}");
    assert!(said.contains("nothing better than the default route leads there"), "{said}");
    // The leaf's own traffic on that interface is unchanged.
    let ping = run(&lab.leaf, &format!("ping -n -c 3 -i 0.05 -w 10 {GATEWAY}"));
    assert!(ping.contains("3 packets transmitted, 3 received"), "{ping}");

    // The VTEP gets its own route.
    ip(&lab.leaf, &format!("route add {ROUTE}"));
    assert_eq!(events.wait_for_kind("own-route")["vtep"], "10.0.0.2");
    wait_for("no VTEP by default", || by_default(&vtepd).0 == 0);
    pass();
    let before = by_default(&vtepd).1;
    pass();
    assert_eq!(by_default(&vtepd).1, before, "frames by the fabric do not count");
    assert_eq!(warnings(&vtepd.ask(&["status"])["warnings"].to_string()), 0);
    // The route disappears, as if BGP withdrew it.
    ip(&lab.leaf, "route del 10.0.0.2/32");
    events.wait_for_kind("default-route");
    pass();
    assert!(by_default(&vtepd).1 >= before + 100);

    assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
    drop(events);
    let (status, log) = vtepd.terminate();
    assert!(status.success(), "{status}: {log}");
    pass();
    streams.into_iter().for_each(Stream::finish_whole);

    // The fabric has lost its carriers, and the route has not been withdrawn yet.
    ip(&lab.leaf, &format!("route add {ROUTE}"));
    let vtepd = Vtepd::start(&lab.leaf, &["--no-fpm"]);
    for router in &lab.routers {
        ip(router, "link set leaf down");
    }
    wait_for("no way to the VTEP", || {
        row(&vtepd.ask(&["route"]), "10.0.0.2")["state"] == "unreachable"
    });
    let seen = Capture::vxlan(&management.ns, TO_LEAF, 4789);
    let pair = Pair::of(&lab.host, &lab.far);
    let no_route = vtepd.metrics().dropped("no_route");
    inject(
        &lab.host.ns,
        ETH,
        &(0..50).map(|n| frames::udp(pair, (n + 1, 9), b"stay")).collect::<Vec<_>>(),
    );
    vtepd.wait_for("drops", |metrics| metrics.dropped("no_route") >= no_route + 50);
    quiet();
    assert_eq!(
        (seen.count(), by_default(&vtepd)),
        (0, (0, 0)),
        "the management network is no way round"
    );
    // The route is withdrawn, and the kernel uses the default route.
    ip(&lab.leaf, "route del 10.0.0.2/32");
    wait_for("the default route", || by_default(&vtepd).0 == 1);
    sockets::ping(&lab.host, lab.far.ip(), 3, 1000, &[]);
    wait_for("the frames of three pings", || seen.count() >= 3 && by_default(&vtepd).1 >= 3);
}
