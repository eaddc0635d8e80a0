//! The bypass towards hosts: the worker sends decapsulated frames directly to the host port.

use root_test::root_test;
use vtepd_tests::daemon::{Metrics, USERSPACE};
use vtepd_tests::frames::{self, Pair, inject};
use vtepd_tests::lab::{ETH, VNI, ip};
use vtepd_tests::stream::{Rate, Stream};
use vtepd_tests::{Capture, Lab, quiet, sockets};
use wire::MacAddr;

use super::{HOOKS, port, start_with, steering};

const PAST: &str = "vtepd_bypass_delivered_frames_total";
/// One queue pair without a pause, so that every frame that is overtaken counts as reordered.
const DENSE: Rate = Rate { frames: 8000, queue_pairs: 1, payload: 64 };

#[root_test]
fn known_unicast_for_hosts_skips_the_bridge_and_nothing_else_does() {
    for hook in HOOKS {
        let lab = Lab::new("scdeliver");
        let vtepd = start_with(&lab, hook, &USERSPACE);
        sockets::ping(&lab.far, lab.host.ip(), 2, 56, &[]);
        let before = vtepd.wait_until_idle();
        sockets::ping(&lab.far, lab.host.ip(), 20, 1400, &[]);
        sockets::tcp_both_ways(&lab.farther, &lab.host, 3_000_000);
        let after = vtepd.wait_until_idle();
        let past = after.get(PAST) - before.get(PAST);
        let decapsulated =
            after.vni_frames(VNI, "decapsulated") - before.vni_frames(VNI, "decapsulated");
        let by_bridge = steering(&after, "punt_returned") - steering(&before, "punt_returned");
        assert!(past > 20, "{}", after.0);
        assert!(decapsulated - past <= 4, "but ARP: {past} of {decapsulated}");
        assert!(by_bridge <= 4, "{}", after.0);
        assert_eq!(after.dropped_in_all(), 0, "{}", after.0);
        let pair = Pair::of(&lab.far, &lab.host);
        let datagrams: Vec<_> =
            (0..40).map(|number| frames::udp(pair, (1, 2), &[number; 900])).collect();
        let seen = Capture::start(&lab.host.ns, ETH, {
            let datagrams = datagrams.clone();
            move |frame| datagrams.iter().any(|sent| sent == frame)
        });
        inject(&lab.far.ns, ETH, &datagrams);
        seen.wait(datagrams.len());
        let arrived: Vec<_> = seen.stop().into_iter().map(|captured| captured.bytes).collect();
        assert_eq!(arrived, datagrams, "the same bytes, in their order");
        let after = vtepd.wait_until_idle();

        // ARP, broadcast, multicast, a tagged frame and unknown unicast.
        let before = after;
        let to = |mac: [u8; 6]| pair.to_mac(MacAddr(mac));
        let others = [
            frames::ethernet(pair, 0x0806, &[0; 46]),
            frames::udp(to([0xff; 6]), (1, 2), b"to all"),
            frames::udp(to([1, 0, 0x5e, 0, 0, 9]), (1, 2), b"to many"),
            frames::tagged(&frames::udp(pair, (1, 2), b"tagged"), 0x8100, 7),
            frames::udp(to([2, 0, 0, 0, 99, 99]), (1, 2), b"to whom?"),
        ];
        let source = lab.far.mac();
        let seen =
            Capture::start(&lab.host.ns, ETH, move |frame| frame.get(6..12) == Some(&source.0[..]));
        inject(&lab.far.ns, ETH, &others);
        seen.wait(others.len());
        quiet();
        assert_eq!(seen.stop().len(), others.len());
        let after = vtepd.wait_until_idle();
        assert_eq!(after.get(PAST), before.get(PAST), "{}", after.0);

        // A frame that exceeds the port's MTU goes by the bridge, which does with it what it always does.
        const GENERATION: &str = "vtepd_snapshot_generation";
        ip(&lab.leaf, "link set hp10 mtu 1500");
        vtepd.wait_for("the new MTU", |m| m.get(GENERATION) > after.get(GENERATION));
        let frames = |m: &Metrics| m.vni_frames(VNI, "decapsulated");
        inject(&lab.far.ns, ETH, &vec![frames::udp(pair, (1, 2), &[7; 2000]); 3]);
        vtepd.wait_for("long frames", |m| frames(m) == frames(&after) + 3);
        let last = vtepd.wait_until_idle();
        assert_eq!(last.get(PAST), after.get(PAST), "{}", last.0);
    }
}

/// The bypass towards hosts ends and returns repeatedly while streams pass. No frame is lost,
/// duplicated or reordered.
#[root_test]
fn the_way_to_hosts_changes_without_loss_or_reordering() {
    for hook in HOOKS {
        let lab = Lab::new("scchange");
        let vtepd = start_with(&lab, hook, &USERSPACE);
        let streams = [
            Stream::start(&lab.far, &lab.host, DENSE, 0xe1),
            Stream::start(&lab.farther, &lab.next, DENSE, 0xe2),
        ];
        let past = || {
            let before = vtepd.metrics().get(PAST);
            vtepd.wait_for("frames past the bridge", |m| m.get(PAST) > before + 3000);
        };
        past();
        for _ in 0..8 {
            for (away, back) in [
                (
                    "link set hp10 type bridge_slave isolated on",
                    "link set hp10 type bridge_slave isolated off",
                ),
                (
                    "link set vx10 type bridge_slave learning on",
                    "link set vx10 type bridge_slave learning off",
                ),
            ] {
                let bridged = steering(&vtepd.metrics(), "punt_returned");
                ip(&lab.leaf, away);
                vtepd.wait_for("frames by the bridge", |m| {
                    steering(m, "punt_returned") > bridged + 500
                });
                ip(&lab.leaf, back);
                vtepd.wait_for("it to come", |m| port(m, "hp10") == Some(Ok(())));
                past();
            }
        }
        for stream in streams {
            let (sent, report) = stream.finish();
            let bad = (report.lost(), report.duplicated(), report.reordered(), report.corrupted());
            assert_eq!(bad, (0, 0, 0, 0), "{hook}: of {}", sent.frames);
        }
        assert_eq!(vtepd.metrics().dropped_in_all(), 0, "{}", vtepd.metrics().0);
    }
}
