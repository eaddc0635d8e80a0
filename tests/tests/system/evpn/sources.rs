//! The sources of vtepd's tables: FPM and rtnetlink, on leaves that offer both or only rtnetlink.

use fabric::arp::announce;
use fabric::process::wait_until;
use root_test::root_test;

use super::dump::{replayed, shown};
use super::fixture::{ScaleAcross, TIMEOUT, frr};
use super::hosts::host;
use super::stream::Stream;
use super::tables::agree;

/// leaf1 offers FPM, leaf2 does not. Both have the same entries. On leaf2, vtepd logs that FPM is
/// missing and how to enable it.
fn sources_are_as_the_leaf_is_configured(fabric: &ScaleAcross) {
    let (with, without) = (fabric.vtepd("leaf1"), fabric.vtepd("leaf2"));
    for vtepd in [&with, &without] {
        assert!(vtepd.metrics().is_state("kernel", "live"));
        vtepd.wait_for_peers(10010, 5, 5);
    }
    assert_eq!(with.metrics().peers(10020), (Some(1), Some(5)), "store4");
    assert_eq!(without.metrics().peers(10020), (Some(2), Some(5)), "store1 and store4");
    with.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    assert!(with.log().contains("FPM is connected"), "{}", with.log());

    // A new MAC address reaches both.
    let speaker = host(fabric, "host5");
    fabric.run("host5", "ip link set eth1 address 02:00:00:00:05:77");
    speaker.namespace.enter(|| announce("eth1")).unwrap().unwrap();
    with.wait_for_peers(10010, 6, 5);
    without.wait_for_peers(10010, 6, 5);

    // Both use both uplinks and both spines to the other data centre.
    for (vtepd, sender) in [(&with, "host1"), (&without, "host2")] {
        let receiver = host(fabric, "host4");
        let sender = host(fabric, sender);
        let stream =
            Stream::start(&sender.namespace, (&receiver.namespace, receiver.address), 2000);
        stream.goes_on(500);
        stream.finish_whole("both uplinks");
        let metrics = vtepd.metrics();
        assert!(metrics.sent_by("up1") > 50 && metrics.sent_by("up2") > 50, "{}", metrics.0);
    }

    without.wait_for_log("zebra has not connected by FPM: everything comes from rtnetlink alone");
    let log = without.log();
    for hint in ["-M dplane_fpm_nl", "fpm address 127.0.0.1", "no fpm use-next-hop-groups"] {
        assert!(log.contains(hint), "{log}");
    }
    assert!(without.metrics().is_state("fpm", "disconnected"));
    assert!(!with.log().contains("has not connected"), "{}", with.log());

    // After a restart zebra connects again. No MAC address is missing, although FPM does not replay
    // them.
    with.stop();
    let again = fabric.vtepd("leaf1");
    assert_eq!(again.metrics().peers(10010), (Some(6), Some(5)));
    again.wait_for("zebra's FPM again", |metrics| metrics.is_state("fpm", "live"));
    assert_eq!(again.metrics().peers(10010), (Some(6), Some(5)));
}

/// F13: zebra's replay to an FPM client equals its `show ip route`, next hop by next hop. leaf5 has
/// FRR's default for next-hop objects; without them in the kernel, zebra sends routes with groups
/// that it never sent.
fn the_replay_is_show_ip_route(fabric: &ScaleAcross) {
    for (change, groups) in
        [("fpm use-next-hop-groups", true), ("no fpm use-next-hop-groups", false)]
    {
        fabric.node("leaf5").run(&["vtysh", "-c", "configure terminal", "-c", change]).unwrap();
        let (routes, objects) = replayed(fabric, "leaf5");
        assert_eq!(objects, groups, "{change}");
        assert_eq!(routes, shown(fabric, "leaf5"), "{change}");
        assert!(routes.values().any(|gateways| gateways.len() == 2), "{routes:#?}");
    }
}

/// zebra sends routes with next-hop groups and then without. The same frames take both uplinks.
/// When an uplink goes down, all frames take the other one, although zebra's groups do not change.
fn routes_come_with_and_without_next_hop_groups(fabric: &ScaleAcross) {
    let (sender, receiver) = (host(fabric, "host5"), host(fabric, "host2"));
    let vtepd = fabric.vtepd("leaf5");
    vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));
    for change in ["fpm use-next-hop-groups", "no fpm use-next-hop-groups"] {
        // zebra closes the connection and connects again.
        let connections = |log: &str| log.matches("FPM is connected").count();
        let before = connections(&vtepd.log());
        fabric.node("leaf5").run(&["vtysh", "-c", "configure terminal", "-c", change]).unwrap();
        assert!(
            wait_until(TIMEOUT, || connections(&vtepd.log()) > before),
            "{change}: {}",
            vtepd.log()
        );
        vtepd.wait_for("zebra's FPM", |metrics| metrics.is_state("fpm", "live"));

        agree(fabric, "leaf5", &vtepd);
        let sent = || {
            let metrics = vtepd.metrics();
            (metrics.sent_by("up1"), metrics.sent_by("up2"))
        };
        let before = sent();
        let stream =
            Stream::start(&sender.namespace, (&receiver.namespace, receiver.address), 2000);
        stream.goes_on(500);
        let after = sent();
        assert!(
            after.0 > before.0 + 50 && after.1 > before.1 + 50,
            "{change}: {before:?}, {after:?}"
        );

        fabric.run("leaf5", "ip link set up1 down");
        stream.goes_on(200);
        let alone = sent();
        stream.goes_on(500);
        assert_eq!(sent().0, alone.0, "{change}: frames by an uplink that is down");
        fabric.run("leaf5", "ip link set up1 up");
        assert!(
            wait_until(2 * TIMEOUT, || sent().0 > alone.0 + 50),
            "{change}: up1 is not used again"
        );
        stream.finish();
        fabric.converge();
    }
}

#[root_test(needs = frr)]
fn f13_sources_are_as_configured_and_the_replay_is_show_ip_route() {
    let fabric = ScaleAcross::up("evpn-sources");
    the_replay_is_show_ip_route(&fabric);
    sources_are_as_the_leaf_is_configured(&fabric);
    routes_come_with_and_without_next_hop_groups(&fabric);
}
