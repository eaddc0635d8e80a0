//! The programs of the `offload` datapath and the worker's pipeline with the same tables. Each frame
//! is given to both, and the results are compared. `tests/fuzz` uses this file, too.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, PerCpuArray, PerCpuValues};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader, Pod};
use bpf::{
    OffloadCounts, OffloadPathTraffic, OffloadTraffic, OffloadUsage, PinnedFlow, TakenTunnel,
    TunnelEnd,
};
use path::{CounterId, Pins, Policy};
use pipeline::counters::vtep_id;
use pipeline::{Batch, Counters, Destination, Frame, Offload, Pipeline, TxBatch, VlanTag};
use tables::{OpenPort, Snapshot, TakenVni, VniSource, VniTable, VtepIndex};
use wire::checksum::Sum;

use super::leaf::{HOST, HOST_MTU, HOST_PORT, NETDEV, SLOT, remote, snapshot};

/// Interface index of the worker's underlay punt pair.
const PUNT: u32 = 71;
/// Length of the outer headers in bytes.
pub(super) const OUTER: usize = 50;
/// The same over IPv6.
const OUTER_IPV6: usize = 70;
/// `TC_ACT_REDIRECT`, `TC_ACT_UNSPEC` and `TC_ACT_SHOT` (`include/uapi/linux/pkt_cls.h`), `TO_WORKER`
/// of the programs.
const REDIRECT: u32 = 7;
const PASS: u32 = u32::MAX;
const DROP: u32 = 2;
const TO_WORKER: u32 = -2i32 as u32;
/// Queue pairs that can be counted.
pub(super) const PINNED: u32 = 64;
/// `COUNT_OFFLOAD_ENCAPSULATED`, `…_DECAPSULATED`, `…_COPIES`, `…_BY_DEFAULT`, `…_PAST_BRIDGE`.
const TOTALS: [u32; 5] = [10, 11, 13, 14, 15];
/// `BPF_F_INGRESS`.
const INGRESS: u32 = 1;
/// Longest packet whose outer UDP checksum the programs compute, in bytes (`CHUNK` times `CHUNKS`).
/// Test runs use shorter ones.
pub(super) const LONGEST: usize = 3000;

/// What the programs do with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// They forward it as the pipeline would.
    Offloaded,
    /// The worker gets it unchanged.
    Worker,
    /// The kernel gets it unchanged.
    Kernel,
    /// The kernel does not run programs on this frame.
    Refused,
}

/// What the worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Worker {
    /// It has sent everything.
    Idle,
    /// It has read frames that it has not sent.
    Busy,
}

/// The result of a test run.
struct Ran {
    returned: u32,
    frame: Vec<u8>,
    /// Interface and flags of the redirection.
    to: (u32, u32),
    /// EtherType in `skb->protocol`.
    protocol: u16,
    /// `skb->hash`; 0 if there is none.
    hash: u32,
}

/// Programs and pipeline.
pub(super) struct Both {
    pub ebpf: Ebpf,
    maps: bpf::Offload,
    pub pipeline: Pipeline,
    pub snapshot: Snapshot,
    /// The keys of the queue pairs that are placed.
    pinned: HashSet<path::Key>,
    pub usage: Arc<OffloadUsage>,
    now: Instant,
}

/// A program, which is loaded when it is first asked for: to verify all takes seconds in an emulated
/// machine.
pub(super) fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    let program: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
    if program.fd().is_err() {
        program.load().unwrap();
    }
    program
}

impl Both {
    /// Has the programs.
    pub(super) fn new() -> Self {
        Self::with_splitter(0, false)
    }

    /// Has the programs, for a splitter with this interface index, which all super-frames pass if
    /// `splits_all`.
    pub(super) fn with_splitter(splitter: u32, splits_all: bool) -> Self {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/offload_test.bpf.o"));
        let mut loader = EbpfLoader::new();
        let (punts, never) = ([PUNT; 8], u64::from(u32::MAX) << 16);
        loader.override_global("underlay_punts", &punts, true);
        loader.override_global("stall_limit", &never, true);
        let splits_all = u32::from(splits_all);
        loader.override_global("splitter", &splitter, true);
        loader.override_global("splits_all", &splits_all, true);
        loader.map_max_entries("offload_usage", PINNED + 1);
        let mut ebpf = loader.load(object).unwrap();
        let maps = bpf::Offload::new(&ebpf, PINNED).unwrap();
        Array::try_from(ebpf.map_mut("slots").unwrap())
            .unwrap()
            .set(SLOT.into(), NETDEV, 0)
            .unwrap();
        open_host_port(&mut ebpf, HOST_PORT);
        let pipeline = pipeline();
        let (snapshot, now) = (Snapshot::default(), Instant::now());
        let usage = Arc::new(maps.pinned_usage(&ebpf).unwrap());
        Self { ebpf, maps, pipeline, snapshot, pinned: HashSet::new(), usage, now }
    }

    /// Places queue pairs, until the next snapshot: what the programs are told, what they forward, and
    /// what the pipeline has.
    pub(super) fn pin(&mut self, flows: &[PinnedFlow], offloaded: &[PinnedFlow], pins: Pins) {
        let of = |flow: &PinnedFlow| (flow.counter, Some(*flow));
        let all = (1..=PINNED).filter_map(CounterId::new);
        let gone = all.filter(|counter| !flows.iter().any(|flow| flow.counter == *counter));
        let changes: Vec<_> =
            gone.map(|counter| (counter, None)).chain(flows.iter().map(of)).collect();
        self.maps.pin(&mut self.ebpf, &changes).unwrap();
        self.pinned = offloaded.iter().map(|flow| flow.key).collect();
        self.pipeline.set_pins(pins);
    }

    /// Bytes and frames that the programs have sent of a queue pair, and when.
    pub(super) fn usage(&self, counter: CounterId) -> (u64, u64, Option<Duration>) {
        self.usage.read(counter)
    }

    /// Sets the settings of the VNI. Starts with a new pipeline, and with counters of 0.
    pub(super) fn set(&mut self, table: VniTable) {
        self.set_snapshot(snapshot(table));
    }

    /// What the programs have counted of a snapshot, once its tables are written.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) -> OffloadCounts {
        self.maps.follow(&mut self.ebpf, snapshot).unwrap();
        self.maps.counts(&self.ebpf, snapshot).unwrap()
    }

    pub(super) fn set_snapshot(&mut self, snapshot: Snapshot) {
        self.maps.follow(&mut self.ebpf, &snapshot).unwrap();
        self.worker_is_idle();
        let table = snapshot.vni(SLOT).unwrap();
        let vni = TakenVni {
            vni: table.tunnel.vni,
            source: VniSource::Netdev(NETDEV),
            name: "vx".to_owned(),
            index: table.index,
            local: table.tunnel.local,
            destination_port: table.tunnel.destination_port,
            frame_limit: 9000,
        };
        let mut ends: HashMap<_, TunnelEnd, TakenTunnel> =
            HashMap::try_from(self.ebpf.map_mut("taken_tunnels").unwrap()).unwrap();
        let known: Vec<TunnelEnd> = ends.keys().map(|key| key.unwrap()).collect();
        known.iter().for_each(|end| ends.remove(end).unwrap());
        ends.insert(TunnelEnd::of(&vni), TakenTunnel::of(&vni, None), 0).unwrap();
        self.pipeline = pipeline();
        self.pinned.clear();
        self.snapshot = snapshot;
        self.clear_counters();
    }

    /// The bridge has this address behind a VTEP.
    pub(super) fn locate_remote(&mut self, mac: [u8; 6], vtep: u32) {
        locate(&mut self.ebpf, 1, mac, vtep); // LOCATION_REMOTE
    }

    /// The worker has sent everything.
    pub(super) fn worker_is_idle(&mut self) {
        self.worker_is(Worker::Idle);
    }

    /// What the worker does (`WORDS` of the programs).
    pub(super) fn worker_is(&mut self, state: Worker) {
        let mut words: Array<_, u64> =
            self.ebpf.map_mut("waiting_since").unwrap().try_into().unwrap();
        for (index, word) in (0..).zip([0, 0, u64::from(state == Worker::Idle)]) {
            words.set(index, word, 0).unwrap();
        }
    }

    fn table(&self) -> &VniTable {
        self.snapshot.vni(SLOT).unwrap()
    }

    fn run(&mut self, name: &str, frame: &[u8], vtep: u32) -> Option<Ran> {
        self.run_segments(name, frame, vtep, 0)
    }

    /// Runs a program with a super-frame of segments of this size; 0: with one frame.
    fn run_segments(&mut self, name: &str, frame: &[u8], vtep: u32, size: u32) -> Option<Ran> {
        // `cb` and `gso_size` of `struct __sk_buff` (`include/uapi/linux/bpf.h`).
        const CB: usize = 48;
        const GSO_SIZE: usize = 176;
        let (mut context, mut context_out) = ([0; 192], [0; 192]);
        context[CB..CB + 4].copy_from_slice(&vtep.to_ne_bytes());
        context[GSO_SIZE..GSO_SIZE + 4].copy_from_slice(&size.to_ne_bytes());
        let mut out = vec![0; frame.len() + OUTER_IPV6];
        let program = program(&mut self.ebpf, name);
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            ctx_out: Some(&mut context_out),
            ..TestRunOptions::default()
        };
        let result = match program.test_run(options) {
            Ok(result) => result,
            Err(error) => {
                assert!(is_refused(frame), "{error:?} {frame:02x?}");
                return None;
            }
        };
        out.truncate(result.data_size_out as usize);
        let word =
            |at: usize| u32::from_ne_bytes(*context_out[CB + 4 * at..].first_chunk().unwrap());
        Some(Ran {
            returned: result.return_value,
            frame: out,
            to: (word(1), word(2)),
            protocol: word(3) as u16,
            hash: word(4),
        })
    }

    /// What the programs alone do with a frame for a VTEP of the leaf, or with a super-frame of
    /// segments of this size. Returns the resulting frame, too.
    pub(super) fn encapsulate_segments(
        &mut self,
        frame: &[u8],
        vtep: u32,
        size: u32,
    ) -> (Outcome, Vec<u8>) {
        let ran = self.run_segments("test_encapsulate", frame, vtep, size).unwrap();
        match ran.returned {
            REDIRECT => (Outcome::Offloaded, ran.frame),
            TO_WORKER => (Outcome::Worker, ran.frame),
            PASS => (Outcome::Kernel, ran.frame),
            other => panic!("returned {other}: {frame:02x?}"),
        }
    }

    /// Encapsulates a frame for a VTEP of the leaf. Returns the resulting frame, too.
    pub(super) fn encapsulate(&mut self, frame: &mut [u8], vtep: usize) -> (Outcome, Vec<u8>) {
        frame[..6].copy_from_slice(&remote(vtep));
        let frame: &[u8] = frame;
        let Some(ran) = self.run("test_encapsulate", frame, vtep as u32) else {
            return (Outcome::Refused, frame.to_vec());
        };
        let (mut batch, mut out) = (Batch::new(1), TxBatch::new());
        let vlan = Some(VlanTag { tpid: 0x88a8, tci: SLOT });
        assert!(batch.push(Frame { data: frame, vlan, offload: Offload::default() }));
        self.pipeline.encapsulate(&batch, &self.snapshot, self.now, &mut out);
        // Drops a frame that waits for the MAC address of its next hop.
        self.pipeline.stop();
        let sent: Vec<_> = out.iter().collect();
        let [sent] = sent[..] else {
            assert!(sent.is_empty() && ran.returned == TO_WORKER, "{frame:02x?}");
            assert_eq!(ran.frame, frame, "what the worker gets is unchanged");
            return (Outcome::Worker, ran.frame);
        };
        let Destination::Uplink { ifindex, impaired, .. } = sent.to else {
            panic!("{:?}", sent.to)
        };
        if !self.is_encapsulated(frame, impaired) {
            assert_eq!(ran.returned, TO_WORKER, "{frame:02x?}");
            assert_eq!(ran.frame, frame, "what the worker gets is unchanged");
            return (Outcome::Worker, ran.frame);
        }
        assert_eq!(ran.returned, REDIRECT, "{frame:02x?}");
        self.pipeline.account_frame(sent, Ok(()));
        let (protocol, has_checksum) =
            (if self.is_ipv6() { 0x86dd } else { 0x0800 }, self.table().tunnel.udp_checksum);
        let result = (ran.to, ran.protocol, ran.hash);
        assert_eq!(result, ((ifindex, 0), protocol, 0), "{frame:02x?}");
        if self.is_ipv6() {
            assert_same_packet_ipv6(&ran.frame, sent.to_vec(&batch), has_checksum);
        } else {
            assert_same_packet(&ran.frame, sent.to_vec(&batch), has_checksum);
        }
        (Outcome::Offloaded, ran.frame)
    }

    /// Runs a program that drops this frame because its headers cannot be changed.
    pub(super) fn fail(&mut self, name: &str, frame: &[u8]) {
        assert_eq!(self.run(name, frame, 0).unwrap().returned, DROP, "{frame:02x?}");
    }

    fn is_ipv6(&self) -> bool {
        self.table().tunnel.local.is_ipv6()
    }

    /// Whether the programs encapsulate such a frame: untagged and IP. An uplink that impairs packets
    /// gets RoCE alone.
    fn is_encapsulated(&self, frame: &[u8], is_impaired: bool) -> bool {
        let dissection = wire::dissect(frame).unwrap();
        let told = self.table().entropy.explain(&dissection);
        let is_roce = matches!(told.key, path::Key::QueuePair { .. });
        let policy = self.table().entropy.policy();
        let is_unplaced = policy == Policy::QpPin && is_roce && !self.pinned.contains(&told.key);
        dissection.l3_offset == 14
            && !is_unplaced
            && !matches!(told.key, path::Key::Macs { .. })
            && (is_roce || !is_impaired)
    }

    /// Decapsulates a packet. Returns the resulting frame, too.
    pub(super) fn decapsulate(&mut self, packet: &[u8]) -> (Outcome, Vec<u8>) {
        let Some(ran) = self.run("test_uplink", packet, 0) else {
            return (Outcome::Refused, packet.to_vec());
        };
        // Later than the pipeline keeps a host's frames together.
        self.now += Duration::from_millis(20);
        let (mut batch, mut out) = (Batch::new(1), TxBatch::new());
        assert!(batch.push(Frame { data: packet, vlan: None, offload: Offload::default() }));
        self.pipeline.decapsulate(&batch, &self.snapshot, self.now, &mut out);
        let sent: Vec<_> = out.iter().collect();
        if ran.returned == PASS || (ran.returned, ran.to) == (REDIRECT, (PUNT, 0)) {
            assert_eq!(ran.frame, packet, "what is not offloaded is unchanged");
            if ran.returned == PASS {
                return (Outcome::Kernel, ran.frame);
            }
            let learns = self.table().learning.is_some();
            let is_left = self.is_left_to_worker(packet) || self.is_left_before_6_3(packet);
            assert!(sent.is_empty() || learns || is_left, "{packet:02x?}");
            return (Outcome::Worker, ran.frame);
        }
        let [sent] = sent[..] else { panic!("{} frames: {packet:02x?}", sent.len()) };
        assert!(!self.is_left_to_worker(packet), "{packet:02x?}");
        let bytes = sent.to_vec(&batch);
        let (to, bytes) = match sent.to {
            Destination::Bridge => ((NETDEV, INGRESS), [&bytes[..12], &bytes[16..]].concat()),
            Destination::Host(port) => ((port, 0), bytes),
            to => panic!("{to:?}"),
        };
        assert_eq!((ran.returned, ran.to), (REDIRECT, to), "{packet:02x?}");
        assert_eq!(ran.frame, bytes, "{packet:02x?}");
        self.pipeline.account_frame(sent, Ok(()));
        (Outcome::Offloaded, ran.frame)
    }

    /// Whether the worker decapsulates a packet although it could be offloaded: of an unknown
    /// sender, padded, with a short inner frame (`bpf_skb_adjust_room()` leaves at least an IP header),
    /// or with an inner header that the outer code point
    /// changes but that is not one of IP.
    fn is_left_to_worker(&self, packet: &[u8]) -> bool {
        let half = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let (source, class, outer): (IpAddr, _, _) = if self.is_ipv6() {
            let source = Ipv6Addr::from(*packet[22..].first_chunk::<16>().unwrap());
            (source.into(), packet[14] << 4 | packet[15] >> 4, OUTER_IPV6)
        } else {
            let source = Ipv4Addr::from(*packet[26..].first_chunk().unwrap());
            (source.into(), packet[15], OUTER)
        };
        let inner = &packet[outer..];
        let changes = matches!(
            wire::ecn::decapsulate(class, inner_class(inner).unwrap_or_default()),
            wire::ecn::Egress::Set(_)
        );
        self.snapshot.find_vtep(source).is_none()
            || half(outer - 12) + outer - 16 != packet.len()
            || inner.len() < 34
            || (self.is_ipv6() && inner_class(inner).is_none() && inner.len() < 14 + 40)
            || (inner_class(inner).is_some() && changes && inner_length(inner).is_none())
    }

    /// Whether programs cannot decapsulate a packet before Linux 6.3, where `bpf_skb_adjust_room()` has
    /// no `BPF_F_ADJ_ROOM_DECAP_L3_IPV4` and leaves at least an IPv6 header.
    fn is_left_before_6_3(&self, packet: &[u8]) -> bool {
        self.is_ipv6() && packet.len() < OUTER_IPV6 + 14 + 40 && kernel() < (6, 3)
    }

    /// The counters of programs and pipeline are the same.
    pub(super) fn assert_counters(&self) {
        let traffic: OffloadTraffic = self.counted("offload_vni_traffic", SLOT.into(), add);
        let vni = self.pipeline.counters().vni(SLOT).unwrap();
        let (sent, received) = (&vni.encapsulated, &vni.decapsulated);
        assert_eq!((traffic.sent, traffic.sent_bytes), (sent.frames.get(), sent.bytes.get()));
        assert_eq!(
            (traffic.received, traffic.received_bytes),
            (received.frames.get(), received.bytes.get())
        );
        let all = self.pipeline.counters();
        let [encapsulated, decapsulated, copies, by_default, past_bridge] = TOTALS
            .map(|index| self.counted("counts", index, |all: &mut u64, one: &u64| *all += one));
        assert_eq!((by_default, past_bridge), (all.by_default.get(), all.past_bridge.get()));
        assert_eq!(encapsulated + decapsulated + copies, traffic.sent + traffic.received);
        for (tables::VtepIndex(index), vtep) in self.snapshot.indexed_vteps() {
            let address = vtep.address;
            let traffic: OffloadTraffic = self.counted("offload_vtep_traffic", index, add);
            let id = vtep_id(VtepIndex(index), &self.snapshot);
            let expected =
                self.pipeline.counters().peer(id).map_or_else(Default::default, |peer| {
                    OffloadTraffic {
                        sent: peer.sent.frames.get(),
                        sent_bytes: peer.sent.bytes.get(),
                        received: peer.received.frames.get(),
                        received_bytes: peer.received.bytes.get(),
                        by_default: peer.by_default.get(),
                    }
                });
            assert_eq!(traffic, expected, "{address}");
        }
        for path in 0..12 {
            let add = |all: &mut OffloadPathTraffic, one: &OffloadPathTraffic| {
                all.frames += one.frames;
                all.bytes += one.bytes;
            };
            let traffic: OffloadPathTraffic = self.counted("offload_path_traffic", path, add);
            let expected = self.pipeline.counters().path(path as u16).unwrap();
            let expected = (expected.frames.get(), expected.bytes.get());
            assert_eq!((traffic.frames, traffic.bytes), expected, "path {path}");
        }
    }

    fn counted<T: Pod + Default>(&self, map: &str, index: u32, add: impl Fn(&mut T, &T)) -> T {
        let map: PerCpuArray<_, T> = self.ebpf.map(map).unwrap().try_into().unwrap();
        let mut all = T::default();
        map.get(&index, 0).unwrap().iter().for_each(|one| add(&mut all, one));
        all
    }

    fn clear_counters(&mut self) {
        fn clear<T: Pod + Default>(ebpf: &mut Ebpf, map: &str, entries: u32) {
            let mut map: PerCpuArray<_, T> = ebpf.map_mut(map).unwrap().try_into().unwrap();
            let cpus = map.get(&0, 0).unwrap().len();
            for index in 0..entries {
                let zeros = PerCpuValues::try_from(vec![T::default(); cpus]).unwrap();
                map.set(index, zeros, 0).unwrap();
            }
        }
        clear::<OffloadTraffic>(&mut self.ebpf, "offload_vni_traffic", 16);
        clear::<OffloadTraffic>(&mut self.ebpf, "offload_vtep_traffic", 16);
        clear::<OffloadPathTraffic>(&mut self.ebpf, "offload_path_traffic", 16);
        clear::<u64>(&mut self.ebpf, "counts", 16);
    }
}

fn add(all: &mut OffloadTraffic, one: &OffloadTraffic) {
    all.sent += one.sent;
    all.sent_bytes += one.sent_bytes;
    all.received += one.received;
    all.received_bytes += one.received_bytes;
    all.by_default += one.by_default;
}

/// Version and patch level of the running kernel.
pub(crate) fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse());
    let mut next = || numbers.next().unwrap().unwrap();
    (next(), next())
}

fn pipeline() -> Pipeline {
    let mut pipeline = Pipeline::new(Arc::new(Counters::new()));
    pipeline.open_ports(&[OpenPort { ifindex: HOST_PORT, mtu: HOST_MTU }]);
    pipeline
}

/// Writes `struct mac_location` and `struct location_entry` of an address of the VNI.
fn locate(ebpf: &mut Ebpf, kind: u8, mac: [u8; 6], index: u32) {
    let mut location = [0; 12];
    location[..2].copy_from_slice(&SLOT.to_ne_bytes());
    location[4] = kind;
    location[6..].copy_from_slice(&mac);
    let mut entry = [0; 16];
    entry[8..12].copy_from_slice(&index.to_ne_bytes());
    let mut locations: HashMap<_, [u8; 12], [u8; 16]> =
        HashMap::try_from(ebpf.map_mut("mac_locations").unwrap()).unwrap();
    locations.insert(location, entry, 0).unwrap();
}

/// Writes the entries of the host and its port (`struct bypass_port`).
pub(super) fn open_host_port(ebpf: &mut Ebpf, ifindex: u32) {
    locate(ebpf, 2, HOST, ifindex); // LOCATION_HOST
    let mut port = [0; 24];
    port[12..14].copy_from_slice(&SLOT.to_ne_bytes());
    port[16..20].copy_from_slice(&(HOST_MTU + 14).to_ne_bytes());
    let mut ports: HashMap<_, u32, [u8; 24]> =
        HashMap::try_from(ebpf.map_mut("bypass_ports").unwrap()).unwrap();
    ports.insert(ifindex, port, 0).unwrap();
}

/// Whether a test run refuses a frame: a truncated IP header behind the Ethernet header
/// (`bpf_prog_test_run_skb()`, `net/bpf/test_run.c`).
pub(super) fn is_refused(frame: &[u8]) -> bool {
    let whole = match frame.get(12..14) {
        Some([0x08, 0x00]) => 14 + 20,
        Some([0x86, 0xdd]) => 14 + 40,
        _ => 15,
    };
    !(whole..=LONGEST).contains(&frame.len())
}

/// The type of service or traffic class of an inner IP header, by its EtherType.
fn inner_class(inner: &[u8]) -> Option<u8> {
    match inner.get(12..16)? {
        [0x08, 0x00, _, tos] => Some(*tos),
        [0x86, 0xdd, first, second] => Some(first << 4 | second >> 4),
        _ => None,
    }
}

/// Length of the frame that an inner IP header stands for.
fn inner_length(inner: &[u8]) -> Option<usize> {
    let half = |at: usize| usize::from(u16::from_be_bytes([inner[at], inner[at + 1]]));
    let length = match inner.get(12..15)? {
        [0x08, 0x00, first] if first >> 4 == 4 => half(16),
        [0x86, 0xdd, first] if first >> 4 == 6 => half(18) + 40,
        _ => return None,
    };
    (length != 0).then_some(length + 14)
}

/// As [`assert_same_packet`], over IPv6.
fn assert_same_packet_ipv6(frame: &[u8], mut expected: Vec<u8>, has_checksum: bool) {
    if has_checksum {
        let addresses: [u8; 32] = *frame[22..].first_chunk().unwrap();
        let length = (frame.len() - 54) as u16;
        let sum = Sum::new().bytes(&addresses).word(17).word(length);
        assert!(sum.bytes(&frame[54..]).is_intact(), "{frame:02x?}");
        assert_ne!(frame[60..62], [0, 0]);
        expected[60..62].copy_from_slice(&frame[60..62]);
    }
    assert_eq!(frame, expected);
}

/// Compares an encapsulated frame with that of the pipeline, which leaves the checksum to the
/// device. Identification and header checksum may differ.
fn assert_same_packet(frame: &[u8], mut expected: Vec<u8>, has_checksum: bool) {
    assert!(Sum::new().bytes(&frame[14..34]).is_intact(), "{frame:02x?}");
    expected[18..20].copy_from_slice(&frame[18..20]);
    expected[24..26].copy_from_slice(&frame[24..26]);
    if has_checksum {
        let (from, to) = (*frame[26..].first_chunk().unwrap(), *frame[30..].first_chunk().unwrap());
        let length = (frame.len() - 34) as u16;
        let sum = Sum::new().pseudo_ipv4(Ipv4Addr::from(from), Ipv4Addr::from(to), 17, length);
        assert!(sum.bytes(&frame[34..]).is_intact(), "{frame:02x?}");
        assert_ne!(frame[40..42], [0, 0]);
        expected[40..42].copy_from_slice(&frame[40..42]);
    }
    assert_eq!(frame, expected);
}
