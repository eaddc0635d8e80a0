//! Path policies with state, and such whose choices must not be cached, through the whole pipeline.
//! What a cached choice depends on, and what it does not.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::common::{HOST, Leaf, Owned, SLOT, Worker, bth, hop, udp4};
use path::{Choice, Entropy, Flow, PathId, PathPolicy, Paths, Policy, Remote, Settings, Version};
use pipeline::{Destination, Policies};
use tables::{NextHop, Snapshot, SnapshotBuilder, Ttl, VniIndex, VniTable, Vtep, VtepIndex};
use wire::{Dissection, MacAddr, Vni};

/// One policy for all VNIs.
struct Only<P: PathPolicy> {
    policy: P,
    state: P::State,
}

impl<P: PathPolicy> Policies for Only<P> {
    type Policy = P;

    fn of<'a>(&'a mut self, _: &'a VniTable) -> (&'a P, &'a mut P::State) {
        (&self.policy, &mut self.state)
    }

    fn version(&self) -> Version<Policy> {
        P::version(&self.state)
    }
}

fn flow(frame: &Dissection) -> Flow {
    Flow::of(frame, Policy::QpHash, 0)
}

/// Places each queue pair on the next hop with the fewest of them. It stays there while the next hop
/// is alive.
struct Pin;

#[derive(Default)]
struct Placements {
    /// The paths, by remote VTEP and flow.
    of: HashMap<(IpAddr, Flow), PathId>,
    asked: usize,
    version: Version<Policy>,
}

impl PathPolicy for Pin {
    type State = Placements;

    fn flow(&self, frame: &Dissection) -> Flow {
        flow(frame)
    }

    fn choose<'g>(
        &self,
        flow: &Flow,
        to: &Remote<'g>,
        state: &mut Placements,
    ) -> Option<Choice<'g>> {
        state.asked += 1;
        let key = (to.address, *flow);
        let placed = state.of.get(&key).filter(|path| to.group.find(path.hop).is_some()).copied();
        let path = placed.unwrap_or_else(|| {
            let load =
                |hop: &NextHop| state.of.values().filter(|path| path.hop == hop.identity).count();
            let least = to.group.next_hops().iter().min_by_key(|hop| load(hop)).unwrap();
            PathId { hop: least.identity, source_port: 50_000 + state.of.len() as u16 }
        });
        state.of.insert(key, path);
        let choice = Choice::hashed(path.source_port, to, 0)?;
        Some(Choice { hop: to.group.find(path.hop)?, is_pinned: true, ..choice })
    }

    fn version(state: &Placements) -> Version<Policy> {
        state.version
    }
}

/// Sends the frames of every flow over all next hops in turn.
struct Spray;

impl PathPolicy for Spray {
    type State = usize;

    fn flow(&self, frame: &Dissection) -> Flow {
        flow(frame)
    }

    fn choose<'g>(&self, _: &Flow, to: &Remote<'g>, turn: &mut usize) -> Option<Choice<'g>> {
        *turn += 1;
        let hops = to.group.next_hops();
        let choice = Choice::hashed(50_000 + *turn as u16, to, 0)?;
        let hop = hops.get(*turn % hops.len())?;
        Some(Choice { hop, is_pinned: true, is_cacheable: false, ..choice })
    }
}

/// The policy of the tables, which counts how often it is asked.
struct Counted(Entropy);

#[derive(Default)]
struct Asked {
    times: usize,
    version: Version<Policy>,
}

impl PathPolicy for Counted {
    type State = Asked;

    fn flow(&self, frame: &Dissection) -> Flow {
        self.0.flow(frame)
    }

    fn choose<'g>(&self, flow: &Flow, to: &Remote<'g>, asked: &mut Asked) -> Option<Choice<'g>> {
        asked.times += 1;
        self.0.choose(flow, to, &mut path::Pins::default())
    }

    fn version(asked: &Asked) -> Version<Policy> {
        asked.version
    }
}

fn queue_pair(number: u32) -> Owned {
    Owned::tagged(udp4(0, 49_152, 4791, &bth(number, 1, 64)))
}

/// Sends these frames. Returns the uplink and the source port of each that leaves.
fn send<P: Policies>(
    worker: &mut Worker,
    policies: &mut P,
    snapshot: &Snapshot,
    frames: &[Owned],
) -> Vec<(u32, u16)> {
    worker.fill(frames);
    worker.pipeline.encapsulate_by(
        policies,
        &worker.batch,
        snapshot,
        Instant::now(),
        &mut worker.out,
    );
    sent(worker)
}

fn sent(worker: &Worker) -> Vec<(u32, u16)> {
    let way = |transmit: &pipeline::TxFrame| {
        let Destination::Uplink { ifindex, .. } = transmit.to else { panic!("{:?}", transmit.to) };
        (ifindex, u16::from_be_bytes([transmit.head()[34], transmit.head()[35]]))
    };
    worker.out.iter().map(way).collect()
}

/// Leaf 1 with these uplinks to leaf 2.
fn uplinks(hops: Vec<NextHop>) -> Snapshot {
    let mut leaf = Leaf::one();
    leaf.vteps[0].1 = hops;
    leaf.snapshot()
}

/// The snapshot after this one in which leaf 2 has other next hops.
fn with_hops(before: &Snapshot, vtep: u32, hops: Vec<NextHop>) -> Snapshot {
    let mut builder = SnapshotBuilder::after(before);
    let address = before.vtep(VtepIndex(vtep)).unwrap().address;
    builder.vtep(VtepIndex(vtep), Vtep { address, paths: Arc::new(Paths::new(hops)) });
    builder.build()
}

/// The snapshot after this one, with a change to the table of a VNI.
fn with_table(before: &Snapshot, slot: u16, change: impl FnOnce(&mut VniTable)) -> Snapshot {
    let mut builder = SnapshotBuilder::after(before);
    let mut table = VniTable::clone(before.vni(slot).unwrap());
    change(&mut table);
    builder.vni(Arc::new(table));
    builder.build()
}

#[test]
fn a_policy_with_state_places_every_queue_pair_once_until_its_path_dies() {
    let (mut worker, mut policies) =
        (Worker::new(), Only { policy: Pin, state: Placements::default() });
    let before = uplinks((3..7).map(hop).collect());
    let frames: Vec<_> = (0..32).map(queue_pair).collect();
    let first = send(&mut worker, &mut policies, &before, &frames);
    for uplink in 3..7 {
        assert_eq!(first.iter().filter(|(used, _)| *used == uplink).count(), 8, "{first:?}");
    }
    assert_eq!(policies.state.asked, 32);
    for _ in 0..5 {
        assert_eq!(send(&mut worker, &mut policies, &before, &frames), first);
    }
    assert_eq!(policies.state.asked, 32, "later frames are not asked about");

    let after = with_hops(&before, 0, [3, 4, 6].map(hop).into());
    let moved = send(&mut worker, &mut policies, &after, &frames);
    for (before, after) in first.iter().zip(&moved) {
        assert_ne!(after.0, 5);
        assert!(before == after || before.0 == 5, "{before:?} to {after:?}");
    }
    assert_eq!(policies.state.asked, 64, "the group has another version");
    send(&mut worker, &mut policies, &after, &frames);
    assert_eq!(policies.state.asked, 64);

    // The policy itself moves a queue pair.
    let flow = *policies
        .state
        .of
        .iter()
        .find(|(_, placed)| **placed == PathId { hop: 3, source_port: 50_000 })
        .unwrap()
        .0;
    policies.state.of.insert(flow, PathId { hop: 6, source_port: 60_000 });
    assert_eq!(send(&mut worker, &mut policies, &after, &frames), moved, "not noticed yet");
    policies.state.version = Version::unique();
    let again = send(&mut worker, &mut policies, &after, &frames);
    let differ: Vec<_> = moved.iter().zip(&again).filter(|(a, b)| a != b).collect();
    assert_eq!(differ, [(&(3, 50_000), &(6, 60_000))]);
}

#[test]
fn a_frame_that_waits_leaves_by_the_next_hop_that_the_policy_named() {
    let unresolved = |ifindex| NextHop { destination_mac: None, ..hop(ifindex) };
    let before = uplinks((3..7).map(unresolved).collect());
    let (mut worker, mut policies) =
        (Worker::new(), Only { policy: Pin, state: Placements::default() });
    let frames: Vec<_> = (0..32).map(queue_pair).collect();
    assert_eq!(send(&mut worker, &mut policies, &before, &frames), []);
    let after = with_hops(&before, 0, (3..7).map(hop).collect());
    worker.pipeline.release(&after, Instant::now(), &mut worker.out);
    let released = sent(&worker);
    assert_eq!(released.len(), 32);
    assert_eq!(send(&mut worker, &mut policies, &after, &frames), released);
    assert_eq!(policies.state.asked, 64, "frames that wait are not remembered");
}

#[test]
fn a_choice_that_must_not_be_cached_is_made_for_every_frame() {
    let (mut worker, mut policies) = (Worker::new(), Only { policy: Spray, state: 0 });
    let snapshot = uplinks((3..7).map(hop).collect());
    let frames = vec![queue_pair(1); 40];
    for round in 0..3 {
        let ways = send(&mut worker, &mut policies, &snapshot, &frames);
        for uplink in 3..7 {
            assert_eq!(ways.iter().filter(|(used, _)| *used == uplink).count(), 10, "{ways:?}");
        }
        assert_eq!(policies.state, 40 * (round + 1));
        assert!(ways.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1), "{ways:?}");
    }
}

/// A leaf with two VNIs, and a worker that has sent a frame of one flow.
struct Cached {
    worker: Worker,
    policies: Only<Counted>,
    snapshot: Snapshot,
    asked: usize,
}

const OTHER: u16 = SLOT + 1;

impl Cached {
    fn new() -> Self {
        let leaf = Leaf::one();
        let first = leaf.snapshot();
        let mut builder = SnapshotBuilder::after(&first);
        let mut table = VniTable::clone(first.vni(SLOT).unwrap());
        table.index = VniIndex::new(OTHER).unwrap();
        table.tunnel.vni = Vni::try_from(20_020).unwrap();
        builder.vni(Arc::new(table));
        let policy = Counted(Entropy::new(leaf.settings).unwrap());
        let mut cached = Self {
            worker: Worker::new(),
            policies: Only { policy, state: Asked::default() },
            snapshot: builder.build(),
            asked: 0,
        };
        assert!(!cached.is_known());
        assert!(cached.is_known());
        cached
    }

    /// Sends a frame of the flow. Returns whether its choice was cached. It must be the same as
    /// without a cache.
    fn is_known(&mut self) -> bool {
        let frames = [queue_pair(1)];
        send(&mut self.worker, &mut self.policies, &self.snapshot, &frames);
        let (cached, mut fresh) = (self.worker.bytes(), Worker::new());
        let fresh = fresh.encapsulate(&frames, &self.snapshot);
        assert_eq!(without_identification(cached), without_identification(fresh));
        let known = self.policies.state.times == self.asked;
        self.asked = self.policies.state.times;
        known
    }

    fn table(&mut self, slot: u16, change: impl FnOnce(&mut VniTable)) {
        self.snapshot = with_table(&self.snapshot, slot, change);
    }
}

/// The frames without the outer IPv4 identification and the checksum over it.
fn without_identification(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    for frame in &mut frames {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    frames
}

#[test]
fn what_a_flow_does_not_depend_on_leaves_it_cached() {
    let mut cached = Cached::new();
    for round in 0..50u8 {
        let learned = MacAddr([2, 0, 0, 1, 0, round]);
        cached.table(OTHER, |table| {
            table.fdb.insert(learned, VtepIndex(1));
        });
        assert!(cached.is_known(), "a MAC address in another VNI");
        cached.table(SLOT, |table| {
            table.fdb.insert(learned, VtepIndex(1));
        });
        assert!(cached.is_known(), "another MAC address in the same VNI");
        cached.table(SLOT, |table| {
            table.hosts.insert(learned, 3);
        });
        assert!(cached.is_known(), "a local MAC address");
    }
    cached.table(SLOT, |table| table.flood = vec![VtepIndex(1)]);
    assert!(cached.is_known(), "the flood list");
    cached.table(OTHER, |table| table.tunnel.ttl = Ttl::Fixed(9));
    assert!(cached.is_known(), "settings of another VNI");
    cached.snapshot = with_hops(&cached.snapshot, 1, vec![hop(9)]);
    assert!(cached.is_known(), "the route to another VTEP");
    let mut builder = SnapshotBuilder::after(&cached.snapshot);
    builder.remove_vni(VniIndex::new(OTHER).unwrap());
    builder.remove_vtep(VtepIndex(1));
    builder.own([IpAddr::from([10, 9, 9, 9])].into_iter());
    cached.snapshot = builder.build();
    assert!(cached.is_known(), "another VNI and another VTEP are gone");
    assert_eq!(cached.asked, 1);
}

#[test]
fn a_flow_is_decided_about_again_when_what_it_depends_on_changes() {
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Cached));
    let changes: [Change<'_>; 7] = [
        ("the FDB entry", &|cached| {
            cached.table(SLOT, |table| {
                table.fdb.insert(MacAddr(HOST), VtepIndex(1));
            });
        }),
        ("a route of the VTEP", &|cached| {
            cached.snapshot = with_hops(&cached.snapshot, 0, vec![hop(9)]);
        }),
        ("the MAC address of a next hop", &|cached| {
            let other = MacAddr([2, 7, 7, 7, 7, 7]);
            let hops = [3, 4].map(|n| NextHop { destination_mac: Some(other), ..hop(n) });
            cached.snapshot = with_hops(&cached.snapshot, 0, hops.into());
        }),
        ("the outer header", &|cached| {
            cached.table(SLOT, |table| table.tunnel.ttl = Ttl::Fixed(9));
        }),
        ("the policy", &|cached| {
            let entropy = Entropy::new(Settings { seed: 77, ..Settings::default() }).unwrap();
            cached.policies.policy.0 = entropy;
            cached.table(SLOT, |table| table.entropy = entropy);
        }),
        ("the address of the VTEP", &|cached| {
            let mut builder = SnapshotBuilder::after(&cached.snapshot);
            let paths = Arc::clone(&cached.snapshot.vtep(VtepIndex(0)).unwrap().paths);
            let address = IpAddr::from([10, 0, 0, 99]);
            builder.vtep(VtepIndex(0), Vtep { address, paths });
            cached.snapshot = builder.build();
        }),
        ("the choices of the policy", &|cached| cached.policies.state.version = Version::unique()),
    ];
    for (what, change) in changes {
        let mut cached = Cached::new();
        change(&mut cached);
        assert!(!cached.is_known(), "{what}");
        assert!(cached.is_known(), "{what}: remembered again");
    }
    // An address that is gone is flooded, and each copy is decided about.
    let mut cached = Cached::new();
    cached.table(SLOT, |table| {
        table.fdb.remove(&MacAddr(HOST));
    });
    assert!(!cached.is_known());
    assert_eq!((cached.asked, cached.worker.out.len()), (3, 2));
    // Back where it was, the earlier decision holds.
    cached.table(SLOT, |table| {
        table.fdb.insert(MacAddr(HOST), VtepIndex(0));
    });
    assert!(cached.is_known());
}
