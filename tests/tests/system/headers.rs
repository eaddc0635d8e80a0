//! Fields of the outer headers that come from the netdev and from the inner frame.

use std::collections::BTreeSet;

use root_test::root_test;
use vtepd_tests::capture::Captured;
use vtepd_tests::frames::{self, Ipv4, Pair, Tunnelled, inject};
use vtepd_tests::lab::{ETH, LEAF, PEER, VNI, bridge, ip, mac_of, remote_mac, sysctl};
use vtepd_tests::{Capture, Lab, Outer, Setup, Vtepd, quiet, sockets, wait_for};
use wire::{Ethernet, Ipv4Packet};

/// Sends one UDP packet with these fields of its IPv4 header from the host, and returns its outer
/// headers on the wire.
fn outer_of(lab: &Lab, tos: u8, ttl: u8, dont_fragment: bool) -> Outer {
    let pair = Pair::of(&lab.host, &lab.far);
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", lab.setup.port));
    let fields = Ipv4 { tos, ttl, dont_fragment, ..Ipv4::default() };
    let frame = frames::ipv4(pair, 17, &frames::datagram(pair, (1, 2), b"inner"), fields);
    inject(&lab.host.ns, ETH, std::slice::from_ref(&frame));
    wait_for("the frame on an uplink", || up[0].count() + up[1].count() > 0);
    let seen: Vec<Captured> = up.into_iter().flat_map(Capture::stop).collect();
    let outer = seen[0].outer(lab.setup.port).unwrap();
    assert_eq!((seen.len(), &outer.inner), (1, &frame));
    outer
}

/// The fields to compare: TOS, TTL, don't-fragment, and whether there is a UDP checksum.
fn facts(outer: &Outer) -> (u8, u8, bool, bool) {
    (outer.tos, outer.ttl, outer.dont_fragment, outer.udp_checksum != 0)
}

#[root_test]
fn l4_the_ttl_is_as_configured_and_one_less_after_a_router() {
    for (options, inner, expected) in
        [("ttl 10", 64, 10), ("ttl 100", 5, 100), ("ttl inherit", 33, 33), ("", 64, 64)]
    {
        let lab = Lab::with("l4", Setup { vxlan: options, ..Setup::default() });
        let kernel = outer_of(&lab, 0, inner, false);
        let _vtepd = Vtepd::start(&lab.leaf, &[]);
        assert_eq!(outer_of(&lab, 0, inner, false).ttl, expected, "'{options}'");
        assert_eq!(kernel.ttl, expected, "'{options}' as the kernel understands it");
        let there = ["up1", "up2"].map(|link| Capture::vxlan(&lab.peer, link, 4789));
        inject(
            &lab.host.ns,
            ETH,
            &[frames::ipv4(
                Pair::of(&lab.host, &lab.far),
                17,
                &[0; 20],
                Ipv4 { ttl: inner, ..Ipv4::default() },
            )],
        );
        wait_for("the frame behind the router", || there[0].count() + there[1].count() > 0);
        let seen: Vec<Captured> = there.into_iter().flat_map(Capture::stop).collect();
        assert_eq!(seen[0].outer(4789).unwrap().ttl, expected - 1);
    }
}

/// The namespace's default TTL applies if the netdev has none. The TTL of vtepd's configuration
/// overrides both.
#[root_test]
fn l4_the_ttl_of_the_namespace_and_of_the_configuration() {
    let lab = Lab::new("l4d");
    sysctl(&lab.leaf, "ipv4/ip_default_ttl", "77");
    assert_eq!(outer_of(&lab, 0, 5, false).ttl, 77);
    {
        let _vtepd = Vtepd::start(&lab.leaf, &[]);
        assert_eq!(outer_of(&lab, 0, 5, false).ttl, 77);
    }
    let _vtepd = Vtepd::start_configured(&lab.leaf, "[vni.10]\nttl = 9\n", &[]);
    assert_eq!(outer_of(&lab, 0, 5, false).ttl, 9);
}

/// L5 and L6: TOS inherited or fixed, ECN copied. As in Linux, inner CE becomes outer ECT(0).
#[root_test]
fn l5_l6_tos_and_ecn_are_what_the_kernel_would_set() {
    for options in ["tos inherit", "", "tos 0x40"] {
        let lab = Lab::with("l5", Setup { vxlan: options, ..Setup::default() });
        let cases = [0x14, 0, 1, 2, 3, 0xb8, 0xba, 0xff];
        let kernel = cases.map(|tos| outer_of(&lab, tos, 64, false).tos);
        let _vtepd = Vtepd::start(&lab.leaf, &[]);
        let ours = cases.map(|tos| outer_of(&lab, tos, 64, false).tos);
        assert_eq!(ours, kernel, "'{options}' for inner {cases:x?}");
        let ecn = ours.map(|tos| tos & 3);
        assert_eq!(ecn[1..5], [0, 1, 2, 2]);
        if options == "tos inherit" {
            assert_eq!((ours[0], ours[5]), (0x14, 0xb8));
        }
    }
}

/// All sixteen cases of RFC 6040 figure 4. Drops are counted.
#[root_test]
fn l7_l8_ecn_on_the_way_in_is_what_the_kernel_would_make_of_it() {
    let lab = Lab::new("l7");
    let to = mac_of(&lab.leaf, "up1");
    let pair = Pair::of(&lab.far, &lab.host);
    let attempt = || {
        let source = pair.from.0.0;
        let arrived =
            Capture::start(&lab.host.ns, ETH, move |frame| frame.get(6..12) == Some(&source[..]));
        let frames: Vec<Vec<u8>> = (0..16_u8)
            .map(|case| {
                let (outer, inner) = (case >> 2, case & 3);
                let datagram = frames::datagram(pair, (case.into(), 7), b"ecn");
                let fields = Ipv4 { tos: 0xb8 | inner, ..Ipv4::default() };
                let inner = frames::ipv4(pair, 17, &datagram, fields);
                let tunnelled = Tunnelled {
                    to,
                    source: PEER,
                    destination: LEAF,
                    port: 4789,
                    vni: VNI,
                    tos: outer,
                    flip: 0,
                };
                tunnelled.frame(&inner)
            })
            .collect();
        inject(&lab.routers[0], "leaf", &frames);
        arrived.wait(15);
        quiet();
        let mut table = vec![None; 16];
        for frame in arrived.stop() {
            let packet = &frame.bytes[Ethernet::LENGTH..];
            let ip = Ipv4Packet::parse(packet).unwrap();
            assert!(ip.checksum_is_right());
            assert_eq!(ip.header.tos() >> 2, 0xb8 >> 2, "the DSCP stays");
            table[usize::from(ip.payload[1])] = Some(ip.header.tos() & 3);
        }
        table
    };
    let kernel = attempt();
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    let ours = attempt();
    assert_eq!(ours, kernel);
    // Outer not-ECT, ECT(1), ECT(0), CE, each with inner not-ECT, ECT(1), ECT(0), CE.
    let expected = [0, 1, 2, 3, 0, 1, 1, 3, 0, 1, 2, 3].map(Some).into_iter().chain([
        None,
        Some(3),
        Some(3),
        Some(3),
    ]);
    assert_eq!(ours, expected.collect::<Vec<_>>());
    // The kernel refuses it and counts it: see refused.rs.
    assert_eq!(vtepd.metrics().dropped("ecn_not_capable"), 0);
}

/// Don't-fragment and UDP checksum follow the netdev.
#[root_test]
fn df_and_udp_checksum_follow_the_netdev() {
    for (options, df, checksum) in [
        ("df unset udpcsum", [false, false], true),
        ("df set noudpcsum", [true, true], false),
        ("df inherit", [true, false], true),
    ] {
        let lab = Lab::with("df", Setup { vxlan: options, ..Setup::default() });
        let kernel = [true, false].map(|inner| facts(&outer_of(&lab, 0, 64, inner)));
        let _vtepd = Vtepd::start(&lab.leaf, &[]);
        let ours = [true, false].map(|inner| facts(&outer_of(&lab, 0, 64, inner)));
        assert_eq!(ours, kernel, "'{options}'");
        assert_eq!(ours, df.map(|df| (0, 64, df, checksum)), "'{options}'");
        // TCP and its super-frames also pass without checksums.
        sockets::tcp_both_ways(&lab.host, &lab.far, 300_000);
    }
}

/// The five-tuple policy uses the netdev's source ports, as the kernel does.
#[root_test]
fn srcport_range_of_the_netdev() {
    let lab = Lab::with("sport", Setup { vxlan: "srcport 40000 40009", ..Setup::default() });
    let pair = Pair::of(&lab.host, &lab.far);
    let ports = || {
        let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", 4789));
        let sent: Vec<Vec<u8>> =
            (0..200).map(|n| frames::udp(pair, (1000 + n, 2000), b"x")).collect();
        inject(&lab.host.ns, ETH, &sent);
        wait_for("all frames", || up[0].count() + up[1].count() >= 200);
        let seen = up.into_iter().flat_map(Capture::stop);
        seen.map(|frame| frame.outer(4789).unwrap().source_port).collect::<BTreeSet<u16>>()
    };
    let all_but_the_last: BTreeSet<u16> = (40000..40009).collect();
    assert_eq!(ports(), all_but_the_last, "the kernel");
    let _vtepd = Vtepd::start(&lab.leaf, &["--policy", "five-tuple"]);
    assert_eq!(ports(), all_but_the_last, "five-tuple");
}

/// Changes of an existing netdev take effect. Options that the kernel cannot change take effect
/// when the netdev is created again.
#[root_test]
fn the_outer_header_follows_the_netdev_live() {
    let lab = Lab::new("live");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    assert_eq!(facts(&outer_of(&lab, 0x14, 64, true)), (0, 64, false, true));
    let generation = |vtepd: &Vtepd| vtepd.metrics().get("vtepd_snapshot_generation");
    let change = |lines: &str| {
        let before = generation(&vtepd);
        ip(&lab.leaf, lines);
        vtepd.wait_for("the change to be published", |m| {
            m.get("vtepd_snapshot_generation") > before
        });
    };
    change("link set vx10 type vxlan id 10 ttl 9 tos inherit df set");
    assert_eq!(facts(&outer_of(&lab, 0x14, 64, false)), (0x14, 9, true, true));
    change("link set vx10 type vxlan id 10 ttl 33 tos 0x20 df inherit");
    assert_eq!(facts(&outer_of(&lab, 0x14, 64, true)), (0x20, 33, true, true));

    // The checksum option of an existing netdev cannot be changed.
    ip(
        &lab.leaf,
        "link del vx10\n\
         link add vx10 mtu 8950 type vxlan id 10 local 10.0.0.1 dstport 4789 nolearning noudpcsum ttl 5\n\
         link set vx10 master br10 up",
    );
    bridge(&lab.leaf, &remote_mac(lab.far.mac(), VNI, PEER));
    vtepd.wait_for("the new netdev", |m| m.find("vtepd_vni_remote_macs{vni=\"10\"}") == Some(1));
    // It is shown before all of its programs are attached. The kernel forwards until then.
    wait_for("a frame by vtepd", || {
        assert_eq!(facts(&outer_of(&lab, 0, 64, false)), (0, 5, false, false));
        vtepd.metrics().vni_frames(VNI, "encapsulated") > 0
    });
}
