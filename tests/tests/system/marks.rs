//! The mark by which kernel VXLAN looks up a route for each frame. vtepd sets none where a packet
//! filter may look at it, whatever the reason is why the kernel forwards.

use root_test::root_test;
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, LEAF};
use vtepd_tests::{Capture, Lab, Setup, Vtepd, wait_for};

/// Rules that look at marks, by nftables and by legacy iptables: one that drops, and those of
/// kube-proxy (`pkg/proxy/iptables`). How to take them away.
const READERS: [(&str, &str); 3] = [
    (
        "nft add table ip t
         nft add chain ip t c '{ type filter hook output priority 0; }'
         nft add rule ip t c meta mark != 0 drop",
        "nft delete table ip t",
    ),
    (
        "nft add table ip t
         nft add chain ip t c '{ type nat hook postrouting priority 100; }'
         nft add rule ip t c meta mark and 0x4000 != 0x4000 return
         nft add rule ip t c meta mark set meta mark xor 0x4000
         nft add rule ip t c masquerade fully-random",
        "nft delete table ip t",
    ),
    (
        "iptables-legacy -w -t nat -N KUBE-POSTROUTING
         iptables-legacy -w -t nat -A POSTROUTING -j KUBE-POSTROUTING
         iptables-legacy -w -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
         iptables-legacy -w -t nat -A KUBE-POSTROUTING -j MASQUERADE",
        "iptables-legacy -w -t nat -F POSTROUTING
         iptables-legacy -w -t nat -F KUBE-POSTROUTING
         iptables-legacy -w -t nat -X KUBE-POSTROUTING",
    ),
];

/// Sends frames for the far host. All leave, with the VTEP's address.
fn leave_unchanged(lab: &Lab, case: &str) {
    const FRAMES: u16 = 20;
    let up = lab.routers.each_ref().map(|router| Capture::vxlan(router, "leaf", lab.setup.port));
    let pair = Pair::of(&lab.host, &lab.far);
    let sent: Vec<_> =
        (0..FRAMES).map(|port| frames::udp(pair, (1 + port, 2), b"marked")).collect();
    inject(&lab.host.ns, ETH, &sent);
    wait_for(case, || up.iter().map(Capture::count).sum::<usize>() >= sent.len());
    for captured in up.into_iter().flat_map(Capture::stop) {
        assert_eq!(captured.bytes[26..30], LEAF.octets(), "{case}");
    }
}

#[root_test]
fn packet_filters_do_not_see_marks() {
    for (options, arguments, reason) in
        [("", &["--datapath", "kernel"][..], "kernel-datapath"), ("proxy", &[], "options")]
    {
        let lab = Lab::with("marks", Setup { vxlan: options, ..Setup::default() });
        let marks = |vtepd: &Vtepd| {
            let row = &vtepd.ask(&["vni"])[0];
            assert_eq!(row["reason_slug"], reason, "{row}");
            row["chosen_port"]["route_per_frame"].as_bool().unwrap()
        };
        let vtepd = Vtepd::start(&lab.leaf, arguments);
        assert!(marks(&vtepd), "{reason}: there are two next hops, and nothing reads marks");
        for (set, unset) in READERS {
            let case = format!("{reason}: {set}");
            lab.leaf.run(&["sh", "-ec", set]).unwrap();
            wait_for(&case, || !marks(&vtepd));
            leave_unchanged(&lab, &case);
            lab.leaf.run(&["sh", "-ec", unset]).unwrap();
            wait_for(&case, || marks(&vtepd));
            leave_unchanged(&lab, &case);
        }
    }
}
