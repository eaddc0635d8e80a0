//! Frames in memory through the code that a worker runs; some results are compared with captures.
//!
//! `VTEPD_UPDATE_CAPTURES=1` rewrites the captures in `tests/captures`.

#![cfg(test)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use frame::{Frame, Offload, VlanTag};
use frames::leaf::{Leaf, host, roce};
use pipeline::gso::packets;
use pipeline::{Counters, Pipeline};
use ports::{MemoryPort, SentFrame};
use tables::Snapshot;
use worker::{Forwarder, Ports};

/// Frames of the first VNI arrive from the bridge with this tag.
const TAG: VlanTag = VlanTag { tpid: 0x88a8, tci: 1 };

/// Hosts' frames of all lengths: RoCE, RoCE to an unknown host, broadcast ARP, and a runt.
fn from_hosts() -> Vec<Vec<u8>> {
    let mut frames: Vec<_> =
        (0..40).map(|n| roce(64 + n as usize * 20, 0x100 + n % 7, n).unwrap()).collect();
    let mut unknown = roce(100, 0x200, 0).unwrap();
    unknown[5] = 0xee;
    let mut arp = vec![0xff; 6];
    arp.extend(host(0).0);
    arp.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.resize(60, 0);
    frames.extend([unknown, arp, vec![0; 13]]);
    frames
}

fn pipeline(grouping: bool) -> (Pipeline, Arc<Counters>) {
    let counters = Arc::new(Counters::new());
    let mut pipeline = Pipeline::new(Arc::clone(&counters));
    pipeline.set_grouping(grouping);
    (pipeline, counters)
}

fn assert_balanced(counters: &Counters) {
    let received = counters.underlay_received.get() + counters.bridge_received.get();
    let out = counters.sent.get() + counters.dropped_in_all() + counters.held.get();
    assert_eq!(received + counters.copies.get(), out);
}

/// The file of this name, which is first rewritten with `written` if that is asked for.
fn capture(name: &str, written: &[u8]) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
    if std::env::var_os("VTEPD_UPDATE_CAPTURES").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(path).unwrap()
}

/// A capture file of these frames (pcap-savefile(5)). The time stamp of each is its number in
/// microseconds.
fn file(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut file: Vec<u8> = words(&[0xa1b2_c3d4, 0x0002_0004, 0, 0, 0x0004_0000, 1]);
    for (number, frame) in (0..).zip(frames) {
        let length = frame.len() as u32;
        file.extend::<Vec<u8>>(words(&[0, number, length, length]));
        file.extend(frame);
    }
    file
}

/// A port at which these frames arrive, with a tag beside their bytes.
fn port(frames: &[Vec<u8>], vlan: Option<VlanTag>) -> MemoryPort<'_> {
    let offload = Offload::default();
    MemoryPort::new(frames.iter().map(move |data| Frame { data, vlan, offload }))
}

/// What the uplinks, the bridge and the hosts send when these frames arrive, and the counters.
fn replay(
    snapshot: &Snapshot,
    bridge: &[Vec<u8>],
    underlay: &[Vec<u8>],
) -> ([Vec<Vec<u8>>; 3], Arc<Counters>) {
    let ports = Ports {
        underlay: port(underlay, None),
        bridge: port(bridge, Some(TAG)),
        uplinks: port(&[], None),
        hosts: port(&[], None),
    };
    let (pipeline, counters) = pipeline(false);
    let mut forwarder = Forwarder::<_, MemoryPort<'_>>::new(ports, Vec::new(), pipeline);
    let now = Instant::now();
    while forwarder.from_bridge(snapshot, now, |_| {}).unwrap() > 0 {}
    while forwarder.from_underlay(snapshot, now, |_| {}).unwrap() > 0 {}
    let Ports { bridge, uplinks, hosts, .. } = forwarder.ports_mut();
    let sent = [uplinks, bridge, hosts].map(MemoryPort::take_sent);
    (sent.map(|sent| sent.iter().flat_map(|sent| packets(&sent.frame())).collect()), counters)
}

/// What hosts send is encapsulated, and the peer that receives it gives the same frames to its
/// bridge. Both results are compared with captures, byte by byte.
#[test]
fn frames_of_hosts_give_the_same_captures() {
    let same = |name, frames: &[Vec<u8>]| {
        let written = file(frames);
        assert_eq!(written, capture(name, &written), "{name}");
    };
    let (leaf, hosts) = (Leaf::default(), from_hosts());
    assert_eq!(hosts.len(), 43);
    same("hosts.pcap", &hosts);
    let ([uplinks, bridge, _], counters) = replay(&leaf.snapshot().unwrap(), &hosts, &[]);
    same("uplinks.pcap", &uplinks);
    assert_eq!(bridge.len(), 0);
    assert_eq!((counters.sent.get(), counters.dropped_in_all()), (42, 1), "the runt");
    assert_balanced(&counters);

    let ([back, bridge, _], counters) = replay(&leaf.peer().unwrap(), &[], &uplinks);
    same("bridge.pcap", &bridge);
    assert_eq!(back.len(), 0);
    assert_balanced(&counters);
    let untagged = |frame: &Vec<u8>| [&frame[..12], &frame[16..]].concat();
    let arrived: Vec<_> = bridge.iter().map(untagged).collect();
    assert_eq!(arrived, hosts[..42], "unchanged and in order");
}

/// Two leaves in memory: what the uplinks of one send is what the other receives, with checksums
/// and segmentation left to the link.
#[test]
fn frames_pass_two_leaves_in_memory() {
    let leaf = Leaf::default();
    let sent: Vec<_> = (0..200).map(|n| roce(200, 0x100 + n % 3, n).unwrap()).collect();
    let ports = Ports {
        underlay: MemoryPort::new([]),
        bridge: MemoryPort::new(sent.iter().map(|data| Frame {
            data: data.as_slice(),
            vlan: Some(TAG),
            offload: Offload::default(),
        })),
        uplinks: MemoryPort::new([]),
        hosts: MemoryPort::new([]),
    };
    let (near, counters) = pipeline(true);
    let mut near = Forwarder::<_, MemoryPort<'_>>::new(ports, Vec::new(), near);
    let (snapshot, now) = (leaf.snapshot().unwrap(), Instant::now());
    let mut batches = 0;
    while near.from_bridge(&snapshot, now, |frames| assert!(frames <= 64)).unwrap() > 0 {
        batches += 1;
    }
    assert_eq!(batches, 4, "64 frames at a time");
    assert_balanced(&counters);
    let on_the_wire = near.ports_mut().uplinks.take_sent();
    assert_eq!(on_the_wire.len(), 200, "without an outer checksum each leaves alone");

    let ports = Ports {
        underlay: MemoryPort::new(on_the_wire.iter().map(SentFrame::frame)),
        bridge: MemoryPort::new([]),
        uplinks: MemoryPort::new([]),
        hosts: MemoryPort::new([]),
    };
    let (far, counters) = pipeline(true);
    let mut far = Forwarder::<_, MemoryPort<'_>>::new(ports, Vec::new(), far);
    let snapshot = leaf.peer().unwrap();
    while far.from_underlay(&snapshot, now, |_| {}).unwrap() > 0 {}
    assert_balanced(&counters);
    assert_eq!((counters.sent.get(), counters.dropped_in_all()), (200, 0));
    let sent = far.ports_mut().bridge.take_sent();
    assert_eq!(sent.len(), 200);
    assert!(sent.iter().all(|frame| frame.data.len() == 200 + frame::PUNT_TAG), "each has a tag");
}
