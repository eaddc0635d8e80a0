//! The two ways into the bridge punt pair: directly, and through the backlog like frames that pass
//! the bridge.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bpf::Hook;
use fabric::counters;
use frame::{Batch, Checksum, Destination, Gso, GsoKind, Offload, Payload, TxBatch, TxFrame};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use pipeline::grouping::patch_lengths;
use ports::{PacketSocket, Port as _};
use root_test::root_test;
use worker::Features;

use super::bypass::{FAR, HOST, Port};
use super::{LONG_STALL, Leaf, RingSize, SOON, add, ifindex};

/// Bytes of Ethernet, IPv4 and UDP header.
const HEADERS: usize = 42;
/// Frames that the host's link delivers as one burst.
const BURST: u32 = 32;
const BURSTS: u32 = 2_000;

/// A UDP super-frame. The host's link splits it into frames numbered from `first`.
fn burst(first: u32) -> TxFrame {
    let mut whole = [&FAR.0[..], &HOST.0, &[8, 0]].concat();
    whole.extend([
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 9, 0, 0, 1, 9, 0, 0, 2, 0xc0, 0, 0x12, 0xb7, 0, 0,
        0, 0,
    ]);
    (first..first + BURST)
        .for_each(|number| whole.extend([number.to_be_bytes(); 8].as_flattened()));
    patch_lengths(whole[14..].first_chunk_mut().unwrap(), (32 * BURST) as u16);
    let offload = Offload {
        checksum: Checksum::Partial { start: 34, offset: 6 },
        gso: Some(Gso { kind: GsoKind::Udp, size: 32, ecn: false }),
    };
    TxFrame::new(Destination::Bridge, 0, Payload::Owned(whole.into()), offload)
}

fn numbers(socket: &mut PacketSocket) -> Vec<u32> {
    let number = |frame: &frame::Frame<'_>| {
        let ours = frame.data.get(6..12) == Some(&HOST.0);
        ours.then(|| u32::from_be_bytes(*frame.data[HEADERS..].first_chunk().unwrap()))
    };
    socket.receive().frames().filter_map(number).collect()
}

/// One frame of the host passes the bridge every few milliseconds, also in the middle of a burst.
/// The frames behind it do not overtake it, and most of them take the direct way.
fn no_frame_overtakes_one_that_goes_by_the_bridge(hook: Hook) {
    if !Features::probe().unwrap().udp_super_frames {
        root_test::ignore("AF_PACKET cannot send UDP super-frames");
    }
    // Frames in the backlog of another CPU may be overtaken, as for any sender.
    let mut cpus = CpuSet::new();
    cpus.set(0).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpus).unwrap();
    let mut port = Port::new(&format!("backlog{hook}"), hook, LONG_STALL);
    port.leaf.host.run(&["ethtool", "-K", "eth0", "tx-udp-segmentation", "off"]).unwrap();
    let mut often = port.plan.clone();
    often.ports.get_mut(&port.index).unwrap().refresh = Duration::from_millis(8);
    port.leaf.leaf.enter(|| add(&mut port.steering, &often)).unwrap();
    let Leaf { leaf, host, .. } = &port.leaf;
    let index = ifindex(host, "eth0");
    let mut sender = host.enter(|| PacketSocket::open(index, RingSize::LITTLE).unwrap()).unwrap();
    let by_backlog = || counters::read(leaf).unwrap()["vtepd-bridge"].tx_packets;
    let (before, queued) = (port.steering.counts().unwrap(), by_backlog());
    let mut seen = numbers(&mut port.bridge);
    for first in (0..BURSTS).map(|burst| burst * BURST) {
        let mut out = TxBatch::of([burst(first)]);
        sender.transmit(&Batch::none(), &mut out, 0..1);
        out.outcome().unwrap();
        seen.extend(numbers(&mut port.bridge));
    }
    let rest = Instant::now();
    while rest.elapsed() < SOON && seen.len() < (BURST * BURSTS) as usize {
        seen.extend(numbers(&mut port.bridge));
    }
    let (after, queued) = (port.steering.counts().unwrap(), by_backlog() - queued);
    let all = u64::from(BURST * BURSTS);
    let refreshed = after.port_refreshed - before.port_refreshed;
    assert_eq!(after.port_bypassed - before.port_bypassed + refreshed, all);
    assert!(refreshed >= 3, "{refreshed}");
    assert_eq!(seen.len() as u64, all);
    let overtaken: BTreeSet<u32> =
        seen.windows(2).filter(|pair| pair[1] != pair[0] + 1).map(|pair| pair[1]).collect();
    assert!(overtaken.is_empty(), "{overtaken:?}");
    assert!(
        queued >= refreshed && queued < all / 2,
        "{queued} of {all} by the backlog, {refreshed} by the bridge"
    );
}

#[root_test]
fn no_frame_overtakes_one_that_goes_by_the_bridge_with_tcx_links() {
    no_frame_overtakes_one_that_goes_by_the_bridge(Hook::Tcx);
}

#[root_test]
fn no_frame_overtakes_one_that_goes_by_the_bridge_with_clsact_filters() {
    no_frame_overtakes_one_that_goes_by_the_bridge(Hook::Clsact);
}
