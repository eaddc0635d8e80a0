//! TCP super-frames of hosts leave whole inside the tunnel in the `offload` datapath, as with kernel
//! VXLAN. The worker splits them.

use std::collections::BTreeSet;

use pipeline::{Frame, Gso, GsoKind};
use root_test::root_test;
use vtepd_tests::lab::{VNI, run};
use vtepd_tests::{Capture, Lab, Vtepd, quiet, sockets};

/// Bytes in each direction.
const LENGTH: usize = 5_000_000;
/// Maximum length of a segment.
const MTU: usize = 9000;

/// Encapsulated TCP frames from the leaf at the routers.
#[derive(Default)]
struct Heard {
    whole: usize,
    /// Alone, or with others in a UDP super-frame.
    single: usize,
    source_ports: BTreeSet<[u8; 2]>,
    checksums: BTreeSet<bool>,
}

impl Heard {
    fn hear(&mut self, frame: &Frame<'_>) {
        let tunnel = frame.data.get(36..38) == Some(&4789u16.to_be_bytes());
        let tcp = frame.data.get(62..64) == Some(&[8, 0]) && frame.data.get(73) == Some(&6);
        if !tunnel || !tcp {
            return;
        }
        self.source_ports.insert([frame.data[34], frame.data[35]]);
        let is_tcp = |gso: Gso| gso.kind == GsoKind::TcpV4;
        if frame.offload.gso.is_some_and(is_tcp) {
            self.whole += 1;
            self.checksums.insert(frame.data[40..42] != [0, 0]);
            assert_eq!(
                usize::from(u16::from_be_bytes([frame.data[16], frame.data[17]])),
                frame.data.len() - 14
            );
        } else {
            self.single += 1;
        }
    }
}

/// TCP between a host of the leaf and one of the peer in both directions. Returns what the routers
/// received.
fn transfer(lab: &Lab) -> Heard {
    let heard = lab.routers.each_ref().map(|router| {
        Capture::fold(router, "leaf", Heard::default(), |heard: &mut Heard, frame: &Frame<'_>| {
            heard.hear(frame)
        })
    });
    sockets::tcp_both_ways(&lab.host, &lab.far, LENGTH);
    quiet();
    heard.into_iter().map(Capture::stop).fold(Heard::default(), |mut all, one| {
        all.whole += one.whole;
        all.single += one.single;
        all.source_ports.extend(one.source_ports);
        all.checksums.extend(one.checksums);
        all
    })
}

#[root_test]
fn v1_tcp_super_frames_leave_whole_and_arrive_at_a_kernel_and_at_another_vtepd() {
    let lab = Lab::new("whole");
    lab.without_bridge_netfilter();
    let uplinks = |on: &str| {
        for uplink in ["up1", "up2"] {
            run(&lab.leaf, &format!("ethtool -K {uplink} tso {on} gso {on}"));
        }
    };
    const OFFLOAD: &[&str] = &["--datapath", "offload"];
    for (with_peer, arguments, takes, whole) in [
        (false, OFFLOAD, true, true),
        (true, OFFLOAD, true, true),
        // The kernel splits them at the link, inside the tunnel.
        (false, OFFLOAD, false, true),
        (true, OFFLOAD, false, true),
        (false, &["--datapath", "offload", "--hook", "clsact"], true, true),
        (false, &["--datapath", "userspace"], true, false),
        (false, &["--datapath", "userspace", "--no-gso"], true, false),
    ] {
        let peer = with_peer.then(|| Vtepd::start(&lab.peer, arguments));
        let vtepd = Vtepd::start(&lab.leaf, arguments);
        uplinks(if takes { "on" } else { "off" });
        let heard = transfer(&lab);
        let metrics = vtepd.wait_until_idle();
        let case = format!(
            "{arguments:?}, vtepd at the peer: {with_peer}, links take super-frames: {takes}"
        );
        println!("{case}: {} whole, {} single", heard.whole, heard.single);
        assert_eq!(heard.whole > 10, whole && takes, "{case}");
        // Outer UDP checksums are zero, because they cannot be computed for each segment.
        let expected = if whole && takes { &[false][..] } else { &[] };
        assert_eq!(heard.checksums.iter().copied().collect::<Vec<_>>(), expected, "{case}");
        // One connection has one port.
        assert_eq!(heard.source_ports.len(), 1, "{case}");
        assert_eq!(metrics.dropped_in_all(), 0, "{case}:\n{}", metrics.0);
        let segments = metrics.vni_frames(VNI, "encapsulated");
        assert!(segments >= (LENGTH / MTU) as u64, "{case}: counted are segments: {segments}");
        drop(peer);
    }
}

/// Over uplinks with an impairing queueing discipline every frame leaves alone, so that each can be
/// lost or delayed.
#[root_test]
fn v1_tcp_super_frames_are_cut_for_impaired_uplinks() {
    let lab = Lab::new("whimp");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    for uplink in ["up1", "up2"] {
        run(&lab.leaf, &format!("tc qdisc replace dev {uplink} root pfifo limit 10000"));
    }
    quiet();
    let heard = transfer(&lab);
    assert!(heard.single > LENGTH / MTU, "{} single", heard.single);
    assert_eq!(heard.whole, 0);
    assert_eq!(vtepd.wait_until_idle().dropped_in_all(), 0);
}
