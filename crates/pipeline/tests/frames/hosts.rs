//! Decapsulated frames that bypass the bridge.

use std::time::{Duration, Instant};

use crate::common::{
    self, HOST, Leaf, NETDEV, Owned, SOURCE, Worker, carried, roce, tcp, udp4, udp6, untagged,
};
use pipeline::explain_received::Fate;
use pipeline::{Checksum, Destination, GsoKind, PAUSE, explain_received};
use proptest::prelude::*;
use wire::ecn::Egress;

const PORT: u32 = 8;
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 0x33];

/// A leaf with the host on a port that is open for the bypass.
fn leaf() -> Leaf {
    Leaf { hosts: vec![(HOST, PORT)], ..Leaf::two() }
}

fn worker() -> Worker {
    let mut worker = Worker::new();
    worker.pipeline.open_ports(&[common::open_port(PORT)]);
    worker
}

fn to(mut frame: Vec<u8>, destination: [u8; 6]) -> Vec<u8> {
    frame[..6].copy_from_slice(&destination);
    frame
}

fn destinations(worker: &Worker) -> Vec<Destination> {
    worker.out.iter().map(|sent| sent.to).collect()
}

/// The bypass is explained as it is used.
#[test]
fn an_explanation_shows_the_bypass_where_it_is_used() {
    let inner = [roce(7, 1), to(roce(7, 1), STRANGER), roce(7, 1)[..40].to_vec()];
    let [known, stranger, cut] = carried(&inner, 0).try_into().unwrap();
    let snapshot = leaf().snapshot();
    let open = [common::open_port(PORT)];
    let explained = |frame: &Owned, open: &[_]| {
        explain_received(&frame.frame(), &snapshot, open, Instant::now())
    };
    assert_eq!(explained(&known, &open).fate, Fate::Host { port: PORT, ecn: Some(Egress::Keep) });
    assert_eq!(explained(&known, &[]).fate, Fate::Bridge(Some(Egress::Keep)));
    assert_eq!(explained(&stranger, &open).fate, Fate::Bridge(Some(Egress::Keep)));
    // A frame that the bridge has to look at.
    assert_eq!(explained(&cut, &open).fate, Fate::Bridge(Some(Egress::Keep)));
    let small = [tables::OpenPort { ifindex: PORT, mtu: 60 }];
    assert_eq!(explained(&known, &small).fate, Fate::Bridge(Some(Egress::Keep)));
}

#[test]
fn a_host_gets_the_same_bytes_past_the_bridge() {
    let mut fragment = udp6(2, &[0; 40]);
    fragment[20] = 44;
    let inner = [roce(7, 1), udp4(1, 5, 6, b"capable"), fragment, tcp(false, 0x10, b"data")];
    for ecn in [0, 1, 3] {
        // Twice, because the second time the sender is in the cache.
        let frames = [carried(&inner, ecn), carried(&inner, ecn)].concat();
        let (mut past, mut by) = (worker(), Worker::new());
        let sent = past.decapsulate(&frames, &leaf().snapshot());
        let expected: Vec<_> =
            by.decapsulate(&frames, &leaf().snapshot()).iter().map(|sent| untagged(sent)).collect();
        assert_eq!(sent, expected);
        // A frame that is not ECN-capable is dropped if the outer header has CE.
        assert_eq!(sent.len(), if ecn == 3 { 4 } else { 8 });
        assert!(destinations(&past).iter().all(|to| *to == Destination::Host(PORT)));
        assert!(destinations(&by).iter().all(|to| *to == Destination::Bridge));
        for sent in past.out.iter() {
            past.pipeline.account_frame(sent, Ok(()));
        }
        for sent in by.out.iter() {
            by.pipeline.account_frame(sent, Ok(()));
        }
        past.assert_balance(0);
        let vni = |worker: &Worker| {
            let counted = &worker.pipeline.counters().vni(common::SLOT).unwrap().decapsulated;
            (counted.frames.get(), counted.bytes.get())
        };
        assert_eq!(vni(&past), vni(&by), "the tag is nobody's byte");
        assert_eq!(past.pipeline.counters().past_bridge.get(), sent.len() as u64);
        assert_eq!(by.pipeline.counters().past_bridge.get(), 0);
    }
}

#[test]
fn what_is_left_to_the_link_is_where_it_is_without_a_tag() {
    let inner = tcp(false, 0x10, b"data");
    let mut frame = carried(std::slice::from_ref(&inner), 0).remove(0);
    frame = frame.partial(50 + 34, 16);
    let mut worker = worker();
    assert_eq!(worker.decapsulate(&[frame], &leaf().snapshot()), [inner]);
    assert_eq!(worker.out[0].to, Destination::Host(PORT));
    assert_eq!(worker.out[0].offload.checksum, Checksum::Partial { start: 34, offset: 16 });
}

#[test]
fn what_only_the_bridge_can_do_goes_there() {
    let arp = [&HOST[..], &SOURCE, &[8, 6], &[0; 28]].concat();
    let mut echo = udp6(0, b"not UDP");
    echo[20] = 58;
    let mut hidden = udp6(0, b"not UDP");
    hidden[20] = 0;
    let tagged = [&roce(1, 1)[..12], &[0x81, 0, 0, 5], &roce(1, 1)[12..]].concat();
    let elsewhere =
        [STRANGER, [0xff; 6], [1, 0, 0x5e, 0, 0, 1], NETDEV].map(|mac| to(roce(1, 1), mac));
    let inner = [&[arp, echo, hidden, tagged][..], &elsewhere].concat();
    let (mut with, snapshot) = (worker(), leaf().snapshot());
    assert_eq!(with.decapsulate(&carried(&inner, 0), &snapshot).len(), inner.len());
    assert!(destinations(&with).iter().all(|to| *to == Destination::Bridge));
    assert!(!with.pipeline.is_unsettled());

    // Ports that are not open, or no longer.
    let (frame, mut worker) = (carried(&[roce(1, 1)], 0), Worker::new());
    for (open, expected) in [
        (&[][..], Destination::Bridge),
        (&[PORT + 1], Destination::Bridge),
        (&[PORT + 1, PORT], Destination::Host(PORT)),
        (&[], Destination::Bridge),
    ] {
        worker.pipeline.settle();
        let open: Vec<_> = open.iter().copied().map(common::open_port).collect();
        worker.pipeline.open_ports(&open);
        worker.decapsulate(&frame, &snapshot);
        assert_eq!(destinations(&worker), [expected], "{open:?}");
    }
}

/// With br_netfilter, the bridge fragments frames that are too long for a port.
#[test]
fn frames_above_port_mtu_use_the_bridge_in_order() {
    let (fits, longer) = (udp4(1, 5, 6, &[0; 100]), udp4(1, 5, 6, &[0; 101]));
    let (mut worker, snapshot) = (Worker::new(), leaf().snapshot());
    let mtu = (fits.len() - 14) as u32;
    worker.pipeline.open_ports(&[tables::OpenPort { ifindex: PORT, mtu }]);
    worker.decapsulate(&carried(&[fits.clone(), longer, fits.clone()], 0), &snapshot);
    assert_eq!(
        destinations(&worker),
        [Destination::Host(PORT), Destination::Bridge, Destination::Bridge]
    );
    worker.pipeline.settle();
    worker.decapsulate(&carried(&[fits], 0), &snapshot);
    assert_eq!(destinations(&worker), [Destination::Host(PORT)]);
    let super_frame = carried(&[tcp(false, 0x10, &[0; 300])], 0).remove(0);
    worker.decapsulate(&[super_frame.partial(50 + 34, 16).gso(GsoKind::TcpV4, 50)], &snapshot);
    assert_eq!(destinations(&worker), [Destination::Host(PORT)], "its segments fit");
}

/// With br_netfilter, the bridge drops or trims these packets.
#[test]
fn malformed_packets_go_by_the_bridge_and_what_follows_stays_behind_them() {
    let change = |at: usize, value: u8, sum: bool| {
        let mut frame = roce(1, 1);
        frame[at] = value;
        if sum {
            frame[24..26].fill(0);
            let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
            frame[24..26].copy_from_slice(&sum);
        }
        frame
    };
    let mut six = udp6(2, b"six");
    six[14] = 0x46;
    let mut longer = udp6(2, b"six");
    longer[19] += 1;
    let malformed = [
        change(14, 0x65, true),
        change(14, 0x44, true),
        change(14, 0x46, true),
        change(16, 0x70, true),
        change(17, 20, true),
        change(22, 1, false),
        [roce(1, 1), vec![0; 3]].concat(),
        [udp6(2, b"six"), vec![0; 3]].concat(),
        six,
        longer,
    ];
    let snapshot = leaf().snapshot();
    for (number, frame) in malformed.into_iter().enumerate() {
        let mut worker = worker();
        worker.decapsulate(&carried(&[roce(1, 1), frame.clone(), roce(1, 1)], 0), &snapshot);
        let expected = [Destination::Host(PORT), Destination::Bridge, Destination::Bridge];
        assert_eq!(destinations(&worker), expected, "{number}");
    }
}

/// Frames one millisecond apart. The bypass starts after a pause, or after the worker has paused.
#[test]
fn the_first_frame_past_the_bridge_leaves_after_those_by_it_have() {
    let frame = carried(&[roce(1, 1)], 0);
    let (unknown, known) = (Leaf::two().snapshot(), leaf().snapshot());
    let (mut worker, start) = (worker(), Instant::now());
    let mut at = |milliseconds: u64, snapshot| {
        worker.decapsulate_at(&frame, snapshot, start + Duration::from_millis(milliseconds));
        (worker.out[0].to == Destination::Host(PORT), worker.pipeline.is_unsettled())
    };
    assert_eq!(at(0, &unknown), (false, false));
    let pause = PAUSE.as_millis() as u64;
    for next in 1..20 {
        assert_eq!(at(next, &known), (false, true), "others of its kind are on their way");
    }
    assert_eq!(at(19 + pause - 1, &known), (false, true));
    assert_eq!(at(19 + 2 * pause, &known), (true, false), "there was a pause");
    assert_eq!(at(60, &known), (true, false));
    assert_eq!(at(60, &unknown), (false, false));
    assert_eq!(at(61, &known), (false, true));
    worker.pipeline.settle();
    let mut at = |milliseconds: u64, snapshot| {
        worker.decapsulate_at(&frame, snapshot, start + Duration::from_millis(milliseconds));
        worker.out[0].to == Destination::Host(PORT)
    };
    assert!(at(61 + pause, &known), "a pause was made");
    assert!(!at(62 + pause, &unknown));
    assert!(!at(63 + pause, &known), "it was before that");
}

/// Batches that take long to send, ports that are opened, and frames that the kernel forwarded.
#[test]
fn what_went_by_the_bridge_counts_from_when_it_was_sent_whoever_sent_it() {
    let frame = carried(&[roce(1, 1)], 0);
    let (unknown, known) = (Leaf::two().snapshot(), leaf().snapshot());
    let (mut worker, start) = (worker(), Instant::now());
    let at = |worker: &mut Worker, milliseconds: u64, snapshot| {
        worker.decapsulate_at(&frame, snapshot, start + Duration::from_millis(milliseconds));
        worker.out[0].to == Destination::Host(PORT)
    };
    assert!(!at(&mut worker, 0, &unknown));
    worker.pipeline.handed_in(start, start + Duration::from_millis(50));
    assert!(!at(&mut worker, 51, &known), "it was sent a millisecond ago");
    worker.pipeline.handed_in(start + Duration::from_millis(51), start + Duration::from_millis(60));
    assert!(at(&mut worker, 66, &known));
    worker.pipeline.others_sent(start + Duration::from_millis(80));
    assert!(!at(&mut worker, 81, &known));
    assert!(at(&mut worker, 90, &known));
    // While no port was open, frames through the bridge were not recorded.
    worker.pipeline.open_ports(&[]);
    assert!(!at(&mut worker, 100, &known));
    worker.pipeline.open_ports(&[common::open_port(PORT)]);
    assert!(!at(&mut worker, 101, &known));
    assert!(at(&mut worker, 110, &known));
    // A host that uses the bypass does not hide that another waits for a pause.
    let other = carried(&[to(roce(1, 1), [2, 0, 0, 0, 1, 1])], 0);
    let both =
        Leaf { hosts: vec![(HOST, PORT), ([2, 0, 0, 0, 1, 1], PORT)], ..Leaf::two() }.snapshot();
    worker.decapsulate_at(&other, &known, start + Duration::from_millis(111));
    worker.decapsulate_at(&other, &both, start + Duration::from_millis(112));
    assert!(at(&mut worker, 113, &both) && worker.pipeline.is_unsettled());
}

proptest! {
    /// For all changes of addresses: a frame that bypasses the bridge does not closely follow one
    /// that passed it.
    #[test]
    fn no_frame_overtakes_another(
        steps in prop::collection::vec((0u64..8000, any::<bool>(), 0u8..40, prop::bool::weighted(0.05)), 1..200)
    ) {
        let snapshots = [Leaf::two().snapshot(), Leaf {
            hosts: (0..40).map(|last| ([2, 0, 0, 0, 1, last], PORT)).collect(), ..Leaf::two()
        }.snapshot()];
        let frames: Vec<_> =
            (0..40).map(|last| carried(&[to(roce(1, 1), [2, 0, 0, 0, 1, last])], 0).remove(0)).collect();
        let (mut worker, mut now) = (worker(), Instant::now());
        let mut bridged = [None; 40];
        for (wait, known, number, settle) in steps {
            now += Duration::from_micros(wait);
            if settle {
                now += PAUSE;
                worker.pipeline.settle();
                bridged = [None; 40];
            }
            let number = usize::from(number);
            worker.decapsulate_at(&frames[number..=number], &snapshots[usize::from(known)], now);
            match worker.out[0].to {
                Destination::Bridge => bridged[number] = Some(now),
                to => {
                    prop_assert!(known && to == Destination::Host(PORT));
                    prop_assert!(bridged[number].is_none_or(|before| now - before >= PAUSE));
                }
            }
        }
    }
}
