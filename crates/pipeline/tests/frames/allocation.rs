//! No memory allocation per frame.

use std::time::{Duration, Instant};

use crate::common::{self, HOST, Leaf, Owned, SOURCE, Worker, bth, roce, tcp, udp4, udp6};
use frames::counting::{Counting, allocations};
use pipeline::{Batch, Cursor, GsoKind, TxBatch};
use tables::Learning;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn q19_no_allocation_per_frame() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1]))), 1, "the counter counts");

    let mut leaf = Leaf::one();
    leaf.tunnel.udp_checksum = true;
    let (here, there) = (leaf.snapshot(), Leaf::two().snapshot());
    let mut flooded = roce(1, 1);
    flooded[..6].fill(0xff);
    let mut left = tcp(false, 0, &[1; 777]);
    common::leave_to_card(&mut left, 34, 16);
    let frames = [
        Owned::tagged(roce(1, 1)),
        Owned::tagged(flooded),
        Owned::tagged(udp6(2, b"x")),
        Owned::tagged(left).partial(34, 16),
        Owned::tagged(tcp(false, 0, &[1; 20_000])).gso(GsoKind::TcpV4, 1_448),
        Owned::tagged(udp4(0, 1, 4791, &bth(1, 1, 5_000))).gso(GsoKind::Udp, 1_000),
        Owned::tagged(common::sctp().0).partial(34, 8),
        Owned::tagged(vec![]),
        Owned::plain(vec![0; 60]),
    ];
    let mut one = Worker::new();
    let sent: Vec<_> = one.encapsulate(&frames, &here).into_iter().map(Owned::plain).collect();
    let mut incoming = Batch::new(sent.len());
    for frame in &sent {
        // The peer's device has verified the checksum.
        let mut frame = frame.frame();
        frame.offload.checksum = pipeline::Checksum::Valid;
        assert!(incoming.push(frame));
    }
    let mut two = Worker::new();
    let now = Instant::now();
    // The first round allocates the buffers that later rounds reuse.
    for round in 0..4 {
        let made = allocations(|| {
            one.out.clear();
            one.pipeline.encapsulate(&one.batch, &here, now, &mut one.out);
            for transmit in &one.out {
                one.pipeline.account_frame(transmit, Ok(()));
            }
            two.out.clear();
            two.pipeline.decapsulate(&incoming, &there, now, &mut two.out);
            for transmit in &two.out {
                two.pipeline.account_frame(transmit, Ok(()));
            }
        });
        // One copy of the flooded frame is for leaf 3.
        assert!(one.out.len() > 20 && two.out.len() == one.out.len() - 1);
        if round > 0 {
            assert_eq!(made, 0, "round {round}");
        }
    }
}

/// No allocation per frame with learning either. Known addresses are refreshed, one moves back and
/// forth, and every frame brings a new one.
#[test]
fn q19_no_allocation_per_frame_with_learning() {
    const AGEING: Duration = Duration::from_secs(4);
    let sender = Leaf::one().snapshot();
    let learning = Learning { ifindex: 11, ageing: Some(AGEING), fixed: Default::default() };
    let leaf = |source: u32| {
        let fdb = vec![(SOURCE, source)];
        Leaf { learning: Some(learning.clone()), fdb, ..Leaf::two() }.snapshot()
    };
    let (here, elsewhere) = (leaf(0), leaf(1));
    let stranger = |number: u32| {
        let mut frame = roce(number, 1);
        frame[6..12].copy_from_slice(&[2, 9, 0, 0, 0, number as u8]);
        Owned::tagged(frame)
    };
    let strangers: Vec<_> = (0..32).map(stranger).collect();
    let known: Vec<_> = (0..32).map(|number| Owned::tagged(roce(number, 1))).collect();
    let sent = Worker::new().encapsulate(&[known, strangers].concat(), &sender);
    let mut incoming = Batch::new(sent.len());
    let sent: Vec<_> = sent.into_iter().map(Owned::plain).collect();
    for frame in &sent {
        assert!(incoming.push(frame.frame()));
    }
    let mut worker = Worker::new();
    let (mut now, mut reports) = (Instant::now(), 0);
    for round in 0..40 {
        let snapshot = if round % 8 == 7 { &elsewhere } else { &here };
        let made = allocations(|| {
            worker.out.clear();
            worker.pipeline.decapsulate(&incoming, snapshot, now, &mut worker.out);
            reports += worker.pipeline.learned().filter(|learned| learned.mac.0 == SOURCE).count();
        });
        assert_eq!(worker.out.len(), 64);
        // The first round allocates the buffers that later rounds reuse.
        assert!(round == 0 || made == 0, "{made} in round {round}");
        now += AGEING / Learning::REFRESHES;
    }
    assert!(reports >= 39, "{reports}: every round refreshes it, or says that it has moved");
}

/// The frames of one round, in batches of the size that a ring delivers.
type Batches = Vec<Batch<'static>>;

/// Largest number of frames in a batch.
const BATCH: usize = 64;

fn batches(frames: &[Owned]) -> Batches {
    let fill = |frames: &[Owned]| {
        let mut batch = Batch::new(BATCH);
        assert!(frames.iter().all(|frame| batch.push(common::leaked(frame))));
        batch
    };
    frames.chunks(BATCH).map(fill).collect()
}

/// Frames from hosts: all lengths and kinds, single frames and super-frames, of 500 flows each.
fn from_hosts() -> Vec<Owned> {
    let mut frames = Vec::new();
    for flow in 0..500_u32 {
        let (length, port) = (flow as usize * 17, 10_000 + flow as u16);
        frames.push(Owned::tagged(roce(flow, flow)));
        frames.push(Owned::tagged(udp4(0, port, 4791, &bth(flow, 1, length))));
        frames.push(Owned::tagged(udp4(0, port, 7, &vec![1; length])));
        frames.push(Owned::tagged(udp6(2, &vec![1; length])));
        let mut single = tcp(flow % 2 == 1, 0x10, &vec![1; length.min(1_448)]);
        let l4 = if flow % 2 == 1 { 54 } else { 34 };
        single[l4..l4 + 2].copy_from_slice(&port.to_be_bytes());
        common::leave_to_card(&mut single, l4, 16);
        frames.push(Owned::tagged(single).partial(l4, 16));
    }
    for flow in 0..500_u32 {
        let port = 20_000 + flow as u16;
        let mut stream = tcp(false, 0x10, &vec![1; 2_000 + 100 * flow as usize]);
        stream[34..36].copy_from_slice(&port.to_be_bytes());
        common::leave_to_card(&mut stream, 34, 16);
        frames.push(Owned::tagged(stream).partial(34, 16).gso(GsoKind::TcpV4, 1_448));
        let mut datagrams = udp4(0, port, 4791, &bth(flow, 1, 1_500 + 100 * flow as usize));
        common::leave_to_card(&mut datagrams, 34, 6);
        frames.push(Owned::tagged(datagrams).partial(34, 6).gso(GsoKind::Udp, 1_000));
    }
    frames
}

/// The frames of each group as the kernel receives them.
fn joined(out: &TxBatch, batch: &Batch<'_>) -> Vec<Owned> {
    let groups = out.groups().list.iter();
    groups
        .map(|group| Owned { data: out.to_vec(group, batch), vlan: None, offload: group.offload })
        .collect()
}

/// No allocation with many flows of all sizes, in both directions, with and without super-frames,
/// while tables change. `VTEPD_FRAMES` sets the number of frames.
#[test]
fn q19_no_allocation_with_many_flows_and_sizes() {
    const PORT: u32 = 8;
    let wanted = std::env::var("VTEPD_FRAMES")
        .ok()
        .map_or(50_000, |frames| frames.parse().expect("a number of frames"));
    let leaf = |mut leaf: Leaf, generation| {
        leaf.tunnel.udp_checksum = true;
        Leaf { generation, ..leaf }.snapshot()
    };
    let here = [1, 2].map(|generation| leaf(Leaf::one(), generation));
    let hosts = vec![(HOST, PORT)];
    let there =
        [1, 2].map(|generation| leaf(Leaf { hosts: hosts.clone(), ..Leaf::two() }, generation));
    let from_hosts = batches(&from_hosts());
    // What a peer receives: separate segments, and groups of one flow.
    let (mut peer, mut carried) = (Worker::new(), Vec::new());
    for batch in &from_hosts {
        for grouping in [false, true] {
            peer.pipeline.set_grouping(grouping);
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                peer.out.clear();
                let now = Instant::now();
                next = peer.pipeline.encapsulate_part(batch, from, &here[0], now, &mut peer.out);
                carried.extend(joined(&peer.out, batch));
            }
        }
    }
    let carried = batches(&carried);
    // Workers as the daemon configures them, with and without `gso = false`.
    let [mut together, mut alone] = [true, false].map(|together| {
        let (mut one, mut two) = (Worker::new(), Worker::new());
        if together {
            one.pipeline.set_grouping(true);
        }
        two.pipeline.open_ports(&[common::open_port(PORT)]);
        (one, two)
    });
    let (mut now, mut frames) = (Instant::now(), 0);
    for round in 0.. {
        let before = frames;
        let made = allocations(|| {
            for (one, two) in [&mut together, &mut alone] {
                for batch in &from_hosts {
                    let mut next = Some(Cursor::default());
                    while let Some(from) = next {
                        one.out.clear();
                        let snapshot = &here[round % 2];
                        next =
                            one.pipeline.encapsulate_part(batch, from, snapshot, now, &mut one.out);
                        frames += leave(one);
                    }
                    now += Duration::from_micros(10);
                }
                for batch in &carried {
                    let mut next = Some(Cursor::default());
                    while let Some(from) = next {
                        two.out.clear();
                        let snapshot = &there[round % 2];
                        next =
                            two.pipeline.decapsulate_part(batch, from, snapshot, now, &mut two.out);
                        frames += leave(two);
                    }
                    two.pipeline.handed_in(now, now);
                    now += Duration::from_micros(10);
                }
            }
        });
        assert!(frames - before > 10_000, "{} frames in round {round}", frames - before);
        // The first round allocates the buffers that later rounds reuse.
        assert!(round == 0 || made == 0, "{made} in round {round}");
        if frames >= wanted && round > 1 {
            println!("{frames} frames in {} rounds", round + 1);
            break;
        }
    }
    for worker in [together.0, together.1, alone.0, alone.1] {
        assert_eq!(worker.pipeline.counters().dropped_in_all(), 0);
    }
}

/// Accounts for frames like sockets that accept all of them. Returns their number.
fn leave(worker: &mut Worker) -> u64 {
    let groups = worker.out.groups_mut();
    groups.list.iter_mut().for_each(|group| group.outcome = Ok(()));
    worker.pipeline.account(&worker.out);
    let groups = worker.out.groups();
    let frames = groups.list.iter().flat_map(|group| worker.out.members(group));
    frames.map(|frame| u64::from(frame.segments)).sum()
}
